//! `millpond consumer wait`: for scripts that go on when something is in its table.

use super::read_log;
use crate::inspect::{buffer, cursor};
use crate::output::say;
use crate::store::Patience;
use crate::units::{count, grouped};
use anyhow::bail;
use millpond_manifest::{Cursor, Log, layout};
use millpond_storage::Store;
use std::time::{Duration, Instant};

/// How often the cursors are looked at.
const EVERY: Duration = Duration::from_millis(500);

/// Returns when the consumer has acknowledged all that is committed now. One that does not exist yet is waited for.
pub(super) async fn until_read(
    store: &Store,
    consumer: &str,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    layout::check_consumer_name(consumer)?;
    let began = Instant::now();
    let (mut patience, mut named) = (Patience::default(), false);
    let mut records = 0;
    for shard in 0..buffer(store).await?.shards {
        let Some(log) = read_log(store, shard).await? else {
            continue;
        };
        loop {
            let late = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
            match cursor(store, shard, consumer).await {
                Ok(found) => {
                    patience.over();
                    let cursor = found.map(|found| found.state);
                    let behind = behind(&log, cursor.as_ref());
                    if behind == 0 {
                        break;
                    }
                    if late {
                        bail!(late_by(consumer, cursor.as_ref(), &log, behind));
                    }
                    if cursor.is_none() && !named {
                        // Which a typing error in its name would be for ever.
                        eprintln!("millpond: consumer {consumer} has never run: waiting for it");
                        named = true;
                    }
                }
                Err(error) if late => return Err(error.into()),
                Err(error) => patience.with(error.into())?,
            }
            tokio::time::sleep(EVERY).await;
        }
        records += total(&log, |_| log.first_sequence);
    }
    say!("{consumer} has read all {records} records")
}

fn late_by(consumer: &str, cursor: Option<&Cursor>, log: &Log, behind: u64) -> String {
    let (shard, end) = (log.shard, log.next_sequence);
    if cursor.is_none() {
        return format!(
            "consumer {consumer} has never run, so nothing of shard {shard:04} is read; `millpond consumer list` names those \
             that have"
        );
    }
    format!(
        "consumer {consumer} has not read shard {shard:04} up to sequence {end}: it is behind by {} of {}; `millpond status` \
         says what it waits for",
        count(behind, "record"),
        grouped(total(log, |_| log.first_sequence))
    )
}

/// How many records of the log the consumer has not acknowledged. A stream without a position is one that it does not take,
/// if it has moved past it in another.
fn behind(log: &Log, cursor: Option<&Cursor>) -> u64 {
    let positions = cursor.map(|cursor| &cursor.streams);
    let seen = positions.and_then(|positions| positions.values().map(|position| position.next).max());
    total(log, |stream| {
        let own = positions.and_then(|positions| positions.get(stream));
        own.map_or(seen.unwrap_or(log.first_sequence), |position| position.next)
    })
}

/// Records of all streams, each from its own sequence on.
fn total(log: &Log, from: impl Fn(&str) -> u64) -> u64 {
    let streams = (0_u32..).zip(&log.streams);
    let records = streams.map(|(index, stream)| log.records(index, from(&stream.name)));
    records.fold(0, u64::saturating_add)
}
