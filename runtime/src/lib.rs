//! The parts of a process that every crate shares: clocks, random numbers, threads, memory, waits between attempts, and
//! the report of what it waits for.
//!
//! The other crates read clocks, draw random numbers and start threads through [`Environment`] alone; `clippy.toml`
//! enforces that. A simulation replaces the environment, and a seed then determines a whole run. This crate knows nothing
//! about buffers.

mod backoff;
pub mod blocking;
mod budget;
mod environment;
mod looks;
mod readiness;
mod system;

pub use backoff::Backoff;
pub use budget::{Budget, OverBudget, Reservation};
pub use environment::Environment;
pub use looks::Looks;
pub use readiness::{Level, Readiness};
pub use system::SystemEnvironment;
