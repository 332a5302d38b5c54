//! Reads a TOML file with a list that a flag names: of tables, of topics.

use anyhow::{Context, ensure};
use std::path::Path;

/// Bytes of a file: thousands of entries.
const FILE_MAX: u64 = 4 << 20;

/// Reads and parses a file. Errors begin with the flag and the path.
pub(crate) fn read<T>(
    flag: &str,
    path: &Path,
    parse: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let what = || format!("{flag} {}", path.display());
    let length = std::fs::metadata(path)
        .with_context(|| format!("{}: cannot be read", what()))?
        .len();
    ensure!(length <= FILE_MAX, "{}: is larger than 4 MiB", what());
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", what()))?;
    parse(&text).with_context(what)
}
