//! Selects the planted bug: `MILLPOND_PLANTED_BUG` names it. Only patches call this crate, so only `target/planted` has it.

use std::sync::LazyLock;

/// The names of all patches, one per line. `scripts/planting.py` writes them.
const NAMES: &str = include_str!("names");

static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| {
    let name = std::env::var("MILLPOND_PLANTED_BUG").ok().filter(|name| !name.is_empty())?;
    assert!(
        NAMES.lines().any(|known| known == name),
        "MILLPOND_PLANTED_BUG={name}: there is no such bug"
    );
    Some(name)
});

/// Returns true if this bug is planted.
///
/// # Panics
/// If `MILLPOND_PLANTED_BUG` names no bug.
#[inline]
pub fn is(bug: &str) -> bool {
    PLANTED.as_deref() == Some(bug)
}
