//! The demo's queries to ClickHouse: counts rows, and finds missing and duplicate records.

use anyhow::{Context, bail};
use millpond_load::clickhouse::UNIQUE;
use std::collections::HashMap;
use std::path::Path;

/// ClickHouse's HTTP interface.
pub(super) struct ClickHouse {
    url: String,
}

/// The rows compared with the acknowledged records.
pub(super) struct Verdict {
    pub(super) rows: u64,
    pub(super) duplicates: u64,
    pub(super) missing: u64,
}

impl Verdict {
    pub(super) fn exact(&self) -> bool {
        self.duplicates == 0 && self.missing == 0
    }
}

/// A query that a person might ask.
pub(super) fn sample_query(run: &str) -> String {
    format!(
        "SELECT ServiceName, SeverityText, count() AS records, any(Body) AS example FROM otel.otel_logs \
         WHERE startsWith(LogAttributes['{UNIQUE}'], '{run}-') GROUP BY ALL ORDER BY records DESC LIMIT 5"
    )
}

impl ClickHouse {
    pub(super) fn new(url: &str) -> Self {
        ClickHouse { url: url.to_owned() }
    }

    pub(super) async fn query(&self, sql: &str) -> anyhow::Result<String> {
        millpond_load::clickhouse::query(&self.url, sql).await
    }

    pub(super) async fn count(&self) -> anyhow::Result<u64> {
        let text = self
            .query("SELECT count() FROM otel.otel_logs FORMAT TSV")
            .await?;
        text.trim()
            .parse()
            .with_context(|| format!("count() is {text:?}"))
    }

    /// Compares the ids in the table with those in the file of acknowledged ones, request by request.
    pub(super) async fn verify(
        &self,
        run: &str,
        records_per_request: u64,
        acknowledged: &Path,
    ) -> anyhow::Result<Verdict> {
        let id = format!("LogAttributes['{UNIQUE}']");
        let sql = format!(
            "SELECT intDiv(toUInt64(substring({id}, {})), {records_per_request}) AS request, count(), uniqExact({id}) \
             FROM otel.otel_logs WHERE startsWith({id}, '{run}-') GROUP BY request FORMAT TSV",
            run.len() + 2
        );
        let (mut rows, mut duplicates) = (0, 0);
        let mut found: HashMap<u64, u64> = HashMap::new();
        for line in self.query(&sql).await?.lines() {
            let mut numbers = line.split('\t').map(str::parse::<u64>);
            let (Some(Ok(request)), Some(Ok(all)), Some(Ok(unique))) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                bail!("ClickHouse answered {line:?} instead of three numbers");
            };
            rows += all;
            duplicates += all - unique;
            found.insert(request, unique);
        }
        let file = std::fs::read_to_string(acknowledged)
            .with_context(|| format!("cannot read {}", acknowledged.display()))?;
        let mut missing = 0;
        for line in file.lines() {
            let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
            let (Some(Ok(first)), Some(Ok(count))) = (words.next(), words.next()) else {
                bail!("{} has the line {line:?}", acknowledged.display());
            };
            let there = found.get(&(first / records_per_request)).copied().unwrap_or(0);
            missing += count.saturating_sub(there);
        }
        Ok(Verdict {
            rows,
            duplicates,
            missing,
        })
    }
}
