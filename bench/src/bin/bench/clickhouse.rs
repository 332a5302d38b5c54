//! Queries ClickHouse: whether every record occurs once, and whether merges are done.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use millpond_load::clickhouse::UNIQUE;
use tokio::time::{Instant, sleep};

/// Time limit for merges before the engine's CPU time is taken anyway.
const MERGES_PATIENCE: Duration = Duration::from_secs(10);

async fn query(clickhouse: SocketAddr, sql: &str) -> anyhow::Result<String> {
    millpond_load::clickhouse::query(&format!("http://{clickhouse}/"), sql).await
}

/// Fails unless exactly `records` records are present, each once.
pub(crate) async fn check_exact(clickhouse: SocketAddr, records: u64) -> anyhow::Result<()> {
    let sql = format!("SELECT count(), uniqExact(LogAttributes['{UNIQUE}']) FROM otel.otel_logs FORMAT TSV");
    let answer = query(clickhouse, &sql).await?;
    let numbers: Vec<u64> = answer.split_whitespace().flat_map(str::parse).collect();
    let [rows, unique] = numbers[..] else {
        bail!("ClickHouse answered {answer:?} instead of two numbers");
    };
    if (rows, unique) != (records, records) {
        bail!(
            "NOT EXACTLY ONCE: {records} records acknowledged, {rows} rows in ClickHouse, {unique} different ones"
        );
    }
    Ok(())
}

/// The active parts of the table.
pub(crate) async fn parts(clickhouse: SocketAddr) -> anyhow::Result<u64> {
    number(
        clickhouse,
        "SELECT count() FROM system.parts WHERE active AND database = 'otel' AND table = 'otel_logs'",
    )
    .await
}

/// The INSERTs that were delayed or rejected because the table had too many parts.
pub(crate) async fn throttled_inserts(clickhouse: SocketAddr) -> anyhow::Result<u64> {
    number(
        clickhouse,
        "SELECT sum(value) FROM system.events WHERE event IN ('DelayedInserts', 'RejectedInserts')",
    )
    .await
}

async fn number(clickhouse: SocketAddr, sql: &str) -> anyhow::Result<u64> {
    let answer = query(clickhouse, &format!("{sql} FORMAT TSV")).await?;
    let number = answer.trim().parse();
    number.with_context(|| format!("ClickHouse answered {answer:?} instead of a number"))
}

/// Waits until no merge runs, up to the time limit.
pub(crate) async fn rest(clickhouse: SocketAddr) -> anyhow::Result<()> {
    let until = Instant::now() + MERGES_PATIENCE;
    let mut idle = 0;
    // Between two merges there is a moment without any.
    while idle < 3 && Instant::now() < until {
        sleep(Duration::from_millis(300)).await;
        let merges = query(clickhouse, "SELECT count() FROM system.merges FORMAT TSV").await?;
        idle = if merges.trim() == "0" { idle + 1 } else { 0 };
    }
    Ok(())
}
