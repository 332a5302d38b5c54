//! Starts the program on a free port with a temporary folder, for one test. Needs libchdb
//! (`scripts/install-libchdb.sh`). Dropping the server kills the process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longer than this counts as hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running embedded ClickHouse.
pub(crate) struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(data: &Path, flags: &[&str]) -> Server {
        Server::start_with(data, flags, Stdio::inherit())
    }

    /// Starts the program with its messages redirected from the test's stderr.
    pub(crate) fn start_with(data: &Path, flags: &[&str], stderr: Stdio) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_embedded-clickhouse"))
            .args(["--listen", "127.0.0.1:0", "--path"])
            .arg(data)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("stdout is text");
        let address = line
            .strip_prefix("listening on http://")
            .and_then(|rest| rest.strip_suffix('\n'));
        let Some(address) = address else {
            panic!("it did not start (is libchdb installed? scripts/install-libchdb.sh): {line:?}")
        };
        Server {
            child,
            address: address.to_owned(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> clickhouse::Client {
        clickhouse::Client::default().with_url(self.url())
    }

    /// Sends SIGKILL, without a clean shutdown.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// The exit status after SIGTERM.
    pub(crate) fn terminated(mut self) -> std::process::ExitStatus {
        self.child.wait().expect("it ends")
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([format!("-{name}"), id])
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    /// Sends a POST with exactly these parameters and this body.
    pub(crate) fn post(&self, parameters: &str, body: &[u8]) -> Answer {
        self.request("POST", parameters, "", body)
    }

    /// Sends a raw request; each line of `headers` ends with a line break.
    pub(crate) fn request(&self, method: &str, parameters: &str, headers: &str, body: &[u8]) -> Answer {
        // HTTP/1.0 has no chunked answers.
        let head = format!(
            "{method} /?{parameters} HTTP/1.0\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    /// Sends bytes and reads the whole answer.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        Answer::parse(&self.try_raw(bytes).expect("it answers"))
    }

    /// The same if there may be no answer.
    pub(crate) fn try_raw(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A raw response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(answer: &[u8]) -> Answer {
        let end = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .expect("a response has a head");
        let head = String::from_utf8(answer[..end].to_vec()).expect("a head is text");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .expect("a status");
        Answer {
            status,
            head,
            body: answer[end + 4..].to_vec(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body of a successful response.
    pub(crate) fn ok(&self) -> String {
        assert_eq!(self.status, 200, "{self:?} {}", self.text());
        self.text()
    }

    /// The exception code of a failed response.
    pub(crate) fn code(&self) -> u32 {
        assert_ne!(self.status, 200, "{}", self.text());
        let code = self
            .header("x-clickhouse-exception-code")
            .and_then(|code| code.parse().ok());
        code.expect("a failure has a code")
    }
}
