//! Operations on a live buffer: `status`, `tail`, `doctor`, `manifest`, `segment`, `consumer`, `dead-letters`, `gc` and `buffer`
//! of the program. Each returns values that serialise to the program's JSON. This crate parses no flags and prints
//! nothing: the program does both.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod buffer;
pub mod check;
pub mod consumers;
pub mod dead_letters;
pub mod doctor;
pub mod dump;
pub mod gc;
pub mod growth;
pub mod numbers;
pub mod observe;
pub mod patience;
pub mod routes;
mod rows;
pub mod status;
pub mod tail;
mod target;

pub use target::{Target, look_back};
