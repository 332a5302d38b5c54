//! The sink against the real engine: libchdb (`scripts/install-libchdb.sh`), which Python loads, with ClickHouse's own
//! HTTP interface. Each test has a separate server.

mod addresses;
mod ddl;
mod engines;
mod events;
mod failures;
mod fields;
mod identity;
mod interface;
mod migration;
mod partitions;
mod pieces;
mod pinned;
mod random_events;
mod recovery;
mod signals;
mod support;
mod tables;
mod transforms;
mod writes;
