//! `millpond bridge kafka`: reads the topics of a Kafka cluster into a buffer.

use crate::admin::Admin;
use crate::kafka_topics;
use crate::password;
use crate::shutdown;
use crate::store::StoreArgs;
use crate::telemetry::TelemetryArgs;
use crate::units::{Size, Time, address, pause, readable, size_from};
use anyhow::{Context, ensure};
use clap::{Subcommand, ValueEnum};
use millpond_bridge::{AcceptedGap, Bridge, Config, From, Landing, Security};
use millpond_producer::Producer;
use millpond_runtime::SystemEnvironment;
use millpond_telemetry::{Identity, Telemetry};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The sources.
#[derive(Debug, Subcommand)]
pub(crate) enum BridgeCommand {
    /// Read topics of a Kafka cluster, each record exactly once: their offsets are committed in the buffer together with the records.
    Kafka(Box<KafkaArgs>),
}

/// Where a partition without a position begins.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Place {
    /// At the oldest record.
    Earliest,
    /// At the end.
    Latest,
    /// At the offset that the group has committed to Kafka, or at the oldest record.
    Committed,
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mechanism {
    #[value(name = "PLAIN", alias = "plain")]
    Plain,
    #[value(name = "SCRAM-SHA-256", alias = "scram-sha-256")]
    Scram256,
    #[value(name = "SCRAM-SHA-512", alias = "scram-sha-512")]
    Scram512,
}

/// Settings of the bridge.
#[derive(Debug, clap::Args)]
pub(crate) struct KafkaArgs {
    /// Create the bucket or directory if it is missing. Default: off, so that a typing error creates no bucket.
    #[arg(long, env = "MILLPOND_CREATE_BUCKET")]
    create_bucket: bool,

    /// Kafka's brokers, of which some suffice: host:port, separated by commas.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_BROKERS",
        value_name = "HOST:PORT,…",
        required = true
    )]
    brokers: String,

    /// The topics to read.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_TOPICS",
        value_name = "NAMES",
        value_delimiter = ',',
        required = true
    )]
    topics: Vec<String>,

    /// Kafka's consumer group, whose members divide the partitions. All bridges of a topic have the same one.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_GROUP",
        value_name = "NAME",
        default_value = "millpond"
    )]
    group: String,

    /// Where a partition begins that has no position in the buffer yet. With `committed` and the group of an existing consumer, the
    /// bridge takes over from it.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_FROM",
        value_name = "PLACE",
        default_value = "earliest"
    )]
    from: Place,

    /// TOML file with the encoding and the stream of each topic, as of the gateway (docs/kafka.md). Without it, records are JSON objects
    /// for the stream of the topic's name, and OTLP in the topics otlp_logs, otlp_spans and otlp_metrics.
    #[arg(long, env = "MILLPOND_KAFKA_TOPICS", value_name = "FILE")]
    kafka_topics: Option<PathBuf>,

    /// Continue a partition whose position Kafka does not have. TOPIC/PARTITION continues at the oldest record if Kafka has deleted
    /// the one at the position. If Kafka's end is before the position, the flag has three more numbers, and moves exactly this position,
    /// once. Without the flag the bridge stops the partition, and its error has the flags to choose from.
    #[arg(
        long,
        value_name = "TOPIC/PARTITION[/POSITION/OFFSET/INCARNATION]",
        value_delimiter = ',',
        value_parser = accepted_gap
    )]
    accept_gap: Vec<AcceptedGap>,

    /// Leave out a record that cannot enter the buffer, for example because it is too large: TOPIC/PARTITION/OFFSET. The stream
    /// bridge.rejected gets a row without its content.
    #[arg(long, value_name = "TOPIC/PARTITION/OFFSET", value_delimiter = ',', value_parser = record)]
    skip_record: Vec<(String, u32, u64)>,

    /// The name of the Kafka cluster in the buffer, instead of the cluster's id. Positions belong to it. Two clusters with the same
    /// id, such as copies of one compose file, need different names.
    #[arg(long, env = "MILLPOND_BRIDGE_SOURCE", value_name = "NAME")]
    source: Option<String>,

    /// The shard that takes the records. Each partition keeps the shard in which it began: to use several shards, divide the topics
    /// between groups of bridges.
    #[arg(long, env = "MILLPOND_SHARD", value_name = "N", default_value_t = 0)]
    shard: u32,

    /// Close a segment this long after its first message.
    #[arg(long, env = "MILLPOND_LINGER", value_name = "TIME", default_value = "1s")]
    linger: Time,

    /// Time without a sign of life after which Kafka gives the partitions to other bridges.
    #[arg(long, env = "MILLPOND_BRIDGE_SESSION_TIMEOUT", value_name = "TIME", default_value = "45s", value_parser = pause)]
    session_timeout: Time,

    /// Maximum memory of the bridge. It stops reading while records of a quarter of it wait for their commit.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_MEMORY_LIMIT",
        value_name = "SIZE",
        default_value = "512MiB",
        value_parser = size_from::<{ 128 << 20 }>
    )]
    memory_limit: Size,

    /// Address of the status page, /healthz, /readyz and /metrics.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:4382",
        value_parser = address
    )]
    admin: SocketAddr,

    /// Maximum time for a stopping bridge to commit what it has read.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_DRAIN_TIMEOUT",
        value_name = "TIME",
        default_value = "30s"
    )]
    drain_timeout: Time,

    #[command(flatten, next_help_heading = "TLS and SASL")]
    security: SecurityArgs,

    #[command(flatten, next_help_heading = "Telemetry of this process")]
    telemetry: TelemetryArgs,

    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// The connection to the brokers.
#[derive(Debug, clap::Args)]
struct SecurityArgs {
    /// Use TLS. Default: off.
    #[arg(long, env = "MILLPOND_BRIDGE_TLS")]
    tls: bool,

    /// CAs of the brokers, in PEM, in place of the system's.
    #[arg(long, env = "MILLPOND_BRIDGE_TLS_CA", value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,

    /// The bridge's certificate, in PEM, for brokers that ask for one.
    #[arg(long, env = "MILLPOND_BRIDGE_TLS_CERT", value_name = "FILE", requires_all = ["tls", "tls_key"])]
    tls_cert: Option<PathBuf>,

    /// The certificate's key, in PEM, without a passphrase.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,

    /// SASL's mechanism.
    #[arg(long, env = "MILLPOND_BRIDGE_SASL", value_name = "MECHANISM", requires_all = ["sasl_user", "sasl_password_file"])]
    sasl: Option<Mechanism>,

    /// SASL's user.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_SASL_USER",
        value_name = "NAME",
        requires = "sasl"
    )]
    sasl_user: Option<String>,

    /// File with the user's password. A line break at its end does not count.
    #[arg(
        long,
        env = "MILLPOND_BRIDGE_SASL_PASSWORD_FILE",
        value_name = "FILE",
        requires = "sasl"
    )]
    sasl_password_file: Option<PathBuf>,
}

fn accepted_gap(text: &str) -> Result<AcceptedGap, String> {
    let parsed = || {
        let parts: Vec<&str> = text.split('/').collect();
        let (topic, partition, landing) = match parts[..] {
            [topic, partition] => (topic, partition, Landing::Oldest),
            [topic, partition, position, offset, incarnation] => {
                let landing = Landing::Offset {
                    position: position.parse().ok()?,
                    offset: offset.parse().ok()?,
                    incarnation: incarnation.parse().ok()?,
                };
                (topic, partition, landing)
            }
            _ => return None,
        };
        Some(AcceptedGap {
            topic: topic.to_owned(),
            partition: partition.parse().ok()?,
            landing,
        })
    };
    parsed().ok_or_else(|| {
        "use TOPIC/PARTITION, like orders/3, or TOPIC/PARTITION/POSITION/OFFSET/INCARNATION from the bridge's error".to_owned()
    })
}

fn record(text: &str) -> Result<(String, u32, u64), String> {
    let parsed = || {
        let [topic, partition, offset] = text.split('/').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some((topic.to_owned(), partition.parse().ok()?, offset.parse().ok()?))
    };
    parsed().ok_or_else(|| "use TOPIC/PARTITION/OFFSET, like orders/3/1041".to_owned())
}

fn file_name(file: &Path) -> anyhow::Result<String> {
    let text = file.to_str().map(str::to_owned);
    text.with_context(|| format!("the name of the file {} is not UTF-8", file.display()))
}

impl SecurityArgs {
    fn load(&self) -> anyhow::Result<Security> {
        let sasl = match (&self.sasl, &self.sasl_user, &self.sasl_password_file) {
            (Some(mechanism), Some(user), Some(file)) => {
                let mechanism = match mechanism {
                    Mechanism::Plain => "PLAIN",
                    Mechanism::Scram256 => "SCRAM-SHA-256",
                    Mechanism::Scram512 => "SCRAM-SHA-512",
                };
                let password = password::read("--sasl-password-file", file)?;
                Some((mechanism.to_owned(), user.clone(), password))
            }
            _ => None,
        };
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((file_name(certificate)?, file_name(key)?)),
            _ => None,
        };
        Ok(Security {
            tls: self.tls,
            ca: self.tls_ca.as_deref().map(file_name).transpose()?,
            identity,
            sasl,
        })
    }
}

impl KafkaArgs {
    fn producer(&self) -> millpond_producer::Config {
        millpond_producer::Config {
            linger: self.linger.0,
            memory_limit: self.memory_limit.bytes() / 2,
            // A record that finds no room is read again later: the loop must not wait.
            max_wait: Duration::ZERO,
            shard: Some(self.shard),
            shards_when_created: self.shard.saturating_add(1),
            ..millpond_producer::Config::default()
        }
    }

    fn bridge(&self) -> anyhow::Result<Config> {
        ensure!(
            self.topics
                .iter()
                .all(|topic| !topic.is_empty() && !topic.starts_with('^')),
            "--topics takes the names of topics, not patterns"
        );
        let routes = self.kafka_topics.as_deref().map(kafka_topics::read);
        let place = match self.from {
            Place::Earliest => From::Earliest,
            Place::Latest => From::Latest,
            Place::Committed => From::Committed,
        };
        Ok(Config {
            brokers: self.brokers.clone(),
            topics: self.topics.clone(),
            group: self.group.clone(),
            routes: routes.transpose()?.unwrap_or_default(),
            from: place,
            source: self.source.clone(),
            skipped: self.skip_record.iter().cloned().collect(),
            accepted_gaps: self.accept_gap.iter().cloned().collect(),
            security: self.security.load()?,
            session_timeout: self.session_timeout.0,
            in_flight_bytes: self.memory_limit.bytes() / 4,
            ahead_bytes: self.memory_limit.bytes() / 8,
            grace: self.drain_timeout.0,
        })
    }
}

impl BridgeCommand {
    /// The command's own telemetry.
    pub(crate) fn telemetry(&self) -> anyhow::Result<Telemetry> {
        let BridgeCommand::Kafka(args) = self;
        let identity = Identity {
            service: "millpond-bridge",
            instance: None,
            attributes: vec![("millpond.buffer", args.store.buffer.to_string())],
        };
        args.telemetry.prepare(&identity, &args.store.buffer)
    }

    /// Runs until a signal, then commits what it has read.
    pub(crate) async fn run(self, telemetry: Telemetry) -> anyhow::Result<()> {
        let BridgeCommand::Kafka(args) = self;
        let config = args.bridge()?;
        let shutdown = shutdown::on_signal()?;
        let (admin, admin_address) = Admin::start(args.admin, "bridge", &args.store.buffer).await?;
        let pushing = telemetry.start(admin.registries());
        let ended = serve(*args, config, admin, admin_address, shutdown).await;
        pushing.stop().await;
        ended
    }
}

async fn serve(
    args: KafkaArgs,
    config: Config,
    admin: Admin,
    admin_address: SocketAddr,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let drain_timeout = args.drain_timeout.0;
    let starting = start(&args, config, &admin, admin_address);
    let (bridge, producer) = tokio::select! {
        started = starting => started?,
        () = shutdown.cancelled() => return Ok(()),
    };
    let running = bridge.run(shutdown.clone());
    tokio::pin!(running);
    let (ended, left) = tokio::select! {
        ended = &mut running => (ended, drain_timeout),
        () = shutdown.cancelled() => {
            let stopping = Instant::now();
            let ended = running.await;
            (ended, drain_timeout.saturating_sub(stopping.elapsed()))
        }
    };
    // The tasks of a producer that has committed everything need a moment to end.
    let drained = producer.drain(left.max(Duration::from_secs(1))).await;
    ended?;
    drained.context("records that were read are not committed; the next bridge reads them again")?;
    info!("bridge: stopped; the next bridge goes on from the positions in the buffer");
    Ok(())
}

async fn start(
    args: &KafkaArgs,
    config: Config,
    admin: &Admin,
    admin_address: SocketAddr,
) -> anyhow::Result<(Bridge, Producer)> {
    let store = args.store.open_patiently(args.create_bucket, admin).await?;
    store
        .self_test()
        .await
        .context("the store cannot be trusted with a buffer")?;
    let mut registry = Registry::default();
    store.register_metrics(&mut registry);
    let environment = Arc::new(SystemEnvironment);
    let producer =
        Producer::start_in(environment.clone(), store.clone(), args.producer(), &mut registry).await?;
    let topics = config.topics.join(", ");
    let bridge = Bridge::new(
        config,
        store.clone(),
        producer.clone(),
        environment,
        &mut registry,
    )?;
    admin.show(registry);
    admin.reports(producer.readiness());
    info!(
        "bridge: reads {topics} of {} as group {}, metrics on http://{admin_address}, buffer {}, shard {}, memory limit {}",
        args.brokers,
        args.group,
        store.url(),
        args.shard,
        readable(args.memory_limit.0)
    );
    Ok((bridge, producer))
}
