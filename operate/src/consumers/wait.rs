//! Waits for a consumer, for scripts that need the rows in the tables.

use crate::buffer::{buffer, cursor, read_log};
use crate::numbers::{count, grouped};
use crate::patience::Patience;
use anyhow::bail;
use millpond_manifest::{Cursor, Log, layout};
use millpond_storage::Store;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two reads of a cursor.
const EVERY: Duration = Duration::from_millis(500);

/// The state of the wait, at each look.
#[derive(Debug)]
pub struct Look<'a> {
    /// Records committed at the start of the wait, in the shards so far.
    pub records: u64,
    /// Records of these that the consumer has not acknowledged.
    pub behind: u64,
    /// The consumer has a cursor in this shard.
    pub is_known: bool,
    /// Reasons why the consumer does not proceed.
    pub waiting_for: &'a [String],
}

/// Waits until the consumer has acknowledged all that is committed now. Returns the number of records. `on_look` hears of each look.
///
/// # Errors
/// The time is up, or the buffer cannot be read.
pub async fn until_read(
    store: &Store,
    consumer: &str,
    timeout: Option<Duration>,
    mut on_look: impl FnMut(&Look<'_>),
) -> anyhow::Result<u64> {
    layout::check_consumer_name(consumer)?;
    let began = Instant::now();
    let mut patience = Patience::default();
    let mut records = 0;
    for shard in 0..buffer(store).await?.shards {
        let Some(log) = read_log(store, shard).await? else {
            continue;
        };
        records += total(&log, |_| log.first_sequence);
        loop {
            let late = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
            match cursor(store, shard, consumer).await {
                Ok(found) => {
                    patience.over();
                    let cursor = found.map(|found| found.state);
                    let behind = behind(&log, cursor.as_ref());
                    on_look(&Look {
                        records,
                        behind,
                        is_known: cursor.is_some(),
                        waiting_for: cursor.as_ref().map_or(&[], |cursor| &cursor.waiting_for),
                    });
                    if behind == 0 {
                        break;
                    }
                    if late {
                        bail!(late_by(consumer, cursor.as_ref(), &log, behind));
                    }
                }
                Err(error) if late => return Err(error.into()),
                Err(error) => patience.with(error.into())?,
            }
            tokio::time::sleep(EVERY).await;
        }
    }
    Ok(records)
}

fn late_by(consumer: &str, cursor: Option<&Cursor>, log: &Log, behind: u64) -> String {
    let (shard, end) = (log.shard, log.next_sequence);
    if cursor.is_none() {
        return format!(
            "consumer {consumer} has never run, so it has read nothing of shard {shard:04}; `millpond consumer list` lists those \
             that have"
        );
    }
    format!(
        "consumer {consumer} has not read shard {shard:04} up to sequence {end}: it is behind by {} of {}; `millpond status` \
         shows what it waits for",
        count(behind, "record"),
        grouped(total(log, |_| log.first_sequence))
    )
}

/// Records of the log that the consumer has not acknowledged. A consumer that has read past a stream's records elsewhere,
/// without a position in the stream, does not take the stream.
fn behind(log: &Log, cursor: Option<&Cursor>) -> u64 {
    let positions = cursor.map(|cursor| &cursor.streams);
    let seen = positions.and_then(|positions| positions.values().map(|position| position.next).max());
    total(log, |stream| {
        let own = positions.and_then(|positions| positions.get(stream));
        own.map_or(seen.unwrap_or(log.first_sequence), |position| position.next)
    })
}

/// Sums the records of all streams, each from a sequence.
fn total(log: &Log, from: impl Fn(&str) -> u64) -> u64 {
    let streams = (0_u32..).zip(&log.streams);
    let records = streams.map(|(index, stream)| log.records(index, from(&stream.name)));
    records.fold(0, u64::saturating_add)
}
