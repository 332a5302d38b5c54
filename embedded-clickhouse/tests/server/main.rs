//! Tests the program through its clients, with the real engine. Needs libchdb: `scripts/install-libchdb.sh`.

mod crate_client;
mod http;
mod process;
mod support;
