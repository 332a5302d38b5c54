//! Child processes, each with a log file, monitored through `/proc`. They end with this program, however it ends
//! (except by SIGKILL).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Time limit for a child to become ready, or to end after a request.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Clock ticks per second in `/proc`: Linux guarantees 100 to user space on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Live children, for the one kind of exit that drops nothing.
static ALIVE: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A panic aborts a released program without dropping anything: this hook then kills the children.
pub fn kill_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        for &pid in ALIVE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }));
}

/// A child process. Dropping it kills the process.
pub struct Process {
    name: &'static str,
    child: Child,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in `<directory>/<name>.log`. Creates the directory.
    pub fn start(name: &'static str, mut command: Command, directory: &Path) -> anyhow::Result<Process> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let program = command.as_std().get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C in a terminal is for this program only.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {} ({name})", program.display()))?;
        let pid = child.id().context("the child has ended already")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        alive(|alive| alive.push(pid));
        Ok(Process {
            name,
            child,
            pid,
            log,
        })
    }

    /// Waits until `url` answers 200, or fails once that is impossible.
    pub async fn ready(&mut self, url: &str) -> anyhow::Result<()> {
        let answers = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    bail!(self.ended(status));
                }
                let answer = reqwest::Client::new()
                    .get(url)
                    .timeout(Duration::from_secs(2))
                    .send();
                if answer.await.is_ok_and(|answer| answer.status().is_success()) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match timeout(PATIENCE, answers).await {
            Ok(result) => result,
            Err(_) => bail!(
                "{} is not ready after {PATIENCE:?}; its log ends:\n{}",
                self.name,
                self.last_messages()
            ),
        }
    }

    /// User and system time so far, in seconds, to 10 ms.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/stat", self.pid);
        let stat = fs::read_to_string(&path).with_context(|| format!("{} is gone ({path})", self.name))?;
        // The second field, the name in brackets, may contain spaces; utime and stime are the 14th and 15th.
        let ticks = stat.rsplit_once(") ").and_then(|(_, rest)| {
            let mut fields = rest.split(' ').skip(11).map(str::parse::<f64>);
            Some(fields.next()?.ok()? + fields.next()?.ok()?)
        });
        let ticks = ticks.with_context(|| format!("{path} does not match proc(5): {stat:?}"))?;
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Peak resident memory in bytes.
    pub fn peak_memory(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid);
        let status = fs::read_to_string(&path).with_context(|| format!("{} is gone ({path})", self.name))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map(|kib| kib << 10)
            .with_context(|| format!("no VmHWM in {path}"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // After the child has ended, another process may have its id.
        self.child
            .id()
            .with_context(|| format!("{} has ended", self.name))?;
        kill(self.pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Waits up to `patience` for the child to end, and returns its output.
    pub async fn output(mut self, patience: Duration) -> anyhow::Result<String> {
        match timeout(patience, self.child.wait()).await {
            Ok(status) => {
                let status = status?;
                alive(|alive| alive.retain(|pid| *pid != self.pid));
                if !status.success() {
                    bail!(self.ended(status));
                }
                Ok(fs::read_to_string(&self.log)?)
            }
            Err(_) => bail!(
                "{} is still running after {patience:?}; its log ends:\n{}",
                self.name,
                self.last_messages()
            ),
        }
    }

    /// Waits for the child to end, which is always a failure.
    pub async fn watch(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => self.ended(status),
            Err(error) => error.into(),
        }
    }

    /// Sends SIGTERM, and fails unless the child ends cleanly.
    pub async fn stop(self) -> anyhow::Result<()> {
        if self.child.id().is_some() {
            self.signal(Signal::SIGTERM)?;
        }
        self.output(PATIENCE).await.map(drop)
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        anyhow::anyhow!(
            "{} ended ({status}); its log ends:\n{}",
            self.name,
            self.last_messages()
        )
    }

    fn last_messages(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child's own drop kills it.
        alive(|alive| alive.retain(|pid| *pid != self.pid));
    }
}

fn alive(change: impl FnOnce(&mut Vec<Pid>)) {
    change(&mut ALIVE.lock().unwrap_or_else(PoisonError::into_inner));
}

/// User and system time of all ended children, in seconds.
pub fn ended_cpu_seconds() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(us as f64 / 1e6)
}
