//! The engine's worker threads. Each holds one idle connection (so that the engine never stops between requests)
//! and opens a fresh session per request, 0.3 ms, so that settings, temporary tables and the current
//! database end with the request. The queue before them is bounded by what the server admits.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::exception::{Code, Exception};
use crate::execute;
use crate::ffi::{Api, Connection};
use crate::hello::Server;
use crate::output::Outcome;
use crate::request::Request;

/// One request on its way to a worker.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// The memory that the request's body takes, given back with the job.
    pub(crate) body_memory: OwnedSemaphorePermit,
    /// Marks an exception in the middle of a result; the response's header announces it.
    pub(crate) exception_tag: String,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Limits on what one request may hold in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of a body, compressed and decompressed, and of a result that is to be sent whole.
    pub(crate) body_bytes_max: usize,
}

/// The running engine.
pub(crate) struct Engine {
    api: &'static Api,
    path: String,
    jobs: mpsc::Sender<Job>,
    threads: Vec<JoinHandle<()>>,
    server: Server,
}

/// The stack of a worker. The engine parses and plans by recursion and checks for this much.
const STACK_BYTES: usize = 16 << 20;

impl Engine {
    /// Starts the engine over the data in `path` (which exists) and `workers` threads.
    pub(crate) fn start(
        api: &'static Api,
        path: &Path,
        workers: usize,
        queue: usize,
        limits: Limits,
    ) -> Result<Engine> {
        let path = path
            .to_str()
            .context("the path of the data is not UTF-8")?
            .to_owned();
        let (jobs, receiver) = mpsc::channel(queue.max(1));
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::new();
        let mut server = None;
        for number in 0..workers {
            let (opened, wait) = std::sync::mpsc::sync_channel(1);
            let (path, receiver) = (path.clone(), Arc::clone(&receiver));
            let work = move || worker(api, &path, &receiver, limits, &opened);
            let builder = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .stack_size(STACK_BYTES);
            threads.push(builder.spawn(work).context("cannot start a worker thread")?);
            // One after the other: the first connection starts the engine.
            server = Some(wait.recv().context("a worker thread died at its start")??);
        }
        let server = server.context("at least one worker is needed")?;
        Ok(Engine {
            api,
            path,
            jobs,
            threads,
            server,
        })
    }

    /// Who answers.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Where requests go.
    pub(crate) fn jobs(&self) -> mpsc::Sender<Job> {
        self.jobs.clone()
    }

    /// Lets the running requests finish, or cancels them, then closes every connection, which flushes and stops
    /// the engine. All other senders of jobs must be gone.
    pub(crate) fn stop(self, cancel: bool) -> Result<()> {
        drop(self.jobs);
        if cancel {
            let mut connection = Connection::open(self.api, &self.path)?;
            // Again and again: a worker may be about to begin.
            while !self.threads.iter().all(JoinHandle::is_finished) {
                connection
                    .query(
                        b"KILL QUERY WHERE query NOT LIKE 'KILL QUERY%' ASYNC",
                        "Null",
                        &[],
                    )
                    .map_err(|error| anyhow!("cannot cancel the queries that run: {error:?}"))?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        for thread in self.threads {
            thread.join().expect("a panic has ended the process");
        }
        Ok(())
    }
}

type Opened = std::sync::mpsc::SyncSender<Result<Server>>;

fn worker(api: &'static Api, path: &str, jobs: &Mutex<mpsc::Receiver<Job>>, limits: Limits, opened: &Opened) {
    let mut idle = match Connection::open(api, path) {
        Ok(connection) => connection,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let server = match server(&mut idle) {
        Ok(server) => server,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(server.clone()));
    loop {
        let job = jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        let Some(job) = job else { return };
        if job.reply.is_closed() {
            continue; // The client is gone and nothing of its request was begun.
        }
        match Connection::open(api, path) {
            Ok(mut session) => execute::run(&mut session, job, &server, limits),
            Err(error) => {
                let _ = job.reply.send(Err(Exception::new(
                    Code::Unknown,
                    format!("no session: {error:#}"),
                )));
            }
        }
    }
}

/// Asks the engine who it is.
fn server(connection: &mut Connection) -> Result<Server> {
    let sql = b"SELECT displayName(), version(), timezone()";
    let (row, _) = connection
        .query(sql, "TabSeparated", &[])
        .map_err(|error| anyhow!("the engine does not answer: {error:?}"))?;
    let row = String::from_utf8_lossy(&row);
    let mut fields = row.trim_end().split('\t').map(str::to_owned);
    let mut field = || fields.next().unwrap_or_default();
    Ok(Server {
        name: field(),
        version: field(),
        timezone: field(),
    })
}
