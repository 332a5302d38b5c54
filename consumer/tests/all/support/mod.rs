//! A log to consume, made through the real formats, and a table that deduplicates by token as ClickHouse does. The
//! table also checks the rules on which every sink may rely.

#![allow(unreachable_pub, reason = "a module of tests")]

pub mod content_tags;

use async_trait::async_trait;
use bytes::Bytes;
use millpond_consumer::{
    Attempt, Batch, BatchingPolicy, Chunk, Config, ConsumeError, Consumer, Cut, KeyHasher, KeyValue,
    PartKeys, PartTimes, Presence, ProgramHash, Programs, Received, Record, RowId, RowKey, Settled, Sink,
    SinkError, SinkTable,
};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::cursor::Skip;
use millpond_manifest::{
    Buffer, Claim, Commit, Cursor, DeadLetter, Manifest, NewPart, NewSegment, ProducerId, layout, piece,
};
use millpond_runtime::{Environment, Readiness, SystemEnvironment};
use millpond_segment::{BlockBuilder, Compressor, Encoding, SegmentBuilder};
use millpond_storage::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// A shard of a buffer, and a minimal producer that follows the formats.
pub struct Log {
    pub store: Store,
    /// The current time for commits and seals.
    pub now_ms: u64,
    /// That of the messages to commit.
    pub encoding: Encoding,
    pub shard: u32,
    next_row: u64,
}

impl Log {
    pub async fn new(store: Store) -> Self {
        let buffer_id = Uuid::from_u128(42);
        cas::create_once(&store, layout::BUFFER, Buffer::new(buffer_id, 1))
            .await
            .unwrap();
        let log = Manifest::new(buffer_id, 0).register(PRODUCER, 1).stamped(1);
        let Swap::Committed(_) = cas::swap(&store, &layout::manifest(0), None, log).await else {
            panic!("a new store refuses a manifest")
        };
        Log {
            store,
            now_ms: 1,
            encoding: Encoding::Ndjson,
            shard: 0,
            next_row: 0,
        }
    }

    /// Another shard, which has a log already.
    pub fn in_shard(&self, shard: u32) -> Self {
        Log {
            store: self.store.clone(),
            shard,
            next_row: 1_000_000 * u64::from(shard),
            ..*self
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
            segment.push(stream, self.encoding, block).unwrap();
        }
        let segment = segment.finish();
        let name = Ulid::from_parts(self.now_ms, u128::from(self.next_row));
        self.store
            .put_if_absent(&layout::segment(self.shard, name), segment.parts.clone())
            .await
            .unwrap();
        let parts = segment.streams.iter().map(|p| NewPart {
            stream: p.stream.clone(),
            encoding: p.encoding,
            offset: p.offset,
            length: p.length,
            raw_len: p.raw_len,
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
        let claims = [Claim::one(PRODUCER, number, 0..1)];
        let Ok(Commit { state, .. }) = log.state.commit(&claims, &[new], self.now_ms) else {
            panic!("the log refuses a segment")
        };
        let next = state.stamped(number);
        let Swap::Committed(_) = cas::swap(
            &self.store,
            &layout::manifest(self.shard),
            Some(&log.version),
            next,
        )
        .await
        else {
            panic!("the swap of an undisturbed manifest fails")
        };
    }

    /// Swaps the manifest for the result of `change`.
    pub async fn change(&self, change: impl Fn(&Manifest) -> Manifest) {
        loop {
            let log = self.manifest().await;
            let next = change(&log.state).stamped(0);
            match cas::swap(
                &self.store,
                &layout::manifest(self.shard),
                Some(&log.version),
                next,
            )
            .await
            {
                Swap::Committed(_) => return,
                Swap::Mismatch => {}
                Swap::Unknown(error) => panic!("{error}"),
            }
        }
    }

    /// Seals the tail into full pages of `entries` entries each.
    pub async fn seal(&self, entries: usize) {
        loop {
            let log = self.manifest().await.state;
            if log.tail.len() < entries {
                return;
            }
            let last = log.tail_start() + entries as u64 - 1;
            let name = Ulid::from_parts(self.now_ms, u128::from(last));
            let (page, _) = log.seal(name, last).expect("it is in the tail");
            let key = layout::page(self.shard, page.first, name);
            self.store
                .put_if_absent(&key, vec![cas::Object::encode(&page)])
                .await
                .unwrap();
            self.change(|log| log.seal(name, last).expect("it is in the tail").1)
                .await;
        }
    }

    /// Returns the key of the page at this place in the log.
    pub async fn page_key(&self, place: usize) -> String {
        let page = &self.manifest().await.state.pages[place];
        layout::page(self.shard, page.first, page.page)
    }

    pub async fn manifest(&self) -> cas::Snapshot<Manifest> {
        cas::read(&self.store, &layout::manifest(self.shard))
            .await
            .unwrap()
            .unwrap()
    }

    pub async fn cursor(&self, consumer: &str) -> Option<Cursor> {
        cas::read(&self.store, &layout::cursor(self.shard, consumer))
            .await
            .unwrap()
            .map(|found| found.state)
    }

    /// As `millpond consumer reset` does.
    pub async fn reset(&self, consumer: &str, position: u64) {
        self.change_cursor(consumer, |cursor| cursor.reset(position))
            .await;
    }

    /// As `millpond consumer skip` does.
    pub async fn skip(&self, consumer: &str, sequence: u64) {
        self.change_cursor(consumer, |cursor| {
            let mut cursor = cursor.clone();
            let skip = Skip {
                stream: STREAM.into(),
                sequence,
                at_ms: 1,
                reason: "damaged".into(),
            };
            cursor.skip(skip).unwrap();
            cursor
        })
        .await;
    }

    /// As `millpond consumer remove` does.
    pub async fn remove(&self, consumer: &str) {
        self.remove_from(self.shard, consumer).await;
    }

    /// As `millpond consumer remove --shard` does.
    pub async fn remove_from(&self, shard: u32, consumer: &str) {
        self.change_cursor_in(shard, consumer, Cursor::remove).await;
    }

    /// Swaps a cursor for the result of `change`, whoever owns it.
    pub async fn change_cursor(&self, consumer: &str, change: impl Fn(&Cursor) -> Cursor) {
        self.change_cursor_in(self.shard, consumer, change).await;
    }

    async fn change_cursor_in(&self, shard: u32, consumer: &str, change: impl Fn(&Cursor) -> Cursor) {
        let key = layout::cursor(shard, consumer);
        loop {
            let found = cas::read::<Cursor>(&self.store, &key).await.unwrap().unwrap();
            let next = change(&found.state).stamped(0);
            match cas::swap(&self.store, &key, Some(&found.version), next).await {
                Swap::Committed(_) => return,
                Swap::Mismatch => {}
                Swap::Unknown(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the dead letters by key.
    pub async fn dead_letters(&self) -> BTreeMap<String, DeadLetter> {
        let mut dead_letters = BTreeMap::new();
        for found in self
            .store
            .list(&layout::dead_letters(self.shard, None))
            .await
            .unwrap()
        {
            let letter = cas::read::<DeadLetter>(&self.store, &found.key).await.unwrap();
            dead_letters.insert(found.key, letter.unwrap().state);
        }
        dead_letters
    }

    /// Returns every row committed so far, each once.
    pub fn rows(&self) -> BTreeMap<String, u64> {
        (0..self.next_row).map(|row| (format!("row-{row}"), 1)).collect()
    }
}

/// The table's treatment of the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The table takes the rows, and the answer is lost.
    LandsUnreported,
    /// The table takes the rows of one partition, and the answer is lost.
    LandsInPart,
    /// The table takes nothing and reports an error.
    Down,
    /// The table reports that it will never take these rows, and takes none.
    Refuses,
    /// The table dies after it has recorded the token and before it has the rows: it knows the token forever and has no
    /// rows.
    Poisons,
    /// The table knows the token, the answer is lost, and the rows appear only when the request is settled.
    Hides,
    /// As `Hides`, and the table's deduplication window ends at once: it knows no token any more.
    HidesAndForgets,
    /// The write succeeds.
    Succeeds,
}

/// A row of a source.
type Identity = (String, RowId);

/// A table that drops rows under a known token, answers which rows it has, and remembers every attempt. The numbers of
/// the rows assign them to two partitions.
pub struct Table {
    name: String,
    state: Mutex<State>,
    gate: Semaphore,
    /// The number of hanging requests.
    hanging: AtomicUsize,
    rows_seen: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    rows: Vec<(Identity, String)>,
    /// The known tokens of each partition.
    known: [HashSet<String>; 2],
    tokens: Vec<String>,
    /// The rows of each accepted request, by token.
    taken: BTreeMap<String, Vec<String>>,
    /// The token of the chunk that has a row, within one generation of one cursor.
    chunk_of: HashMap<(String, Identity), String>,
    /// Repeated requests under a token that the consumer sent as first ones.
    unannounced: Vec<String>,
    faults: VecDeque<Fault>,
    /// The table refuses a chunk with one of these rows.
    forbidden: BTreeSet<String>,
    /// Rows of requests in flight whose tokens are known.
    hidden: Vec<(Identity, String)>,
    /// True if a replica that did not answer may have more rows.
    uncertain: bool,
    silent: bool,
    /// A row that the table accepts and never has.
    swallowed: Option<String>,
    /// Messages that cannot be read.
    unreadable: BTreeSet<String>,
    /// The number of different keys: a row's key is the remainder of its number. 0: rows have no keys.
    keys: u64,
    /// The prefixes of the requests to end, and the parts of those to spare.
    settled: Vec<(String, Option<String>)>,
    /// The number of requests, including the accepted ones.
    begun: usize,
    /// The first row of each question, and the number of requests before it.
    asked: Vec<(RowId, usize)>,
    /// As in [`millpond_manifest::SinkTable`].
    identities: Vec<String>,
    /// As in [`Sink::programs`].
    programs: Programs,
}

impl Table {
    pub fn open(name: &str) -> Arc<Self> {
        let table = Self::shut(name);
        table.let_through(1 << 20);
        table
    }

    /// Creates a table in which writes hang until [`let_through`](Self::let_through).
    pub fn shut(name: &str) -> Arc<Self> {
        let (rows_seen, _) = watch::channel(0);
        Arc::new(Table {
            name: name.into(),
            state: Mutex::default(),
            gate: Semaphore::new(0),
            hanging: AtomicUsize::new(0),
            rows_seen,
        })
    }

    /// From now on it can be told from other tables by these.
    pub fn identify(&self, identities: &[&str]) {
        self.state.lock().unwrap().identities = identities.iter().map(|id| (*id).to_owned()).collect();
    }

    /// From now on it makes the rows of a stream by this program, or by none. The rows stay the same.
    pub fn program(&self, stream: &str, program: Option<u8>) {
        let programs = &mut self.state.lock().unwrap().programs;
        match program {
            Some(program) => programs.insert(stream.to_owned(), ProgramHash([program; 32])),
            None => programs.remove(stream),
        };
    }

    pub fn let_through(&self, writes: usize) {
        self.gate.add_permits(writes);
    }

    /// Returns the number of hanging requests.
    pub fn hanging(&self) -> usize {
        self.hanging.load(Ordering::Acquire)
    }

    /// Sets whether another replica may have more rows than the visible ones.
    pub fn set_uncertain(&self, uncertain: bool) {
        self.state.lock().unwrap().uncertain = uncertain;
    }

    /// Sets whether the table cannot tell which rows it has.
    pub fn set_silent(&self, silent: bool) {
        self.state.lock().unwrap().silent = silent;
    }

    /// Ends the requests in flight: their rows become visible.
    pub fn reveal(&self) {
        let mut state = self.state.lock().unwrap();
        let hidden = std::mem::take(&mut state.hidden);
        state.rows.extend(hidden);
    }

    pub fn fail_next(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    /// Drops all pending faults.
    pub fn heal(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// Ends the deduplication window: the table knows no token any more.
    pub fn forget_tokens(&self) {
        self.state.lock().unwrap().known = [HashSet::new(), HashSet::new()];
    }

    /// Deletes this row.
    pub fn delete(&self, row: u64) {
        let text = format!("row-{row}");
        self.state
            .lock()
            .unwrap()
            .rows
            .retain(|(_, found)| *found != text);
    }

    /// Makes the table accept this row and not have it.
    pub fn swallow(&self, row: &str) {
        self.state.lock().unwrap().swallowed = Some(row.to_owned());
    }

    /// From now on, the table refuses a chunk with one of these rows.
    pub fn forbid(&self, rows: &[u64]) {
        self.state.lock().unwrap().forbidden = rows.iter().map(|row| format!("row-{row}")).collect();
    }

    /// Makes these messages unreadable.
    pub fn cannot_read(&self, rows: &[u64]) {
        self.state.lock().unwrap().unreadable = rows.iter().map(|row| format!("row-{row}")).collect();
    }

    /// From now on a row's key is the remainder of its number by this one.
    pub fn repeat_after(&self, keys: u64) {
        self.state.lock().unwrap().keys = keys;
    }

    /// Returns how often each row is in the table.
    pub fn rows(&self) -> BTreeMap<String, u64> {
        let mut rows = BTreeMap::new();
        for (_, row) in &self.state.lock().unwrap().rows {
            *rows.entry(row.clone()).or_default() += 1;
        }
        rows
    }

    /// Returns the tokens in the order of their requests.
    pub fn attempts(&self) -> Vec<String> {
        self.state.lock().unwrap().tokens.clone()
    }

    /// Returns the rows of each accepted request.
    pub fn chunks(&self) -> Vec<Vec<String>> {
        self.state.lock().unwrap().taken.values().cloned().collect()
    }

    /// Returns the tokens of repeated requests that the consumer sent as first ones.
    pub fn unannounced(&self) -> Vec<String> {
        self.state.lock().unwrap().unannounced.clone()
    }

    /// Returns the number of requests.
    pub fn begun(&self) -> usize {
        self.state.lock().unwrap().begun
    }

    /// Returns the first row of each question, and the number of requests before it.
    pub fn asked(&self) -> Vec<(RowId, usize)> {
        self.state.lock().unwrap().asked.clone()
    }

    /// Returns the calls of `settle`: the prefix of the query ids to end, and the part of those to spare.
    pub fn settled(&self) -> Vec<(String, Option<String>)> {
        self.state.lock().unwrap().settled.clone()
    }

    pub async fn has(&self, rows: u64) {
        let mut seen = self.rows_seen.subscribe();
        seen.wait_for(|seen| *seen >= rows).await.unwrap();
    }
}

/// A message with its identity.
type Numbered = (RowId, Record);

impl Table {
    /// Returns a batch's messages: the readable ones, and the others.
    fn messages(&self, batch: &Batch) -> Result<(Vec<Numbered>, Vec<Numbered>), SinkError> {
        let unreadable = self.state.lock().unwrap().unreadable.clone();
        let (mut read, mut other) = (Vec::new(), Vec::new());
        for part in &batch.parts {
            let mut id = RowId {
                sequence: part.sequence,
                record: part.first_record,
            };
            for record in part.messages()? {
                if part.dropped.contains(id.record.into()) {
                    id.record += 1;
                    continue;
                }
                if unreadable.contains(&*String::from_utf8_lossy(&record.payload)) {
                    other.push((id, record));
                } else {
                    read.push((id, record));
                }
                id.record += 1;
            }
        }
        Ok((read, other))
    }
}

fn partition(row: &str) -> usize {
    usize::from(number(row) % 2 == 1)
}

fn number(row: &str) -> u64 {
    row.rsplit('-').next().unwrap().parse().unwrap()
}

fn text(row: &Bytes) -> String {
    String::from_utf8(row.to_vec()).unwrap()
}

#[async_trait]
impl Sink for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema_version(&self) -> u32 {
        1
    }

    fn tables(&self) -> Vec<SinkTable> {
        let identities = self.state.lock().unwrap().identities.clone();
        match identities.is_empty() {
            true => Vec::new(),
            false => vec![SinkTable::new(&self.name, identities)],
        }
    }

    fn programs(&self) -> Programs {
        self.state.lock().unwrap().programs.clone()
    }

    fn accepts(&self, stream: &str, _: Encoding) -> bool {
        stream.starts_with("events.")
    }

    fn chunks(
        &self,
        batch: &Batch,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError> {
        let (readable, unreadable) = self.messages(batch)?;
        for (id, message) in unreadable {
            let reason = "not a row".into();
            if !emit(Cut::Unreadable { id, message, reason }) {
                return Ok(());
            }
        }
        for (index, rows) in (0..).zip(readable.chunks(usize::try_from(policy.chunk_rows).unwrap())) {
            let received = rows.iter().map(|(id, _)| Received {
                at_us: 1_000_000,
                rows: 1,
                first: *id,
            });
            let chunk = Chunk {
                index,
                table: 0,
                rows: rows.len() as u64,
                raw_bytes: 1,
                received: Received::joined(received),
                body: rows.iter().map(|(_, row)| row.payload.clone().into()).collect(),
            };
            if !emit(Cut::Chunk(chunk)) {
                break;
            }
        }
        Ok(())
    }

    fn keys(&self, batch: &Batch, _: &[String]) -> Result<Vec<PartKeys>, SinkError> {
        let keys = self.state.lock().unwrap().keys;
        let mut found = Vec::new();
        for part in &batch.parts {
            let records = (0..).zip(part.messages()?);
            let key = |(record, message): (u32, Record)| {
                let number = number(&String::from_utf8(message.payload).unwrap()).checked_rem(keys)?;
                let mut hasher = KeyHasher::default();
                hasher.add(KeyValue::Number(&number.to_string()));
                Some(RowKey {
                    record,
                    at_us: message.received_at_us,
                    key: hasher.hash(),
                })
            };
            found.push(PartKeys {
                sequence: part.sequence,
                received: PartTimes::of(&mut [1_000_000]),
                keys: records.filter_map(key).collect(),
            });
        }
        Ok(found)
    }

    fn some(&self, chunk: &Chunk, rows: &[u64]) -> Chunk {
        let row = |row: &u64| chunk.body[usize::try_from(*row).unwrap()].clone();
        Chunk {
            rows: rows.len() as u64,
            body: rows.iter().map(row).collect(),
            received: chunk.received(rows),
            ..chunk.clone()
        }
    }

    fn records(&self, batch: &Batch, ids: &[RowId]) -> Result<Vec<Record>, SinkError> {
        let (readable, _) = self.messages(batch)?;
        let record = |id: &RowId| readable.iter().find(|(found, _)| found == id).unwrap().1.clone();
        Ok(ids.iter().map(record).collect())
    }

    async fn insert(&self, chunk: &Chunk, attempt: &Attempt) -> Result<(), SinkError> {
        self.state.lock().unwrap().begun += 1;
        let hangs = Hangs::new(&self.hanging);
        self.gate.acquire().await.unwrap().forget();
        drop(hangs);
        let mut state = self.state.lock().unwrap();
        let outcome = state.insert(chunk, attempt);
        let seen = state.rows.len() as u64;
        drop(state);
        self.rows_seen.send_replace(seen);
        outcome
    }

    async fn presence(&self, source: &str, chunk: &Chunk) -> Result<Presence, SinkError> {
        Ok(self.state.lock().unwrap().presence(source, chunk))
    }

    async fn settle(&self, of: &str, spared: Option<&str>) -> Result<Settled, SinkError> {
        let settled = (of.to_owned(), spared.map(str::to_owned));
        self.state.lock().unwrap().settled.push(settled);
        self.reveal();
        Ok(Settled::Ended)
    }
}

/// Counts a request while it hangs.
struct Hangs<'a>(&'a AtomicUsize);

impl<'a> Hangs<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Hangs(count)
    }
}

impl Drop for Hangs<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl State {
    fn presence(&mut self, source: &str, chunk: &Chunk) -> Presence {
        let before = self.tokens.len();
        self.asked.push((chunk.id(0).unwrap(), before));
        if self.silent {
            return Presence::Unknown;
        }
        let there: HashSet<RowId> = self
            .rows
            .iter()
            .filter(|((of, _), _)| of == source)
            .map(|((_, id), _)| *id)
            .collect();
        let lacking = (0..).zip(chunk.ids()).filter(|(_, id)| !there.contains(id));
        Presence::Lacks {
            rows: lacking.map(|(row, _)| row).collect(),
            certain: !self.uncertain,
        }
    }

    fn insert(&mut self, chunk: &Chunk, attempt: &Attempt) -> Result<(), SinkError> {
        let Attempt {
            token,
            query_id,
            first,
            ..
        } = attempt;
        // millpond/<buffer>/<shard>/<consumer>/…; only the token has the stream.
        let mut words = query_id.split('/').skip(1);
        let mut word = || words.next().unwrap().to_owned();
        let (buffer, shard, consumer) = (word(), word(), word());
        let stream = token.split('/').nth(4).unwrap();
        let source = format!("{buffer}/{shard}/{stream}/{consumer}");
        if *first && self.tokens.contains(token) {
            self.unannounced.push(token.clone());
        }
        self.tokens.push(token.clone());
        let rows: Vec<_> = chunk.ids().zip(chunk.body.iter().map(text)).collect();
        self.check_chunk(&source, token, &rows);
        let fault = self.faults.pop_front().filter(|fault| *fault != Fault::Succeeds);
        let refused =
            fault == Some(Fault::Refuses) || rows.iter().any(|(_, row)| self.forbidden.contains(row));
        if refused && matches!(fault, None | Some(Fault::Refuses)) {
            return Err(SinkError::Refused("bad rows".into()));
        }
        for (id, row) in rows {
            let place = partition(&row);
            let lands = match fault {
                None | Some(Fault::LandsUnreported | Fault::Hides | Fault::HidesAndForgets) => !refused,
                Some(Fault::LandsInPart) => place == 0 && !refused,
                Some(Fault::Poisons | Fault::Down | Fault::Refuses | Fault::Succeeds) => false,
            };
            let lands = lands && self.swallowed.as_ref() != Some(&row);
            if lands && matches!(fault, Some(Fault::Hides | Fault::HidesAndForgets)) {
                self.hidden.push(((source.clone(), id), row));
            } else if lands && !self.known[place].contains(token) {
                self.rows.push(((source.clone(), id), row.clone()));
                self.taken.entry(token.clone()).or_default().push(row);
            }
        }
        let learns: &[usize] = match fault {
            _ if refused => &[],
            None | Some(Fault::LandsUnreported | Fault::Poisons | Fault::Hides) => &[0, 1],
            Some(Fault::LandsInPart) => &[0],
            Some(Fault::Down | Fault::Refuses | Fault::HidesAndForgets | Fault::Succeeds) => &[],
        };
        if fault == Some(Fault::HidesAndForgets) {
            self.known = [HashSet::new(), HashSet::new()];
        }
        let places: HashSet<usize> = chunk.body.iter().map(|row| partition(&text(row))).collect();
        for place in learns.iter().filter(|place| places.contains(place)) {
            self.known[*place].insert(token.clone());
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(SinkError::Transient("connection reset".into())),
        }
    }

    /// Checks that a chunk's rows go out under its token alone: no row may be in two chunks of one generation.
    fn check_chunk(&mut self, source: &str, token: &str, rows: &[(RowId, String)]) {
        let (batch, chunk) = {
            let words: Vec<&str> = token.split('/').collect();
            let range = words.iter().rposition(|word| word.contains('-')).unwrap();
            (words[..range].join("/"), words[range..range + 2].join("/"))
        };
        let number: u32 = chunk.rsplit('/').next().unwrap().parse().unwrap();
        let whole = piece::lineage(number).last().unwrap();
        let chunk = format!("{}/{whole}", chunk.rsplit_once('/').unwrap().0);
        for (id, row) in rows {
            let key = (batch.clone(), (source.to_owned(), *id));
            let known = self.chunk_of.entry(key).or_insert_with(|| chunk.clone());
            assert_eq!(
                *known, chunk,
                "{row} is in two chunks: two row sets share the token {token}"
            );
        }
    }
}

/// A consumer that runs in a separate task.
pub struct Running {
    pub shutdown: CancellationToken,
    pub readiness: Readiness,
    pub task: JoinHandle<Result<(), ConsumeError>>,
}

impl Running {
    /// Stops the consumer as SIGTERM does.
    pub async fn stop(self) -> Result<(), ConsumeError> {
        self.shutdown.cancel();
        self.task.await.unwrap()
    }

    /// Kills the consumer as kill -9 does, as far as the buffer and the table can tell.
    pub async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Batches of one record, four of them in flight.
pub fn single_records() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1 << 20,
        chunk_rows: 4,
        chunk_bytes: 1 << 20,
        max_partitions_per_chunk: 50,
        max_in_flight: 4,
        sink: "table".into(),
        schema_version: 1,
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

/// A machine whose clocks follow tokio's, and that can be suspended or paused.
#[derive(Clone)]
pub struct Machine {
    began: tokio::time::Instant,
    suspended: Arc<Mutex<Duration>>,
    paused: Arc<Mutex<Duration>>,
    cpu_time: Option<Duration>,
}

impl Machine {
    pub fn new() -> Self {
        Machine {
            began: tokio::time::Instant::now(),
            suspended: Arc::default(),
            paused: Arc::default(),
            cpu_time: None,
        }
    }

    /// A machine without other threads: a paused clock stands still while a thread works.
    pub fn with_one_thread() -> Self {
        Machine {
            cpu_time: Some(Duration::ZERO),
            ..Machine::new()
        }
    }

    /// Simulates a suspension of this length: only the uptime advances.
    pub fn suspend(&self, time: Duration) {
        *self.suspended.lock().unwrap() += time;
    }

    /// Simulates a hypervisor's pause of this length: only the wall clock advances.
    pub fn pause(&self, time: Duration) {
        *self.paused.lock().unwrap() += time;
    }
}

impl Environment for Machine {
    fn now_us(&self) -> i64 {
        let paused = i64::try_from(self.paused.lock().unwrap().as_micros()).unwrap();
        SystemEnvironment.now_us() + paused
    }

    fn uptime(&self) -> Duration {
        self.began.elapsed() + *self.suspended.lock().unwrap()
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.cpu_time
    }

    fn random(&self) -> u64 {
        SystemEnvironment.random()
    }
}

pub fn start(store: &Store, config: Config, table: &Arc<Table>) -> Running {
    start_on(&Machine::new(), store, config, table)
}

pub fn start_on(machine: &Machine, store: &Store, config: Config, table: &Arc<Table>) -> Running {
    let consumer = Consumer::new(store.clone(), config, table.clone(), &mut Registry::default())
        .unwrap()
        .with_environment(Arc::new(machine.clone()));
    let (shutdown, readiness) = (CancellationToken::new(), consumer.readiness());
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    Running {
        shutdown,
        readiness,
        task,
    }
}

/// The sum of a metric over its labels.
pub fn metric_sum(registry: &Registry, metric: &str) -> u64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(metric));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    values.sum()
}

/// Makes the store show this manifest, as a stale copy or a restored one.
pub async fn put(log: &Log, manifest: &Manifest) {
    let key = layout::manifest(log.shard);
    let found = log.manifest().await;
    let swapped = cas::swap(&log.store, &key, Some(&found.version), manifest.clone()).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

/// Waits until the consumer `default` has acknowledged everything below `next`.
pub async fn acknowledged(log: &Log, next: u64) {
    acknowledged_in(log, STREAM, next).await;
}

/// As [`acknowledged`], for a stream.
pub async fn acknowledged_in(log: &Log, stream: &str, next: u64) {
    eventually("the batch is acknowledged", async || {
        let cursor = log.cursor("default").await;
        cursor.is_some_and(|cursor| cursor.next(stream) == next)
    })
    .await;
}

/// Waits until a consumer has acknowledged everything below `end`.
pub async fn read_by(log: &Log, consumer: &str, end: u64) {
    eventually("it is acknowledged", async || {
        let cursor = log.cursor(consumer).await;
        cursor.is_some_and(|cursor| cursor.next(STREAM) == end)
    })
    .await;
}

/// Polls until the condition holds. A test that hangs here names the condition.
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
