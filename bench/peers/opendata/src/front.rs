//! OTLP/HTTP in: every request is an entry of the buffer, and its answer waits until the entry is durable.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use buffer::{CompressionType, Producer, ProducerConfig};
use bytes::Bytes;
use common::ObjectStoreConfig;
use common::clock::SystemClock;
use tokio::net::TcpListener;

/// Maximum size of a request: the Collector's default.
const REQUEST_BYTES_MAX: usize = 20 << 20;

pub(crate) async fn run(address: &str, object_store: ObjectStoreConfig) -> anyhow::Result<()> {
    let config = ProducerConfig {
        object_store,
        data_path_prefix: "ingest".to_owned(),
        manifest_path: "ingest/manifest".to_owned(),
        // Millpond's linger, so that both make as many requests to S3.
        flush_interval: Duration::from_secs(1),
        flush_size_bytes: 64 << 20,
        max_buffered_inputs: 1000,
        batch_compression: CompressionType::Zstd,
    };
    let producer = Producer::new(config, Arc::new(SystemClock)).context("opening the buffer")?;
    let app = Router::new()
        .route("/v1/logs", post(accept))
        .route("/readyz", get(|| async { "ready" }))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(Arc::new(producer));
    let listener = TcpListener::bind(address).await.context("listening")?;
    axum::serve(listener, app).await.context("serving")
}

async fn accept(State(producer): State<Arc<Producer>>, body: Bytes) -> Response {
    match append(&producer, body).await {
        // An empty ExportLogsServiceResponse has no bytes.
        Ok(()) => ([(header::CONTENT_TYPE, "application/x-protobuf")], Bytes::new()).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn append(producer: &Producer, body: Bytes) -> buffer::Result<()> {
    let mut handle = producer.produce(vec![body], Bytes::new()).await?;
    handle.watcher.await_durable().await
}
