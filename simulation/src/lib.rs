//! Two checks of the protocols: a model that searches every interleaving, and a simulation of the real pipeline
//! ([`simulator`]) in which each seed is a run. [`fleet`] measures many real gateways in virtual time.
//!
//! The model checks the protocols in `design/protocols.md`: producers, owners of a cursor and a garbage collector over
//! one abstract store, in every interleaving of their steps within a bound. The pure functions of `millpond-manifest`,
//! `millpond_producer::commit` and `millpond_consumer::schedule` decide each step, exactly as in production. This crate
//! only adds the glue between them, as thin as `producer/src/committer.rs`, `consumer/src/tenure.rs` and
//! `consumer/src/gc.rs` allow.
//!
//! A compare-and-set lands or not, and its result is reported or not; an unreported one may still land later. Actors
//! crash at any step. Time is a small counter: segment names and the garbage collector's orphan floor follow it.
//!
//! `cargo test -p millpond-simulation` searches small bounds completely; `make planted-bugs` shows that it finds bugs.
//! To search a larger bound:
//!
//! ```text
//! cargo run --release -p millpond-simulation -- model delivery --owner-faults 2 --epochs 3
//! ```

pub mod admission;
pub mod bounds;
pub mod fleet;
pub mod gc;
pub mod model;
pub mod owner;
pub mod producer;
pub mod properties;
mod sending;
pub mod shared_commits;
pub mod simulator;
pub mod store;

pub use bounds::Bounds;
pub use model::{Action, System, World};
