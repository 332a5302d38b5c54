//! Validation and views against prost's decoder on the same bytes: messages with fields in any order, repeated, merged
//! or unknown; then the same bytes truncated, mutated, or random.

mod compare;
mod draw;
mod faults;
mod json;
mod logs;
mod metrics;
mod traces;
