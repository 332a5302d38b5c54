//! Queries ClickHouse: whether every record occurs once, and whether merges are done.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
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
