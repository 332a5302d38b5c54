//! Resolves the destinations of a process's own telemetry, from its flags and OpenTelemetry's standard variables. Sends nothing.

use crate::sampler::Sampler;
use anyhow::{Context, bail};
use millpond_runtime::{Environment as _, SystemEnvironment};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use std::path::PathBuf;
use std::time::Duration;

/// The program's flags. OpenTelemetry's standard variables apply to each that is `None`.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--otlp-endpoint`: the base URL of an OTLP/HTTP endpoint.
    pub endpoint: Option<String>,
    /// `--otlp-headers`: `name=value` pairs of each request, separated by commas, with percent-encoded values.
    pub headers: Option<String>,
    /// `--otlp-ca`: CAs of the endpoint in PEM, in place of the system's.
    pub ca: Option<PathBuf>,
    /// `--otlp-interval`: time between two exports of the metrics.
    pub interval: Option<Duration>,
    /// `--otlp-traces`: the fraction of segments to trace, 0 to 1.
    pub traces: Option<f64>,
}

/// The identity of the process.
#[derive(Debug, Clone)]
pub struct Identity {
    /// `service.name`, unless the variables have another.
    pub service: &'static str,
    /// `service.instance.id`, unless the variables have another; `None` for a random one.
    pub instance: Option<String>,
    /// Other attributes of the resource.
    pub attributes: Vec<(&'static str, String)>,
}

/// The signals to export, with their destinations. The default exports nothing.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The attributes of the resource.
    pub(crate) resource: Vec<KeyValue>,
    pub(crate) metrics: Option<MetricSettings>,
    pub(crate) traces: Option<TraceSettings>,
    /// Sentences about signals that the environment asks for and that are not exported.
    pub(crate) unspoken: Vec<String>,
}

/// The export of metrics.
#[derive(Debug)]
pub(crate) struct MetricSettings {
    pub(crate) destination: Destination,
    pub(crate) interval: Duration,
}

/// The export of traces.
#[derive(Debug)]
pub(crate) struct TraceSettings {
    pub(crate) destination: Destination,
    pub(crate) sampler: Sampler,
    /// Maximum time until the export of a finished span.
    pub(crate) delay: Duration,
}

/// The destination of a signal.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) signal: Signal,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// CAs in place of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// A client's certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) timeout: Duration,
    pub(crate) gzip: bool,
}

/// A signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Metrics,
    Traces,
}

impl Signal {
    /// The name in paths, labels and messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        }
    }
}

/// The environment: a variable's value.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Options {
    /// Resolves the flags, and OpenTelemetry's variables where a flag is missing.
    ///
    /// # Errors
    /// An unusable value, with the name of its flag or variable.
    pub(crate) fn resolve(&self, identity: &Identity, variables: Variables<'_>) -> anyhow::Result<Settings> {
        // The specification treats an empty variable as unset.
        let set = |name: &str| variables(name).filter(|value| !value.trim().is_empty());
        let metrics = match self.destination(Signal::Metrics, &set)? {
            Some(destination) => Some(MetricSettings {
                destination,
                interval: self.interval(&set)?,
            }),
            None => None,
        };
        let traces = self.traces(&set)?;
        let unspoken = self.unspoken(&set)?;
        if metrics.is_none() && traces.is_none() {
            return Ok(Settings {
                unspoken,
                ..Settings::default()
            });
        }
        Ok(Settings {
            resource: resource(identity, &set)?,
            metrics,
            traces,
            unspoken,
        })
    }

    /// One sentence for each signal that the environment asks for and that is not exported. Not an error, since the environment
    /// may be a whole cluster's.
    fn unspoken(&self, set: Variables<'_>) -> anyhow::Result<Vec<String>> {
        let mut wanted = vec![Signal::Metrics];
        if self.ratio(set)?.is_some() {
            wanted.push(Signal::Traces);
        }
        if self.endpoint.is_some() {
            wanted.clear();
        }
        let refused = wanted.into_iter().filter_map(|signal| {
            let (url, _) = endpoint(signal, set)?;
            let (protocol, name) = other_protocol(signal, set)?;
            Some(format!(
                "own {} are not pushed to {url}: {name}={protocol}, and millpond pushes over http/protobuf only; set the variable to that, and \
                 {GENERAL_ENDPOINT} to the endpoint's port for OTLP/HTTP (4318), or {}=none to push nothing",
                signal.name(),
                exporter(signal)
            ))
        });
        Ok(refused.collect())
    }

    fn traces(&self, set: Variables<'_>) -> anyhow::Result<Option<TraceSettings>> {
        let Some(ratio) = self.ratio(set)? else {
            return Ok(None);
        };
        let Some(destination) = self.destination(Signal::Traces, set)? else {
            if self.traces.is_some() {
                bail!("--otlp-traces has no destination: give --otlp-endpoint too");
            }
            return Ok(None);
        };
        let variable = "OTEL_BSP_SCHEDULE_DELAY";
        let delay = match set(variable) {
            None => Duration::from_secs(5),
            Some(value) => milliseconds(&value).context(variable)?,
        };
        Ok(Some(TraceSettings {
            destination,
            sampler: Sampler::new(ratio),
            delay,
        }))
    }

    /// The fraction of the traces. `None` exports no traces.
    fn ratio(&self, set: Variables<'_>) -> anyhow::Result<Option<f64>> {
        let checked = |ratio: f64| -> anyhow::Result<Option<f64>> {
            if !(0.0..=1.0).contains(&ratio) {
                bail!("{ratio} is not a ratio: it must be from 0 to 1");
            }
            Ok((ratio > 0.0).then_some(ratio))
        };
        if let Some(ratio) = self.traces {
            return checked(ratio).context("--otlp-traces");
        }
        let variable = "OTEL_TRACES_SAMPLER";
        match set(variable).as_deref() {
            None | Some("always_off" | "parentbased_always_off") => Ok(None),
            Some("always_on" | "parentbased_always_on") => Ok(Some(1.0)),
            Some("traceidratio" | "parentbased_traceidratio") => {
                let variable = "OTEL_TRACES_SAMPLER_ARG";
                let given = set(variable).unwrap_or_else(|| "1".to_owned());
                let ratio = given.trim().parse();
                let ratio = ratio.with_context(|| format!("{given:?} is not a number"));
                ratio.and_then(checked).context(variable)
            }
            Some(other) => bail!("{variable}={other}: it can be always_on, always_off or traceidratio"),
        }
    }

    fn destination(&self, signal: Signal, set: Variables<'_>) -> anyhow::Result<Option<Destination>> {
        let Some(url) = self.url(signal, set)? else {
            return Ok(None);
        };
        let flag = self
            .headers
            .clone()
            .map(|value| (value, "--otlp-headers".to_owned()));
        let headers = match flag.or_else(|| specific(signal, "HEADERS", set)) {
            Some((value, name)) => parse_headers(&value).context(name)?,
            None => HeaderMap::new(),
        };
        let file = |what| specific(signal, what, set).map(|(path, _)| PathBuf::from(path));
        let identity = match (file("CLIENT_CERTIFICATE"), file("CLIENT_KEY")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => bail!(
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY belong together: only one of them is set"
            ),
        };
        let gzip = match specific(signal, "COMPRESSION", set) {
            None => false,
            Some((value, name)) => match value.as_str() {
                "gzip" => true,
                "none" => false,
                _ => bail!("{name}={value}: it can be gzip or none"),
            },
        };
        let timeout = match specific(signal, "TIMEOUT", set) {
            None => Duration::from_secs(10),
            Some((value, name)) => milliseconds(&value).context(name)?,
        };
        Ok(Some(Destination {
            signal,
            url,
            headers,
            ca: self.ca.clone().or_else(|| file("CERTIFICATE")),
            identity,
            timeout,
            gzip,
        }))
    }

    /// `None`: the signal is not exported.
    fn url(&self, signal: Signal, set: Variables<'_>) -> anyhow::Result<Option<Url>> {
        if let Some(flag) = &self.endpoint {
            return below(flag, signal).context("--otlp-endpoint").map(Some);
        }
        let Some((endpoint, name)) = endpoint(signal, set) else {
            return Ok(None);
        };
        if other_protocol(signal, set).is_some() {
            return Ok(None);
        }
        // In the specification, the general variable has a base, and a signal's variable the whole URL.
        let url = if name == GENERAL_ENDPOINT {
            below(&endpoint, signal)
        } else {
            parse(&endpoint)
        };
        url.context(name).map(Some)
    }

    fn interval(&self, set: Variables<'_>) -> anyhow::Result<Duration> {
        let variable = "OTEL_METRIC_EXPORT_INTERVAL";
        match (&self.interval, set(variable)) {
            (Some(flag), _) if flag.is_zero() => bail!("--otlp-interval must be longer than 0s"),
            (Some(flag), _) => Ok(*flag),
            (None, Some(value)) => milliseconds(&value).context(variable),
            (None, None) => Ok(Duration::from_secs(60)),
        }
    }
}

const GENERAL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The endpoint and its variable, unless other variables disable the signal.
fn endpoint(signal: Signal, set: Variables<'_>) -> Option<(String, String)> {
    let unwanted =
        set(&exporter(signal)).is_some_and(|names| !names.split(',').any(|name| name.trim() == "otlp"));
    let disabled = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if unwanted || disabled {
        return None;
    }
    specific(signal, "ENDPOINT", set)
}

fn exporter(signal: Signal) -> String {
    format!("OTEL_{}_EXPORTER", signal.name().to_uppercase())
}

/// An unsupported protocol and its variable.
fn other_protocol(signal: Signal, set: Variables<'_>) -> Option<(String, String)> {
    specific(signal, "PROTOCOL", set).filter(|(protocol, _)| protocol != "http/protobuf")
}

/// The value and name of the signal's variable, or else of the general one.
fn specific(signal: Signal, what: &str, set: Variables<'_>) -> Option<(String, String)> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.name().to_uppercase());
    [own, format!("OTEL_EXPORTER_OTLP_{what}")]
        .into_iter()
        .find_map(|name| Some((set(&name)?, name)))
}

fn parse(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).with_context(|| format!("{text:?} is not a URL: write http://host:4318"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        bail!(
            "{text:?} is not the URL of an OTLP/HTTP endpoint: write http://host:4318 or https://host:4318"
        );
    }
    Ok(url)
}

/// The signal's URL below a base.
fn below(base: &str, signal: Signal) -> anyhow::Result<Url> {
    let mut url = parse(base)?;
    let path = format!("{}/v1/{}", url.path().trim_end_matches('/'), signal.name());
    url.set_path(&path);
    Ok(url)
}

fn milliseconds(text: &str) -> anyhow::Result<Duration> {
    match text.trim().parse() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => bail!("{text:?} is not a number of milliseconds above 0"),
    }
}

/// Parses `a=b,c=d` with percent-encoded values, the format of the standard variables. Errors name keys but never values, which may be
/// secret.
fn pairs(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let given = text.split(',').filter(|pair| !pair.trim().is_empty());
    let pairs = (1..).zip(given).map(|(place, pair)| {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
            bail!("entry {place} is not name=value (a comma within a value is written %2C)");
        };
        let value = percent_decode_str(value.trim()).decode_utf8();
        let value = value.with_context(|| format!("the value of {} is not UTF-8", key.trim()))?;
        Ok((key.trim().to_owned(), value.into_owned()))
    });
    pairs.collect()
}

fn parse_headers(text: &str) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(text)? {
        let key: HeaderName = name
            .parse()
            .with_context(|| format!("{name:?} is not a header's name"))?;
        let mut value = HeaderValue::from_str(&value)
            .with_context(|| format!("the value of {name} cannot be a header's"))?;
        value.set_sensitive(true);
        headers.append(key, value);
    }
    Ok(headers)
}

/// The attributes of the resource. OTEL_SERVICE_NAME overrides OTEL_RESOURCE_ATTRIBUTES, which overrides the process's own.
fn resource(identity: &Identity, set: Variables<'_>) -> anyhow::Result<Vec<KeyValue>> {
    let random = || format!("{:032x}", SystemEnvironment.random_u128());
    let own = [
        ("service.name", identity.service.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "service.instance.id",
            identity.instance.clone().unwrap_or_else(random),
        ),
    ];
    let own = own.into_iter().chain(identity.attributes.iter().cloned());
    let mut all: Vec<(String, String)> = own.map(|(key, value)| (key.to_owned(), value)).collect();
    let variable = "OTEL_RESOURCE_ATTRIBUTES";
    let mut given = pairs(&set(variable).unwrap_or_default()).context(variable)?;
    given.extend(set("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
    for (key, value) in given {
        match all.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => all.push((key, value)),
        }
    }
    Ok(all
        .into_iter()
        .map(|(key, value)| attribute(key, value))
        .collect())
}

/// A string attribute.
pub(crate) fn attribute(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.into())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests;
