//! Passwords in files.

use anyhow::Context;
use std::path::Path;

/// Reads the file of the flag with this name. A line break at its end does not count.
pub(crate) fn read(flag: &str, file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{flag} {}: cannot be read", file.display()))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    Ok(password.strip_suffix('\r').unwrap_or(password).to_owned())
}
