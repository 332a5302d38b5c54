//! The producer: accumulate → encode → upload → commit.
//!
//! [`Producer::append`] takes a message and resolves when it is in the shard's log. Between the two, every
//! byte is drawn from one [`Budget`]; a store that is away makes callers wait for it, never lose anything
//! that was accepted.
//!
//! This crate never decides what a commit means (that is `millpond-manifest`, which is pure) and never reads
//! a payload.

mod accumulator;
mod append;
mod budget;
#[doc(hidden)]
pub mod commit;
mod commit_delay;
mod committer;
mod config;
mod encoder;
mod environment;
mod flow;
mod health;
mod metrics;
mod producer;
#[doc(hidden)]
pub mod reads_first;
mod segment;
mod streams;
mod trace;
mod uploader;

pub use append::{Append, AppendError, Committed};
pub use budget::{Budget, OverBudget, Reservation};
pub use config::{Config, ConfigError};
pub use environment::Environment;
pub use health::Readiness;
pub use producer::{DrainError, Producer, StartError};
