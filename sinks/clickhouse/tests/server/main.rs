//! The sink against the real engine: `embedded-clickhouse` (`cargo build -p embedded-clickhouse`) over chDB
//! (`scripts/install-libchdb.sh`). Each test has a server of its own.

mod ddl;
mod failures;
mod fields;
mod partitions;
mod pieces;
mod recovery;
mod signals;
mod support;
mod tables;
mod writes;
