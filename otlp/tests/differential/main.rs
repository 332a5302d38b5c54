//! Validation and views against prost's decoder of the same bytes: messages with their fields in any
//! order, repeated, merged, unknown; then the same bytes cut short, mutated, or random.

mod compare;
mod draw;
mod faults;
mod json;
mod logs;
mod metrics;
mod traces;
