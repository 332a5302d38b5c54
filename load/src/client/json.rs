//! JSON over HTTP: sends the lines of a request to a stream, all or none.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::GzEncoder;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Certificate, Identity, Response, Url};

use super::{CONNECT_TIMEOUT, Failure};
use crate::{Compression, LoadConfig, LoadError};

const NDJSON: &str = "application/x-ndjson";

#[derive(Clone)]
pub(crate) struct Json {
    client: reqwest::Client,
    url: Url,
    token: Option<String>,
    compression: Compression,
}

impl Json {
    pub(crate) fn lazy(config: &LoadConfig, endpoint: &str, stream: &str) -> Result<Json, LoadError> {
        let address = config.url(endpoint);
        let wrong = |reason: String| LoadError::Setting {
            setting: "endpoint",
            reason: format!("{reason}: {endpoint:?} is neither host:port nor http://host:port"),
        };
        let mut url = Url::parse(&address).map_err(|error| wrong(error.to_string()))?;
        url.path_segments_mut()
            .map_err(|()| wrong("not an address".to_owned()))?
            .extend(["v1", "streams", stream]);
        url.set_query(Some("on_error=refuse"));
        let mut client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        let unusable = |error: reqwest::Error| LoadError::Setting {
            setting: "tls-ca",
            reason: format!(
                "TLS with these files is not possible: {}",
                super::root_cause(&error)
            ),
        };
        if let Some(ca) = config.credentials.ca_pem()? {
            client = client.tls_certs_only([Certificate::from_pem(&ca).map_err(unusable)?]);
        }
        if let Some(pair) = config.credentials.identity_pem()? {
            client = client.identity(Identity::from_pem(&pair.concat()).map_err(unusable)?);
        }
        Ok(Json {
            client: client.build().map_err(unusable)?,
            url,
            token: config.credentials.token.clone(),
            compression: config.compression,
        })
    }

    pub(crate) async fn send(&self, rows: Bytes) -> Result<(), Failure> {
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, NDJSON);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let request = match self.compression {
            Compression::None => request.body(rows),
            Compression::Gzip => request.header(CONTENT_ENCODING, "gzip").body(gzip(&rows)),
            Compression::Zstd => request.header(CONTENT_ENCODING, "zstd").body(zstd(&rows)),
        };
        let answer = request.send().await;
        let answer = answer.map_err(|error| Failure::transport(&error))?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(failure(&answer))
    }
}

fn failure(answer: &Response) -> Failure {
    let pause = answer.headers().get(RETRY_AFTER);
    let pause = pause.and_then(|pause| pause.to_str().ok()?.parse().ok());
    Failure {
        code: format!("HTTP {}", answer.status().as_u16()),
        retryable: matches!(answer.status().as_u16(), 429 | 502 | 503 | 504),
        pause: Duration::from_secs(pause.unwrap_or(0)),
    }
}

/// Level 6, as for OTLP.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    let written = gzip.write_all(bytes).and_then(|()| gzip.finish());
    written.expect("a vector takes everything")
}

/// Level 3, as for OTLP.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).expect("a vector takes everything")
}
