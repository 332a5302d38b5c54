//! `millpond doctor`: what is wrong with a live buffer, or soon will be, and what to do about each finding.

mod clickhouse;
mod rows;

use crate::clock::now_ms;
use crate::inspect::{NO_BUFFER, check_patiently, cursors, find_buffer, whole};
use crate::output::{inline, say};
use crate::store::StoreArgs;
use crate::table::TableArgs;
use crate::units::readable;
use millpond_consumer::BatchingPolicy;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::cursor::StreamCursor;
use millpond_manifest::manifest::TAIL_MAX;
use millpond_manifest::{Buffer, Cursor, Log, Manifest, SinkTables, layout};
use millpond_storage::Store;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// Clocks further apart than this are worth a word.
const SKEW_MAX: Duration = Duration::from_secs(5);

/// A consumer that is further behind keeps much from being deleted.
const LAG_MAX: Duration = Duration::from_secs(15 * 60);

/// Commits of a full size that may come before a tail is sealed.
const TAIL_SLACK: usize = 1_024;

/// Which buffer, and which tables behind it.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// ClickHouse's HTTP interface, to look at the tables too. Repeat it, or separate the URLs by commas, as for `consume`.
    #[arg(long, env = "MILLPOND_CLICKHOUSE", value_name = "URL", value_delimiter = ',')]
    clickhouse: Vec<String>,
    #[command(flatten)]
    table: TableArgs,
    /// Compare the tables with the buffer, row by row: which rows are missing, duplicate or of no record. Reads only segments
    /// whose counts differ. Compares what each consumer has acknowledged and the buffer still holds. Exits 1 on a difference.
    #[arg(long, requires = "clickhouse")]
    rows: bool,
    /// With --rows: the first sequence.
    #[arg(long, value_name = "SEQUENCE", requires = "rows")]
    from: Option<u64>,
    /// With --rows: the last sequence.
    #[arg(long, value_name = "SEQUENCE", requires = "rows")]
    to: Option<u64>,
    /// With --rows: only this consumer.
    #[arg(long, value_name = "NAME", requires = "rows")]
    consumer: Option<String>,
    /// Do not write the objects that show whether the store keeps its preconditions and what time it has.
    #[arg(long)]
    read_only: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// Nothing is wrong.
    Ok,
    /// It works, and may not for long.
    Warning,
    /// Something does not work, or is lost.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// What was found, and what to do.
#[derive(Debug)]
struct Finding {
    severity: Severity,
    what: String,
    todo: String,
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

/// Exits 1 when there is an error.
pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let store = args.store.open(false).await?;
    let mut report = Report::default();
    if !args.read_only {
        look_at_store(&store, &mut report).await;
    }
    let mut policies = Vec::new();
    match find_buffer(&store).await {
        Ok(Some(buffer)) => {
            report.ok(format!("buffer {}, shards: {}", buffer.id, buffer.shards));
            for shard in 0..buffer.shards {
                look_at_shard(&store, &buffer, shard, &mut report, &mut policies).await?;
                look_at_letters(&store, shard, &mut report).await?;
            }
        }
        Ok(None) => report.error(format!("there is no buffer at {}", store.url()), NO_BUFFER),
        Err(ReadError::Format { key, wrong }) => report.error(format!("{key}: {wrong}"), wrong.remedy()),
        Err(error) => report.error(error.to_string(), "mend the store or the way to it"),
    }
    if !args.clickhouse.is_empty() {
        clickhouse::look(args.table.at(&args.clickhouse)?, &policies, &mut report).await;
    }
    let compared = match args.rows {
        true => rows::look(&store, &args, &mut report).await?,
        false => Vec::new(),
    };
    let worst = report.worst();
    if args.json {
        let findings: Vec<_> = report
            .0
            .iter()
            .map(|f| json!({ "severity": f.severity.to_string(), "what": f.what, "todo": f.todo }))
            .collect();
        let mut answer = json!({ "worst": worst.to_string(), "findings": findings });
        if args.rows {
            answer["rows"] = json!(compared);
        }
        say!("{answer}")?;
    } else {
        for Finding { severity, what, todo } in &report.0 {
            say!("{severity:>7}  {}", inline(what))?;
            if !todo.is_empty() {
                say!("         → {}", inline(todo))?;
            }
        }
    }
    Ok(if worst == Severity::Error {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Whether the store keeps what the protocol needs, and what time it has.
async fn look_at_store(store: &Store, report: &mut Report) {
    match store.self_test().await {
        Ok(()) => report.ok("the store keeps its preconditions, also for 16 writers at once"),
        Err(error) => report.error(
            error.to_string(),
            "a store that ignores preconditions loses data: use another, or a newer version of it; if it was denied, grant put, get, list and delete, or use --read-only",
        ),
    }
    let key = format!("doctor/{:016x}", rand::random::<u64>());
    let before = now_ms();
    if store
        .put_if_absent(&key, vec![b"doctor".as_slice().into()])
        .await
        .is_err()
    {
        // The self-test has said why.
        return;
    }
    let after = now_ms();
    if let Ok(Some(found)) = store.head(&key).await {
        let stored = u64::try_from(found.last_modified_ms).unwrap_or(0);
        // Stores give whole seconds.
        let apart = before
            .saturating_sub(stored + 1_000)
            .max(stored.saturating_sub(after));
        let apart = Duration::from_millis(apart);
        if apart > SKEW_MAX {
            report.warning(
                format!("this machine's clock and the store's are {} s apart", apart.as_secs()),
                "nothing is lost by it, but leases, retention and latency figures are off by as much: set the clock by NTP",
            );
        } else {
            report.ok("this machine's clock and the store's agree");
        }
    }
    if let Err(error) = store.delete(&key).await {
        report.warning(
            format!("{error}"),
            "the garbage collector cannot delete either: grant it, or the buffer only grows",
        );
    }
}

async fn look_at_shard(
    store: &Store,
    buffer: &Buffer,
    shard: u32,
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
            report.ok(format!("shard {shard:04}: nothing was ever committed"));
        }
        return Ok(());
    };
    let Ok(log) = whole(store, found.state).await else {
        // The check has said what is wrong.
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
            format!("shard {shard:04}: {} entries in the tail are not sealed", log.tail.len()),
            "some gateway is older than sealing, or was given a large --tail-max: every commit moves all of them",
        );
    }
    let future = log
        .entries(0)
        .map(|(_, entry)| entry.committed_at_ms)
        .max()
        .unwrap_or(0);
    let ahead = Duration::from_millis(future.saturating_sub(now_ms()));
    if ahead > SKEW_MAX {
        report.warning(
            format!(
                "shard {shard:04}: a gateway's clock is {} s ahead of this machine's",
                ahead.as_secs()
            ),
            "set the clocks by NTP: retention and latency figures are off by as much",
        );
    }
    let Ok(cursors) = cursors(store, shard).await else {
        return Ok(());
    };
    if cursors.is_empty() && log.next_sequence > 0 {
        report.warning(
            format!("shard {shard:04}: no consumer has ever read it, so that all of it is kept"),
            "start `millpond consume`",
        );
    }
    for cursor in &cursors {
        look_at_consumer(cursor, &log, report);
        policies.push(cursor.policy.clone());
    }
    look_at_shared_tables(&cursors, shard, report);
    Ok(())
}

/// Whether consumers write to the same tables, and were told to.
fn look_at_shared_tables(cursors: &[Cursor], shard: u32, report: &mut Report) {
    for (one, other, table) in SinkTables::pairs(cursors) {
        let what = format!(
            "consumers {} and {} in shard {shard:04} write to the same table {}",
            one.consumer, other.consumer, table.name
        );
        if one.tables.shared || other.tables.shared {
            report.ok(format!("{what}, as --share-tables says"));
        } else {
            report.error(
                what,
                "every record of the streams that both read is there twice: stop one of them and remove it (`millpond consumer remove`), or give it another database; if they read different streams, start one with --share-tables",
            );
        }
    }
}

async fn look_at_letters(store: &Store, shard: u32, report: &mut Report) -> anyhow::Result<()> {
    let dead_letters = store.list(&layout::dead_letters(shard, None)).await?;
    let mut consumers: BTreeMap<&str, usize> = BTreeMap::new();
    for letter in &dead_letters {
        let consumer = letter.key.rsplit('/').nth(1).unwrap_or_default();
        *consumers.entry(consumer).or_default() += 1;
    }
    for (consumer, dead_letters) in consumers {
        report.warning(
            format!("consumer {consumer} in shard {shard:04}: {dead_letters} dead letters"),
            "`millpond dead-letters list` says why; mend the table and `replay` them, or `remove` them: nobody else deletes them",
        );
    }
    Ok(())
}

fn look_at_consumer(cursor: &Cursor, log: &Log, report: &mut Report) {
    let name = format!("consumer {} in shard {:04}", cursor.consumer, cursor.shard);
    let needs = cursor.needs();
    let oldest = log.entries(needs).next();
    let lag = oldest.map(|(_, entry)| Duration::from_millis(now_ms().saturating_sub(entry.committed_at_ms)));
    let lag = lag.unwrap_or_default();
    let alive = cursor.held_at(now_ms()).is_some();
    if !alive && oldest.is_some() {
        report.warning(
            format!("{name}: nobody runs it, and it is {} s behind", lag.as_secs()),
            "start it; if it will not come back, `millpond consumer remove` sets free what is kept for it",
        );
    } else if lag > LAG_MAX {
        report.warning(
            format!("{name}: {} s behind", lag.as_secs()),
            "its log and /readyz say what it waits for; if ClickHouse keeps up, give it more --writers and --memory-limit",
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
                "a longer --retention-max-age, or a faster consumer, would have kept them",
            );
        }
    }
    if !cursor.skipped.is_empty() {
        report.warning(
            format!(
                "{name}: {} parts are left out by an operator's word",
                cursor.skipped.len()
            ),
            "`millpond consumer list` names them with their reasons",
        );
    }
}
