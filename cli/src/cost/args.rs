//! The flags of `millpond cost`, resolved into a load and settings.

use super::RATIO;
use crate::store::S3Args;
use crate::units::{Size, Time};
use anyhow::bail;
use millpond_cost::{Axis, Knob, Load, NetworkPath, Rate, Settings};
use millpond_storage::BufferUrl;
use std::path::PathBuf;

/// A question about costs.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
pub(crate) struct CostArgs {
    #[command(subcommand)]
    pub(super) command: Option<CostCommand>,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) live: LiveArgs,
    #[command(flatten)]
    pub(super) settings: SettingsArgs,

    /// Storage provider: s3, s3-express, gcs, azure, r2, tigris, self-hosted, or one of a price file.
    #[arg(long, value_name = "NAME", default_value = "s3")]
    pub(super) provider: String,

    /// Region of the store. Default: the provider's first one in the table, us-east-1 for s3.
    #[arg(long, value_name = "NAME")]
    pub(super) region: Option<String>,

    /// TOML file with prices that override the built-in ones. `millpond cost prices print` prints the format.
    #[arg(long, value_name = "FILE")]
    pub(super) prices: Option<PathBuf>,

    /// Price every combination of these values of linger, segment, poll, ack and producers, such as
    /// linger=250ms,1s,5s,segment=4MiB,16MiB.
    #[arg(long, value_name = "NAME=VALUE,…")]
    pub(super) sweep: Vec<String>,

    /// Draw the sweep as SVG into this file: dollars against latency.
    #[arg(long, value_name = "FILE")]
    pub(super) chart: Option<PathBuf>,

    /// Also show the same load on Kafka, MSK, WarpStream, Kinesis and OpenData Buffer, by their public prices.
    #[arg(long)]
    pub(super) compare: bool,

    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  millpond cost --throughput 500GB/day --compare
  millpond cost --throughput 1.1Gbps --compressed --latency 2s --producers 3 --zones 3 --zone-aware
  millpond cost --events 200000 --event-bytes 600B --sweep linger=250ms,1s,5s,segment=4MiB,16MiB --chart cost.svg
  millpond cost --buffer s3://my-bucket/telemetry --since 1h

Units: bytes are B, kB, MB, GB, TB (powers of 1,000) and KiB, MiB, GiB, TiB (of 1,024); bits a second kbps, Mbps, Gbps; times ms, s, m, h, d.
A month has 730 hours; a price list's GB is a GiB. CPU is shown and is not in the total.";

/// The commands about prices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum CostCommand {
    /// The price table.
    #[command(subcommand)]
    Prices(PricesCommand),
}

/// The price table.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PricesCommand {
    /// Read S3 Standard's prices from a saved AWS offer file and print them as a file for --prices. The file is at
    /// https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonS3/current/index.json (one region: …/current/REGION/index.json).
    Import {
        /// The saved JSON file.
        file: PathBuf,
    },
    /// Print all prices with their dates and sources, as a file for --prices.
    Print {
        /// Prices that override the built-in ones.
        #[arg(long, value_name = "FILE")]
        prices: Option<PathBuf>,
    },
}

/// The load.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Incoming data: 50GB/day, 20MB/s, 30MiB/s, 1.1Gbps.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, help_heading = "Load")]
    throughput: Option<String>,

    /// Records per second, such as 200000 or 200k, in place of --throughput; with --event-bytes.
    #[arg(long, value_name = "N", value_parser = events, allow_hyphen_values = true, help_heading = "Load")]
    events: Option<f64>,

    /// Size of a record.
    #[arg(long, value_name = "SIZE", help_heading = "Load")]
    event_bytes: Option<Size>,

    /// Requests per second of all clients together, at regular intervals. Set this if each producer gets only a few requests: a segment begins
    /// with a request, so there are fewer segments. Default: a segment begins as soon as the last one closes.
    #[arg(long, value_name = "N", value_parser = requests, allow_hyphen_values = true, help_heading = "Load")]
    requests: Option<f64>,

    /// The load counts bytes before compression. This is the default.
    #[arg(long, help_heading = "Load")]
    raw: bool,

    /// The load counts stored bytes.
    #[arg(long, help_heading = "Load")]
    compressed: bool,

    /// Ratio of raw to stored bytes. Default: 5.4, measured with OTLP logs of twelve systems and zstd level 1.
    #[arg(long, value_name = "N", value_parser = ratio, allow_hyphen_values = true, help_heading = "Load")]
    pub(super) ratio: Option<f64>,
}

/// `200000`, `1e5`, `200k`, `1.5M`.
fn events(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    let events = number.parse::<f64>().ok().map(|number| number * unit);
    events
        .filter(|events| events.is_finite() && *events > 0.0)
        .ok_or_else(|| {
            "write a number of records a second, more than 0, like 200000, 200k or 1.5M".to_owned()
        })
}

fn requests(text: &str) -> Result<f64, String> {
    let requests = text.parse::<f64>().ok();
    requests
        .filter(|requests| requests.is_finite() && *requests > 0.0)
        .ok_or_else(|| "write a number of requests a second, more than 0, such as 20".to_owned())
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok();
    ratio
        .filter(|ratio| ratio.is_finite() && *ratio >= 1.0)
        .ok_or_else(|| "the ratio of raw to stored bytes must be 1 or more, such as 5.4".to_owned())
}

impl LoadArgs {
    pub(super) fn is_given(&self) -> bool {
        self.throughput.is_some()
            || self.events.is_some()
            || self.event_bytes.is_some()
            || self.requests.is_some()
            || self.raw
            || self.compressed
    }

    pub(super) fn load(&self) -> anyhow::Result<Load> {
        if self.raw && self.compressed {
            bail!("the load is either --raw or --compressed: give one of them, and --ratio for the other");
        }
        let rate = match (&self.throughput, self.events, self.event_bytes) {
            (Some(_), Some(_), _) => bail!("--throughput and --events exclude each other: give one of them"),
            (Some(_), None, Some(_)) => bail!(
                "--event-bytes goes with --events: give --events in place of --throughput, or leave it out"
            ),
            (Some(text), None, None) => text.parse::<Rate>()?,
            (None, Some(_), Some(Size(0))) => {
                bail!("--event-bytes is 0: give the size of a record, like 600B")
            }
            #[expect(clippy::cast_precision_loss, reason = "a record's size")]
            (None, Some(events), Some(size)) => Rate(events * size.0 as f64),
            (None, Some(_), None) => {
                bail!("--events needs the size of a record: give --event-bytes, like 600B")
            }
            (None, None, _) => bail!(
                "the load is missing: give --throughput (50GB/day, 20MB/s, 1.1Gbps), --events with --event-bytes, or --buffer for a live buffer"
            ),
        };
        let ratio = self.ratio.unwrap_or(RATIO);
        let load = if self.compressed {
            Load::compressed(rate, ratio)
        } else {
            Load::raw(rate, ratio)
        };
        Ok(Load {
            requests_per_second: self.requests,
            ..load
        })
    }
}

/// A live buffer, in place of a described load.
#[derive(Debug, clap::Args)]
pub(crate) struct LiveArgs {
    /// Price this live buffer: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory.
    #[arg(long, value_name = "URL", value_parser = BufferUrl::parse, help_heading = "A live buffer")]
    pub(super) buffer: Option<BufferUrl>,

    /// Time to look back, such as 1h, or the time to start from, such as 2026-11-22T10:00Z. The estimate misses objects that garbage collection has deleted: with its default grace, those older than an hour.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1h",
        value_parser = since,
        help_heading = "A live buffer"
    )]
    pub(super) since: Time,

    #[command(flatten, next_help_heading = "A live buffer")]
    pub(super) s3: S3Args,
}

fn since(text: &str) -> Result<Time, String> {
    millpond_operate::look_back(text).map(Time)
}

/// The settings of producers and consumers, with the program's defaults.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {
    /// Target for the 99th percentile of the latency from gateway to row. Determines the linger.
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub(super) latency: Option<Time>,

    /// Time from a segment's first message to its close [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub(super) linger: Option<Time>,

    /// Compressed size at which a segment closes early [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    segment: Option<Size>,

    /// Raw size at which a segment closes early [default: 128MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    segment_raw: Option<Size>,

    /// Number of gateways, or of Collectors with the exporter [default: 1]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    producers: Option<u32>,

    /// Number of gateways in each of the zones, in place of --producers.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "producers",
        help_heading = "Settings"
    )]
    gateways_per_zone: Option<u32>,

    /// Gateways of a shard commit for each other (`millpond gateway --peer-listen`).
    #[arg(long, help_heading = "Settings")]
    peers: bool,

    /// Compressed size below which a gateway sends its segment to the leader instead of uploading it; with --peers [default: 256KiB]
    #[arg(long, value_name = "SIZE", requires = "peers", help_heading = "Settings")]
    forward_below: Option<Size>,

    /// Number of shards [default: 1]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    shards: Option<u32>,

    /// Number of consumers with different names, each reading everything [default: 1]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    consumers: Option<u32>,

    /// Further processes per consumer. They divide the shards; with one shard they stand by [default: 0]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    standbys: Option<u32>,

    /// Streams in a segment: 3 with logs, traces and metrics [default: 1]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    streams: Option<u32>,

    /// Lag of the slowest consumer. The buffer keeps data for --gc-grace at least [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    retention: Option<Time>,

    /// Interval between two reads of the manifest by a consumer [default: 250ms]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    poll_interval: Option<Time>,

    /// Interval between two writes of acknowledgements when a consumer has nothing to plan [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    ack_interval: Option<Time>,

    /// Lease of a cursor [default: 15s]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    lease: Option<Time>,

    /// Concurrent INSERTs of a consumer [default: 2]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    writers: Option<u32>,

    /// Raw bytes that ClickHouse takes in one INSERT at a time. The default was measured with one server on two cores [default: 47.5MB/s]
    #[arg(long, value_name = "RATE", help_heading = "Settings")]
    writer_throughput: Option<Rate>,

    /// Interval between two rounds of garbage collection in each consumer process; 0s for never [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    gc_interval: Option<Time>,

    /// Minimum age of garbage [default: 1h]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    gc_grace: Option<Time>,

    /// Number of entries in the manifest at which a commit seals them into a page [default: 2048]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    tail_max: Option<u32>,

    /// Memory limit of a gateway [default: 256MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Settings")]
    memory_limit: Option<Size>,

    /// Availability zones of the clients. Traffic to a gateway in another zone costs by the byte [default: 1]
    #[arg(long, value_name = "N", help_heading = "Settings")]
    zones: Option<u32>,

    /// Clients send to a gateway in their own zone.
    #[arg(long, help_heading = "Settings")]
    zone_aware: bool,

    /// Path to the bucket: `endpoint` (same region, through a gateway endpoint: free), `nat` (through a NAT gateway),
    /// `internet` (from outside: reads pay egress).
    #[arg(long, value_name = "WAY", default_value = "endpoint", value_parser = path, help_heading = "Settings")]
    network: NetworkPath,

    /// Mean latency of a PUT to the store [default: S3 Standard's 70ms, or the price table's]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub(super) put_latency: Option<Time>,

    /// Mean latency of a GET from the store [default: S3 Standard's 35ms, or the price table's]
    #[arg(long, value_name = "TIME", help_heading = "Settings")]
    pub(super) get_latency: Option<Time>,
}

fn path(text: &str) -> Result<NetworkPath, String> {
    match text {
        "endpoint" => Ok(NetworkPath::Endpoint),
        "nat" => Ok(NetworkPath::Nat),
        "internet" => Ok(NetworkPath::Internet),
        _ => Err("use endpoint, nat or internet".to_owned()),
    }
}

impl SettingsArgs {
    pub(super) fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        let times = [
            (self.linger, &mut settings.linger_seconds),
            (self.retention, &mut settings.retention_seconds),
            (self.poll_interval, &mut settings.poll_seconds),
            (self.ack_interval, &mut settings.ack_seconds),
            (self.lease, &mut settings.lease_seconds),
            (self.gc_interval, &mut settings.gc_seconds),
            (self.gc_grace, &mut settings.grace_seconds),
        ];
        for (given, seconds) in times {
            if let Some(time) = given {
                *seconds = time.0.as_secs_f64();
            }
        }
        let sizes = [
            (self.segment, &mut settings.segment_bytes),
            (self.segment_raw, &mut settings.segment_raw_bytes),
            (self.memory_limit, &mut settings.memory_bytes),
            (self.forward_below, &mut settings.forward_below_bytes),
        ];
        for (given, bytes) in sizes {
            if let Some(size) = given {
                #[expect(clippy::cast_precision_loss, reason = "sizes of memory")]
                let size = size.0 as f64;
                *bytes = size;
            }
        }
        let counts = [
            (self.producers, &mut settings.producers),
            (self.shards, &mut settings.shards),
            (self.consumers, &mut settings.consumers),
            (self.standbys, &mut settings.standbys),
            (self.streams, &mut settings.streams),
            (self.writers, &mut settings.writers),
            (self.tail_max, &mut settings.tail_max),
            (self.zones, &mut settings.zones),
        ];
        for (given, count) in counts {
            if let Some(given) = given {
                *count = given;
            }
        }
        if let Some(rate) = self.writer_throughput {
            settings.writer_bytes_per_second = rate.0;
        }
        if let Some(gateways) = self.gateways_per_zone {
            settings.producers = gateways.saturating_mul(settings.zones);
        }
        settings.peers = self.peers;
        settings.zone_aware = self.zone_aware;
        settings.path = self.network;
        if settings.zone_aware && settings.zones == 1 {
            bail!("--zone-aware needs several zones: give --zones too, or leave it out");
        }
        Ok(settings)
    }

    /// A flag whose value a live buffer determines.
    pub(super) fn observed(&self) -> Option<&'static str> {
        let given = [
            (self.linger.is_some(), "--linger"),
            (self.segment.is_some(), "--segment"),
            (self.segment_raw.is_some(), "--segment-raw"),
            (self.producers.is_some(), "--producers"),
            (self.gateways_per_zone.is_some(), "--gateways-per-zone"),
            (self.peers, "--peers"),
            (self.shards.is_some(), "--shards"),
            (self.consumers.is_some(), "--consumers"),
            (self.streams.is_some(), "--streams"),
            (self.retention.is_some(), "--retention"),
        ];
        given.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
    }
}

impl CostArgs {
    /// The axes of `--sweep`. An item with `=` starts an axis; the following items are its other values.
    pub(super) fn axes(&self) -> anyhow::Result<Vec<Axis>> {
        let mut axes: Vec<Axis> = Vec::new();
        for item in self.sweep.iter().flat_map(|text| text.split(',')) {
            let value = match item.split_once('=') {
                Some((name, value)) => {
                    let Some(knob) = Knob::ALL.into_iter().find(|knob| knob.name() == name.trim()) else {
                        let all = Knob::ALL.map(Knob::name);
                        let likeness = |a: &str| strsim::jaro_winkler(a, name);
                        let near = all.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
                        let near = near.filter(|near| likeness(near) > 0.7);
                        let near = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
                        bail!(
                            "there is no {name:?} to sweep over{near}: there are {}",
                            all.join(", ")
                        );
                    };
                    axes.push(Axis {
                        knob,
                        values: Vec::new(),
                    });
                    value
                }
                None => item,
            };
            let Some(axis) = axes.last_mut() else {
                bail!("--sweep {item:?} names no setting: write --sweep linger=250ms,1s,segment=4MiB,16MiB");
            };
            axis.values.push(knob_value(axis.knob, value.trim())?);
        }
        Ok(axes)
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes of segments")]
fn knob_value(knob: Knob, text: &str) -> anyhow::Result<f64> {
    let value = match knob {
        Knob::Segment => text.parse::<Size>().map(|size| size.0 as f64),
        Knob::Producers => text
            .parse::<u32>()
            .map(f64::from)
            .map_err(|_| format!("{text:?} is not a number of producers: write 1, 2 or 8")),
        Knob::Linger | Knob::Poll | Knob::Ack => text.parse::<Time>().map(|time| time.0.as_secs_f64()),
    };
    value.map_err(|wrong| anyhow::anyhow!("--sweep {}: {wrong}", knob.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    fn parsed(flags: &[&str]) -> Result<CostArgs, String> {
        let words = ["millpond", "cost"].iter().chain(flags);
        match Cli::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .command
        {
            Command::Cost(args) => Ok(*args),
            _ => Err("another command".to_owned()),
        }
    }

    fn refused(flags: &[&str]) -> String {
        let args = match parsed(flags) {
            Ok(args) => args,
            Err(error) => return error,
        };
        format!("{:#}", super::super::described(&args).unwrap_err())
    }

    #[test]
    fn omitted_settings_match_the_programs_defaults() {
        let parse = |words: &[&str]| Cli::try_parse_from(words).unwrap().command;
        let Command::Gateway(gateway) = parse(&["millpond", "gateway", "--buffer", "memory:///"]) else {
            panic!("another command");
        };
        let consume = [
            "millpond",
            "consume",
            "--buffer",
            "memory:///",
            "--clickhouse",
            "http://x",
        ];
        let Command::Consume(consume) = parse(&consume) else {
            panic!("another command");
        };
        #[expect(clippy::cast_precision_loss, reason = "sizes of memory")]
        let size = |size: Size| size.0 as f64;
        let seconds = |time: Time| time.0.as_secs_f64();
        let expected = Settings {
            linger_seconds: seconds(gateway.linger),
            segment_bytes: size(gateway.segment_bytes),
            segment_raw_bytes: size(gateway.segment_raw_bytes),
            shards: gateway.shards,
            tail_max: u32::try_from(gateway.tail_max).unwrap(),
            memory_bytes: size(gateway.memory_limit),
            forward_below_bytes: size(gateway.peers.forward_below),
            poll_seconds: seconds(consume.poll_interval),
            ack_seconds: seconds(consume.ack_interval),
            lease_seconds: seconds(consume.lease),
            writers: u32::try_from(consume.writers).unwrap(),
            gc_seconds: seconds(consume.gc_interval),
            grace_seconds: seconds(consume.gc.gc_grace),
            ..Settings::default()
        };
        assert_eq!(parsed(&[]).unwrap().settings.settings().unwrap(), expected);
    }

    #[test]
    fn a_load_can_be_given_in_every_unit() {
        let load = |flags: &[&str]| parsed(flags).unwrap().load.load().unwrap();
        let raw = load(&["--throughput", "54MB/s"]);
        assert_eq!((raw.compressed_bytes_per_second.round(), raw.ratio), (10e6, 5.4));
        let compressed = load(&["--throughput", "1.1Gbps", "--compressed", "--ratio", "4"]);
        assert_eq!(
            (compressed.compressed_bytes_per_second, compressed.ratio),
            (137.5e6, 4.0)
        );
        let events = load(&["--events", "50000", "--event-bytes", "400B", "--ratio", "10"]);
        assert_eq!(events.compressed_bytes_per_second, 2e6);
        assert_eq!(events.requests_per_second, None);
        let few = load(&["--throughput", "54MB/s", "--requests", "2.5"]);
        assert_eq!(few.requests_per_second, Some(2.5));
    }

    #[test]
    fn a_sweep_has_axes_and_values() {
        let axes = parsed(&["--sweep", "linger=250ms,1s,segment=4MiB,producers=1,8"])
            .unwrap()
            .axes()
            .unwrap();
        let axis = |knob, values: &[f64]| Axis {
            knob,
            values: values.to_vec(),
        };
        assert_eq!(
            axes,
            [
                axis(Knob::Linger, &[0.25, 1.0]),
                axis(Knob::Segment, &[f64::from(4 << 20)]),
                axis(Knob::Producers, &[1.0, 8.0])
            ]
        );
    }

    #[test]
    fn contradictory_flags_are_refused_with_a_remedy() {
        const LOAD: [&str; 2] = ["--throughput", "10MB/s"];
        let with = |flags: &[&str]| refused(&[&LOAD, flags].concat());
        assert!(refused(&[]).contains("give --throughput"));
        assert!(refused(&["--throughput", "10MB"]).contains("50GB/day"));
        assert!(refused(&["--events", "100"]).contains("give --event-bytes"));
        assert!(with(&["--events", "100"]).contains("give one of them"));
        for wrong in ["0", "-5", "NaN", "inf", "many", "k"] {
            assert!(
                refused(&["--events", wrong, "--event-bytes", "1kB"]).contains("like 200000"),
                "{wrong}"
            );
        }
        assert!(refused(&["--events", "100", "--event-bytes", "0"]).contains("--event-bytes is 0"));
        for wrong in ["0", "0.9", "-2", "NaN", "inf", "5:1"] {
            assert!(with(&["--ratio", wrong]).contains("1 or more"), "{wrong}");
        }
        assert!(refused(&["--throughput", "-5GB/day"]).contains("50GB/day"));
        assert!(refused(&["--throughput", "50Gb/day"]).contains("bits or bytes"));
        assert!(with(&["--event-bytes", "1kB"]).contains("goes with --events"));
        assert!(with(&["--requests", "0"]).contains("requests a second, more than 0"));
        assert!(with(&["--raw", "--compressed"]).contains("give one of them"));
        assert!(with(&["--latency", "2s", "--linger", "1s"]).contains("--latency decides the linger"));
        assert!(with(&["--latency", "2s", "--sweep", "linger=1s"]).contains("--latency decides the linger"));
        assert!(with(&["--latency", "10ms"]).contains("out of reach"));
        assert!(with(&["--segment", "300MiB"]).contains("--memory-limit"));
        assert!(with(&["--chart", "x.svg"]).contains("give --sweep too"));
        assert!(with(&["--sweep", "lingr=1s"]).contains("(did you mean linger?)"));
        assert!(!with(&["--sweep", "=1s"]).contains("did you mean"));
        assert!(with(&["--sweep", "linger=1s", "--sweep", "linger=2s"]).contains("given twice"));
        assert!(with(&["--sweep", "1s"]).contains("names no setting"));
        assert!(with(&["--sweep", "linger=1"]).contains("250ms"));
        assert!(with(&["--sweep", "producers=x"]).contains("not a number of producers"));
        assert!(with(&["--region", "us-east1"]).contains("did you mean us-east-1?"));
        assert!(with(&["--provider", "s4"]).contains("did you mean s3?"));
        assert!(with(&["--zone-aware"]).contains("--zones"));
        assert!(with(&["--network", "tunnel"]).contains("endpoint, nat or internet"));
        assert!(with(&["--prices", "/nowhere.toml"]).contains("cannot read /nowhere.toml"));
    }

    #[test]
    fn a_live_buffer_leaves_nothing_to_describe() {
        let refused = |flags: &[&str]| {
            let args = parsed(&[&["--buffer", "memory:///"], flags].concat()).unwrap();
            args.check(&args.axes().unwrap()).unwrap_err().to_string()
        };
        assert!(refused(&["--throughput", "1MB/s"]).contains("give one of them"));
        assert!(refused(&["--sweep", "linger=1s"]).contains("leave out --sweep"));
        assert!(refused(&["--producers", "2"]).contains("--producers follows from the buffer"));
    }
}
