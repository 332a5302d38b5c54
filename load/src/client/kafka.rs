//! Kafka's protocol: librdkafka sends each line of a request as a record. It numbers its requests and repeats them itself, so no
//! repetition is a duplicate.

use std::time::Duration;

use futures::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{CONNECT_TIMEOUT, Failure};
use crate::run::ATTEMPT_MIN;
use crate::{Compression, LoadConfig, LoadError};

#[derive(Clone)]
pub(crate) struct Kafka {
    producer: FutureProducer,
    topic: String,
}

impl Kafka {
    pub(crate) fn lazy(
        config: &LoadConfig,
        endpoint: &str,
        topic: &str,
        user: Option<&str>,
    ) -> Result<Kafka, LoadError> {
        let credentials = &config.credentials;
        let mut client = ClientConfig::new();
        let protocol = match (credentials.ca.is_some(), credentials.token.is_some()) {
            (false, false) => "PLAINTEXT",
            (true, false) => "SSL",
            (false, true) => "SASL_PLAINTEXT",
            (true, true) => "SASL_SSL",
        };
        client
            .set("bootstrap.servers", endpoint)
            .set("client.id", "millpond-load")
            .set("security.protocol", protocol)
            .set("enable.idempotence", "true")
            .set("compression.codec", codec(config.compression))
            .set("message.timeout.ms", millis(config.retry_for.max(ATTEMPT_MIN)))
            .set("socket.connection.setup.timeout.ms", millis(CONNECT_TIMEOUT));
        if let Some(ca) = &credentials.ca {
            client.set("ssl.ca.location", ca.to_string_lossy());
        }
        if let Some((certificate, key)) = &credentials.identity {
            client
                .set("ssl.certificate.location", certificate.to_string_lossy())
                .set("ssl.key.location", key.to_string_lossy());
        }
        if let (Some(user), Some(token)) = (user, &credentials.token) {
            client
                .set("sasl.mechanism", "PLAIN")
                .set("sasl.username", user)
                .set("sasl.password", token);
        }
        let producer = client.create().map_err(|error| refused(&error.to_string()))?;
        Ok(Kafka {
            producer,
            topic: topic.to_owned(),
        })
    }

    /// Sends each line as a record. The request is acknowledged if all are.
    pub(crate) async fn send(&self, rows: &[u8]) -> Result<(), Failure> {
        let records = rows.split(|byte| *byte == b'\n').filter(|row| !row.is_empty());
        let sent = records.map(|row| {
            let record = FutureRecord::<(), _>::to(&self.topic).payload(row);
            // Waits while the queue is full. The caller limits the time of the whole attempt.
            self.producer.send(record, None)
        });
        for outcome in join_all(sent).await {
            if let Err((error, _)) = outcome {
                return Err(Failure {
                    code: error
                        .rdkafka_error_code()
                        .map_or_else(|| error.to_string(), |code| code.to_string()),
                    // librdkafka has repeated it already.
                    retryable: false,
                    pause: Duration::ZERO,
                });
            }
        }
        Ok(())
    }
}

/// Explains why librdkafka does not take the settings.
fn refused(error: &str) -> LoadError {
    // A crate's features do not tell: cargo unites those of rdkafka.
    let (setting, reason) = match error.contains(NO_OPENSSL) {
        true => (
            "tls-ca",
            "this program was built without TLS for Kafka: use a release, or build it with --features bridge-tls".to_owned(),
        ),
        false => ("format", format!("librdkafka refuses the settings: {error}")),
    };
    LoadError::Setting { setting, reason }
}

/// librdkafka's words about a value that needs OpenSSL.
const NO_OPENSSL: &str = "OpenSSL not available at build time";

fn codec(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}
