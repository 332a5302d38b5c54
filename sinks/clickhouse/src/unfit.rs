//! Why a consumer cannot start with the tables of a server, in a few lines.

use crate::schema::MILLPOND;
use crate::schema::judge::Fault;
use std::fmt::Write as _;

/// Tables that a consumer cannot write to, by their quoted paths.
#[derive(Debug, Default)]
pub(crate) struct Unfit {
    pub(crate) missing: Vec<String>,
    pub(crate) faults: Vec<(String, Vec<Fault>)>,
}

impl Unfit {
    /// One line for each table and one for each remedy. `None` if all tables fit.
    pub(crate) fn summary(&self, url: &str) -> Option<String> {
        let mut text = String::new();
        if !self.missing.is_empty() {
            let tables = self.missing.join(", ");
            let _ = write!(
                text,
                "there is no table {tables} at {url} that the user sees: create it (`millpond tables create`, or your own as `millpond tables print` has it), or grant SELECT and INSERT on it"
            );
        }
        if !self.faults.is_empty() {
            let first = if text.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{first}tables at {url} do not fit:");
        }
        for (table, faults) in &self.faults {
            let lacking: Vec<&str> = faults.iter().filter_map(|fault| fault.missing).collect();
            if !lacking.is_empty() {
                let plural = if lacking.len() == 1 { "" } else { "s" };
                let _ = write!(
                    text,
                    "\n  {table} lacks the column{plural} {}",
                    lacking.join(", ")
                );
            }
            for fault in faults.iter().filter(|fault| fault.missing.is_none()) {
                // A column's type needs an ALTER, which `tables migrate` knows; the rest is for people.
                match fault.remedy.starts_with("ALTER TABLE ") {
                    true => _ = write!(text, "\n  {}", fault.what),
                    false => _ = write!(text, "\n  {fault}"),
                }
            }
        }
        if self
            .faults
            .iter()
            .flat_map(|(_, faults)| faults)
            .any(|fault| fault.remedy.starts_with("ALTER TABLE "))
        {
            text.push_str(
                "\nchange them with `millpond tables migrate` and the same --clickhouse, --database and table options \
                 (with --dry-run it prints the statements)",
            );
        }
        if self.only_lacks_ours() {
            text.push_str(
                "\nor leave them as they are with `--columns none`: ClickHouse then recognises a retry only within its deduplication \
                 window",
            );
        }
        (!text.is_empty()).then_some(text)
    }

    /// True if tables lack Millpond's own columns and nothing else, as the Collector's exporter makes them.
    fn only_lacks_ours(&self) -> bool {
        let ours = |fault: &Fault| {
            let missing = fault.missing;
            missing.is_some_and(|name| MILLPOND.iter().any(|column| column.name == name))
        };
        let mut faults = self.faults.iter().flat_map(|(_, faults)| faults).peekable();
        faults.peek().is_some() && faults.all(ours)
    }
}
