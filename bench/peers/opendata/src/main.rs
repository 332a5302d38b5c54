//! OpenData Buffer between OTLP/HTTP and ClickHouse, with the plainest honest front end and sink: a peer that `make
//! bench-peers` compares Millpond with. It is no product: it handles what the benchmark sends and ends at the first error.
//!
//! Where a choice costs CPU, it is in the buffer's favour: the front end does not look into requests, and the sink
//! borrows all strings from the decoded message.

mod front;
mod rows;
mod sink;

use anyhow::{Context, bail};
use common::storage::config::{AwsObjectStoreConfig, ObjectStoreConfig};

const USAGE: &str =
    "usage: opendata-peer front ADDRESS BUCKET | opendata-peer sink CLICKHOUSE_URL DATABASE BUCKET";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["front", address, bucket] => front::run(address, store(bucket)?).await,
        ["sink", url, database, bucket] => sink::run(url, database, store(bucket)?).await,
        _ => bail!(USAGE),
    }
}

/// The bucket. Endpoint and credentials come from the `AWS_…` variables.
fn store(bucket: &str) -> anyhow::Result<ObjectStoreConfig> {
    Ok(ObjectStoreConfig::Aws(AwsObjectStoreConfig {
        region: std::env::var("AWS_REGION").context("AWS_REGION")?,
        bucket: bucket.to_owned(),
    }))
}
