//! The flags of a service's own telemetry.

use crate::units::Time;
use millpond_storage::BufferUrl;
use millpond_telemetry::{Identity, Options, Telemetry};
use std::path::PathBuf;

/// The flags of a service's own telemetry.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TelemetryArgs {
    /// Export this process's own metrics, those of /metrics, to an OTLP/HTTP endpoint such as http://collector:4318 (the process
    /// appends v1/metrics). Default: off. Without the flags, OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other standard
    /// variables apply (docs/telemetry.md).
    #[arg(long, env = "MILLPOND_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// Headers of these requests: name=value pairs, separated by commas, with percent-encoded values: authorization=Bearer%20….
    /// Use the variable or the settings file for a secret, to keep it out of the list of processes.
    #[arg(
        long,
        env = "MILLPOND_OTLP_HEADERS",
        value_name = "HEADERS",
        hide_env_values = true
    )]
    otlp_headers: Option<String>,

    /// CAs of the endpoint, in PEM, in place of the system's.
    #[arg(long, env = "MILLPOND_OTLP_CA", value_name = "FILE")]
    otlp_ca: Option<PathBuf>,

    /// Interval between two exports of the metrics. Default: 60s, OpenTelemetry's. A stopping process exports them once more.
    #[arg(long, env = "MILLPOND_OTLP_INTERVAL", value_name = "TIME")]
    otlp_interval: Option<Time>,

    /// Export traces of this process's own work for this fraction of segments (0 to 1). Default: off. A gateway and a consumer with the same
    /// ratio sample the same segments, and their spans join one trace. Without this flag, OTEL_TRACES_SAMPLER applies.
    #[arg(long, env = "MILLPOND_OTLP_TRACES", value_name = "RATIO")]
    otlp_traces: Option<f64>,
}

impl TelemetryArgs {
    /// Resolves the flags and the environment; sends nothing yet.
    pub(crate) fn prepare(&self, identity: &Identity, buffer: &BufferUrl) -> anyhow::Result<Telemetry> {
        let options = Options {
            endpoint: self.otlp_endpoint.clone(),
            headers: self.otlp_headers.clone(),
            ca: self.otlp_ca.clone(),
            interval: self.otlp_interval.map(|time| time.0),
            traces: self.otlp_traces,
        };
        Telemetry::prepare(&options, identity, buffer)
    }
}
