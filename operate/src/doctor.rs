//! Finds present and coming problems of a live buffer, each with its remedy.

mod clickhouse;
mod members;
mod rows;

pub use crate::rows::{Difference, Runs};
pub use rows::Compared;

use crate::buffer::{NO_BUFFER, cursor, find_buffer, whole, with_tombstones};
use crate::check::check_patiently;
use crate::numbers::readable;
use millpond_clickhouse::Config;
use millpond_consumer::BatchingPolicy;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::cursor::StreamCursor;
use millpond_manifest::manifest::TAIL_MAX;
use millpond_manifest::{Buffer, Cursor, Log, Manifest, SinkTables, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::Store;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum difference between two clocks without a warning.
const SKEW_MAX: Duration = Duration::from_secs(5);

/// Maximum lag of a consumer without a warning: the buffer keeps everything that it has not read.
const LAG_MAX: Duration = Duration::from_secs(15 * 60);

/// Entries that a tail may have beyond the size at which producers seal it.
const TAIL_SLACK: usize = 1_024;

/// The checks to make.
#[derive(Debug, Clone)]
pub struct Options {
    /// Skip the checks that write objects: of the store's preconditions and of its clock.
    pub read_only: bool,
    /// The tables to check.
    pub tables: Option<Config>,
    /// The consumer to check; `None` for all.
    pub consumer: Option<String>,
    /// The rows of these tables to compare with the buffer.
    pub rows: Option<RowRange>,
}

/// Rows to compare.
#[derive(Debug, Clone, Default)]
pub struct RowRange {
    /// The first sequence; `None` for the first that the buffer holds.
    pub from: Option<u64>,
    /// The last sequence; `None` for the last that the consumer has acknowledged.
    pub to: Option<u64>,
    /// Compare with rows by the programs of these settings even if the consumer has others.
    pub other_programs: bool,
}

/// All findings.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// The highest severity.
    pub worst: Severity,
    /// The findings in the order of the checks.
    pub findings: Vec<Finding>,
    /// The result of comparing rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<Compared>>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong.
    Ok,
    /// A problem is coming.
    Warning,
    /// Something does not work, or data is lost.
    Error,
}

/// A finding.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The finding.
    pub what: String,
    /// The remedy; empty if nothing is wrong.
    pub todo: String,
}

/// The findings so far.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, what: impl Into<String>) {
        self.add(Severity::Ok, what, "");
    }

    fn warning(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.add(Severity::Warning, what, todo);
    }

    fn error(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.add(Severity::Error, what, todo);
    }

    fn add(&mut self, severity: Severity, what: impl Into<String>, todo: impl Into<String>) {
        self.0.push(Finding {
            severity,
            what: what.into(),
            todo: todo.into(),
        });
    }

    fn worst(&self) -> Severity {
        let rank = |finding: &&Finding| finding.severity as u8;
        self.0
            .iter()
            .max_by_key(rank)
            .map_or(Severity::Ok, |finding| finding.severity)
    }
}

/// Checks a buffer.
///
/// # Errors
/// A check could not be made. A problem that a check finds is a finding.
pub async fn diagnose(store: &Store, options: &Options) -> anyhow::Result<Diagnosis> {
    let mut report = Report::default();
    if !options.read_only {
        look_at_store(store, &mut report).await;
    }
    let mut policies = Vec::new();
    let only = options.consumer.as_deref();
    if let Some(only) = only {
        layout::check_consumer_name(only)?;
    }
    match find_buffer(store).await {
        Ok(Some(buffer)) => {
            report.ok(format!("buffer {}, shards: {}", buffer.id, buffer.shards));
            for shard in 0..buffer.shards {
                look_at_shard(store, &buffer, shard, only, &mut report, &mut policies).await?;
                look_at_letters(store, shard, only, &mut report).await?;
            }
            members::look(store, &buffer, only, &mut report).await?;
            if let Some(only) = only
                && !is_known(store, &buffer, only).await
            {
                report.error(
                    format!("consumer {only} has never read this buffer"),
                    "`millpond consumer list` lists the consumers",
                );
            }
        }
        Ok(None) => report.error(format!("there is no buffer at {}", store.url()), NO_BUFFER),
        Err(ReadError::Format { key, wrong }) => report.error(format!("{key}: {wrong}"), wrong.remedy()),
        Err(error) => report.error(error.to_string(), "repair the store or the network to it"),
    }
    if let Some(tables) = &options.tables {
        clickhouse::look(tables.clone(), &policies, &mut report).await;
    }
    let rows = match (&options.rows, &options.tables) {
        (Some(range), Some(tables)) => Some(rows::look(store, tables, range, only, &mut report).await?),
        _ => None,
    };
    Ok(Diagnosis {
        worst: report.worst(),
        findings: report.0,
        rows,
    })
}

/// Checks the preconditions that the protocol needs, and the clock.
async fn look_at_store(store: &Store, report: &mut Report) {
    match store.self_test().await {
        Ok(()) => report.ok("the store keeps its preconditions, also for 16 writers at once"),
        Err(error) => report.error(
            error.to_string(),
            "a store that ignores preconditions loses data: use another, or a newer version of it; if it was denied, grant put, get, list and delete, or use --read-only",
        ),
    }
    let key = format!("doctor/{:016x}", SystemEnvironment.random());
    let before = SystemEnvironment.now_ms();
    if store
        .put_if_absent(&key, vec![b"doctor".as_slice().into()])
        .await
        .is_err()
    {
        // The self-test has reported the reason.
        return;
    }
    let after = SystemEnvironment.now_ms();
    if let Ok(Some(found)) = store.head(&key).await {
        let stored = u64::try_from(found.last_modified_ms).unwrap_or(0);
        // Stores report whole seconds.
        let apart = before
            .saturating_sub(stored + 1_000)
            .max(stored.saturating_sub(after));
        let apart = Duration::from_millis(apart);
        if apart > SKEW_MAX {
            report.warning(
                format!("this machine's clock and the store's are {} s apart", apart.as_secs()),
                "no data is lost, but leases, retention and latency figures are off by this much: synchronise the clocks with NTP",
            );
        } else {
            report.ok("this machine's clock and the store's agree");
        }
    }
    if let Err(error) = store.delete(&key).await {
        report.warning(
            format!("{error}"),
            "the garbage collector cannot delete either: grant the permission, or the buffer only grows",
        );
    }
}

async fn look_at_shard(
    store: &Store,
    buffer: &Buffer,
    shard: u32,
    only: Option<&str>,
    report: &mut Report,
    policies: &mut Vec<BatchingPolicy>,
) -> anyhow::Result<()> {
    let checked = check_patiently(store, buffer, shard).await?;
    for broken in &checked.broken {
        let todo = broken.todo.unwrap_or(
            "restore it from a backup or the bucket's versions; otherwise skip it with `millpond consumer skip`, or continue after it with `millpond consumer reset`",
        );
        report.error(&broken.what, todo);
    }
    let Ok(Some(found)) = cas::read::<Manifest>(store, &layout::manifest(shard)).await else {
        if checked.broken.is_empty() {
            report.ok(format!("shard {shard:04}: no producer has ever committed"));
        }
        return Ok(());
    };
    let Ok(log) = whole(store, found.state).await else {
        // The check has reported the damage.
        return Ok(());
    };
    if checked.broken.is_empty() {
        report.ok(format!(
            "shard {shard:04}: sequences {}..{} with {} records are all there; {} in the manifest and {} pages",
            log.first_sequence,
            log.next_sequence,
            checked.records,
            readable(found.bytes as u64),
            log.pages.len()
        ));
    }
    if log.tail.len() > TAIL_MAX + TAIL_SLACK {
        report.warning(
            format!(
                "shard {shard:04}: {} entries in the tail are not sealed",
                log.tail.len()
            ),
            "a gateway has a large --tail-max, or predates sealing: every commit moves all of these entries",
        );
    }
    let future = log
        .entries(0)
        .map(|(_, entry)| entry.committed_at_ms)
        .max()
        .unwrap_or(0);
    let ahead = Duration::from_millis(future.saturating_sub(SystemEnvironment.now_ms()));
    if ahead > SKEW_MAX {
        report.warning(
            format!(
                "shard {shard:04}: a gateway's clock is {} s ahead of this machine's",
                ahead.as_secs()
            ),
            "synchronise the clocks with NTP: retention and latency figures are off by this much",
        );
    }
    let Ok(cursors) = with_tombstones(store, shard).await else {
        return Ok(());
    };
    // The check of the shard reports those that cannot be read.
    let Ok(mut cursors) = cursors.into_iter().collect::<Result<Vec<Cursor>, _>>() else {
        return Ok(());
    };
    look_at_claims(&cursors, SystemEnvironment.now_ms(), report);
    look_at_removals(store, shard, &cursors, report).await;
    cursors.retain(|cursor| !cursor.is_removed());
    if cursors.is_empty() && log.next_sequence > 0 {
        report.warning(
            format!("shard {shard:04}: no consumer has ever read it, so the buffer keeps all of it"),
            "start `millpond consume`",
        );
    }
    for cursor in cursors
        .iter()
        .filter(|cursor| only.is_none_or(|only| cursor.consumer == only))
    {
        look_at_consumer(cursor, &log, report);
        policies.push(cursor.policy.clone());
    }
    look_at_shared_tables(&cursors, shard, report);
    Ok(())
}

/// Finds consumers that write to the same tables without --share-tables.
fn look_at_shared_tables(cursors: &[Cursor], shard: u32, report: &mut Report) {
    for (one, other, table) in SinkTables::pairs(cursors) {
        let what = format!(
            "consumers {} and {} in shard {shard:04} write to the same table {}",
            one.consumer, other.consumer, table.name
        );
        if one.tables.shared || other.tables.shared {
            report.ok(format!("{what}, as --share-tables allows"));
        } else {
            report.error(
                what,
                "the table has every record of the streams that both read twice: stop one of them and remove it (`millpond consumer remove`), or give it another database; if they read different streams, start one with --share-tables",
            );
        }
    }
}

/// Finds consumers that are removed from this shard and live in the first one, whose cursors are read only if this shard has a removed one.
async fn look_at_removals(store: &Store, shard: u32, cursors: &[Cursor], report: &mut Report) {
    let removed: BTreeSet<&str> = cursors
        .iter()
        .filter(|cursor| cursor.is_removed())
        .map(|cursor| cursor.consumer.as_str())
        .collect();
    if shard == 0 || removed.is_empty() {
        return;
    }
    let registers = with_tombstones(store, 0).await.unwrap_or_default();
    let living = registers
        .iter()
        .flatten()
        .filter(|register| !register.is_removed());
    for name in living
        .map(|register| &*register.consumer)
        .filter(|name| removed.contains(name))
    {
        report.warning(
            format!("shard {shard:04}: consumer {name} is removed from this shard alone, so the buffer keeps all of its log for it"),
            "start the consumer again, or remove it from every shard",
        );
    }
}

/// Finds processes that died while they asked for tables, which nobody else may have.
fn look_at_claims(cursors: &[Cursor], now_ms: u64, report: &mut Report) {
    for cursor in cursors {
        let Some(claim) = &cursor.tables.claim else {
            continue;
        };
        let tables: Vec<&str> = claim.tables.iter().map(|table| &*table.name).collect();
        let what = format!("consumer {} asks for {}", cursor.consumer, tables.join(", "));
        if claim.expires_at_ms > now_ms {
            let left = (claim.expires_at_ms - now_ms).div_ceil(1_000);
            report.ok(format!("{what}: its claim expires in {left} s"));
            continue;
        }
        let age = (now_ms - claim.expires_at_ms) / 1_000;
        let effect = match claim.firm {
            true => "no other consumer may have the tables",
            false => "others ignore it",
        };
        report.warning(
            format!("{what}: its claim expired {age} s ago, and {effect}"),
            "start the consumer again; if it is gone for good, `millpond consumer remove` ends its claim",
        );
    }
}

/// Reports whether the consumer has a cursor in any shard. One that cannot be read counts: the check of its shard reports it.
async fn is_known(store: &Store, buffer: &Buffer, consumer: &str) -> bool {
    for shard in 0..buffer.shards {
        match cursor(store, shard, consumer).await {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return true,
        }
    }
    false
}

async fn look_at_letters(
    store: &Store,
    shard: u32,
    only: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let dead_letters = store.list(&layout::dead_letters(shard, only)).await?;
    let mut consumers: BTreeMap<&str, usize> = BTreeMap::new();
    for letter in &dead_letters {
        let consumer = letter.key.rsplit('/').nth(1).unwrap_or_default();
        *consumers.entry(consumer).or_default() += 1;
    }
    for (consumer, dead_letters) in consumers {
        report.warning(
            format!("consumer {consumer} in shard {shard:04}: {dead_letters} dead letters"),
            "`millpond dead-letters list` lists the reasons; repair the table and `replay` them, or `remove` them: nothing else deletes them",
        );
    }
    Ok(())
}

fn look_at_consumer(cursor: &Cursor, log: &Log, report: &mut Report) {
    let name = format!("consumer {} in shard {:04}", cursor.consumer, cursor.shard);
    let needs = cursor.needs();
    let oldest = log.entries(needs).next();
    let lag = oldest.map(|(_, entry)| {
        Duration::from_millis(SystemEnvironment.now_ms().saturating_sub(entry.committed_at_ms))
    });
    let lag = lag.unwrap_or_default();
    let alive = cursor.held_at(SystemEnvironment.now_ms()).is_some();
    let mut reasons = cursor.waiting_for.iter();
    let ended = reasons.find_map(|reason| reason.strip_prefix("it ended: "));
    if let Some(ended) = ended.filter(|_| !alive && oldest.is_some()) {
        report.warning(
            format!("{name}: {} s behind, because it ended: {ended}", lag.as_secs()),
            "end the reason. A process with other shards tries this one again each minute; if none runs, start one",
        );
    } else if !alive && oldest.is_some() {
        report.warning(
            format!("{name}: not running, and {} s behind", lag.as_secs()),
            "start it; if it is gone for good, `millpond consumer remove` lets the buffer delete what it keeps for it",
        );
    } else if lag > LAG_MAX {
        report.warning(
            format!("{name}: {} s behind", lag.as_secs()),
            "its log and /readyz name the cause; if ClickHouse keeps up, raise --writers and --memory-limit",
        );
    } else {
        report.ok(format!("{name}: {} s behind", lag.as_secs()));
    }
    for (stream, StreamCursor { next, .. }) in &cursor.streams {
        if *next < log.first_sequence {
            report.error(
                format!(
                    "{name}: sequences {next}..{} of {stream} were trimmed before it had read them",
                    log.first_sequence
                ),
                "the records are lost to this consumer: raise --retention-max-age, or speed the consumer up",
            );
        }
    }
    if !cursor.skipped.is_empty() {
        report.warning(
            format!("{name}: an operator skipped {} parts", cursor.skipped.len()),
            "`millpond consumer list` lists them with the reasons",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_manifest::{SinkTable, TableClaim};

    #[test]
    fn a_claim_is_reported_with_its_age() {
        let policy = millpond_consumer::Config::default().policy("", 1);
        let mut asks = Cursor::unborn(Default::default(), 0, "b", policy);
        asks.tables.claim = Some(TableClaim {
            id: 1,
            tables: vec![SinkTable::new("logs", ["logs".to_owned()])],
            expires_at_ms: 60_000,
            firm: true,
        });
        for (now_ms, says, severity) in [
            (
                1_000,
                "consumer b asks for logs: its claim expires in 59 s",
                Severity::Ok,
            ),
            (
                100_000,
                "consumer b asks for logs: its claim expired 40 s ago, and no other consumer may have the tables",
                Severity::Warning,
            ),
        ] {
            let mut report = Report::default();
            look_at_claims(std::slice::from_ref(&asks), now_ms, &mut report);
            assert_eq!(report.0[0].what, says);
            assert_eq!(report.worst() as u8, severity as u8);
        }
    }
}
