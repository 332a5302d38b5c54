//! Questions to ClickHouse over its HTTP interface.

use anyhow::{Context, bail};

/// The attribute that every record of the load has a value of its own in.
pub const UNIQUE: &str = "millpond.load.id";

/// What the server at `url` answers to `sql`, as text.
///
/// # Errors
/// When there is no answer, or it is a refusal.
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
