//! The state of a shard: the manifest (the log of committed segments) and the cursors of its consumers. [`manifest`],
//! [`cursor`] and [`plan`] are pure: they do no I/O and take the time and random numbers as arguments. Only [`cas`]
//! reads and swaps these objects.

pub mod admission;
pub mod buffer;
pub mod cas;
pub mod cursor;
pub mod dead_letter;
mod entry;
mod envelope;
mod error;
mod growth;
pub mod layout;
mod limits;
pub mod log;
pub mod manifest;
pub mod members;
mod object;
pub mod page;
pub mod piece;
pub mod plan;
pub mod trace;
pub mod unique;

pub use buffer::{Buffer, Route, Routes};
pub use cas::{ReadError, Snapshot, Swap};
pub use cursor::Cursor;
pub use cursor::tables::{SinkTable, SinkTables, TableClaim};
pub use dead_letter::DeadLetter;
pub use entry::{Entry, Part};
pub use error::FormatError;
pub use growth::{KnownBuffer, LookError};
pub use limits::Count;
pub use log::{Lag, Log};
pub use manifest::{
    Claim, ClaimRefusal, ClientClaim, ClientId, ClientRefusal, Commit, CommitRefusal, Fingerprint, Leader,
    Manifest, NewPart, NewSegment, Numbers, ProducerId, SourcePartition, SourceRefusal, SourceRow,
};
pub use members::Members;
pub use object::{Object, Stamp};
pub use page::{Page, PageReference};
pub use plan::BatchingPolicy;
pub use unique::{UniqueReference, UniqueSetting, UniqueSnapshot};

/// The format version of most objects. A manifest with clients has version 2, one
/// with sources has version 3, a cursor may have [`CURSOR_VERSION`], and a buffer object [`BUFFER_VERSION`].
pub const FORMAT_VERSION: u16 = 1;

/// The format version of a manifest with clients that number their requests, and without sources.
pub const CLIENTS_VERSION: u16 = 2;

/// The format version of a cursor whose consumer drops repeated events by the first rules, or has dropped some. Programs that would not
/// drop them refuse it.
pub const UNIQUE_VERSION: u16 = 2;

/// The format version of a cursor whose consumer drops repeated events by the newest rules. Programs that do not know them refuse it.
pub const CURSOR_VERSION: u16 = 3;

/// The format version of a buffer object with routed streams. Programs that would not route their rows refuse it.
pub const BUFFER_VERSION: u16 = 2;

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/millpond.v1.rs"));
}
