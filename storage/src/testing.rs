//! A real S3 server for tests: MinIO on a free port of this machine, with its data in a temporary folder.
//!
//! Behind the feature `testing`; no product code uses it. It stops only the process that it started.
#![expect(
    clippy::disallowed_methods,
    reason = "a server that tests start needs real time"
)]

use crate::{BufferUrl, S3Credentials, StoreOptions};
use millpond_runtime::{Environment as _, SystemEnvironment};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ACCESS_KEY_ID: &str = "millpond-test";
const SECRET_ACCESS_KEY: &str = "millpond-test-secret";
const REGION: &str = "us-east-1";

/// Time limit for a server's first answer, even on a busy CI machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A running MinIO. Dropping it stops the server and removes its data.
#[derive(Debug)]
pub struct Minio {
    program: PathBuf,
    data: PathBuf,
    address: SocketAddr,
    process: Option<Child>,
}

impl Minio {
    /// Starts a server without buckets and waits until it answers. Blocks.
    ///
    /// # Errors
    /// `MILLPOND_MINIO` does not name the program, or it does not start.
    pub fn start() -> io::Result<Self> {
        let program = program()?;
        let mut last = None;
        // Another process may take the free port before MinIO does.
        for _ in 0..3 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
            let unique = format!("millpond-minio-{}", SystemEnvironment.uuid());
            let mut minio = Self {
                program: program.clone(),
                data: std::env::temp_dir().join(unique),
                address: port,
                process: None,
            };
            std::fs::create_dir_all(&minio.data)?;
            match minio.restart() {
                Ok(()) => return Ok(minio),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("minio was not started")))
    }

    /// Kills the server, as a crash would. Its data stays.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Both fail only if the process has already exited.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the server again on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        let mut command = Command::new(&self.program);
        command
            .arg("server")
            .arg("--quiet")
            .args(["--address", &self.address.to_string()])
            .arg(&self.data)
            .env("MINIO_ROOT_USER", ACCESS_KEY_ID)
            .env("MINIO_ROOT_PASSWORD", SECRET_ACCESS_KEY)
            .env("MINIO_REGION", REGION)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .env("MINIO_CALLHOME_ENABLE", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let spawned = command.spawn().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("MILLPOND_MINIO={}: {error}", self.program.display()),
            )
        })?;
        let process = self.process.insert(spawned);
        let started = Instant::now();
        while !is_live(self.address) {
            if let Some(status) = process.try_wait()? {
                return Err(io::Error::other(format!("minio exited at once: {status}")));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(io::Error::other("minio does not answer"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The server's address, `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment in which a Millpond program (or the AWS CLI) uses this server.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY.to_owned()),
            ("AWS_REGION", REGION.to_owned()),
        ]
    }

    /// Options to open a buffer on this server; a missing bucket is created.
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            endpoint: Some(self.endpoint()),
            region: Some(REGION.to_owned()),
            credentials: Some(S3Credentials {
                access_key_id: ACCESS_KEY_ID.to_owned(),
                secret_access_key: SECRET_ACCESS_KEY.to_owned(),
                session_token: None,
            }),
            create: true,
            ..StoreOptions::default()
        }
    }

    /// A unique buffer URL.
    pub fn url(&self) -> BufferUrl {
        let url = format!("s3://millpond-test/{}", SystemEnvironment.uuid());
        BufferUrl::parse(&url).unwrap_or_else(|error| unreachable!("{error}"))
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.stop();
        // Leftovers in the temporary folder do not fail a test.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn is_live(address: SocketAddr) -> bool {
    let ask = || -> io::Result<bool> {
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(
            connection,
            "GET /minio/health/cluster HTTP/1.0\r\nHost: {address}\r\n\r\n"
        )?;
        let mut status = [0; 12];
        connection.read_exact(&mut status)?;
        Ok(status.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

/// The MinIO program. Without it tests fail: a skipped test would count as passed.
fn program() -> io::Result<PathBuf> {
    let program = std::env::var_os("MILLPOND_MINIO").filter(|path| !path.is_empty());
    program.map(PathBuf::from).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "MILLPOND_MINIO is not set to the MinIO to test with: run make test, or eval \"$(scripts/tools.sh minio)\"",
        )
    })
}
