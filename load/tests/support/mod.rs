//! A real gateway over an in-memory buffer, and the content of its log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millpond_gateway::{Config, Gateway, Listeners, Security};
use millpond_load::{Compression, Credentials, Format, LoadConfig};
use millpond_manifest::{Manifest, Snapshot, cas, layout};
use millpond_producer::Producers;
use millpond_runtime::{Reservation, SystemEnvironment};
use millpond_segment::{Decompressor, Limits, blocks, verify};
use millpond_storage::Store;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prometheus_client::registry::Registry;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than this means that something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The gateway's maximum message length: about 300 records of the load.
const MESSAGE_MAX: usize = 256 << 10;

/// A running gateway; dropping this stops it.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    store: Store,
    producers: Producers,
    registry: Registry,
    _shutdown: DropGuard,
}

/// A small, endless load.
pub(crate) fn config(address: SocketAddr) -> LoadConfig {
    LoadConfig {
        endpoints: vec![address.to_string()],
        format: Format::Otlp,
        credentials: Credentials::default(),
        rate: 0,
        concurrency: 4,
        records_per_request: 100,
        duration: None,
        records: None,
        bodies: None,
        seed: 1,
        unique_attribute: "millpond.load.id".to_owned(),
        run: "run".to_owned(),
        compression: Compression::None,
        retry_for: PATIENCE,
        acknowledged_file: None,
    }
}

impl World {
    pub(crate) async fn start() -> World {
        let store = Store::memory();
        let mut registry = Registry::default();
        let producer_config = millpond_producer::Config {
            linger: Duration::from_millis(10),
            block_bytes: 64 << 10,
            memory_limit: 16 << 20,
            max_wait: Duration::from_millis(50),
            encoders: 1,
            ..millpond_producer::Config::default()
        };
        let environment = Arc::new(SystemEnvironment);
        let producers = Producers::start(environment, store.clone(), producer_config, None, &mut registry)
            .await
            .expect("a producer");
        let config = Config {
            max_message_bytes: MESSAGE_MAX,
            retry_after: Duration::from_millis(20),
            ..Config::default()
        };
        let gateway = Gateway::new(producers.clone(), config, Security::open(), &mut registry);
        let listeners = Listeners {
            grpc: TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
            http: TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
            kafka: None,
        };
        let address = listeners.grpc.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        tokio::spawn(gateway.serve(listeners, shutdown.clone()));
        World {
            address,
            store,
            producers,
            registry,
            _shutdown: shutdown.drop_guard(),
        }
    }

    /// Until the reservation is dropped, the gateway refuses every request.
    pub(crate) async fn hold_all_memory(&self) -> Reservation {
        let budget = self.producers.budget();
        budget.reserve(budget.limit()).await.expect("all memory")
    }

    /// Waits until the gateway has refused `requests` for lack of memory.
    pub(crate) async fn refused(&self, requests: u64) {
        let refused = async {
            while self.refusals() < requests {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.expect("a refusal");
    }

    fn refusals(&self) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        let metric = "millpond_gateway_requests_total{transport=\"grpc\",signal=\"logs\",code=\"RESOURCE_EXHAUSTED\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(metric));
        line.map_or(0, |count| count.parse().expect("a count"))
    }

    /// All committed messages.
    pub(crate) async fn log(&self) -> Log {
        let manifest: Snapshot<Manifest> = cas::read(&self.store, &layout::manifest(0))
            .await
            .expect("a manifest that can be read")
            .expect("a manifest");
        let (limits, mut decompressor) = (Limits::default(), Decompressor::new().expect("a decompressor"));
        let mut log = Log::default();
        for entry in &manifest.state.tail {
            let key = layout::segment(0, entry.segment);
            let object = self.store.get(&key).await.expect("a store").expect("a segment");
            let index = verify(&object.bytes, &limits).expect("a good segment");
            for part in &index.streams {
                let bytes = part.slice(&object.bytes).expect("the part");
                for block in blocks(&bytes, part.offset, &limits) {
                    let block = block.expect("a good block");
                    let raw = block.decode(&mut decompressor).expect("its content");
                    for message in raw.messages() {
                        log.add(message.expect("a message").payload);
                    }
                }
            }
        }
        log
    }
}

/// The content of the log, decoded by a standard OTLP library.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<Record>,
    /// Total size of the messages.
    pub(crate) bytes: u64,
}

/// One log record.
pub(crate) struct Record {
    pub(crate) body: String,
    pub(crate) severity: String,
    attributes: Vec<KeyValue>,
}

impl Log {
    fn add(&mut self, payload: &[u8]) {
        self.bytes += payload.len() as u64;
        let request = ExportLogsServiceRequest::decode(payload).expect("a request");
        let scopes = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
        for record in scopes.flat_map(|logs| logs.log_records) {
            assert!(record.time_unix_nano > 0 && record.observed_time_unix_nano > record.time_unix_nano);
            assert!(matches!(record.trace_id.len(), 0 | 16), "{record:?}");
            self.records.push(Record {
                body: text(record.body.as_ref()).to_owned(),
                severity: record.severity_text,
                attributes: record.attributes,
            });
        }
    }

    /// The unique ids, sorted.
    pub(crate) fn ids(&self, attribute: &str) -> Vec<String> {
        let mut ids: Vec<String> = self
            .records
            .iter()
            .map(|record| record.attribute(attribute).to_owned())
            .collect();
        ids.sort_unstable();
        ids
    }
}

impl Record {
    pub(crate) fn attribute(&self, key: &str) -> &str {
        let pair = self.attributes.iter().find(|pair| pair.key == key);
        text(pair.and_then(|pair| pair.value.as_ref()))
    }
}

fn text(value: Option<&AnyValue>) -> &str {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?} instead of a string"),
    }
}
