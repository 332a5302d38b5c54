//! The sink: a table that knows its rows by the tokens they came under, behind a connection that fails in all the ways there
//! are.

use super::ledger::{Ledger, message_of, rows, sender};
use super::process::Process;
use super::record::{Event, Oracle, Record};
use super::scenario::{Scenario, between, up_to};
use async_trait::async_trait;
use bytes::Bytes;
use millpond_consumer::{Batch, BatchId, Chunk, Cut, Found, Received, Rule, Sink, SinkError, sink};
use millpond_segment::{Decompressor, Encoding, Limits, blocks};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// The rows of one token.
struct Landed {
    /// Shard, stream, first sequence and first record: the order of the rows.
    place: (u32, String, u64, u64),
    rows: Vec<String>,
}

struct State {
    rng: StdRng,
    fault: f64,
    down: bool,
    tokens: BTreeMap<String, Landed>,
    rows: BTreeMap<String, u64>,
}

/// What becomes of one write.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Honest,
    Down,
    LandsUnreported,
    LandsLate(Duration),
}

pub(crate) struct Table {
    /// Of the consumer that fills it.
    consumer: String,
    remembers: bool,
    forbidden: Option<u32>,
    late_by_max: Duration,
    record: Arc<Record>,
    ledger: Arc<Ledger>,
    state: Mutex<State>,
}

impl Table {
    pub(crate) fn new(
        consumer: String,
        scenario: &Scenario,
        seed: u64,
        record: Arc<Record>,
        ledger: Arc<Ledger>,
    ) -> Arc<Table> {
        Arc::new(Table {
            consumer,
            remembers: scenario.table_remembers,
            forbidden: scenario.forbidden,
            late_by_max: scenario.late_by_max,
            record,
            ledger,
            state: Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                fault: scenario.sink_fault,
                down: false,
                tokens: BTreeMap::new(),
                rows: BTreeMap::new(),
            }),
        })
    }

    /// Nothing that is sent from now on fails.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.fault, state.down) = (0.0, false);
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// The first row of a message that is neither in the table nor in a letter.
    pub(crate) fn misses(&self, message: &str) -> Option<String> {
        let state = self.state();
        rows(message).find(|row| !state.rows.contains_key(row))
    }

    /// The rows of each client and stream are in its order.
    pub(crate) fn check_order(&self) {
        let state = self.state();
        let mut landed: Vec<&Landed> = state.tokens.values().collect();
        landed.sort_by(|a, b| a.place.cmp(&b.place));
        let mut last: BTreeMap<(&str, &str), (u64, &str)> = BTreeMap::new();
        for Landed {
            place: (_, stream, ..),
            rows,
        } in landed
        {
            for row in rows {
                let (client, number) = sender(row);
                let before = last.insert((client, stream), (number, row));
                if let Some((_, before)) = before.filter(|(last, _)| *last > number) {
                    let detail = format!("{row} comes after {before} in the table of {}", self.consumer);
                    return self.record.violated(Oracle::Order, detail);
                }
            }
        }
    }

    async fn write(
        self: Arc<Self>,
        process: &Process,
        id: &BatchId,
        chunk: &Chunk,
        again: bool,
    ) -> Result<(), SinkError> {
        process.turn().await;
        let token = id.token(chunk.index);
        let (fate, there, back) = self.fate();
        self.record.event(
            &process.name,
            format_args!("writes {token}, {} rows, again: {again}: {fate:?}", chunk.rows),
        );
        if !again && !self.remembers && self.state().tokens.contains_key(&token) {
            let detail = format!("{} repeats {token} and does not say so", process.name);
            self.record.violated(Oracle::Announced, detail);
        }
        let landed = Landed {
            place: (
                id.shard,
                id.stream.clone(),
                id.low,
                chunk.received.first().map_or(0, |run| run.first),
            ),
            rows: chunk
                .body
                .iter()
                .map(|row| String::from_utf8_lossy(row).into_owned())
                .collect(),
        };
        let refused = landed.rows.iter().any(|row| self.forbids(row));
        let (delay, lands) = match fate {
            Fate::Down => (there, false),
            Fate::Honest | Fate::LandsUnreported => (there, !refused),
            Fate::LandsLate(by) => (there + by, !refused),
        };
        let table = Arc::clone(&self);
        let sent = async move {
            sleep(delay).await;
            if lands {
                table.land(&token, landed);
            }
        };
        match fate {
            Fate::LandsLate(_) => {
                tokio::spawn(sent);
                sleep(there).await;
            }
            // A table that forgets must not be written to by the dead.
            _ if !self.remembers => sent.await,
            // It is on its way, whatever becomes of its sender.
            _ => {
                let _ = tokio::spawn(sent).await;
            }
        }
        sleep(back).await;
        process.turn().await;
        match fate {
            Fate::Honest if refused => {
                self.record.count(Event::ChunksRefused);
                Err(SinkError::Refused("a row is forbidden".into()))
            }
            Fate::Honest => Ok(()),
            Fate::Down => Err(SinkError::Transient("the table is away".into())),
            Fate::LandsUnreported | Fate::LandsLate(_) => Err(SinkError::Transient("no answer came".into())),
        }
    }

    fn fate(&self) -> (Fate, Duration, Duration) {
        let mut state = self.state();
        let (there, back) = (between(&mut state.rng, 0..20), between(&mut state.rng, 0..20));
        let fails = state.rng.random::<f64>() < state.fault;
        let fate = match state.rng.random_range(0..3) {
            _ if state.down => Fate::Down,
            _ if !fails => Fate::Honest,
            0 if self.remembers => Fate::LandsLate(up_to(&mut state.rng, self.late_by_max)),
            1 => Fate::Down,
            _ => Fate::LandsUnreported,
        };
        drop(state);
        match fate {
            Fate::Honest => {}
            Fate::Down => self.record.count(Event::SinkFailed),
            Fate::LandsUnreported => self.record.count(Event::SinkUnreported),
            Fate::LandsLate(_) => self.record.count(Event::SinkLate),
        }
        (fate, there, back)
    }

    fn forbids(&self, row: &str) -> bool {
        self.forbidden
            .is_some_and(|one_in| crc32c::crc32c(row.as_bytes()).is_multiple_of(one_in))
    }

    /// The row is in a dead letter from now on.
    pub(crate) fn buried(&self, row: &str) {
        self.record.count(Event::DeadLetters);
        let times = {
            let mut state = self.state();
            let times = state.rows.entry(row.to_owned()).or_default();
            *times += 1;
            *times
        };
        let wrong = if times > 1 {
            "and in the table or in another letter"
        } else if !self.forbids(row) {
            "which the table takes"
        } else {
            return;
        };
        let detail = format!("{row} is in a dead letter of {}, {wrong}", self.consumer);
        self.record.violated(Oracle::ExactlyOnce, detail);
    }

    /// The rows come into the table, unless they are there under this token.
    fn land(&self, token: &str, landed: Landed) {
        let consumer = &self.consumer;
        let mut state = self.state();
        if let Some(known) = state.tokens.get(token) {
            let same = known.rows == landed.rows;
            drop(state);
            self.record.event(consumer, format_args!("recognised {token}"));
            self.record.add(Event::RowsRecognised, landed.rows.len() as u64);
            if !same {
                let detail = format!("two row sets share the token {token}");
                self.record.violated(Oracle::ExactlyOnce, detail);
            }
            return;
        }
        let mut twice = None;
        for row in &landed.rows {
            let times = state.rows.entry(row.clone()).or_default();
            *times += 1;
            if *times > 1 {
                twice = Some(row.clone());
            }
        }
        let invented = landed
            .rows
            .iter()
            .find(|row| self.ledger.position(message_of(row)).is_none());
        let invented = invented.cloned();
        state.tokens.insert(token.to_owned(), landed);
        drop(state);
        self.record.event(consumer, format_args!("took {token}"));
        if let Some(row) = twice {
            let detail = format!("{row} is in the table of {consumer} twice; the second came under {token}");
            self.record.violated(Oracle::ExactlyOnce, detail);
        }
        if let Some(row) = invented {
            let detail = format!("{row} came under {token}, and is not in the log");
            self.record.violated(Oracle::ExactlyOnce, detail);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a batch, each as a record.
fn rows_of(batch: &Batch) -> Result<Vec<sink::Record>, SinkError> {
    let damaged = |error: &dyn std::fmt::Display| SinkError::Refused(error.to_string());
    let mut decompressor = Decompressor::new().map_err(|error| damaged(&error))?;
    let mut found = Vec::new();
    for part in &batch.parts {
        for block in blocks(&part.data, part.offset, &Limits::default()) {
            let block = block.map_err(|error| damaged(&error))?;
            let raw = block.decode(&mut decompressor).map_err(|error| damaged(&error))?;
            for message in raw.messages() {
                let message = message.map_err(|error| damaged(&error))?;
                let payload = String::from_utf8_lossy(message.payload);
                found.extend(rows(&payload).map(|row| sink::Record {
                    sequence: part.sequence,
                    received_at_us: message.received_at_us,
                    payload: row.into(),
                }));
            }
        }
    }
    Ok(found)
}

/// A process's connection to a table.
pub(crate) struct Connection {
    pub(crate) table: Arc<Table>,
    pub(crate) process: Arc<Process>,
}

#[async_trait]
impl Sink for Connection {
    fn name(&self) -> &str {
        "table"
    }

    fn schema_version(&self) -> u32 {
        1
    }

    fn accepts(&self, _: &str, _: Encoding) -> bool {
        true
    }

    fn chunks(&self, batch: &Batch, rule: &Rule, emit: &mut dyn FnMut(Cut) -> bool) -> Result<(), SinkError> {
        let found: Vec<Bytes> = rows_of(batch)?
            .into_iter()
            .map(|row| row.payload.into())
            .collect();
        let size = usize::try_from(rule.chunk_rows).unwrap_or(usize::MAX);
        let mut first = 0;
        for (index, rows) in (0..).zip(found.chunks(size)) {
            let rows_count = rows.len() as u64;
            let chunk = Chunk {
                index,
                table: 0,
                rows: rows_count,
                raw_bytes: rows.iter().map(|row| row.len() as u64).sum(),
                body: rows.to_vec(),
                received: vec![Received {
                    at_us: 1,
                    rows: rows_count,
                    first,
                }],
            };
            first += rows_count;
            if !emit(Cut::Chunk(chunk)) {
                break;
            }
        }
        Ok(())
    }

    fn piece(&self, chunk: &Chunk, rows: Range<u64>, number: u32) -> Chunk {
        let place = |row| usize::try_from(row).expect("a row of a chunk in memory");
        let body = chunk.body[place(rows.start)..place(rows.end)].to_vec();
        Chunk {
            index: number,
            table: chunk.table,
            rows: rows.end - rows.start,
            raw_bytes: body.iter().map(|row| row.len() as u64).sum(),
            body,
            received: chunk.received(&rows),
        }
    }

    fn records(&self, batch: &Batch, places: &[u64]) -> Result<Vec<sink::Record>, SinkError> {
        let rows = rows_of(batch)?;
        let row = |place: &u64| rows[usize::try_from(*place).expect("a row of a batch in memory")].clone();
        Ok(places.iter().map(row).collect())
    }

    async fn write(&self, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError> {
        Arc::clone(&self.table)
            .write(&self.process, id, chunk, false)
            .await
    }

    async fn write_again(&self, id: &BatchId, chunk: &Chunk) -> Result<Found, SinkError> {
        Arc::clone(&self.table)
            .write(&self.process, id, chunk, true)
            .await
            .map(|()| Found::Nothing)
    }
}
