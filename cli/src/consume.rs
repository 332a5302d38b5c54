//! `millpond consume`: a consumer with ClickHouse behind it.

use crate::admin::Admin;
use millpond_runtime::{Environment as _, Level, Readiness, SystemEnvironment};

use crate::descriptors;
use crate::gc::GcSettings;
use crate::prices::PriceArgs;
use crate::shutdown;
use crate::store::StoreArgs;
use crate::table::{ClickHouseArgs, MakingArgs, TableArgs};
use crate::telemetry::TelemetryArgs;
use crate::unique;
use crate::units::{Size, Time, address, at_least_one, pause, readable, size_from};
use millpond_clickhouse::{ClickHouse, EventTable};
use millpond_consumer::gc::GarbageCollector;
use millpond_consumer::{Consumer, SinkError, Start, StreamPattern, Watching};
use millpond_manifest::cursor::UniqueSettings;
use millpond_operate::Target;
use millpond_peer::WatchClient;
use millpond_telemetry::{Identity, Telemetry};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Settings of the consumer.
#[derive(Debug, clap::Args)]
pub(crate) struct ConsumeArgs {
    /// The consumer's name. Consumers with different names read the buffer independently, like Kafka's groups.
    #[arg(
        long,
        env = "MILLPOND_CONSUMER",
        value_name = "NAME",
        default_value = "default"
    )]
    pub(crate) consumer: String,

    /// Streams to read: names, or prefixes that end with *. `acme.*` selects the streams of tokens with the prefix acme, `otlp.*` those
    /// without a prefix. The buffer keeps no other streams for this consumer.
    #[arg(
        long,
        env = "MILLPOND_STREAMS",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub(crate) streams: Vec<StreamPattern>,

    /// Where a consumer without a position begins: `earliest`, `latest`, a sequence (in every shard), or at the first segment that was
    /// committed at a time like 2026-11-21T09:00:00Z or within an age like 2h. Ignored once the consumer has a position: `millpond consumer
    /// reset` moves it.
    #[arg(
        long,
        env = "MILLPOND_FROM",
        value_name = "PLACE",
        default_value = "earliest",
        value_parser = place
    )]
    pub(crate) from: Start,

    /// Write to tables that another consumer of this buffer writes to. Otherwise the consumer exits at its first start, because two
    /// consumers that read the same streams write every record twice. For consumers that read different streams (--streams).
    #[arg(long, env = "MILLPOND_SHARE_TABLES")]
    pub(crate) share_tables: bool,

    /// Create neither database nor tables. Use it for tables that you create yourself, for instance from `millpond tables print`. The consumer
    /// still checks them.
    #[arg(long, env = "MILLPOND_NO_CREATE")]
    pub(crate) no_create: bool,

    /// Address of the status page, /healthz, /readyz and /metrics.
    #[arg(
        long,
        env = "MILLPOND_CONSUME_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:4381",
        value_parser = address
    )]
    pub(crate) admin: SocketAddr,

    /// Name of this process as the owner of cursors. Default: random. With a stable name, such as a StatefulSet's pod, a restarted process
    /// continues at once instead of waiting for its old lease. Never give the same name to two living processes.
    #[arg(long, env = "MILLPOND_INSTANCE", value_name = "NAME")]
    pub(crate) instance: Option<String>,

    /// Time after which another process may take a cursor whose owner has stopped renewing it.
    #[arg(long, env = "MILLPOND_LEASE", value_name = "TIME", default_value = "15s", value_parser = lease)]
    pub(crate) lease: Time,

    /// Take the cursor at once, even if another process holds it. This fences the old owner.
    #[arg(long, env = "MILLPOND_TAKE_OVER")]
    pub(crate) take_over: bool,

    /// Ask the gateway that leads a shard for commits, if gateways commit for each other (`gateway --peer-listen`). The consumer then reads the
    /// manifest every 5 s, and every --poll-interval only while no leader answers. It must reach the gateways at the address that they
    /// advertise. false: it reads the manifest alone.
    #[arg(
        long,
        env = "MILLPOND_WATCH",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) watch: bool,

    /// Interval between two reads of the manifest, while no leader tells of commits. Four GETs per second cost $4 a month on S3 and add 125 ms to
    /// the median latency.
    #[arg(
        long,
        env = "MILLPOND_POLL_INTERVAL",
        value_name = "TIME",
        default_value = "250ms",
        value_parser = pause
    )]
    pub(crate) poll_interval: Time,

    /// Interval between two writes of acknowledgements when there is nothing to plan; a third of it without an INSERT. Each write costs a PUT.
    /// After a crash, the successor asks ClickHouse about the rows of the last interval.
    #[arg(
        long,
        env = "MILLPOND_ACK_INTERVAL",
        value_name = "TIME",
        default_value = "5s",
        value_parser = pause
    )]
    pub(crate) ack_interval: Time,

    /// Maximum size of the batches in flight. 512MiB hold four batches of the default size.
    #[arg(
        long,
        env = "MILLPOND_CONSUME_MEMORY_LIMIT",
        value_name = "SIZE",
        default_value = "512MiB",
        value_parser = size_from::<{ 16 << 20 }>
    )]
    pub(crate) memory_limit: Size,

    /// Concurrent INSERTs, of one batch or of several. More of them use more cores of ClickHouse and make it merge more parts.
    #[arg(long, env = "MILLPOND_WRITERS", value_name = "N", default_value_t = 2, value_parser = at_least_one::<usize>)]
    pub(crate) writers: usize,

    /// Concurrent ranged GETs.
    #[arg(long, env = "MILLPOND_FETCHERS", value_name = "N", default_value_t = 8, value_parser = at_least_one::<usize>)]
    pub(crate) fetchers: usize,

    /// Target number of records per batch. A segment with at least half of it is a batch by itself. Above 100000, ClickHouse's cost per row
    /// no longer falls.
    #[arg(
        long,
        env = "MILLPOND_BATCH_RECORDS",
        value_name = "N",
        default_value_t = 100_000,
        value_parser = at_least_one::<u64>
    )]
    pub(crate) batch_records: u64,

    /// Target raw size of a batch. A segment with at least half of it is a batch by itself.
    #[arg(
        long,
        env = "MILLPOND_BATCH_BYTES",
        value_name = "SIZE",
        default_value = "64MiB",
        value_parser = size_from::<4096>
    )]
    pub(crate) batch_bytes: Size,

    /// Maximum rows per INSERT. Pinned while batches are planned or in doubt.
    #[arg(
        long,
        env = "MILLPOND_CHUNK_ROWS",
        value_name = "N",
        default_value_t = 100_000,
        value_parser = at_least_one::<u64>
    )]
    pub(crate) chunk_rows: u64,

    /// Maximum uncompressed size of an INSERT, far below the 256 MiB at which the server would split it.
    #[arg(
        long,
        env = "MILLPOND_CHUNK_BYTES",
        value_name = "SIZE",
        default_value = "64MiB",
        value_parser = size_from::<4096>
    )]
    pub(crate) chunk_bytes: Size,

    /// Maximum batches per stream that are planned and not acknowledged. After a crash, a successor asks ClickHouse about all of them.
    #[arg(long, env = "MILLPOND_MAX_IN_FLIGHT", value_name = "N", default_value_t = 16, value_parser = at_least_one::<u32>)]
    pub(crate) max_in_flight: u32,

    /// Maximum dead letters per batch: records that the table rejects, and messages that cannot be read. The buffer keeps them (`millpond
    /// dead-letters`). With more, something other than the rows must be wrong, and the consumer exits. Finding 100 scattered over a batch takes
    /// about 2,000 INSERTs. Events that do not fit their table become dead letters without counting. 0: exit at the first one of any kind.
    #[arg(
        long,
        env = "MILLPOND_DEAD_LETTERS_MAX",
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u16).range(..=1_000)
    )]
    pub(crate) dead_letters_max: u16,

    /// TOML file with the streams of events whose repetitions the consumer drops, each with a key and a window
    /// (docs/deduplication.md). With several shards, run `millpond buffer route` first. A change takes effect only after the consumer has
    /// been stopped cleanly.
    #[arg(long, env = "MILLPOND_UNIQUE", value_name = "FILE")]
    pub(crate) unique: Option<PathBuf>,

    /// Memory for the keys of --unique, taken from --memory-limit. 40 bytes for each key within the window: 128MiB hold 3.3 million keys.
    /// The consumer exits when it needs more.
    #[arg(
        long,
        env = "MILLPOND_UNIQUE_MEMORY",
        value_name = "SIZE",
        default_value = "128MiB",
        value_parser = size_from::<{ 1 << 20 }>
    )]
    pub(crate) unique_memory: Size,

    /// Interval between two rounds of garbage collection in this process. 0s leaves them to others (`millpond gc`). Any number of processes may
    /// collect garbage at once.
    #[arg(long, env = "MILLPOND_GC_INTERVAL", value_name = "TIME", default_value = "5m")]
    pub(crate) gc_interval: Time,

    /// Maximum time for a stopping consumer to finish the batches that it has begun.
    #[arg(
        long,
        env = "MILLPOND_CONSUME_DRAIN_TIMEOUT",
        value_name = "TIME",
        default_value = "30s"
    )]
    pub(crate) drain_timeout: Time,

    #[command(flatten, next_help_heading = "ClickHouse")]
    pub(crate) clickhouse: ClickHouseArgs,

    #[command(flatten, next_help_heading = "ClickHouse")]
    pub(crate) table: TableArgs,

    #[command(flatten, next_help_heading = "New tables")]
    pub(crate) making: MakingArgs,

    #[command(flatten, next_help_heading = "Garbage collection")]
    pub(crate) gc: GcSettings,

    #[command(flatten, next_help_heading = "Prices of requests")]
    pub(crate) prices: PriceArgs,

    #[command(flatten, next_help_heading = "Telemetry of this process")]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten, next_help_heading = "Buffer")]
    pub(crate) store: StoreArgs,
}

/// A shorter lease could run out during one request to the store, and fence its own owner.
fn lease(text: &str) -> Result<Time, String> {
    let lease: Time = text.parse()?;
    if lease.0 < Duration::from_secs(1) {
        return Err("the owner could not renew it in time: give 1s or more, like 15s".to_owned());
    }
    if lease.0 > Duration::from_secs(24 * 60 * 60) {
        return Err(
            "after a crash nobody else could go on for this long: give 1day or less, like 15s".to_owned(),
        );
    }
    Ok(lease)
}

/// As `consumer reset --to` takes it, or an age.
fn place(text: &str) -> Result<Start, String> {
    // Numbers are sequences, although humantime takes 0 for a length of time.
    match text.parse::<Target>() {
        Ok(Target::Earliest) => Ok(Start::Earliest),
        Ok(Target::Latest) => Ok(Start::Latest),
        Ok(Target::Sequence(sequence)) => Ok(Start::Sequence(sequence)),
        Ok(Target::Time(at_ms)) => Ok(Start::Time(at_ms)),
        Err(error) => {
            let age: Time = text.parse().map_err(|_| format!("{error}, nor an age like 2h"))?;
            let age_ms = u64::try_from(age.0.as_millis()).unwrap_or(u64::MAX);
            Ok(Start::Time(SystemEnvironment.now_ms().saturating_sub(age_ms)))
        }
    }
}

impl ConsumeArgs {
    /// `events`: the streams of events that the consumer reads.
    fn consumer(&self, events: &[EventTable]) -> anyhow::Result<millpond_consumer::Config> {
        let random = || format!("{}-{:08x}", std::process::id(), SystemEnvironment.random_u32());
        let has_table = |stream: &str| events.iter().any(|events| events.stream == stream);
        Ok(millpond_consumer::Config {
            consumer: self.consumer.clone(),
            streams: self.streams.clone(),
            start: self.from,
            share_tables: self.share_tables,
            instance: self.instance.clone().unwrap_or_else(random),
            lease: self.lease.0,
            take_over: self.take_over,
            poll_interval: self.poll_interval.0,
            ack_interval: self.ack_interval.0,
            memory_limit: self.memory_limit.0,
            fetchers: self.fetchers,
            writers: self.writers,
            drain_timeout: self.drain_timeout.0,
            batch_records: self.batch_records,
            batch_bytes: self.batch_bytes.0,
            chunk_rows: self.chunk_rows,
            chunk_bytes: self.chunk_bytes.0,
            max_in_flight: self.max_in_flight,
            dead_letters_max: self.dead_letters_max.into(),
            unique: match &self.unique {
                Some(file) => unique::read(file, has_table)?,
                None => UniqueSettings::new(),
            },
            unique_file: match &self.unique {
                Some(file) => file.display().to_string(),
                None => "FILE".to_owned(),
            },
            unique_memory: self.unique_memory.0,
            ..millpond_consumer::Config::default()
        })
    }

    /// How it hears of commits from leaders.
    fn watching(&self) -> anyhow::Result<Option<Watching>> {
        if !self.watch {
            return Ok(None);
        }
        let identity = Arc::new(millpond_peer::Identity::new()?);
        Ok(Some(Watching {
            certificate: identity.fingerprint(),
            leaders: Arc::new(WatchClient::new(identity)),
        }))
    }

    /// The consumer's own telemetry.
    pub(crate) fn telemetry(&self) -> anyhow::Result<Telemetry> {
        let identity = Identity {
            service: "millpond-consumer",
            instance: self.instance.clone(),
            attributes: vec![
                ("millpond.buffer", self.store.buffer.to_string()),
                ("millpond.consumer", self.consumer.clone()),
            ],
        };
        self.telemetry.prepare(&identity, &self.store.buffer)
    }

    fn clickhouse(&self) -> anyhow::Result<millpond_clickhouse::Config> {
        Ok(millpond_clickhouse::Config {
            create: !self.no_create,
            ..self.making.of(self.table.at(&self.clickhouse.clickhouse)?)
        })
    }
}

/// Runs until a signal, then finishes and acknowledges the batches that it has begun.
pub(crate) async fn run(args: ConsumeArgs, telemetry: Telemetry) -> anyhow::Result<()> {
    descriptors::raise()?;
    let shutdown = shutdown::on_signal()?;
    let (admin, admin_address) = Admin::start(args.admin, "consumer", &args.store.buffer).await?;
    let pushing = telemetry.start(admin.registries());
    let ended = consume(args, admin, admin_address, shutdown).await;
    pushing.stop().await;
    ended
}

async fn consume(
    args: ConsumeArgs,
    admin: Admin,
    admin_address: SocketAddr,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let store = tokio::select! {
        store = args.store.open_patiently(false, &admin) => store?,
        () = shutdown.cancelled() => return Ok(()),
    };
    let tables = args.clickhouse()?;
    let config = args.consumer(&tables.event_tables)?;
    let opening = open_sink(tables, &admin);
    let sink = tokio::select! {
        sink = opening => sink?,
        () = shutdown.cancelled() => return Ok(()),
    };

    let mut registry = Registry::default();
    store.register_metrics(&mut registry);
    args.prices.register(&mut registry);
    sink.register_metrics(&mut registry);
    let consumer = Consumer::new(store.clone(), config, Arc::new(sink), &mut registry)?;
    let consumer = match args.watching()? {
        Some(watching) => consumer.with_watching(watching),
        None => consumer,
    };
    let collecting = (!args.gc_interval.0.is_zero()).then(|| {
        let config = args.gc.gc(args.gc_interval.0);
        let gc = GarbageCollector::new(store.clone(), config, &mut registry);
        tokio::spawn(gc.run(shutdown.clone()))
    });
    admin.show(registry);
    admin.reports(consumer.readiness());
    info!(
        "consumer {}: buffer {}, {} at {}, metrics on http://{admin_address}, memory limit {}",
        args.consumer,
        store.url(),
        args.table.database,
        args.clickhouse.clickhouse.join(", "),
        readable(args.memory_limit.0)
    );
    consumer.run(shutdown).await?;
    if let Some(collecting) = collecting {
        // The signal ends the collector too. Its panic does not change the exit code.
        let _ = collecting.await;
    }
    info!("consumer {}: stopped", args.consumer);
    Ok(())
}

/// Waits for a server that is down. A table that does not fit is an error.
async fn open_sink(config: millpond_clickhouse::Config, admin: &Admin) -> anyhow::Result<ClickHouse> {
    let readiness = Readiness::default();
    loop {
        let reason = match ClickHouse::open(config.clone()).await {
            Ok(sink) => return Ok(sink),
            Err(SinkError::Transient(reason)) => reason,
            Err(error) => return Err(error.into()),
        };
        readiness.waits("opening the sink", reason, Level::Warn);
        admin.reports(readiness.clone());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_sequence_a_time_an_age_or_an_end_of_the_log() {
        assert_eq!(place("earliest"), Ok(Start::Earliest));
        assert_eq!(place("latest"), Ok(Start::Latest));
        assert_eq!(place("0"), Ok(Start::Sequence(0)));
        assert_eq!(place("17"), Ok(Start::Sequence(17)));
        assert_eq!(place("1970-01-01T00:00:02Z"), Ok(Start::Time(2_000)));
        let before = SystemEnvironment.now_ms();
        let Ok(Start::Time(at_ms)) = place("2h") else {
            panic!("2h is an age")
        };
        assert!((before..=SystemEnvironment.now_ms()).contains(&(at_ms + 7_200_000)));
        assert!(place("yesterday").unwrap_err().contains("nor an age like 2h"));
    }

    #[test]
    fn a_lease_is_neither_short_nor_endless() {
        assert!(lease("15s").is_ok() && lease("1day").is_ok());
        assert!(lease("999ms").unwrap_err().contains("1s or more"));
        for endless in ["25h", "584542046090years"] {
            assert!(lease(endless).unwrap_err().contains("1day or less"), "{endless}");
        }
    }
}
