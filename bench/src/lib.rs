//! Code that the program and the benchmarks share: the load generator, child processes and their metrics, ClickHouse
//! queries, free ports.

pub mod clickhouse;
pub mod load;
pub mod metrics;
pub mod ports;
pub mod process;
