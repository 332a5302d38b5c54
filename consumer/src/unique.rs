//! Drops the repeated events of a stream by their keys. `design/deduplication.md` has the rules and the protocol.

mod keep;
mod keys;
mod limit;
mod restore;
mod routing;
mod stage;
mod state;
mod times;

pub(crate) use keep::{Ended, Keep};
pub(crate) use keys::ROW_BYTES;
pub use keys::{PartKeys, PartTimes, RowKey};
pub(crate) use limit::KeyLimit;
pub use millpond_events::{KeyHasher, KeyValue};
pub(crate) use restore::Source;
pub(crate) use routing::Routing;
pub(crate) use stage::{Line, Turn};
pub use state::Dropped;
pub(crate) use times::Times;

/// The most memory that a remembered key takes, in bytes.
pub const BYTES_PER_KEY: u64 = 40;
