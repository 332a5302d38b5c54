//! A minimal HTTP client for this program to query its own server.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::USER;

/// Maximum answer length in bytes.
const ANSWER_MAX: u64 = 1 << 16;

/// Queries the server as [`USER`].
pub(crate) struct Client {
    address: SocketAddr,
    password: String,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, password: &str) -> Client {
        let local = match server.ip() {
            ip if !ip.is_unspecified() => ip,
            ip if ip.is_ipv4() => std::net::Ipv4Addr::LOCALHOST.into(),
            _ => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        Client {
            address: SocketAddr::new(local, server.port()),
            password: password.to_owned(),
        }
    }

    /// Runs a statement and returns its result. A ClickHouse exception is an error.
    pub(crate) async fn query(&self, sql: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        let request = format!(
            "POST / HTTP/1.0\r\nHost: localhost\r\nX-ClickHouse-User: {USER}\r\nX-ClickHouse-Key: {}\r\nContent-Length: {}\
             \r\n\r\n{sql}",
            self.password,
            sql.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
        if head.split(' ').nth(1) != Some("200") {
            bail!("{}", body.trim_end());
        }
        Ok(body.to_owned())
    }
}
