//! Two proofs of the protocols: a model, in which every interleaving is searched, and a simulation of the real
//! pipeline ([`simulator`]), in which a seed is a run.
//!
//! The model checks the protocols in `design/protocols.md`: producers, owners of a cursor and a garbage collector over one
//! abstract store, every interleaving of their steps within a bound. What a step means is decided by the pure
//! functions of `millpond-manifest`, by `millpond_producer::commit` and by `millpond_consumer::schedule`, the very ones that run
//! in production; here is only the glue around them, as thin as `producer/src/committer.rs`, `consumer/src/tenure.rs` and
//! `consumer/src/gc.rs` allow.
//!
//! A compare-and-set lands or not, and is reported or not; one that is not reported may land later still. Actors crash at
//! any step. Time is a small counter: segments are named by it, and the garbage collector's orphan floor follows it.
//!
//! `cargo test -p millpond-simulation` searches small bounds to the end; `make planted-bugs` shows that it finds bugs.
//! A larger bound is searched by command:
//!
//! ```text
//! cargo run --release -p millpond-simulation -- model delivery --owner-faults 2 --epochs 3
//! ```

pub mod bounds;
pub mod gc;
pub mod model;
pub mod owner;
pub mod producer;
pub mod properties;
mod sending;
pub mod simulator;
pub mod store;

pub use bounds::Bounds;
pub use model::{Action, System, World};
