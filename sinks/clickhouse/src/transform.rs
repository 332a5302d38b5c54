//! Programs that reshape events before their table: one per stream, in Vector's language VRL. A program sees one event and
//! the time of its reception. It never sees the clock, chance, files or the network, so each attempt gives the same row.

#[cfg(feature = "transform")]
mod arguments;
#[cfg(feature = "transform")]
mod functions;
#[cfg(feature = "transform")]
mod json;
#[cfg(feature = "transform")]
mod products;
#[cfg(feature = "transform")]
mod program;
#[cfg(all(test, feature = "transform"))]
mod tests;
#[cfg(feature = "transform")]
mod walk;

use crate::events::rows;
#[cfg(not(feature = "transform"))]
use absent::{Program, Runner};
use millpond_consumer::ProgramHash;
#[cfg(feature = "transform")]
use program::{Program, Runner};
use sha2::{Digest as _, Sha256};
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// Bytes of a row that a program makes: as many as a message may have.
#[cfg(feature = "transform")]
const ROW_BYTES_MAX: usize = 64 << 20;

/// The compiled program of a stream of events.
#[derive(Clone)]
pub struct Transform {
    /// Where the program is from, for messages.
    name: Arc<str>,
    source: Arc<str>,
    program: Arc<Program>,
    event_bytes_max: usize,
}

impl PartialEq for Transform {
    fn eq(&self, other: &Self) -> bool {
        let one = (&self.name, &self.source, self.event_bytes_max);
        one == (&other.name, &other.source, other.event_bytes_max)
    }
}

impl Eq for Transform {}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        f.debug_struct("Transform")
            .field("name", name)
            .finish_non_exhaustive()
    }
}

impl Transform {
    /// Compiles a program, and returns it with the compiler's warnings. `name`: where it is from, for messages.
    ///
    /// # Errors
    /// The compiler's messages, with the program's lines. The program does not compile, it calls a function that gives another
    /// result in another attempt, or this build has no transforms.
    pub fn new(name: &str, source: &str) -> Result<(Transform, Option<String>), String> {
        let (program, warnings) = Program::compile(name, source)?;
        let transform = Transform {
            name: name.into(),
            source: source.into(),
            event_bytes_max: program.event_bytes_max(),
            program: Arc::new(program),
        };
        Ok((transform, warnings))
    }

    /// Sets the bytes of the largest event to run the program over. A parsed event takes up to 300 times its bytes in memory, and some
    /// functions take the square of it. Default: 32 KiB with one of these, 256 KiB otherwise.
    #[must_use]
    pub fn with_event_bytes_max(mut self, bytes: usize) -> Transform {
        self.event_bytes_max = bytes;
        self
    }

    /// Identifies the program by its text and its limit, wherever it is from.
    pub fn hash(&self) -> ProgramHash {
        let limit = u64::try_from(self.event_bytes_max).unwrap_or(u64::MAX);
        let hash = Sha256::new()
            .chain_update(limit.to_le_bytes())
            .chain_update(self.source.as_bytes());
        ProgramHash(hash.finalize().into())
    }

    /// Starts to run the program over events.
    pub(crate) fn runs(&self) -> Runs<'_> {
        Runs {
            transform: self,
            runner: Runner::default(),
            row: String::new(),
        }
    }
}

/// The result of a program for one event.
#[derive(Debug, PartialEq, Eq)]
pub enum Made<'r> {
    /// The row, as JSON.
    Row(&'r str),
    /// The program has dropped the event with `abort`.
    Dropped,
    /// The reason why there is no row.
    Failed(String),
}

/// A program with the buffers that it needs to run.
pub(crate) struct Runs<'t> {
    transform: &'t Transform,
    runner: Runner,
    row: String,
}

impl Runs<'_> {
    /// Runs the program over an event, which is valid JSON.
    pub(crate) fn run(&mut self, event: &str, received_at_us: i64) -> Made<'_> {
        let Runs {
            transform:
                Transform {
                    name,
                    source,
                    program,
                    event_bytes_max,
                },
            runner,
            row,
        } = self;
        row.clear();
        if event.len() > *event_bytes_max {
            return Made::Failed(format!(
                "{name}: the event has {} bytes, and the program runs over at most {event_bytes_max} (max_event_bytes)",
                event.len()
            ));
        }
        let running = Running::start();
        let run = || program.run(runner, source, event, received_at_us, row);
        let ended = catch_unwind(AssertUnwindSafe(run));
        drop(running);
        let reason = match ended {
            Ok(Ok(true)) => return Made::Row(row),
            Ok(Ok(false)) => return Made::Dropped,
            Ok(Err(reason)) => reason,
            Err(panic) => {
                *runner = Runner::default();
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                format!("a function panicked: {}", text.unwrap_or("no message"))
            }
        };
        Made::Failed(shortened(format!("{name}: {reason}")))
    }
}

/// The bytes of a reason: VRL quotes the whole value that it cannot use.
const REASON_MAX: usize = 2_000;

fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        reason.push('…');
    }
    reason
}

/// Runs a program over the events of a message, and passes on their numbers, from 1 on, and results until `take` returns false.
pub fn each(
    transform: &Transform,
    message: &[u8],
    received_at_us: i64,
    mut take: impl FnMut(u64, Made<'_>) -> bool,
) {
    let mut runs = transform.runs();
    let mut number = 0;
    rows(message, |row| {
        number += 1;
        match row {
            Ok(event) => take(number, runs.run(event, received_at_us)),
            Err((_, error)) => take(number, Made::Failed(format!("malformed JSON: {error}"))),
        }
    });
}

/// Runs a program that touches nothing of an event, and one that touches all of it, and asserts that their rows are JSON. Returns
/// the number of programs. For fuzzing.
pub(crate) fn check(event: &str) -> usize {
    static PROGRAMS: LazyLock<Vec<Transform>> = LazyLock::new(|| {
        let sources = [
            ".new = %received_at",
            ".new = encode_json(.)",
            ". = map_values(.) -> |value| { value }",
        ];
        let programs = sources.map(|source| Transform::new("fuzzing", source));
        let programs = programs.into_iter().flatten();
        programs.map(|(transform, _)| transform).collect()
    });
    for program in PROGRAMS.iter() {
        match program.runs().run(event, 0) {
            Made::Row(row) => {
                let read = serde_json::from_str::<serde::de::IgnoredAny>(row);
                assert!(read.is_ok(), "{event} became {row}: {read:?}");
            }
            Made::Dropped => panic!("{event} is dropped"),
            Made::Failed(reason) => assert!(!reason.contains("panicked"), "{event}: {reason}"),
        }
    }
    PROGRAMS.len()
}

thread_local! {
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while this thread runs a program: a panic then becomes a dead letter. The program's panic hook asks.
pub fn is_running() -> bool {
    IS_RUNNING.get()
}

struct Running;

impl Running {
    fn start() -> Running {
        IS_RUNNING.set(true);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        IS_RUNNING.set(false);
    }
}

/// A build without VRL.
#[cfg(not(feature = "transform"))]
mod absent {
    pub(super) enum Program {}

    #[derive(Default)]
    pub(super) struct Runner {}

    impl Program {
        pub(super) fn compile(_: &str, _: &str) -> Result<(Program, Option<String>), String> {
            Err("this build has no transforms: build it with the feature `transform`".to_owned())
        }

        pub(super) fn run(
            &self,
            _: &mut Runner,
            _: &str,
            _: &str,
            _: i64,
            _: &mut String,
        ) -> Result<bool, String> {
            match *self {}
        }

        pub(super) fn event_bytes_max(&self) -> usize {
            match *self {}
        }
    }
}
