//! Drops the repeated events of a stream by their keys. `design/deduplication.md` has the rules and the protocol.

mod keys;
mod restore;
mod routing;
mod stage;
mod state;

pub(crate) use keys::ROW_BYTES;
pub use keys::{PartKeys, PartTimes, RowKey};
pub use millpond_events::{KeyHasher, KeyValue};
pub(crate) use routing::Routing;
pub(crate) use stage::{Line, Turn, next_snapshot_in, snapshot_interval};
pub use state::Dropped;
pub(crate) use state::KeyLimit;

/// The most memory that a remembered key takes, in bytes.
pub const BYTES_PER_KEY: u64 = 40;
