//! A server for one test, batches for the sink, and a proxy that records its traffic.
#![expect(
    clippy::disallowed_methods,
    reason = "a server that tests start needs real time"
)]

use bytes::Bytes;
use clickhouse::Client;
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::{Attempt, Batch, BatchId, BatchingPolicy, Chunk, Cut, Found, Part, Sink, SinkError};
use millpond_segment::{BlockBuilder, Compressor, Encoding, Limits};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A ClickHouse over a folder, which ends with the test: the engine as a library, which has ClickHouse's own HTTP
/// interface through the arguments of `clickhouse-local`. The clusters `pair`, of one shard, and `shards`, of two, are
/// the server itself. `far` is one server, itself or another.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    tcp: u16,
    _ports: [UdpSocket; 2],
    _data: Arc<TempDir>,
}

const PROGRAM: &str = r#"
import ctypes, sys
library, data, config = sys.argv[1:]
lib = ctypes.CDLL(library)
lib.chdb_set_signal_handlers_enabled(ctypes.c_int(0))
query = ("SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; SELECT sleepEachRow(1) FROM numbers(1000000) "
         "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0 FORMAT Null")
arguments = ["clickhouse", "--path=" + data, "--config-file=" + config, "--multiquery", "--query", query]
lib.chdb_query_cmdline(ctypes.c_int(len(arguments)), (ctypes.c_char_p * len(arguments))(*[a.encode() for a in arguments]))
"#;

impl Server {
    pub(crate) fn start() -> Self {
        Self::over(Arc::new(tempfile::tempdir().unwrap()))
    }

    /// A server whose cluster `far` is another server.
    pub(crate) fn beside(other: &Server) -> Self {
        Self::of(Arc::new(tempfile::tempdir().unwrap()), Some(other.tcp))
    }

    /// A server over data that outlive it.
    pub(crate) fn over(data: Arc<TempDir>) -> Self {
        Self::of(data, None)
    }

    fn of(data: Arc<TempDir>, far: Option<u16>) -> Self {
        let ports = reserve_ports();
        let [http, tcp] = ports.each_ref().map(|port| port.local_addr().unwrap().port());
        let replica =
            |host: &str, port: u16| format!("<replica><host>{host}</host><port>{port}</port></replica>");
        let (one, other) = (replica("127.0.0.1", tcp), replica("localhost", tcp));
        let far = replica("127.0.0.1", far.unwrap_or(tcp));
        let config = data.path().join("config.xml");
        let text = format!(
            "<clickhouse><logger><level>none</level></logger>\
             <background_distributed_schedule_pool_size>2</background_distributed_schedule_pool_size>\
             <tcp_port>{tcp}</tcp_port><http_port>{http}</http_port><listen_host>127.0.0.1</listen_host>\
             <macros><size>ard</size></macros>\
             <remote_servers><pair><shard>{one}</shard></pair><far><shard>{far}</shard></far>\
             <shards><shard>{one}</shard><shard>{other}</shard></shards></remote_servers></clickhouse>"
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(library())
            .arg(data.path().join("data"))
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", http)).is_err() {
            assert!(Instant::now() < until, "the server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self {
            child,
            url: format!("http://127.0.0.1:{http}"),
            tcp,
            _ports: ports,
            _data: data,
        }
    }

    /// The settings of a sink on this server.
    pub(crate) fn config(&self) -> Config {
        Config {
            urls: vec![self.url.clone()],
            ..Config::default()
        }
    }

    pub(crate) async fn open(&self) -> Arc<ClickHouse> {
        open(self.config()).await
    }

    pub(crate) async fn run(&self, sql: &str) {
        let client = Client::default().with_url(&self.url);
        client.query_raw(sql).execute().await.unwrap();
    }

    /// Returns the answer as text, with rows separated by line ends and values by tabs.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let client = Client::default().with_url(&self.url);
        let mut answer = client.query_raw(sql).fetch_bytes("TSVRaw").unwrap();
        let text = String::from_utf8(answer.collect().await.unwrap().to_vec()).unwrap();
        text.trim_end_matches('\n').to_owned()
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reserves two ports. They are below those that the system gives to outgoing connections (from 32768 on Linux), one of which could take the
/// port while the server does not listen. As in `tests/harness`, a UDP socket keeps a port from other tests, also of other processes.
fn reserve_ports() -> [UdpSocket; 2] {
    let begin = 10_240 + (std::process::id() % 20_000) as u16;
    let mut ports = (begin..32_768).chain(10_240..begin);
    [(); 2].map(|()| {
        let free = ports.find_map(|port| {
            let reserved = UdpSocket::bind(("127.0.0.1", port)).ok()?;
            std::net::TcpListener::bind(("127.0.0.1", port))
                .ok()
                .map(|_| reserved)
        });
        free.expect("a free port")
    })
}

/// Returns the path at which `scripts/install-libchdb.sh` installs the library.
fn library() -> PathBuf {
    if let Some(library) = std::env::var_os("MILLPOND_LIBCHDB") {
        return library.into();
    }
    let cache = std::env::var_os("MILLPOND_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/millpond"),
        PathBuf::from,
    );
    let installed = std::fs::read_dir(&cache)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let library = installed
        .map(|folder| folder.join("libchdb.so"))
        .find(|library| library.is_file());
    library.expect("libchdb is missing: run scripts/install-libchdb.sh")
}

pub(crate) const DAY: u64 = 86_400_000_000_000;
/// 2024-01-01.
pub(crate) const NEW_YEAR: u64 = 1_704_067_200_000_000_000;

pub(crate) fn text(value: impl Into<String>) -> Option<AnyValue> {
    any(Value::StringValue(value.into()))
}

// The generated structs have optional fields.
#[expect(clippy::unnecessary_wraps)]
pub(crate) fn any(value: Value) -> Option<AnyValue> {
    Some(AnyValue { value: Some(value) })
}

pub(crate) fn pair(key: &str, value: Option<AnyValue>) -> KeyValue {
    KeyValue {
        key: key.into(),
        value,
        ..KeyValue::default()
    }
}

/// A record at this time, whose body is its number.
pub(crate) fn record(number: usize, time_unix_nano: u64) -> LogRecord {
    LogRecord {
        time_unix_nano,
        body: text(number.to_string()),
        attributes: vec![pair("number", text(number.to_string()))],
        ..LogRecord::default()
    }
}

/// A request of one resource and one scope.
pub(crate) fn request(log_records: Vec<LogRecord>) -> Vec<u8> {
    let resource = Resource {
        attributes: vec![pair("service.name", text("shop"))],
        ..Resource::default()
    };
    let logs = ResourceLogs {
        resource: Some(resource),
        scope_logs: vec![ScopeLogs {
            log_records,
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![logs],
    }
    .encode_to_vec()
}

/// Records with these times, in one request.
pub(crate) fn at(times: impl IntoIterator<Item = u64>) -> Vec<u8> {
    request(
        times
            .into_iter()
            .enumerate()
            .map(|(number, time)| record(number, time))
            .collect(),
    )
}

/// A batch of one segment with these log messages.
pub(crate) fn batch(low: u64, messages: &[Vec<u8>]) -> Batch {
    batch_of(Signal::Logs, low, messages)
}

/// A batch of a stream of events, of one segment with these messages.
pub(crate) fn batch_of_events(stream: &str, low: u64, messages: &[Vec<u8>]) -> Batch {
    let mut batch = batch_of(Signal::Logs, low, messages);
    batch.id.stream = stream.to_owned();
    batch.encoding = Encoding::Ndjson;
    batch
}

pub(crate) fn batch_of(signal: Signal, low: u64, messages: &[Vec<u8>]) -> Batch {
    let mut compressor = Compressor::new(1).unwrap();
    let mut blocks = Vec::new();
    for (received_at, message) in (1_700_000_000_000_000..).zip(messages) {
        let mut builder = BlockBuilder::with_buffer(received_at, Vec::new(), &Limits::default());
        builder.push(received_at, message).unwrap();
        blocks.extend_from_slice(&compressor.compress(&builder, 0).unwrap().bytes);
    }
    let part = Part {
        sequence: low,
        first_record: 0,
        segment: ulid::Ulid::nil(),
        offset: 8,
        data: Bytes::from(blocks),
        raw_len: 0,
        records: 0,
        dropped: Default::default(),
    };
    let id = BatchId {
        buffer_id: uuid::Uuid::from_u128(7),
        shard: 0,
        stream: signal.stream().into(),
        consumer: "test".into(),
        cursor: "test".into(),
        generation: 0,
        sink: "clickhouse:otel.otel_logs".into(),
        low,
        high: low,
        schema_version: 2,
    };
    Batch {
        id,
        encoding: Encoding::Otlp,
        parts: vec![part],
    }
}

/// The consumer's default.
pub(crate) fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 100_000,
        batch_bytes: 64 << 20,
        chunk_rows: 100_000,
        chunk_bytes: 64 << 20,
        max_partitions_per_chunk: 50,
        max_in_flight: 16,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}

pub(crate) async fn open(config: Config) -> Arc<ClickHouse> {
    Arc::new(ClickHouse::open(config).await.unwrap())
}

/// Makes the first attempt of a chunk, or another one by a sender that does not ask.
pub(crate) async fn write(sink: &ClickHouse, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError> {
    insert(sink, chunk, &id.token(chunk.index, 0)).await
}

/// Writes rows under this token.
pub(crate) async fn insert(sink: &ClickHouse, chunk: &Chunk, token: &str) -> Result<(), SinkError> {
    let attempt = Attempt {
        token: token.to_owned(),
        query_id: format!("millpond/test/{}", uuid::Uuid::new_v4()),
        first: false,
    };
    sink.insert(chunk, &attempt).await
}

/// Makes an attempt in rounds, as a consumer does that knows nothing of the chunk.
pub(crate) async fn write_again(
    sink: &Arc<ClickHouse>,
    id: &BatchId,
    chunk: &Chunk,
) -> Result<Found, SinkError> {
    let sink: Arc<dyn Sink> = sink.clone();
    millpond_consumer::write_again(&sink, id, chunk).await
}

pub(crate) fn chunks(sink: &ClickHouse, batch: &Batch) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut keep = |cut| {
        let Cut::Chunk(chunk) = cut else { panic!("{cut:?}") };
        chunks.push(chunk);
        true
    };
    sink.chunks(batch, &policy(), &mut keep).unwrap();
    chunks
}

/// The one chunk of a small batch.
pub(crate) fn chunk(sink: &ClickHouse, batch: &Batch) -> Chunk {
    let [chunk] = chunks(sink, batch).try_into().unwrap();
    chunk
}

/// A proxy in front of a server.
pub(crate) struct Proxy {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<u8>>>,
    /// Close the connection at the start of the answer.
    pub(crate) cut: Arc<Mutex<bool>>,
}

impl Proxy {
    pub(crate) async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address = server.url.strip_prefix("http://").unwrap().to_owned();
        let proxy = Self {
            url,
            requests: Arc::default(),
            cut: Arc::default(),
        };
        let (requests, cut) = (proxy.requests.clone(), proxy.cut.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                tokio::spawn(pass(client, server, requests.clone(), cut.clone()));
            }
        });
        proxy
    }

    /// Returns everything that was sent to the server, heads and bodies.
    pub(crate) fn requests(&self) -> String {
        String::from_utf8_lossy(&self.requests.lock().unwrap()).into_owned()
    }
}

async fn pass(client: TcpStream, server: TcpStream, requests: Arc<Mutex<Vec<u8>>>, cut: Arc<Mutex<bool>>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forward = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            requests.lock().unwrap().extend_from_slice(&buffer[..length]);
            if to_server.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    let back = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            // The server answers when it has finished.
            if *cut.lock().unwrap() || to_client.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    // The end of either side ends both.
    tokio::select! {
        () = forward => {}
        () = back => {}
    }
}
