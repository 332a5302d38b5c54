//! The state of a buffer: its manifests, pages, cursors and dead letters. An observer keeps pages between two looks, since
//! they never change.

use crate::buffer::{buffer, complete, each_cursor};
use crate::patience::is_the_stores;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, DeadLetter, Log, Manifest, SinkTables, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::Instant;

/// The time before a look over which a stream's rate is measured.
const RATE_OVER: Duration = Duration::from_secs(60);

/// Attempts to read a log that a garbage collector trims meanwhile.
const ATTEMPTS: usize = 5;

/// The state of a buffer.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The buffer's URL.
    pub url: String,
    /// The buffer's id.
    pub buffer_id: String,
    /// The time of the look, in RFC 3339.
    pub at: String,
    /// The streams whose rows go to the shard of their key.
    pub routes: Vec<Routed>,
    /// The shards whose logs can be read.
    pub shards: Vec<Shard>,
    /// Reasons why shards and consumers are missing above: a damaged or lost manifest, page or cursor.
    pub unreadable: Vec<String>,
}

/// A stream whose rows go to the shard of their key.
#[derive(Debug, Serialize)]
pub struct Routed {
    /// The stream.
    pub stream: String,
    /// JSON paths.
    pub key: Vec<String>,
    /// The number of shards, from shard 0 on.
    pub shards: u32,
}

/// The state of a shard.
#[derive(Debug, Serialize)]
pub struct Shard {
    /// The shard's number.
    pub shard: u32,
    /// Segments in the log.
    pub segments: u64,
    /// Size of these segments.
    pub stored_bytes: u64,
    /// Pages of the log.
    pub pages: usize,
    /// The log's first sequence.
    pub first_sequence: u64,
    /// The log's end.
    pub next_sequence: u64,
    /// Age of the oldest segment, by its producer's clock.
    pub oldest_seconds: Option<f64>,
    /// Age of the newest segment.
    pub newest_seconds: Option<f64>,
    /// Producers that committed within the last minute.
    pub producers_active: usize,
    /// The producer that commits for others.
    pub leader: Option<Leader>,
    /// The log's streams.
    pub streams: Vec<Stream>,
    /// The shard's consumers.
    pub consumers: Vec<Consumer>,
}

/// A producer that commits for others.
#[derive(Debug, Serialize)]
pub struct Leader {
    /// Its id.
    pub producer: String,
    /// Where other producers reach it.
    pub address: String,
    /// The version of the manifest when it took the lead.
    pub term: u64,
    /// Commits since then that carried records of others.
    pub shared_commits: u64,
    /// Producers that committed within the last minute and have a certificate, so that it can serve them. The leader is not
    /// one of them.
    pub followers: usize,
}

/// A stream in the log.
#[derive(Debug, Serialize)]
pub struct Stream {
    /// The stream's name.
    pub stream: String,
    /// Its content.
    #[serde(flatten)]
    pub amount: Amount,
    /// Records per second committed within the last minute.
    pub records_per_second: f64,
    /// Bytes per second stored within the last minute.
    pub stored_bytes_per_second: f64,
}

/// An amount of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Records.
    pub records: u64,
    /// Messages.
    pub messages: u64,
    /// Compressed size.
    pub stored_bytes: u64,
    /// Uncompressed size.
    pub raw_bytes: u64,
}

/// A consumer of the shard.
#[derive(Debug, Serialize)]
pub struct Consumer {
    /// Its name.
    pub consumer: String,
    /// Its state.
    pub state: State,
    /// The process that owns or owned the cursor.
    pub owner: Option<String>,
    /// Time until another process may take the cursor; negative after that.
    pub lease_seconds: Option<f64>,
    /// The cursor's epoch.
    pub epoch: u64,
    /// The name of its sink.
    pub sink: String,
    /// Reasons why it does not proceed.
    pub waiting_for: Vec<String>,
    /// Dead letters in the shard.
    pub dead_letters: usize,
    /// Reason of the newest dead letter.
    pub last_dead_letter: Option<String>,
    /// Parts that an operator skipped.
    pub skipped: usize,
    /// Other consumers that write to one of its tables.
    pub shares_tables_with: Vec<String>,
    /// Its position in each stream.
    pub streams: Vec<Position>,
}

/// The state of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The owner renews the lease.
    Running,
    /// The lease has run out.
    Expired,
    /// The owner stopped and left nothing in the log unfinished.
    Stopped,
    /// The owner stopped with batches in doubt: the next owner asks the sink about them.
    Abandoned,
}

/// The position of a consumer in a stream.
#[derive(Debug, Serialize)]
pub struct Position {
    /// The stream's name.
    pub stream: String,
    /// Everything below this sequence is acknowledged.
    pub next: u64,
    /// Records that are not acknowledged.
    pub lag_records: u64,
    /// Their compressed size.
    pub lag_stored_bytes: u64,
    /// Age of the oldest segment that is not acknowledged.
    pub lag_seconds: f64,
    /// Batches that are planned and not acknowledged.
    pub batches_planned: usize,
    /// Reasons why the sink refused the batches that the consumer is bisecting.
    pub refused: Vec<String>,
    /// How its repeated events are dropped. `None`: they are not.
    pub unique: Option<Unique>,
    /// Records per second acknowledged since the previous look. `None` at the first look.
    pub records_per_second: Option<f64>,
}

/// How a consumer drops the repeated events of a stream.
#[derive(Debug, Serialize)]
pub struct Unique {
    /// The JSON paths of the key.
    pub key: Vec<String>,
    /// The window.
    pub window_seconds: f64,
    /// The sequence from which it applies.
    pub since: u64,
    /// Rows dropped between that sequence and the position.
    pub duplicates: u64,
}

/// Looks at one buffer. It keeps pages and positions for the next look.
pub struct Observer {
    store: Store,
    logs: BTreeMap<u32, Log>,
    before: Option<Before>,
}

/// The previous look.
struct Before {
    at: Instant,
    /// The end of each shard's log.
    next_sequence: BTreeMap<u32, u64>,
    /// Records that were not acknowledged, by shard, consumer and stream.
    lags: BTreeMap<(u32, String, String), u64>,
}

impl Observer {
    /// An observer of the buffer in `store`.
    pub fn new(store: Store) -> Observer {
        Observer {
            store,
            logs: BTreeMap::new(),
            before: None,
        }
    }

    /// Reads the state of the buffer.
    ///
    /// # Errors
    /// There is no buffer, or the store fails.
    pub async fn look(&mut self) -> anyhow::Result<Status> {
        let buffer = buffer(&self.store).await?;
        let (now_ms, at) = (SystemEnvironment.now_ms(), Instant::now());
        let (mut shards, mut unreadable) = (Vec::new(), Vec::new());
        for shard in 0..buffer.shards {
            // Read the cursors first: every later state of the log has what they acknowledge.
            let cursors = each_cursor(&self.store, shard).await?;
            let known = self.logs.remove(&shard);
            let log = match read_log(&self.store, shard, known).await {
                Err(error) if !is_the_stores(&error) => {
                    unreadable.push(format!("{error:#}"));
                    continue;
                }
                log => log?,
            };
            let log = log.unwrap_or_else(|| Log::new(Manifest::new(buffer.id, shard)));
            let readable: Vec<Cursor> = cursors.iter().flatten().cloned().collect();
            let mut consumers = Vec::new();
            for cursor in cursors {
                match cursor {
                    Ok(cursor) => consumers.push(self.consumer(cursor, &log, now_ms, at).await?),
                    Err(damaged) => unreadable.push(damaged.to_string()),
                }
            }
            for (one, other, _) in SinkTables::pairs(&readable) {
                for consumer in &mut consumers {
                    let (shares, with) = (&mut consumer.shares_tables_with, &consumer.consumer);
                    if *with == one.consumer {
                        shares.push(other.consumer.clone());
                    } else if *with == other.consumer {
                        shares.push(one.consumer.clone());
                    }
                }
            }
            shards.push(shard_of(&log, consumers, now_ms));
            self.logs.insert(shard, log);
        }
        let lags = shards.iter().flat_map(|shard| {
            let consumers = shard.consumers.iter();
            consumers.flat_map(|c| {
                c.streams.iter().map(|s| {
                    let key = (shard.shard, c.consumer.clone(), s.stream.clone());
                    (key, s.lag_records)
                })
            })
        });
        self.before = Some(Before {
            at,
            next_sequence: shards.iter().map(|s| (s.shard, s.next_sequence)).collect(),
            lags: lags.collect(),
        });
        let routes = buffer.routed.iter().map(|(stream, route)| Routed {
            stream: stream.to_string(),
            key: route.key.clone(),
            shards: route.shards,
        });
        Ok(Status {
            url: self.store.url().to_string(),
            buffer_id: buffer.id.to_string(),
            at: humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(now_ms)).to_string(),
            routes: routes.collect(),
            shards,
            unreadable,
        })
    }

    async fn consumer(
        &self,
        cursor: Cursor,
        log: &Log,
        now_ms: u64,
        at: Instant,
    ) -> anyhow::Result<Consumer> {
        let dead_letters = layout::dead_letters(log.shard, Some(&cursor.consumer));
        let dead_letters = self.store.list(&dead_letters).await?;
        // The newest has the highest batch in its name.
        let last_dead_letter = match dead_letters.iter().map(|letter| &letter.key).max() {
            Some(key) => match cas::read::<DeadLetter>(&self.store, key).await {
                Ok(found) => found.map(|found| found.state),
                Err(ReadError::Format { .. }) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let streams = (0_u32..).zip(&log.streams).filter(|(_, stream)| {
            // A consumer that has positions has none in a stream that it does not take.
            cursor.streams.is_empty() || cursor.streams.contains_key(&stream.name)
        });
        let streams = streams.map(|(index, stream)| {
            let position = position(&cursor, log, index, &stream.name, now_ms);
            Position {
                records_per_second: self.rate(&cursor, log, index, &position, at),
                ..position
            }
        });
        let streams = streams.collect();
        let (state, owner, lease) = ownership(&cursor, now_ms);
        Ok(Consumer {
            state,
            owner,
            lease_seconds: lease,
            epoch: cursor.epoch,
            dead_letters: dead_letters.len(),
            last_dead_letter: last_dead_letter.map(|letter| letter.reason),
            skipped: cursor.skipped.len(),
            shares_tables_with: Vec::new(),
            streams,
            consumer: cursor.consumer,
            sink: cursor.policy.sink,
            waiting_for: cursor.waiting_for,
        })
    }

    /// Acknowledged since the previous look: the lag then, plus the records since, minus the lag now.
    fn rate(&self, cursor: &Cursor, log: &Log, index: u32, now: &Position, at: Instant) -> Option<f64> {
        let before = self.before.as_ref()?;
        let key = (log.shard, cursor.consumer.clone(), now.stream.clone());
        let waited = before.lags.get(&key)?;
        let came = log.records(index, *before.next_sequence.get(&log.shard)?);
        let acknowledged = (waited + came).saturating_sub(now.lag_records);
        Some(per_second(acknowledged, at - before.at))
    }
}

/// Reads the log with all of its pages, except those that `known` has.
async fn read_log(store: &Store, shard: u32, mut known: Option<Log>) -> anyhow::Result<Option<Log>> {
    let key = layout::manifest(shard);
    let mut attempt = 1;
    loop {
        let Some(found) = cas::read::<Manifest>(store, &key).await? else {
            return Ok(None);
        };
        let mut log = match known.take() {
            Some(known) => known.advanced(found.state),
            None => Log::new(found.state),
        };
        match complete(store, &mut log).await {
            Ok(()) => return Ok(Some(log)),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            // A garbage collector may have trimmed the log meanwhile.
            Err(_) => attempt += 1,
        }
        known = Some(log);
    }
}

fn shard_of(log: &Log, consumers: Vec<Consumer>, now_ms: u64) -> Shard {
    let since = |ms: u64| seconds(now_ms.saturating_sub(ms));
    let recent = now_ms.saturating_sub(RATE_OVER.as_secs() * 1_000);
    let streams = (0_u32..).zip(&log.streams).map(|(index, stream)| {
        let lately = Amount::of(log, index, recent);
        Stream {
            stream: stream.name.clone(),
            amount: Amount::of(log, index, 0),
            records_per_second: per_second(lately.records, RATE_OVER),
            stored_bytes_per_second: per_second(lately.stored_bytes, RATE_OVER),
        }
    });
    let active = |seen_at_ms: u64| seen_at_ms >= recent;
    Shard {
        shard: log.shard,
        segments: log.next_sequence - log.first_sequence,
        stored_bytes: log
            .entries(0)
            .fold(0, |sum, (_, entry)| sum.saturating_add(entry.size)),
        pages: log.pages.len(),
        first_sequence: log.first_sequence,
        next_sequence: log.next_sequence,
        oldest_seconds: log.entries(0).next().map(|(_, e)| since(e.committed_at_ms)),
        newest_seconds: log.tail.last().map(|e| since(e.committed_at_ms)),
        producers_active: log
            .producers
            .iter()
            .filter(|p| p.commit > 0 && active(p.seen_at_ms))
            .count(),
        leader: leader(log, active),
        streams: streams.collect(),
        consumers,
    }
}

/// The producer that commits for others. `active`: whether a time is within the last minute.
fn leader(log: &Log, active: impl Fn(u64) -> bool) -> Option<Leader> {
    let leader = log.leader.as_ref()?;
    let followers = log.producers.iter().filter(|row| {
        let is_other = row.id != leader.producer;
        is_other && row.commit > 0 && row.certificate.is_some() && active(row.seen_at_ms)
    });
    Some(Leader {
        producer: leader.producer.to_string(),
        address: leader.address.clone(),
        term: leader.term,
        shared_commits: leader.shared,
        followers: followers.count(),
    })
}

impl Amount {
    /// Sums a stream over the segments that were committed at this Unix time in ms or later.
    fn of(log: &Log, stream: u32, since_ms: u64) -> Amount {
        let mut amount = Amount::default();
        let parts = log.parts(stream, 0);
        for (_, _, part) in parts.filter(|(_, entry, _)| entry.committed_at_ms >= since_ms) {
            amount.records = amount.records.saturating_add(part.records);
            amount.messages = amount.messages.saturating_add(part.messages);
            amount.stored_bytes = amount.stored_bytes.saturating_add(part.length);
            amount.raw_bytes = amount.raw_bytes.saturating_add(part.raw_len);
        }
        amount
    }
}

fn position(cursor: &Cursor, log: &Log, index: u32, stream: &str, now_ms: u64) -> Position {
    let next = cursor.next(stream);
    let lag = log.lag(index, next);
    let lag_ms = lag
        .oldest_committed_at_ms
        .map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
    let refused = cursor.refused.iter().filter(|refused| refused.stream == stream);
    Position {
        stream: stream.to_owned(),
        next,
        lag_records: lag.records,
        lag_stored_bytes: lag.stored_bytes,
        lag_seconds: seconds(lag_ms),
        batches_planned: cursor
            .planned(stream)
            .filter(|plan| plan.low < log.next_sequence)
            .count(),
        refused: refused.map(|refused| refused.reason.clone()).collect(),
        unique: cursor.deduplicates(stream).map(|(setting, of)| Unique {
            key: setting.key.clone(),
            window_seconds: seconds(setting.window_ms),
            since: of.since,
            duplicates: of.duplicates,
        }),
        records_per_second: None,
    }
}

fn ownership(cursor: &Cursor, now_ms: u64) -> (State, Option<String>, Option<f64>) {
    match &cursor.ownership {
        Ownership::Released | Ownership::Removed => (State::Stopped, None, None),
        Ownership::Abandoned => (State::Abandoned, None, None),
        Ownership::Held {
            owner,
            lease_expires_at_ms: until,
        } => {
            let left = seconds(until.saturating_sub(now_ms)) - seconds(now_ms.saturating_sub(*until));
            let state = if *until > now_ms {
                State::Running
            } else {
                State::Expired
            };
            (state, Some(owner.clone()), Some(left))
        }
    }
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a rate is for people")]
fn per_second(number: u64, over: Duration) -> f64 {
    number as f64 / over.as_secs_f64().max(f64::EPSILON)
}
