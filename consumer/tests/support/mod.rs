//! A log to consume, made through the real formats, and a table that deduplicates by token as
//! ClickHouse does and checks what every sink may rely on.

#![allow(unreachable_pub, reason = "a module of tests")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use async_trait::async_trait;
use bytes::Bytes;
use millpond_consumer::{
    Batch, BatchId, Chunk, Config, ConsumeError, Consumer, Cut, Found, Received, Record, Rule, Sink,
    SinkError,
};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{
    Buffer, Commit, Cursor, DeadLetter, Manifest, NewPart, NewSegment, ProducerId, layout,
};
use millpond_segment::{BlockBuilder, Compressor, Decompressor, Encoding, Limits, SegmentBuilder, blocks};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;
use uuid::Uuid;

pub const STREAM: &str = "events.test";
/// Another stream that the table takes.
pub const OTHER: &str = "events.other";
const PRODUCER: ProducerId = ProducerId([7; 16]);

/// A buffer with one shard, and a producer of it that does no more than the formats ask for.
pub struct Log {
    pub store: Store,
    /// What time it is for whoever commits and seals.
    pub now_ms: u64,
    next_row: u64,
}

impl Log {
    pub async fn new(store: Store) -> Self {
        let buffer_id = Uuid::from_u128(42);
        cas::create_once(
            &store,
            layout::BUFFER,
            Buffer {
                id: buffer_id,
                shards: 1,
            },
        )
        .await
        .unwrap();
        let log = Manifest::new(buffer_id, 0).register(PRODUCER, 1).stamped(1);
        let Swap::Committed(_) = cas::swap(&store, &layout::manifest(0), None, log).await else {
            panic!("a new store refuses a manifest")
        };
        Log {
            store,
            now_ms: 1,
            next_row: 0,
        }
    }

    /// Commits one segment for each number, with that many rows.
    pub async fn commit(&mut self, sizes: &[u64]) {
        self.commit_to(STREAM, sizes).await;
    }

    /// Commits one segment of a stream for each number, with that many rows.
    pub async fn commit_to(&mut self, stream: &str, sizes: &[u64]) {
        for size in sizes {
            self.commit_one(&[(stream, *size)]).await;
        }
    }

    /// Commits one segment, with that many rows of each stream.
    pub async fn commit_one(&mut self, streams: &[(&str, u64)]) {
        let mut segment = SegmentBuilder::new();
        for (stream, size) in streams {
            let mut block = BlockBuilder::new(1_000_000);
            for row in self.next_row..self.next_row + size {
                block.push(1_000_000, format!("row-{row}").as_bytes()).unwrap();
            }
            self.next_row += size;
            let block = Compressor::new(1).unwrap().compress(&block, *size).unwrap();
            segment.push(stream, Encoding::Ndjson, block).unwrap();
        }
        let segment = segment.finish();
        let name = Ulid::from_parts(self.now_ms, u128::from(self.next_row));
        self.store
            .put_if_absent(&layout::segment(0, name), segment.parts.clone())
            .await
            .unwrap();
        let parts = segment.streams.iter().map(|p| NewPart {
            stream: p.stream.clone(),
            encoding: p.encoding,
            offset: p.offset,
            length: p.length,
            raw_length: p.raw_len,
            messages: p.messages,
            records: p.records,
            first_received_at_us: p.first_received_at_us,
            last_received_at_us: p.last_received_at_us,
        });
        let new = NewSegment {
            segment: name,
            size: segment.size,
            parts: parts.collect(),
        };
        let log = self.manifest().await;
        let number = log.state.producer(PRODUCER).unwrap().commit + 1;
        let Ok(Commit::Next { state, .. }) = log.state.commit(PRODUCER, number, &[new], self.now_ms) else {
            panic!("the log refuses a segment")
        };
        let next = state.stamped(number);
        let Swap::Committed(_) = cas::swap(&self.store, &layout::manifest(0), Some(&log.version), next).await
        else {
            panic!("the swap of an undisturbed manifest fails")
        };
    }

    /// Swaps the manifest for what `change` makes of it.
    pub async fn change(&self, change: impl Fn(&Manifest) -> Manifest) {
        loop {
            let log = self.manifest().await;
            let next = change(&log.state).stamped(0);
            match cas::swap(&self.store, &layout::manifest(0), Some(&log.version), next).await {
                Swap::Committed(_) => return,
                Swap::Mismatch => {}
                Swap::Unknown(error) => panic!("{error}"),
            }
        }
    }

    /// Seals the tail into pages of so many entries, as far as it fills them.
    pub async fn seal(&self, entries: usize) {
        loop {
            let log = self.manifest().await.state;
            if log.tail.len() < entries {
                return;
            }
            let last = log.tail_start() + entries as u64 - 1;
            let name = Ulid::from_parts(self.now_ms, u128::from(last));
            let (page, _) = log.seal(name, last).expect("it is in the tail");
            let key = layout::page(0, page.first, name);
            self.store
                .put_if_absent(&key, vec![cas::Object::encode(&page)])
                .await
                .unwrap();
            self.change(|log| log.seal(name, last).expect("it is in the tail").1)
                .await;
        }
    }

    /// The key of the log's page at a place.
    pub async fn page_key(&self, place: usize) -> String {
        let page = &self.manifest().await.state.pages[place];
        layout::page(0, page.first, page.page)
    }

    pub async fn manifest(&self) -> cas::Snapshot<Manifest> {
        cas::read(&self.store, &layout::manifest(0))
            .await
            .unwrap()
            .unwrap()
    }

    pub async fn cursor(&self, consumer: &str) -> Option<Cursor> {
        cas::read(&self.store, &layout::cursor(0, consumer))
            .await
            .unwrap()
            .map(|found| found.state)
    }

    /// As `millpond consumer reset` does.
    pub async fn reset(&self, consumer: &str, position: u64) {
        let key = layout::cursor(0, consumer);
        let found = cas::read::<Cursor>(&self.store, &key).await.unwrap().unwrap();
        let next = found.state.reset(position).stamped(0);
        let Swap::Committed(_) = cas::swap(&self.store, &key, Some(&found.version), next).await else {
            panic!("the swap of an undisturbed cursor fails")
        };
    }

    /// The dead letters, by key.
    pub async fn letters(&self) -> BTreeMap<String, DeadLetter> {
        let mut letters = BTreeMap::new();
        for found in self.store.list(&layout::dead_letters(0, None)).await.unwrap() {
            let letter = cas::read::<DeadLetter>(&self.store, &found.key).await.unwrap();
            letters.insert(found.key, letter.unwrap().state);
        }
        letters
    }

    /// Every row committed so far, once.
    pub fn rows(&self) -> BTreeMap<String, u64> {
        (0..self.next_row).map(|row| (format!("row-{row}"), 1)).collect()
    }
}

/// What the table does to the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It takes the rows and loses the answer.
    LandsUnreported,
    /// It takes nothing and says so.
    Down,
    /// It says that it will never take these rows, and takes none.
    Refuses,
}

/// A table that drops a token it has seen, and remembers every attempt.
pub struct Table {
    name: String,
    state: Mutex<State>,
    gate: Semaphore,
    rows_seen: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    by_token: HashMap<String, Vec<String>>,
    tokens: Vec<String>,
    /// Attempts after a token's first that were not said to be.
    unannounced: Vec<String>,
    faults: VecDeque<Fault>,
    /// A chunk with one of these rows is refused.
    forbidden: BTreeSet<String>,
    /// Messages that are none.
    unreadable: BTreeSet<String>,
}

impl Table {
    pub fn open(name: &str) -> Arc<Self> {
        let table = Self::shut(name);
        table.let_through(1 << 20);
        table
    }

    /// Writes hang until [`let_through`](Self::let_through).
    pub fn shut(name: &str) -> Arc<Self> {
        let (rows_seen, _) = watch::channel(0);
        Arc::new(Table {
            name: name.into(),
            state: Mutex::default(),
            gate: Semaphore::new(0),
            rows_seen,
        })
    }

    pub fn let_through(&self, writes: usize) {
        self.gate.add_permits(writes);
    }

    pub fn fail_next(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// From now on, a chunk with one of these rows is refused.
    pub fn forbid(&self, rows: &[u64]) {
        self.state.lock().unwrap().forbidden = rows.iter().map(|row| format!("row-{row}")).collect();
    }

    /// These messages cannot be read.
    pub fn cannot_read(&self, rows: &[u64]) {
        self.state.lock().unwrap().unreadable = rows.iter().map(|row| format!("row-{row}")).collect();
    }

    /// How often each row is in the table.
    pub fn rows(&self) -> BTreeMap<String, u64> {
        let mut rows = BTreeMap::new();
        for row in self.state.lock().unwrap().by_token.values().flatten() {
            *rows.entry(row.clone()).or_default() += 1;
        }
        rows
    }

    /// The tokens in the order of their attempts.
    pub fn attempts(&self) -> Vec<String> {
        self.state.lock().unwrap().tokens.clone()
    }

    /// The rows of each chunk in the table.
    pub fn chunks(&self) -> Vec<Vec<String>> {
        self.state.lock().unwrap().by_token.values().cloned().collect()
    }

    /// Tokens of attempts that the consumer took for first ones, and that were not.
    pub fn unannounced(&self) -> Vec<String> {
        self.state.lock().unwrap().unannounced.clone()
    }

    pub async fn has(&self, rows: u64) {
        let mut seen = self.rows_seen.subscribe();
        seen.wait_for(|seen| *seen >= rows).await.unwrap();
    }
}

/// Messages that cannot be read, with their places.
type Unreadable = Vec<(u32, Record)>;

impl Table {
    /// A batch's messages.
    fn messages(&self, batch: &Batch) -> Result<(Vec<Record>, Unreadable), SinkError> {
        let damaged = |e: &dyn std::fmt::Display| SinkError::Refused(e.to_string());
        let unreadable = self.state.lock().unwrap().unreadable.clone();
        let (mut read, mut other, mut place) = (Vec::new(), Vec::new(), 0);
        let mut decompressor = Decompressor::new().map_err(|e| damaged(&e))?;
        for part in &batch.parts {
            for block in blocks(&part.data, part.offset, &Limits::default()) {
                let block = block.map_err(|e| damaged(&e))?;
                let raw = block.decode(&mut decompressor).map_err(|e| damaged(&e))?;
                for message in raw.messages() {
                    let message = message.map_err(|e| damaged(&e))?;
                    let record = Record {
                        sequence: part.sequence,
                        received_at_us: message.received_at_us,
                        payload: message.payload.to_vec(),
                    };
                    if unreadable.contains(&*String::from_utf8_lossy(message.payload)) {
                        other.push((place, record));
                    } else {
                        read.push(record);
                    }
                    place += 1;
                }
            }
        }
        Ok((read, other))
    }
}

#[async_trait]
impl Sink for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema_version(&self) -> u32 {
        1
    }

    fn accepts(&self, stream: &str, _: Encoding) -> bool {
        stream == STREAM || stream == OTHER
    }

    fn chunks(&self, batch: &Batch, rule: &Rule, emit: &mut dyn FnMut(Cut) -> bool) -> Result<(), SinkError> {
        let (readable, unreadable) = self.messages(batch)?;
        for (place, message) in unreadable {
            let reason = "it is no row".into();
            let cut = Cut::Unreadable {
                place,
                message,
                reason,
            };
            if !emit(cut) {
                return Ok(());
            }
        }
        let rows: Vec<_> = readable.into_iter().map(|row| Bytes::from(row.payload)).collect();
        let mut first = 0;
        for (index, rows) in (0..).zip(rows.chunks(usize::try_from(rule.chunk_rows).unwrap())) {
            let received = vec![Received {
                at_us: 1_000_000,
                rows: rows.len() as u64,
                first,
            }];
            first += rows.len() as u64;
            let chunk = Chunk {
                index,
                table: 0,
                rows: rows.len() as u64,
                raw_bytes: 1,
                body: rows.to_vec(),
                received,
            };
            if !emit(Cut::Chunk(chunk)) {
                break;
            }
        }
        Ok(())
    }

    fn piece(&self, chunk: &Chunk, rows: Range<u64>, number: u32) -> Chunk {
        let places = usize::try_from(rows.start).unwrap()..usize::try_from(rows.end).unwrap();
        Chunk {
            index: number,
            table: chunk.table,
            rows: rows.end - rows.start,
            raw_bytes: 1,
            body: chunk.body[places].to_vec(),
            received: chunk.received(&rows),
        }
    }

    fn records(&self, batch: &Batch, places: &[u64]) -> Result<Vec<Record>, SinkError> {
        let (readable, _) = self.messages(batch)?;
        Ok(places
            .iter()
            .map(|place| readable[usize::try_from(*place).unwrap()].clone())
            .collect())
    }

    async fn write(&self, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError> {
        let token = id.token(chunk.index);
        {
            let mut state = self.state.lock().unwrap();
            if state.tokens.contains(&token) {
                state.unannounced.push(token);
            }
        }
        self.insert(id, chunk, false).await
    }

    async fn write_again(&self, id: &BatchId, chunk: &Chunk) -> Result<Found, SinkError> {
        self.insert(id, chunk, true).await.map(|()| Found::Nothing)
    }
}

impl Table {
    /// `asks`: whether the rows are there, before they are sent and perhaps refused.
    async fn insert(&self, id: &BatchId, chunk: &Chunk, asks: bool) -> Result<(), SinkError> {
        self.gate.acquire().await.unwrap().forget();
        let token = id.token(chunk.index);
        let rows: Vec<_> = chunk
            .body
            .iter()
            .map(|b| String::from_utf8(b.to_vec()).unwrap())
            .collect();
        let (outcome, seen) = {
            let mut state = self.state.lock().unwrap();
            state.tokens.push(token.clone());
            let fault = state.faults.pop_front();
            let there = asks && state.by_token.contains_key(&token);
            let refused = !there && rows.iter().any(|row| state.forbidden.contains(row));
            let lands = !refused && matches!(fault, None | Some(Fault::LandsUnreported));
            if lands {
                let stored = state
                    .by_token
                    .entry(token.clone())
                    .or_insert_with(|| rows.clone());
                if *stored != rows {
                    // Nobody waits for rows any more.
                    self.rows_seen.send_replace(u64::MAX);
                }
                assert_eq!(*stored, rows, "two row sets share the token {token}");
            }
            let outcome = match fault {
                None if lands => Ok(()),
                None => Err(SinkError::Refused("bad rows".into())),
                Some(Fault::Refuses) if !there => Err(SinkError::Refused("bad rows".into())),
                Some(_) => Err(SinkError::Transient("connection reset".into())),
            };
            (
                outcome,
                state.by_token.values().map(|rows| rows.len() as u64).sum(),
            )
        };
        self.rows_seen.send_replace(seen);
        outcome
    }
}

/// A consumer running in a task of its own.
pub struct Running {
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<(), ConsumeError>>,
}

impl Running {
    /// As SIGTERM does.
    pub async fn stop(self) -> Result<(), ConsumeError> {
        self.shutdown.cancel();
        self.task.await.unwrap()
    }

    /// As kill -9 does, as far as the buffer and the table can tell.
    pub async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Small batches and short waits.
pub fn config(instance: &str) -> Config {
    Config {
        instance: instance.into(),
        lease: Duration::from_secs(60),
        poll_interval: Duration::from_millis(5),
        ack_interval: Duration::from_millis(5),
        batch_records: 10,
        chunk_rows: 4,
        writers: 2,
        ..Config::default()
    }
}

pub fn start(store: &Store, config: Config, table: &Arc<Table>) -> Running {
    let consumer = Consumer::new(store.clone(), config, table.clone(), &mut Registry::default()).unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    Running { shutdown, task }
}

/// Polls until it holds. A test that hangs here names what it waited for.
pub async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}
