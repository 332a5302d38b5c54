//! One OTLP/HTTP endpoint for one signal: makes one attempt at a time, and logs when the endpoint fails or recovers. Neither
//! queues nor retries.

use crate::settings::{Destination, Signal};
use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use prost::Message;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, Response, StatusCode, Url};
use std::io::Write;
use std::path::Path;
use tracing::{info, warn};

/// Maximum length of a response that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PushLabels {
    /// `metrics`, …
    signal: &'static str,
    /// `ok` or `failed`.
    outcome: &'static str,
}

/// Exports by outcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct PushCounters(Family<PushLabels, Counter>);

impl PushCounters {
    pub(crate) fn register(registry: &mut Registry) -> PushCounters {
        let counters = PushCounters::default();
        registry.register(
            "millpond_telemetry_pushes",
            "Pushes of this process's own telemetry over OTLP, by signal and outcome",
            counters.0.clone(),
        );
        counters
    }

    /// A counter that `/metrics` shows from the start, with 0.
    fn of(&self, signal: Signal, outcome: &'static str) -> Counter {
        let signal = signal.name();
        self.0.get_or_create_owned(&PushLabels { signal, outcome })
    }
}

/// A failed export.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct PushError {
    reason: String,
    /// The endpoint may accept the same request later.
    pub(crate) transient: bool,
}

impl PushError {
    fn transient(reason: impl Into<String>) -> PushError {
        let (reason, transient) = (reason.into(), true);
        PushError { reason, transient }
    }

    fn refused(reason: impl Into<String>) -> PushError {
        let (reason, transient) = (reason.into(), false);
        PushError { reason, transient }
    }
}

/// The client of an endpoint.
#[derive(Debug)]
pub(crate) struct Pusher {
    client: Client,
    signal: Signal,
    url: Url,
    gzip: bool,
    ok: Counter,
    failed: Counter,
    /// The last export failed, and the failure was logged.
    is_failing: bool,
}

impl Pusher {
    /// # Errors
    /// A file of the settings is unusable.
    pub(crate) fn new(destination: Destination, counters: &PushCounters) -> anyhow::Result<Pusher> {
        let Destination {
            signal,
            url,
            headers,
            ca,
            identity,
            timeout,
            gzip,
        } = destination;
        let mut builder = Client::builder()
            .default_headers(headers)
            .timeout(timeout)
            // OTLP has no redirects, and one would send the headers elsewhere.
            .redirect(Policy::none())
            .user_agent(concat!("millpond/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &ca {
            let certificates = Certificate::from_pem_bundle(&read(file)?);
            let certificates = certificates.with_context(|| wrong(file))?;
            builder = builder.tls_certs_only(certificates);
        } else if url.scheme() == "http" {
            // Without TLS, a system without CAs must not fail.
            builder = builder.tls_certs_only([]);
        }
        if let Some((certificate, key)) = &identity {
            let pem = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
            builder = builder.identity(Identity::from_pem(&pem).with_context(|| wrong(certificate))?);
        }
        Ok(Pusher {
            client: builder.build().context("cannot make a client for OTLP/HTTP")?,
            signal,
            url,
            gzip,
            ok: counters.of(signal, "ok"),
            failed: counters.of(signal, "failed"),
            is_failing: false,
        })
    }

    /// The endpoint without its possible secrets.
    pub(crate) fn shown(&self) -> String {
        let mut url = self.url.clone();
        // These fail only for URLs that cannot have a user.
        let _ = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.to_string()
    }

    /// Makes one attempt. The counters ignore an attempt that is dropped.
    pub(crate) async fn push(&mut self, message: &impl Message) -> Result<(), PushError> {
        let outcome = self.attempt(message.encode_to_vec()).await;
        match &outcome {
            Ok(()) => {
                self.ok.inc();
                if std::mem::replace(&mut self.is_failing, false) {
                    info!("own {} are pushed to {} again", self.signal.name(), self.shown());
                }
            }
            Err(error) => {
                self.failed.inc();
                if !std::mem::replace(&mut self.is_failing, true) {
                    let (signal, to) = (self.signal.name(), self.shown());
                    warn!(
                        "own {signal} cannot be pushed to {to}: {error}; the next message follows its recovery"
                    );
                }
            }
        }
        outcome
    }

    async fn attempt(&self, mut body: Vec<u8>) -> Result<(), PushError> {
        let mut request = self.client.post(self.url.clone());
        if self.gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            let written = encoder.write_all(&body).and_then(|()| encoder.finish());
            body = written.map_err(|error| PushError::refused(error.to_string()))?;
            request = request.header(CONTENT_ENCODING, "gzip");
        }
        let sending = request
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(body)
            .send();
        let response = sending
            .await
            .map_err(|error| PushError::transient(chain(error)))?;
        let status = response.status();
        let answer = read_answer(response).await;
        if status.is_success() {
            return taken(&answer?);
        }
        let answered = answer.ok().and_then(|answer| Status::decode(&answer[..]).ok());
        let answered = answered
            .map(|status| status.message)
            .filter(|answered| !answered.is_empty());
        let reason = match answered {
            Some(answered) => format!("it answered {status}: {answered:.300}"),
            None => format!("it answered {status}"),
        };
        // The specification lists these codes as retryable.
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => PushError::transient(reason),
            _ => PushError::refused(reason),
        })
    }
}

/// The body of an OTLP/HTTP error: `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// A successful response may reject a part.
fn taken(answer: &[u8]) -> Result<(), PushError> {
    // The responses of all signals have the same form. Some endpoints send other bodies: they count as success.
    let decoded = ExportMetricsServiceResponse::decode(answer).unwrap_or_default();
    match decoded
        .partial_success
        .filter(|part| part.rejected_data_points > 0)
    {
        None => Ok(()),
        Some(part) => {
            let (count, why) = (part.rejected_data_points, part.error_message);
            Err(PushError::refused(format!(
                "it rejected {count} of them: {why:.300}"
            )))
        }
    }
}

async fn read_answer(mut response: Response) -> Result<Vec<u8>, PushError> {
    let mut answer = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| PushError::transient(chain(error)))?
    {
        if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
            break;
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

/// The error with its causes, but without the URL, which may hold a secret.
fn chain(error: reqwest::Error) -> String {
    format!("{:#}", anyhow::Error::from(error.without_url()))
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}, for OTLP export", file.display()))
}

fn wrong(file: &Path) -> String {
    format!("{} has no certificate or key for OTLP export", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
    use prometheus_client::encoding::text::encode;
    use reqwest::header::HeaderMap;
    use std::time::Duration;

    fn pusher(url: &str, registry: &mut Registry) -> Pusher {
        let destination = Destination {
            signal: Signal::Metrics,
            url: url.parse().unwrap(),
            headers: HeaderMap::new(),
            ca: None,
            identity: None,
            timeout: Duration::from_secs(1),
            gzip: false,
        };
        Pusher::new(destination, &PushCounters::register(registry)).unwrap()
    }

    #[test]
    fn secrets_in_a_url_are_hidden() {
        let url = "https://user:password@collector:4318/v1/metrics?api_key=secret";
        let shown = pusher(url, &mut Registry::default()).shown();
        assert_eq!(shown, "https://collector:4318/v1/metrics");
    }

    #[test]
    fn a_partial_success_is_a_failure() {
        let answer = |rejected| {
            let partial = ExportMetricsPartialSuccess {
                rejected_data_points: rejected,
                error_message: "too old".to_owned(),
            };
            ExportMetricsServiceResponse {
                partial_success: Some(partial),
            }
            .encode_to_vec()
        };
        assert!(taken(&[]).is_ok());
        assert!(taken(b"{}").is_ok());
        assert!(taken(&answer(0)).is_ok());
        let error = taken(&answer(3)).unwrap_err();
        assert!(!error.transient);
        assert_eq!(error.to_string(), "it rejected 3 of them: too old");
    }

    #[test]
    fn every_metric_is_documented_and_there_from_the_start() {
        let mut registry = Registry::default();
        let _pusher = pusher("http://collector", &mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let documented = include_str!("../../docs/telemetry.md");
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples.len(), 2, "{text}");
        for sample in samples {
            let name = sample.split('{').next().unwrap_or_default();
            assert!(
                documented.contains(&format!("`{name}`")),
                "{name} is not in docs/telemetry.md"
            );
        }
    }
}
