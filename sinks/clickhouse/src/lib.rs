//! The ClickHouse sink: writes OTLP logs, traces and metrics into the tables of the Collector's clickhouseexporter,
//! with additional columns for Millpond. See `design/clickhouse-sink.md`.
//!
//! A batch becomes chunks. Each chunk is one Native block, sent as one INSERT with one deduplication token. The sink
//! never retries: the consumer does, with the same bytes.

mod addresses;
mod answer;
mod chunks;
mod client;
mod config;
mod events;
mod failure;
mod frame;
mod identities;
mod native;
mod node;
mod places;
mod presence;
mod recovery;
mod rights;
mod rows;
mod same;
mod schema;
mod server;
mod settings;
mod sink;
mod sorting;
pub mod tables;
mod text;
pub mod transform;
mod unfit;
mod workspaces;

pub use config::{Columns, Compression, Config, Engine, Indexes, PartitionBy, SkipIndexes};
pub use events::{EventTable, Origin, Proposal, Unit, propose};
pub use identities::{NumberedRecord, RowCount};
pub use millpond_otlp::Signal;
pub use sink::{ClickHouse, SCHEMA_VERSION, keeps_identities};
use sorting::Sorting;
use std::sync::Arc;

/// [`ClickHouse`]'s work on a batch without a server, for measurements (`make bench-micro`) and fuzzing only.
#[doc(hidden)]
pub fn encode(
    batch: &millpond_consumer::Batch,
    policy: &millpond_consumer::BatchingPolicy,
    columns: Columns,
    emit: &mut dyn FnMut(millpond_consumer::Chunk) -> bool,
) -> Result<(), millpond_consumer::SinkError> {
    Encoder::new()?.encode(batch, policy, columns, emit)
}

/// [`encode`] with buffers that later batches reuse.
#[doc(hidden)]
pub struct Encoder(chunks::Workspace);

impl Encoder {
    #[doc(hidden)]
    pub fn new() -> Result<Self, millpond_consumer::SinkError> {
        let workspace = chunks::Workspace::new()
            .map_err(|error| millpond_consumer::SinkError::Transient(error.to_string()))?;
        Ok(Self(workspace.sorting(Arc::new(Sorting::of_new_tables()))))
    }

    #[doc(hidden)]
    pub fn encode(
        &mut self,
        batch: &millpond_consumer::Batch,
        policy: &millpond_consumer::BatchingPolicy,
        columns: Columns,
        emit: &mut dyn FnMut(millpond_consumer::Chunk) -> bool,
    ) -> Result<(), millpond_consumer::SinkError> {
        let mut emit = |cut| match cut {
            millpond_consumer::Cut::Chunk(chunk) => emit(chunk),
            millpond_consumer::Cut::Unreadable { .. } => true,
        };
        chunks::cut(batch, policy, columns, None, 0, &mut self.0, &mut emit)
    }
}

/// [`Encoder`] for a stream of events, with or without a program.
#[doc(hidden)]
pub struct EventEncoder {
    workspace: chunks::Workspace,
    plan: events::Plan,
}

impl EventEncoder {
    /// `columns`: the names and types of the table's columns.
    #[doc(hidden)]
    pub fn new(columns: &[(&str, &str)], transform: Option<transform::Transform>) -> Result<Self, String> {
        let workspace = chunks::Workspace::new().map_err(|error| error.to_string())?;
        let plan = events::Plan::of_columns(columns, transform)?;
        Ok(Self { workspace, plan })
    }

    /// Fills the columns with the rows of messages, and returns the number of rows.
    #[doc(hidden)]
    pub fn fill(&self, messages: &[bytes::Bytes]) -> u64 {
        let mut columns = self.plan.empty();
        for message in messages {
            events::rows(message, |row| {
                row.is_ok_and(|row| self.plan.push(row, 0, &mut columns).is_ok())
            });
        }
        columns.first().map_or(0, |values| values.rows() as u64)
    }

    #[doc(hidden)]
    pub fn encode(
        &mut self,
        batch: &millpond_consumer::Batch,
        policy: &millpond_consumer::BatchingPolicy,
        emit: &mut dyn FnMut(millpond_consumer::Cut) -> bool,
    ) -> Result<(), millpond_consumer::SinkError> {
        let event = chunks::Event {
            table: schema::Table::Event(0),
            plan: &self.plan,
            filtered: Default::default(),
            opened: millpond_consumer::Opened::default(),
        };
        chunks::cut(
            batch,
            policy,
            Columns::All,
            Some(event),
            0,
            &mut self.workspace,
            emit,
        )
    }
}

/// Parses a server's answer in each form that the sink requests, in pieces of `piece` bytes, and returns the number of
/// forms that fit. For fuzzing only.
#[doc(hidden)]
pub fn read_answer(answer: &[u8], piece: usize) -> usize {
    fn fits<T: serde::de::DeserializeOwned>(answer: &[u8], piece: usize) -> bool {
        let mut rows = answer::Rows::<T>::new(answer::ANSWER_BYTES_MAX);
        let read = answer.chunks(piece.max(1)).try_for_each(|piece| rows.push(piece));
        read.and_then(|()| rows.end()).is_ok()
    }
    [
        fits::<(String,)>(answer, piece),
        fits::<(u64,)>(answer, piece),
        fits::<presence::There>(answer, piece),
        fits::<schema::judge::Found>(answer, piece),
    ]
    .into_iter()
    .filter(|fits| *fits)
    .count()
}

/// Reads the rows of a message of events into a column of each type, also after programs. Returns the numbers of rows that are
/// JSON, of those that fit, and of the others. For fuzzing only.
#[doc(hidden)]
pub fn read_events(message: &[u8]) -> (u64, u64, u64) {
    let plan = events::Plan::of_all_types();
    let mut columns = plan.empty();
    let (mut read, mut fit, mut unread) = (0, 0, 0);
    events::rows(message, |row| {
        match row {
            Ok(row) => {
                read += 1;
                fit += u64::from(plan.push(row, 0, &mut columns).is_ok());
                transform::check(row);
            }
            Err(_) => unread += 1,
        }
        assert!(columns.iter().all(|values| values.rows() as u64 == fit));
        true
    });
    (read, fit, unread)
}

/// Classifies an exception. For fuzzing only.
#[doc(hidden)]
pub fn read_exception(text: &str) -> &'static str {
    let Some(code) = answer::exception_code(text) else {
        return "none";
    };
    let text = text.to_owned();
    match failure::classify("fuzzing", &client::Error::Exception { code, text }) {
        millpond_consumer::SinkError::Transient(_) => "transient",
        millpond_consumer::SinkError::Schema(_) => "schema",
        millpond_consumer::SinkError::Refused(_) => "refused",
    }
}
