//! Kafka as a source: reads the topics of a cluster, and commits the offsets in the manifest together with the records.
//! A crash of either side loses and duplicates nothing, because only the manifest's position decides where to read.
//!
//! Consumer groups of Kafka divide the partitions. They are never trusted with a position: offsets that the bridge commits
//! to Kafka are for the tools that show a lag, and the bridge reads them only where an operator asks for it.

mod bridge;
mod client;
mod cluster;
mod commits;
mod config;
mod headers;
mod metrics;
mod partition;
mod places;
mod position;
mod records;

pub use bridge::{Bridge, BridgeError};
pub use config::{AcceptedGap, Config, From, Landing, Security};
