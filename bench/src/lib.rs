//! What the program and the benchmarks share: the load generator, reading the processes' metrics, free ports.

pub mod load;
pub mod metrics;
pub mod ports;
