//! One look at a buffer: manifests, pages, cursors and dead letters as they are now. Pages are kept from one look to the
//! next, since they never change.

use crate::clock::now_ms;
use crate::inspect::{buffer, complete, each_cursor};
use crate::store::is_the_stores;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, DeadLetter, Log, Manifest, SinkTables, layout};
use millpond_storage::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// What was committed this long before a look is its rate.
const RATE_OVER: Duration = Duration::from_secs(60);

/// A log that is trimmed while its pages are read is read again, so many times.
const ATTEMPTS: usize = 5;

/// A buffer at one time.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub(super) url: String,
    pub(super) buffer_id: String,
    /// RFC 3339.
    pub(super) at: String,
    pub(super) shards: Vec<Shard>,
    /// Why a shard or a consumer is not above: its manifest, a page or its cursor is damaged or gone.
    pub(super) unreadable: Vec<String>,
}

/// A shard's log and its readers.
#[derive(Debug, Serialize)]
pub(super) struct Shard {
    pub(super) shard: u32,
    pub(super) segments: u64,
    /// Of the segments, in the store.
    pub(super) stored_bytes: u64,
    pub(super) pages: usize,
    pub(super) first_sequence: u64,
    pub(super) next_sequence: u64,
    /// How long ago the oldest segment was committed, by its producer's clock.
    pub(super) oldest_seconds: Option<f64>,
    /// The same of the newest.
    pub(super) newest_seconds: Option<f64>,
    /// Commits that were made within the last minute came from so many producers.
    pub(super) producers_active: usize,
    pub(super) streams: Vec<Stream>,
    pub(super) consumers: Vec<Consumer>,
}

/// What the log has of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Stream {
    pub(super) stream: String,
    #[serde(flatten)]
    pub(super) amount: Amount,
    /// Committed within the last minute.
    pub(super) records_per_second: f64,
    pub(super) stored_bytes_per_second: f64,
}

/// Some of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Amount {
    pub(super) records: u64,
    pub(super) messages: u64,
    pub(super) stored_bytes: u64,
    pub(super) raw_bytes: u64,
}

/// A reader of the shard.
#[derive(Debug, Serialize)]
pub(super) struct Consumer {
    pub(super) consumer: String,
    pub(super) state: State,
    pub(super) owner: Option<String>,
    /// Until another may take the cursor; negative since then.
    pub(super) lease_seconds: Option<f64>,
    pub(super) epoch: u64,
    pub(super) sink: String,
    /// Empty when it is at work.
    pub(super) waiting_for: Vec<String>,
    pub(super) dead_letters: usize,
    /// Of the newest dead letter.
    pub(super) last_dead_letter: Option<String>,
    /// Parts that are left out by an operator's word.
    pub(super) skipped: usize,
    /// Other consumers that write to the same tables.
    pub(super) shares_tables_with: Vec<String>,
    pub(super) streams: Vec<Position>,
}

/// Whether somebody runs a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Its owner renews the lease.
    Running,
    /// Its owner has not renewed the lease.
    Expired,
    /// Stopped, with nothing in doubt.
    Stopped,
    /// Stopped, with batches in doubt: the next owner asks the sink for them.
    Abandoned,
}

/// Where a consumer is in a stream.
#[derive(Debug, Serialize)]
pub(super) struct Position {
    pub(super) stream: String,
    /// Everything below is acknowledged.
    pub(super) next: u64,
    pub(super) lag_records: u64,
    pub(super) lag_stored_bytes: u64,
    /// Since the oldest segment that is not acknowledged was committed.
    pub(super) lag_seconds: f64,
    pub(super) batches_planned: usize,
    /// Reasons for which the sink refused what is being taken apart.
    pub(super) refused: Vec<String>,
    /// Acknowledged since the look before; none at the first.
    pub(super) records_per_second: Option<f64>,
}

/// Looks at one buffer, and remembers what the next look makes use of.
pub(super) struct Observer {
    store: Store,
    logs: BTreeMap<u32, Log>,
    before: Option<Before>,
}

/// The look before.
struct Before {
    at: Instant,
    /// By shard: where the log ended.
    next_sequence: BTreeMap<u32, u64>,
    /// By shard, consumer and stream: records that were not acknowledged.
    lags: BTreeMap<(u32, String, String), u64>,
}

impl Observer {
    pub(super) fn new(store: Store) -> Observer {
        Observer {
            store,
            logs: BTreeMap::new(),
            before: None,
        }
    }

    pub(super) async fn look(&mut self) -> anyhow::Result<Status> {
        let buffer = buffer(&self.store).await?;
        let (now_ms, at) = (now_ms(), Instant::now());
        let (mut shards, mut unreadable) = (Vec::new(), Vec::new());
        for shard in 0..buffer.shards {
            // The cursors first: what they have acknowledged is in every later state of the log.
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
        Ok(Status {
            url: self.store.url().to_string(),
            buffer_id: buffer.id.to_string(),
            at: humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(now_ms)).to_string(),
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
        // Of many, the newest is the one with the highest batch.
        let last_dead_letter = match dead_letters.iter().map(|letter| &letter.key).max() {
            Some(key) => match cas::read::<DeadLetter>(&self.store, key).await {
                Ok(found) => found.map(|found| found.state),
                Err(ReadError::Format { .. }) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let streams = (0_u32..).zip(&log.streams).filter(|(_, stream)| {
            // A stream that it does not take has no position, once it has any.
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

    /// What was acknowledged since the look before: what was waiting then, and came since, and is not waiting now.
    fn rate(&self, cursor: &Cursor, log: &Log, index: u32, now: &Position, at: Instant) -> Option<f64> {
        let before = self.before.as_ref()?;
        let key = (log.shard, cursor.consumer.clone(), now.stream.clone());
        let waited = before.lags.get(&key)?;
        let came = log.records(index, *before.next_sequence.get(&log.shard)?);
        let acknowledged = (waited + came).saturating_sub(now.lag_records);
        Some(per_second(acknowledged, at - before.at))
    }
}

/// The log with all of its pages; those of `known` are not read again.
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
            // It may have been trimmed meanwhile.
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
        streams: streams.collect(),
        consumers,
    }
}

impl Amount {
    /// What the log has of a stream in segments that were committed at this time (unix ms) or later.
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
