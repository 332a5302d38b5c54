//! The call into libchdb, and the only `unsafe` of this program: loading a library at run time requires it, and only a
//! signal handler can report that the library aborts the process.
//!
//! `chdb_query_cmdline` is `clickhouse local`. Its statements open ClickHouse's servers, which close after the last
//! statement. That statement reads a pipe, so closing the pipe ends the engine.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::PipeWriter;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use tokio::sync::oneshot;

type SetSignalHandlers = unsafe extern "C" fn(c_int);
type QueryCommandLine = unsafe extern "C" fn(c_int, *mut *mut c_char) -> *mut c_void;

/// ClickHouse in this process.
pub(crate) struct Engine {
    ended: Option<oneshot::Receiver<()>>,
    /// Closing this pipe stops ClickHouse.
    running: Option<PipeWriter>,
}

impl Engine {
    /// Starts ClickHouse in a new thread. It reports errors on stderr.
    ///
    /// # Errors
    /// The library cannot be loaded.
    pub(crate) fn start(
        libchdb: &Path,
        data: &Path,
        config: &Path,
        log: Option<&Path>,
        tcp: bool,
    ) -> Result<Engine> {
        let mut listen = String::new();
        if tcp {
            listen += "SYSTEM START LISTEN TCP; ";
        }
        // HTTP comes last: once it is open, everything is open.
        listen += "SYSTEM START LISTEN HTTP; ";
        let (pipe, running) = std::io::pipe()?;
        let wait = format!(
            "SELECT * FROM file('/proc/self/fd/{}', LineAsString) SETTINGS max_execution_time = 0 FORMAT Null",
            pipe.as_raw_fd()
        );
        let mut arguments = vec![
            "clickhouse".to_owned(),
            format!("--path={}", data.display()),
            format!("--config-file={}", config.display()),
            "--multiquery".to_owned(),
            "--query".to_owned(),
            listen + &wait,
        ];
        if let Some(log) = log {
            arguments.insert(1, format!("--logger.log={}", log.display()));
        }
        let arguments = arguments
            .into_iter()
            .map(CString::new)
            .collect::<Result<Vec<_>, _>>()?;
        let run = load(libchdb)?;
        report_crashes(log.is_some());
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("clickhouse".into())
            .spawn(move || {
                let mut pointers: Vec<*mut c_char> =
                    arguments.iter().map(|one| one.as_ptr().cast_mut()).collect();
                let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
                // SAFETY: argc and argv follow main()'s convention; the strings outlive the call. The result is never
                // read, so the end of the process may free it.
                unsafe { run(count, pointers.as_mut_ptr()) };
                drop(pipe);
                let _ = end.send(());
            })?;
        Ok(Engine {
            ended: Some(ended),
            running: Some(running),
        })
    }

    /// Waits until ClickHouse has ended, closing its servers and tables.
    pub(crate) async fn ended(&mut self) {
        if let Some(ended) = &mut self.ended {
            let _ = ended.await;
            self.ended = None;
        }
    }

    /// Stops ClickHouse. This cancels running queries.
    pub(crate) fn stop(&mut self) {
        self.running = None;
    }
}

/// Loads the library for the life of the process, and leaves signal handling to this program.
fn load(libchdb: &Path) -> Result<QueryCommandLine> {
    // SAFETY: loading runs the library's initialisers; the user named the file, or the install script verified it. The
    // declarations match `chdb.h` 26.7, and a missing symbol is an error. The library is never unloaded, because its
    // threads run until the process ends.
    unsafe {
        let library = libloading::Library::new(libchdb)
            .with_context(|| format!("cannot load {}", libchdb.display()))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let missing = "this libchdb is not the version that Millpond needs";
        let handlers: SetSignalHandlers = *library
            .get(b"chdb_set_signal_handlers_enabled")
            .context(missing)?;
        handlers(0);
        Ok(*library.get(b"chdb_query_cmdline").context(missing)?)
    }
}

/// Crash signals, and the messages written to stderr before the process dies from them.
const CRASHES: [(c_int, &[u8]); 5] = [
    (
        libc::SIGABRT,
        b"embedded-clickhouse: ClickHouse aborted (SIGABRT); --log FILE keeps its reason\n",
    ),
    (
        libc::SIGSEGV,
        b"embedded-clickhouse: ClickHouse crashed (SIGSEGV); --log FILE keeps its last messages\n",
    ),
    (
        libc::SIGBUS,
        b"embedded-clickhouse: ClickHouse crashed (SIGBUS); --log FILE keeps its last messages\n",
    ),
    (
        libc::SIGILL,
        b"embedded-clickhouse: ClickHouse crashed (SIGILL); --log FILE keeps its last messages\n",
    ),
    (
        libc::SIGFPE,
        b"embedded-clickhouse: ClickHouse crashed (SIGFPE); --log FILE keeps its last messages\n",
    ),
];

/// Time for ClickHouse's logging thread to finish after a crash, in seconds.
const LOG_S: libc::c_uint = 1;

/// True if a log is configured.
static LOGS: AtomicBool = AtomicBool::new(false);

/// Reports a crash of ClickHouse on stderr. The process still dies from the signal.
fn report_crashes(logs: bool) {
    LOGS.store(logs, Ordering::Relaxed);
    for (signal, _) in CRASHES {
        // SAFETY: the handler only makes async-signal-safe calls. SA_RESETHAND restores the default action before it
        // runs, so the signal is fatal when it returns.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = crashes as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn crashes(signal: c_int) {
    for (other, message) in CRASHES {
        if other == signal {
            // SAFETY: write(2), sleep(3) and raise(3) are async-signal-safe, and the message outlives the call. Raising
            // the signal again matters if another process sent it.
            unsafe {
                libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
                if LOGS.load(Ordering::Relaxed) {
                    libc::sleep(LOG_S);
                }
                libc::raise(signal);
            }
        }
    }
}
