//! The flags of `millpond load`, which become a [`LoadConfig`].

use millpond_runtime::{Environment as _, SystemEnvironment};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::{Credentials, LoadConfig, LoadError};

/// How requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip at level 6, the Collector's default.
    Gzip,
    /// zstd at level 3.
    Zstd,
}

/// The protocol and the records of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Logs over OTLP/gRPC.
    Otlp,
    /// Events over HTTP, one JSON object on each line.
    Json {
        /// The stream.
        stream: String,
    },
    /// The same events as records of an idempotent Kafka producer.
    #[cfg(feature = "kafka")]
    Kafka {
        /// The topic, which is the stream.
        topic: String,
        /// The user name for SASL/PLAIN, if there is a token.
        user: Option<String>,
    },
}

/// [`Format`] as a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// Logs over OTLP/gRPC.
    Otlp,
    /// JSON events over HTTP.
    Json,
    /// JSON events from an idempotent Kafka producer.
    #[cfg(feature = "kafka")]
    Kafka,
}

impl FormatName {
    /// The address of a gateway on this machine.
    fn endpoint(self) -> &'static str {
        match self {
            FormatName::Otlp => "127.0.0.1:4317",
            FormatName::Json => "127.0.0.1:4318",
            #[cfg(feature = "kafka")]
            FormatName::Kafka => "127.0.0.1:9092",
        }
    }

    fn unique_attribute(self) -> &'static str {
        match self {
            FormatName::Otlp => "millpond.load.id",
            _ => "event_id",
        }
    }
}

/// Generate traffic and report what was acknowledged.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Protocol and records. json and kafka send events to --stream
    #[arg(long, value_enum, default_value_t = FormatName::Otlp)]
    pub format: FormatName,
    /// Stream of the events, such as events.signup
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Server address: host:port, http://host:port or, with --tls-ca, https://host:port. Several addresses, repeated or
    /// separated by commas, share the requests evenly [default: 127.0.0.1 with port 4317, for json 4318, for kafka 9092]
    #[arg(
        long,
        value_name = "ADDR",
        env = "MILLPOND_LOAD_ENDPOINT",
        value_delimiter = ','
    )]
    pub endpoint: Vec<String>,
    /// The server's CA in PEM. Enables TLS
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The client certificate in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The client certificate's key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Bearer token for the server. Use the variable: other users of the machine can see flags
    #[arg(long, env = "MILLPOND_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The token's name, which --format kafka needs for SASL/PLAIN
    #[arg(long, value_name = "NAME")]
    pub token_name: Option<String>,
    /// Records per second; 0 for as fast as the server acknowledges them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rate: u64,
    /// Maximum requests in flight, on a connection for each 64. Each waits for its commit, so throughput is at most
    /// concurrency × records per request ÷ latency
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub concurrency: usize,
    /// Records per request
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub records_per_request: u64,
    /// Stop sending after this time, such as 500ms, 10s, 5m or 1h [default: 10s, unless --records is given]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Stop sending after this many records
    #[arg(long, value_name = "N")]
    pub records: Option<u64>,
    /// A folder of *.log files whose lines become log bodies [default: the folder in MILLPOND_LOGHUB, else generated
    /// text]
    #[arg(long, value_name = "FOLDER")]
    pub bodies: Option<PathBuf>,
    /// Seed that determines each record's line, trace and host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Attribute, or field of an event, with every record's unique id, "<run>-<number in 12 digits>" [default:
    /// millpond.load.id, for events event_id]
    #[arg(long, value_name = "NAME")]
    pub unique_attribute: Option<String>,
    /// First part of the unique ids [default: random]
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Compression of requests
    #[arg(long, value_enum, default_value_t = Compression::None)]
    pub compression: Compression,
    /// Time to retry a request after its first attempt failed with a retryable error; 0s for never
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    pub retry_for: Duration,
    /// File that gets a line "run first count" for every acknowledged request
    #[arg(long, value_name = "FILE")]
    pub acknowledged_file: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    /// The configuration for these flags.
    ///
    /// # Errors
    /// [`LoadError::Setting`] for an invalid value.
    pub fn config(self) -> Result<LoadConfig, LoadError> {
        let duration = match (self.duration, self.records) {
            (None, None) => Some(Duration::from_secs(10)),
            (duration, _) => duration,
        };
        let format = self.format()?;
        let unique_attribute = self.format.unique_attribute();
        let mut endpoints = self.endpoint;
        if endpoints.is_empty() {
            endpoints.push(self.format.endpoint().to_owned());
        }
        let config = LoadConfig {
            endpoints,
            format,
            credentials: Credentials {
                ca: self.tls_ca,
                identity: self.tls_cert.zip(self.tls_key),
                token: self.token,
            },
            rate: self.rate,
            concurrency: self.concurrency,
            records_per_request: self.records_per_request,
            duration,
            records: self.records,
            bodies: self.bodies,
            seed: self.seed,
            unique_attribute: self
                .unique_attribute
                .unwrap_or_else(|| unique_attribute.to_owned()),
            run: self
                .run
                .unwrap_or_else(|| format!("{:08x}", SystemEnvironment.random_u32())),
            compression: self.compression,
            retry_for: self.retry_for,
            acknowledged_file: self.acknowledged_file,
        };
        config.check()?;
        Ok(config)
    }

    fn format(&self) -> Result<Format, LoadError> {
        let refuse = |setting, reason: &str| LoadError::Setting {
            setting,
            reason: reason.to_owned(),
        };
        if self.format == FormatName::Otlp {
            return match &self.stream {
                None => Ok(Format::Otlp),
                Some(_) => Err(refuse("stream", "is for events: add --format json or kafka")),
            };
        }
        let stream = self.stream.clone();
        let stream = stream.ok_or_else(|| refuse("format", "events need --stream, such as events.signup"))?;
        match self.format {
            #[cfg(feature = "kafka")]
            FormatName::Kafka if self.token.is_some() && self.token_name.is_none() => Err(refuse(
                "token",
                "Kafka's SASL/PLAIN needs the token's name as well: add --token-name with the name in the gateway's file of \
                 tokens",
            )),
            #[cfg(feature = "kafka")]
            FormatName::Kafka if self.token_name.is_some() && self.token.is_none() => Err(refuse(
                "token-name",
                "there is no token of this name: set MILLPOND_TOKEN, or leave out --token-name",
            )),
            #[cfg(feature = "kafka")]
            FormatName::Kafka => Ok(Format::Kafka {
                topic: stream,
                user: self.token_name.clone(),
            }),
            _ => Ok(Format::Json { stream }),
        }
    }
}

impl LoadConfig {
    /// The address with its scheme.
    pub(crate) fn url(&self, endpoint: &str) -> String {
        match (endpoint.contains("://"), &self.credentials.ca) {
            (true, _) => endpoint.to_owned(),
            (false, None) => format!("http://{endpoint}"),
            (false, Some(_)) => format!("https://{endpoint}"),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let refuse = |setting, reason: &str| {
            Err(LoadError::Setting {
                setting,
                reason: reason.to_owned(),
            })
        };
        if !(1..=100_000).contains(&self.concurrency) {
            return refuse("concurrency", "must be 1 to 100000");
        }
        if !(1..=100_000).contains(&self.records_per_request) {
            return refuse("records-per-request", "must be 1 to 100000");
        }
        if self.unique_attribute.is_empty() {
            return refuse("unique-attribute", "must not be empty");
        }
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.run.is_empty() || self.run.len() > 64 || !self.run.chars().all(good) {
            return refuse(
                "run",
                "must be 1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-'",
            );
        }
        if self.endpoints.is_empty() {
            return refuse("endpoint", "needs at least one address");
        }
        if self.endpoints.len() > self.concurrency {
            return refuse(
                "concurrency",
                "must be at least the number of endpoints: each needs a request in flight",
            );
        }
        for endpoint in &self.endpoints {
            #[cfg(feature = "kafka")]
            if let (Format::Kafka { .. }, Some((scheme, address))) =
                (&self.format, endpoint.split_once("://"))
            {
                let reason = format!(
                    "--format kafka takes host:port without {scheme}://, such as {}; --tls-ca enables TLS",
                    address.split('/').next().unwrap_or_default()
                );
                return refuse("endpoint", &reason);
            }
            match (endpoint.split_once("://"), &self.credentials.ca) {
                (Some(("https", _)), None) => return refuse("endpoint", "https:// needs --tls-ca"),
                (Some(("http", _)), Some(_)) => {
                    return refuse("endpoint", "with --tls-ca use https:// or host:port");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A length of time as every command takes it: `500ms`, `10s`, `5m`, `1h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a length of time: write 250ms, 1s, 2m or 1h"))
}
