//! The sink's table. Like ClickHouse, it stores rows by identity in a few partitions, and records deduplication tokens
//! per partition. It may record a token without its rows, and may forget a token. [`super::sink`] connects to it.

use super::ledger::Ledger;
use super::record::{Event, Oracle, Record};
use super::scenario::{Scenario, between, one_in, up_to};
use millpond_consumer::RowId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum latency of a request to the table, and of its answer.
pub(crate) const WAY_MAX: Duration = Duration::from_millis(20);

/// A row with its identity.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) shard: u32,
    pub(crate) stream: String,
    pub(crate) id: RowId,
    pub(crate) text: String,
}

impl Row {
    fn key(&self) -> Identity {
        (self.shard, self.stream.clone(), self.id)
    }

    fn partition(&self, partitions: usize) -> usize {
        crc32c::crc32c(self.text.as_bytes()) as usize % partitions
    }
}

/// The identity of a consumer's row.
type Identity = (u32, String, RowId);

/// The fate of an INSERT.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Honest,
    /// The request never arrives.
    Down,
    LandsUnreported,
    LandsLate(Duration),
    /// It fails at one partition: the ones before it have their rows, the ones after do not.
    Breaks {
        /// A random number that selects the partition.
        at: usize,
        /// The partition has recorded the token without the rows.
        poisons: bool,
        /// The server ends, together with all requests in flight.
        restarts: bool,
    },
}

/// An INSERT as the table sees it.
pub(crate) struct Insert {
    pub(crate) token: String,
    pub(crate) query_id: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) fate: Fate,
}

struct State {
    rng: StdRng,
    fault: f64,
    down: bool,
    /// The tokens of each partition and their recording times.
    tokens: Vec<BTreeMap<String, Instant>>,
    /// The start of the last request under each token.
    used: BTreeMap<String, Instant>,
    rows: BTreeMap<Identity, u64>,
    /// Rows in dead letters.
    buried: BTreeSet<Identity>,
    /// Rows in any request so far.
    sent: BTreeSet<Identity>,
    /// Requests in flight, by number.
    under_way: BTreeMap<u64, String>,
    requests: u64,
    /// The current opening of each shard's cursor.
    openings: BTreeMap<u32, u64>,
}

pub(crate) struct Table {
    /// The consumer that writes to it.
    consumer: String,
    pub(crate) scenario: Scenario,
    pub(crate) record: Arc<Record>,
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
            scenario: scenario.clone(),
            record,
            ledger,
            state: Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                fault: scenario.sink_fault,
                down: false,
                tokens: vec![BTreeMap::new(); scenario.partitions],
                used: BTreeMap::new(),
                rows: BTreeMap::new(),
                buried: BTreeSet::new(),
                sent: BTreeSet::new(),
                under_way: BTreeMap::new(),
                requests: 0,
                openings: BTreeMap::new(),
            }),
        })
    }

    /// No request fails from now on.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.fault, state.down) = (0.0, false);
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// Records the opening that the cursor of a shard holds from now on.
    pub(crate) fn opened(&self, shard: u32, opening: u64) {
        self.state().openings.insert(shard, opening);
    }

    /// The first row of a part that is neither in the table nor in a dead letter, or that is in one of them and repeats
    /// another row. `repeated`: the records that do.
    pub(crate) fn misses(
        &self,
        shard: u32,
        stream: &str,
        sequence: u64,
        repeated: &BTreeSet<u32>,
    ) -> Option<String> {
        let part = self.ledger.rows_at(shard, stream, sequence);
        let state = self.state();
        let mut rows = (0..).zip(part.iter());
        let missing = rows.find(|(record, _)| {
            let id = RowId {
                sequence,
                record: *record,
            };
            let key = (shard, stream.to_owned(), id);
            let is_there = state.rows.contains_key(&key) || state.buried.contains(&key);
            is_there == repeated.contains(record)
        });
        missing.map(|(record, row)| format!("{row} (record {record} of {sequence})"))
    }

    /// The indexes of the rows that the table lacks.
    pub(crate) fn lacks(&self, rows: &[Row]) -> Vec<u64> {
        let state = self.state();
        let lacking = (0..)
            .zip(rows)
            .filter(|(_, row)| !state.rows.contains_key(&row.key()));
        lacking.map(|(place, _)| place).collect()
    }

    /// Returns whether a read request fails, and its delays in both directions.
    pub(crate) fn asked(&self) -> (bool, Duration, Duration) {
        let mut state = self.state();
        let (there, back) = (way(&mut state.rng) * 3, way(&mut state.rng) * 3);
        let fails = state.rng.random::<f64>() < state.fault / 2.0 || state.down;
        (fails, there, back)
    }

    /// Draws the fate of the next INSERT and its delays in both directions.
    pub(crate) fn fate(&self) -> (Fate, Duration, Duration) {
        let mut state = self.state();
        let (there, back) = (way(&mut state.rng), way(&mut state.rng));
        let fails = state.rng.random::<f64>() < state.fault;
        let Scenario {
            window,
            late_by_max,
            poisons,
            ..
        } = self.scenario;
        let fate = match state.rng.random_range(0..5) {
            _ if state.down => Fate::Down,
            _ if !fails => Fate::Honest,
            0 if window => Fate::LandsLate(up_to(&mut state.rng, late_by_max)),
            1 => Fate::Down,
            2 => Fate::LandsUnreported,
            _ => Fate::Breaks {
                at: state.rng.random_range(0..6),
                poisons: poisons && !one_in(&mut state.rng, 3),
                restarts: one_in(&mut state.rng, 3),
            },
        };
        drop(state);
        match fate {
            Fate::Honest => {}
            Fate::Down => self.record.count(Event::SinkFailed),
            Fate::LandsUnreported => self.record.count(Event::SinkUnreported),
            Fate::LandsLate(_) => self.record.count(Event::SinkLate),
            Fate::Breaks { .. } => self.record.count(Event::SinkBroken),
        }
        (fate, there, back)
    }

    pub(crate) fn forbids(&self, rows: &[Row]) -> bool {
        let forbidden = |row: &Row| {
            self.scenario
                .forbidden
                .is_some_and(|one_in| crc32c::crc32c(row.text.as_bytes()).is_multiple_of(one_in))
        };
        rows.iter().any(forbidden)
    }

    /// Records a request in flight. `first`: its sender claims that nobody has ever sent any of its rows.
    pub(crate) fn begins(&self, insert: &Insert, first: bool) -> u64 {
        let mut state = self.state();
        state.requests += 1;
        let number = state.requests;
        state.under_way.insert(number, insert.query_id.clone());
        state.used.insert(insert.token.clone(), Instant::now());
        let current = insert.rows.first().is_some_and(|row| {
            let opening = state.openings.get(&row.shard).copied().unwrap_or(0);
            insert.query_id.contains(&format!("/{opening:016x}/"))
        });
        // A fenced owner does not know its successor's requests.
        let sent = insert.rows.iter().find(|row| state.sent.contains(&row.key()));
        let unannounced = sent.filter(|_| first && current).map(|row| row.text.clone());
        // A lost request also counts as sent: nobody can know that it never arrived.
        let keys: Vec<_> = insert.rows.iter().map(Row::key).collect();
        state.sent.extend(keys);
        drop(state);
        if let Some(row) = unannounced {
            let detail = format!(
                "{} sends {row} as if for the first time, under {}",
                insert.query_id, insert.token
            );
            self.record.violated(Oracle::Announced, detail);
        }
        number
    }

    /// Ends the requests with this prefix, except those to spare. Returns whether there were any.
    pub(crate) fn end_requests(&self, of: &str, spared: Option<&str>) -> bool {
        let mut state = self.state();
        let before = state.under_way.len();
        state
            .under_way
            .retain(|_, name| !name.starts_with(of) || spared.is_some_and(|spared| name.contains(spared)));
        before != state.under_way.len()
    }

    /// Returns true if an answer now reflects every replica.
    pub(crate) fn is_certain(&self) -> bool {
        self.scenario.certain || one_in(&mut self.state().rng, 2)
    }

    /// The result of a settle request: whether it fails, and whether it ends the others.
    pub(crate) fn settles(&self) -> (bool, bool) {
        let mut state = self.state();
        let fails = state.down || state.rng.random::<f64>() < state.fault;
        let ends = one_in(&mut state.rng, 2);
        (fails, ends)
    }

    /// Lets a request take effect. Returns whether it did: it may have been ended before.
    pub(crate) fn land(&self, number: u64, insert: &Insert) -> bool {
        self.forget();
        if self.state().under_way.remove(&number).is_none() {
            self.record
                .event(&self.consumer, format_args!("{} was ended", insert.query_id));
            return false;
        }
        let mut partitions: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
        for row in &insert.rows {
            let partition = row.partition(self.scenario.partitions);
            partitions.entry(partition).or_default().push(row);
        }
        let broken = match insert.fate {
            Fate::Breaks { at, poisons, .. } => Some((at % partitions.len().max(1), poisons)),
            _ => None,
        };
        for (place, (partition, rows)) in partitions.into_iter().enumerate() {
            match broken {
                Some((at, poisons)) if at == place => {
                    if poisons && may_be_poisoned(&insert.token) && self.learns(partition, &insert.token) {
                        self.record.count(Event::TokensPoisoned);
                        let what = format_args!("poisons {} in {partition}", insert.token);
                        self.record.event(&self.consumer, what);
                    }
                    break;
                }
                _ => self.take(partition, &insert.token, &rows),
            }
        }
        if let Fate::Breaks { restarts: true, .. } = insert.fate {
            self.end_requests("", None);
        }
        true
    }

    /// Records the token in a partition. Returns whether it was new there.
    fn learns(&self, partition: usize, token: &str) -> bool {
        if !self.scenario.window {
            return true;
        }
        let mut state = self.state();
        let tokens = &mut state.tokens[partition];
        if tokens.contains_key(token) {
            return false;
        }
        tokens.insert(token.to_owned(), Instant::now());
        true
    }

    /// Adds the rows of one partition, unless it knows the token.
    fn take(&self, partition: usize, token: &str, rows: &[&Row]) {
        let consumer = &self.consumer;
        if !self.learns(partition, token) {
            self.record
                .event(consumer, format_args!("recognised {token} in {partition}"));
            self.record.add(Event::RowsRecognised, rows.len() as u64);
            return;
        }
        self.record.event(
            consumer,
            format_args!("took {} of {token} in {partition}", rows.len()),
        );
        for row in rows {
            let times = {
                let mut state = self.state();
                let buried = u64::from(state.buried.contains(&row.key()));
                let times = state.rows.entry(row.key()).or_default();
                *times += 1;
                *times + buried
            };
            let Row {
                shard,
                stream,
                id,
                text,
            } = row;
            let part = self.ledger.rows_at(*shard, stream, id.sequence);
            let wrong = if part.get(id.record as usize) != Some(text) {
                "and the log has something else there"
            } else if times > 1 {
                "for the second time"
            } else {
                continue;
            };
            let detail = format!("{text} came to {consumer} as {id:?} under {token}, {wrong}");
            self.record.violated(Oracle::ExactlyOnce, detail);
        }
    }

    /// Records a dead letter for the row.
    pub(crate) fn buried(&self, row: &Row) {
        self.record.count(Event::DeadLetters);
        let there = {
            let mut state = self.state();
            let there = state.rows.contains_key(&row.key());
            !state.buried.insert(row.key()) || there
        };
        let part = self.ledger.rows_at(row.shard, &row.stream, row.id.sequence);
        let wrong = if there {
            "and in the table or in another letter"
        } else if part.get(row.id.record as usize) != Some(&row.text) {
            "and the log has something else there"
        } else if !self.forbids(std::slice::from_ref(row)) {
            "which the table takes"
        } else {
            return;
        };
        let detail = format!(
            "{} is in a dead letter of {} as {:?}, {wrong}",
            row.text, self.consumer, row.id
        );
        self.record.violated(Oracle::ExactlyOnce, detail);
    }

    /// Forgets tokens occasionally. The protocol requires a window that outlives every request under a token. So a
    /// token is forgotten only after an owner's maximum sending time plus a request's lifetime since it was recorded
    /// and last sent.
    fn forget(&self) {
        let Scenario {
            tokens_forgotten,
            lease,
            late_by_max,
            ..
        } = self.scenario;
        let mut state = self.state();
        if !tokens_forgotten || !one_in(&mut state.rng, 3) {
            return;
        }
        let window = lease + late_by_max + 10 * WAY_MAX;
        let now = Instant::now();
        let State { tokens, used, .. } = &mut *state;
        let mut forgotten = 0;
        for partition in tokens {
            let before = partition.len();
            partition.retain(|token, recorded| {
                let last = used.get(token).copied().unwrap_or(*recorded);
                now - last.max(*recorded) < window
            });
            forgotten += before - partition.len();
        }
        drop(state);
        self.record.add(Event::TokensForgotten, forgotten as u64);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn way(rng: &mut StdRng) -> Duration {
    between(rng, 0..u64::try_from(WAY_MAX.as_millis()).unwrap_or(u64::MAX))
}

/// An attempt has three rounds, `<low>-<high>/<chunk>/<round>`, and then gives up: the third token must get its rows.
fn may_be_poisoned(token: &str) -> bool {
    let last = token.rsplit('/').take_while(|word| !word.contains('-'));
    let words: Vec<&str> = last.collect();
    !matches!(words[..], ["2", _])
}
