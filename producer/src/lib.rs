//! The producer: accumulate → encode → upload → commit.
//!
//! [`Producer::append`] takes a message and resolves when the message is in the shard's log. Until then, every byte is
//! drawn from one [`Budget`](millpond_runtime::Budget). While the store is unavailable, callers wait, and no accepted message is lost.
//!
//! This crate never defines a commit (the pure `millpond-manifest` does) and never reads a payload.

mod accumulator;
mod append;
mod claims;
mod clients;
#[doc(hidden)]
pub mod commit;
mod commit_delay;
mod committer;
mod config;
mod early_close;
#[doc(hidden)]
pub mod election;
mod encoder;
mod flow;
mod forward;
mod group;
mod hand_over;
mod lead;
mod metrics;
mod opening;
mod past;
mod peers;
mod producer;
mod producers;
#[doc(hidden)]
pub mod reads_first;
mod rhythm;
mod segment;
mod streams;
mod strip;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod turns;
mod uploader;
mod watchers;

pub use append::{Append, AppendError, Committed, Submitted};
pub use clients::Numbered;
pub use config::{Config, ConfigError};
pub use millpond_manifest::{ClientId, ClientRefusal, Numbers, Route, SourcePartition};
pub use past::Past;
pub use peers::{
    Closes, LeaderAddress, NewPeering, PeerAnswer, PeerCommit, PeerRefusal, PeerRequest, Peering, Peers,
    Records, StreamBlock,
};
pub use producer::{CURSOR_BYTES, CURSOR_MEMORY, DrainError, Producer, StartError};
pub use producers::{Producers, Serving};
pub use watchers::Watcher;
