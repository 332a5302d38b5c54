//! `millpond gateway`: a producer with OTLP/gRPC and OTLP/HTTP in front.

use crate::admin::Admin;
use crate::descriptors::{self, Room};
use crate::kafka_topics;
use crate::peers::{PeerArgs, PeerPort};
use crate::prices::PriceArgs;
use crate::security::SecurityArgs;
use crate::shutdown;
use crate::store::StoreArgs;
use crate::telemetry::TelemetryArgs;
use crate::units::{Size, Time, address, at_least_one, host_and_port, readable, size_from};
use anyhow::Context;
use millpond_gateway::{Gateway, KafkaConfig, Listeners, Security};
use millpond_manifest::buffer::SHARDS_MAX;
use millpond_producer::Producers;
use millpond_runtime::SystemEnvironment;
use millpond_telemetry::{Identity, Telemetry};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Settings of the gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayArgs {
    /// Create the bucket or directory if it is missing. Default: off, so that a typing error creates no bucket.
    #[arg(long, env = "MILLPOND_CREATE_BUCKET")]
    pub(crate) create_bucket: bool,

    /// Address for OTLP/gRPC. Any address but loopback requires TLS (--tls-cert, --tls-key) or --insecure.
    #[arg(
        long,
        env = "MILLPOND_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:4317",
        value_parser = address
    )]
    pub(crate) listen: SocketAddr,

    /// Address for OTLP/HTTP (protobuf and JSON, HTTP/1.1 and HTTP/2) and for events (POST /v1/streams/STREAM). Any address but loopback
    /// requires TLS or --insecure.
    #[arg(
        long,
        env = "MILLPOND_LISTEN_HTTP",
        value_name = "ADDR",
        default_value = "127.0.0.1:4318",
        value_parser = address
    )]
    pub(crate) listen_http: SocketAddr,

    /// Address for Kafka's producers, usually port 9092. Default: none. Any address but loopback requires TLS or --insecure.
    #[arg(long, env = "MILLPOND_LISTEN_KAFKA", value_name = "ADDR", value_parser = address)]
    pub(crate) listen_kafka: Option<SocketAddr>,

    /// The address that Kafka's clients connect to after their first request, for example of a load balancer; with TLS, a name in the
    /// certificate. Default: the address that the client has connected to.
    #[arg(
        long,
        env = "MILLPOND_ADVERTISE_KAFKA",
        value_name = "HOST:PORT",
        value_parser = host_and_port,
        requires = "listen_kafka"
    )]
    pub(crate) advertise_kafka: Option<(String, u16)>,

    /// TOML file with the encoding and the stream of Kafka's topics (docs/kafka.md). Without it, records are JSON objects for the stream
    /// of the topic's name, and OTLP in the topics otlp_logs, otlp_spans and otlp_metrics.
    #[arg(
        long,
        env = "MILLPOND_KAFKA_TOPICS",
        value_name = "FILE",
        requires = "listen_kafka"
    )]
    pub(crate) kafka_topics: Option<PathBuf>,

    /// Address of the status page, /healthz, /readyz and /metrics. It needs no credentials. It shows the load and the names of tokens, never
    /// the content of requests.
    #[arg(
        long,
        env = "MILLPOND_GATEWAY_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:4380",
        value_parser = address
    )]
    pub(crate) admin: SocketAddr,

    /// Close a segment this long after its first message, or earlier if all clients wait for answers and the segments so far came more
    /// slowly than one per linger. Segments that fill up earlier may wait as long for each other, to share one commit. Most of the latency,
    /// and of the cost of a quiet gateway: one PUT and one commit per second. 0s commits every message at once.
    #[arg(long, env = "MILLPOND_LINGER", value_name = "TIME", default_value = "1s")]
    pub(crate) linger: Time,

    /// Compressed size at which a segment closes before its linger ends. Above 16MiB a PUT gets slower, not cheaper.
    #[arg(
        long,
        env = "MILLPOND_SEGMENT_BYTES",
        value_name = "SIZE",
        default_value = "16MiB",
        value_parser = size_from::<4096>
    )]
    pub(crate) segment_bytes: Size,

    /// Raw size at which a segment closes, for content that compresses extremely well.
    #[arg(
        long,
        env = "MILLPOND_SEGMENT_RAW_BYTES",
        value_name = "SIZE",
        default_value = "128MiB",
        value_parser = size_from::<4096>
    )]
    pub(crate) segment_raw_bytes: Size,

    /// Raw size of a block, the unit of compression. Larger blocks compress no better.
    #[arg(
        long,
        env = "MILLPOND_BLOCK_BYTES",
        value_name = "SIZE",
        default_value = "1MiB",
        value_parser = size_from::<1024>
    )]
    pub(crate) block_bytes: Size,

    /// Concurrent uploads. 4 fill the network while commits stay in order.
    #[arg(long, env = "MILLPOND_MAX_UPLOADS", value_name = "N", default_value_t = 4, value_parser = at_least_one::<usize>)]
    pub(crate) max_uploads: usize,

    /// zstd level. 1 is the fastest. 3 needs 50 % more CPU for 6 % fewer bytes.
    #[arg(
        long,
        env = "MILLPOND_COMPRESSION_LEVEL",
        value_name = "LEVEL",
        default_value_t = 1,
        value_parser = clap::value_parser!(i32).range(1..=22)
    )]
    pub(crate) compression_level: i32,

    /// Maximum memory of the gateway: four fifths for requests, blocks and segments, the rest for connections, idle buffers and the
    /// allocator. 256MiB hold a minute of 30 MB/s compressed tenfold.
    #[arg(
        long,
        env = "MILLPOND_GATEWAY_MEMORY_LIMIT",
        value_name = "SIZE",
        default_value = "256MiB",
        value_parser = size_from::<{ 16 << 20 }>
    )]
    pub(crate) memory_limit: Size,

    /// Reject a request that has waited this long for memory, with RESOURCE_EXHAUSTED (429 over HTTP). The default is shorter than the
    /// timeouts of OTLP clients. 0s rejects at once.
    #[arg(long, env = "MILLPOND_MAX_WAIT", value_name = "TIME", default_value = "10s")]
    pub(crate) max_wait: Time,

    /// Maximum size of a request, both as sent and decompressed; of a Kafka client's, which may have many, of each batch. The Collector's
    /// batches stay far below 16MiB.
    #[arg(
        long,
        env = "MILLPOND_MAX_MESSAGE_BYTES",
        value_name = "SIZE",
        default_value = "16MiB",
        value_parser = size_from::<4096>
    )]
    pub(crate) max_message_bytes: Size,

    /// The shard to write to. Requests that clients number go to the shard of the client all the same, and rows that the buffer routes to
    /// that of their key. Default: a random shard, and when the buffer grows, perhaps a new one, so that all shards are equally used.
    #[arg(long, env = "MILLPOND_SHARD", value_name = "N")]
    pub(crate) shard: Option<u32>,

    /// Number of shards of a new buffer. One shard sustains 10 to 20 commits per second.
    #[arg(
        long,
        env = "MILLPOND_SHARDS",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX))
    )]
    pub(crate) shards: u32,

    /// Number of entries in the manifest at which the next commit seals them into a page. With 2048 a commit moves at most 120 KB,
    /// whatever the backlog. At most 3072: readers refuse a manifest with more than 4096 entries.
    #[arg(long, env = "MILLPOND_TAIL_MAX", value_name = "N", default_value_t = 2048)]
    pub(crate) tail_max: usize,

    /// Maximum time for a stopping gateway to commit the requests that it has accepted.
    #[arg(
        long,
        env = "MILLPOND_GATEWAY_DRAIN_TIMEOUT",
        value_name = "TIME",
        default_value = "30s"
    )]
    pub(crate) drain_timeout: Time,

    #[command(flatten, next_help_heading = "Other gateways")]
    pub(crate) peers: PeerArgs,

    #[command(flatten, next_help_heading = "TLS and tokens")]
    pub(crate) security: SecurityArgs,

    #[command(flatten, next_help_heading = "Prices of requests")]
    pub(crate) prices: PriceArgs,

    #[command(flatten, next_help_heading = "Telemetry of this process")]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten, next_help_heading = "Buffer")]
    pub(crate) store: StoreArgs,
}

impl GatewayArgs {
    fn producer(&self) -> millpond_producer::Config {
        millpond_producer::Config {
            linger: self.linger.0,
            segment_bytes: self.segment_bytes.bytes(),
            segment_raw_bytes: self.segment_raw_bytes.bytes(),
            block_bytes: self.block_bytes.bytes(),
            max_uploads: self.max_uploads,
            compression_level: self.compression_level,
            memory_limit: self.memory_limit.bytes() / 5 * 4,
            max_wait: self.max_wait.0,
            shard: self.shard,
            shards_when_created: self.shards,
            tail_max: self.tail_max,
            ..millpond_producer::Config::default()
        }
    }

    /// The gateway's own telemetry.
    pub(crate) fn telemetry(&self) -> anyhow::Result<Telemetry> {
        let identity = Identity {
            service: "millpond-gateway",
            instance: None,
            attributes: vec![("millpond.buffer", self.store.buffer.to_string())],
        };
        self.telemetry.prepare(&identity, &self.store.buffer)
    }

    fn kafka(&self) -> anyhow::Result<KafkaConfig> {
        let topics = self.kafka_topics.as_deref().map(kafka_topics::read);
        Ok(KafkaConfig {
            topics: topics.transpose()?.unwrap_or_default(),
            advertised: self.advertise_kafka.clone(),
        })
    }

    fn gateway(&self, max_connections: usize) -> millpond_gateway::Config {
        millpond_gateway::Config {
            max_connections,
            max_message_bytes: self.max_message_bytes.bytes(),
            drain_timeout: self.drain_timeout.0,
            ..millpond_gateway::Config::default()
        }
    }
}

/// Runs until a signal, then commits the accepted requests.
pub(crate) async fn run(args: GatewayArgs, telemetry: Telemetry) -> anyhow::Result<()> {
    let wanted = Room {
        otlp: millpond_gateway::Config::default().max_connections,
        peers: args.peers.connections(),
    };
    let room = descriptors::connections(descriptors::raise()?, wanted)?;
    args.security.check(args.listen).context("--listen")?;
    args.security.check(args.listen_http).context("--listen-http")?;
    if let Some(listen) = args.listen_kafka {
        args.security.check(listen).context("--listen-kafka")?;
    }
    let kafka = args.kafka()?;
    let mut registry = Registry::default();
    let security = args.security.load(&mut registry)?;
    let shutdown = shutdown::on_signal()?;
    args.security.watch(Arc::clone(&security), shutdown.clone())?;
    let listeners = Listeners {
        grpc: bind(args.listen, "OTLP/gRPC (--listen)").await?,
        http: bind(args.listen_http, "OTLP/HTTP (--listen-http)").await?,
        kafka: match args.listen_kafka {
            Some(listen) => Some((bind(listen, "Kafka's clients (--listen-kafka)").await?, kafka)),
            None => None,
        },
    };
    let peers = args.peers.open().await?;
    let (admin, admin_address) = Admin::start(args.admin, "gateway", &args.store.buffer).await?;
    let pushing = telemetry.start(admin.registries());
    let site = Site {
        listeners,
        peers,
        admin,
        admin_address,
        security,
        registry,
        room,
    };
    let ended = serve(args, site, shutdown).await;
    pushing.stop().await;
    ended
}

/// The parts of a gateway that need no store.
struct Site {
    listeners: Listeners,
    /// For other gateways.
    peers: Option<PeerPort>,
    admin: Admin,
    admin_address: SocketAddr,
    security: Arc<Security>,
    registry: Registry,
    room: Room,
}

async fn serve(args: GatewayArgs, site: Site, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Site {
        listeners,
        peers,
        admin,
        admin_address,
        security,
        mut registry,
        room,
    } = site;
    let store = tokio::select! {
        store = args.store.open_patiently(args.create_bucket, &admin) => store?,
        () = shutdown.cancelled() => return Ok(()),
    };
    store
        .self_test()
        .await
        .context("the store cannot be trusted with a buffer")?;

    store.register_metrics(&mut registry);
    args.prices.register(&mut registry);
    let peering = peers.as_ref().map(PeerPort::peering);
    let environment = Arc::new(SystemEnvironment);
    let producers = Producers::start(
        environment,
        store.clone(),
        args.producer(),
        peering,
        &mut registry,
    )
    .await?;
    // Other gateways are served until this one has left the lead to them.
    let served = CancellationToken::new();
    let peers = peers
        .map(|peers| peers.serve(producers.clone(), room.peers, served.clone()))
        .transpose()?
        .map(tokio::spawn);
    let gateway = Gateway::new(
        producers.clone(),
        args.gateway(room.otlp),
        Arc::clone(&security),
        &mut registry,
    );
    admin.show(registry);
    admin.reports(producers.readiness());
    let kafka = match &listeners.kafka {
        Some((listener, _)) => format!(", Kafka on {}", listener.local_addr()?),
        None => String::new(),
    };
    info!(
        "gateway: OTLP/gRPC on {}, OTLP/HTTP on {}{kafka}, {}, metrics on http://{admin_address}, buffer {}, memory limit {}",
        listeners.grpc.local_addr()?,
        listeners.http.local_addr()?,
        security.describe(),
        store.url(),
        readable(args.memory_limit.0)
    );

    let following = producers.clone();
    tokio::spawn(async move { following.follow_growth().await });
    gateway.serve(listeners, shutdown).await?;
    producers
        .drain(args.drain_timeout.0)
        .await
        .context("records that were accepted but not acknowledged may be lost")?;
    served.cancel();
    if let Some(peers) = peers {
        peers.await.context("the port for other gateways broke off")?;
    }
    info!("gateway: stopped; everything acknowledged is committed");
    Ok(())
}

async fn bind(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} for {what}"))
}
