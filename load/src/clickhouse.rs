//! Queries over ClickHouse's HTTP interface.

use anyhow::{Context, bail};

/// The attribute with a unique value for every record of the load.
pub const UNIQUE: &str = "millpond.load.id";

/// Returns the answer of the server at `url` to `sql`, as text.
///
/// # Errors
/// There is no answer, or it is an error.
pub async fn query(url: &str, sql: &str) -> anyhow::Result<String> {
    let answer = reqwest::Client::new().post(url).body(sql.to_owned()).send().await;
    let answer = answer.with_context(|| format!("no answer from ClickHouse at {url}"))?;
    let status = answer.status();
    let text = answer.text().await?;
    if !status.is_success() {
        bail!("ClickHouse refused {sql:?}: {text}");
    }
    Ok(text)
}
