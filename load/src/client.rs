//! Clients that send one request of a format, and classify every failure: whether and when to retry. They never retry by
//! themselves, except Kafka's.

mod grpc;
mod json;
#[cfg(feature = "kafka")]
mod kafka;

use std::time::Duration;

use bytes::Bytes;

use crate::{Format, LoadConfig, LoadError};

/// Requests per connection. Several connections keep one task from framing everything.
const REQUESTS_PER_CONNECTION: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects on first use, and reconnects after losing the connection.
#[derive(Clone)]
pub(crate) enum Client {
    Grpc(grpc::Grpc),
    Json(json::Json),
    #[cfg(feature = "kafka")]
    Kafka(kafka::Kafka),
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The error's code, or `transport: …` for a failed connection.
    pub(crate) code: String,
    /// Whether the same bytes may be accepted later.
    pub(crate) retryable: bool,
    /// Minimum pause that the server requests.
    pub(crate) pause: Duration,
}

impl Failure {
    /// The connection failed.
    fn transport(error: &dyn std::error::Error) -> Failure {
        Failure {
            code: format!("transport: {}", root_cause(error)),
            retryable: true,
            pause: Duration::ZERO,
        }
    }
}

impl Client {
    /// The clients that a run's workers share, as many for each endpoint, in turns.
    pub(crate) fn connections(config: &LoadConfig) -> Result<Vec<Client>, LoadError> {
        let workers = config.concurrency.div_ceil(config.endpoints.len().max(1));
        let each = workers.div_ceil(REQUESTS_PER_CONNECTION);
        let endpoints = std::iter::repeat_n(&config.endpoints, each).flatten();
        endpoints.map(|endpoint| Client::lazy(config, endpoint)).collect()
    }

    fn lazy(config: &LoadConfig, endpoint: &str) -> Result<Client, LoadError> {
        Ok(match &config.format {
            Format::Otlp => Client::Grpc(grpc::Grpc::lazy(config, endpoint)?),
            Format::Json { stream } => Client::Json(json::Json::lazy(config, endpoint, stream)?),
            #[cfg(feature = "kafka")]
            Format::Kafka { topic, user } => {
                Client::Kafka(kafka::Kafka::lazy(config, endpoint, topic, user.as_deref())?)
            }
        })
    }

    /// One attempt.
    pub(crate) async fn send(&mut self, request: Bytes) -> Result<(), Failure> {
        match self {
            Client::Grpc(client) => client.send(request).await,
            Client::Json(client) => client.send(request).await,
            #[cfg(feature = "kafka")]
            Client::Kafka(client) => client.send(&request).await,
        }
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
