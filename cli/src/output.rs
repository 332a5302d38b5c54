//! Standard output. A reader that goes away (`millpond status | head`) has read enough: it ends the command, and is no
//! failure. Nothing here panics, as `println!` does.

use anyhow::{Context, anyhow};
use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Nobody reads standard output any more.
#[derive(Debug)]
struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

/// Writes to standard output, to its end.
pub(crate) fn write(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).or_else(failed)
}

/// What a write to standard output that failed means.
pub(crate) fn failed(error: io::Error) -> anyhow::Result<()> {
    match error.kind() {
        ErrorKind::BrokenPipe => Err(anyhow!(error).context(ReaderGone)),
        _ => Err(error).context("cannot write to standard output"),
    }
}

/// Whether a command ended because nobody reads it.
pub(crate) fn is_reader_gone(error: &anyhow::Error) -> bool {
    error.is::<ReaderGone>()
}

/// A line on standard output, made as by `println!`. It fails when nobody reads it: `?` ends a command that only shows
/// things; one that changes them goes on.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($what)*)))
    };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_goes_away_is_told_from_a_full_disk() {
        let failed = |kind: ErrorKind| failed(kind.into()).unwrap_err();
        assert!(is_reader_gone(&failed(ErrorKind::BrokenPipe)));
        let full = failed(ErrorKind::StorageFull);
        assert!(!is_reader_gone(&full));
        assert!(full.to_string().contains("standard output"));
        // One of the network's is something else.
        assert!(!is_reader_gone(&io::Error::from(ErrorKind::BrokenPipe).into()));
    }
}
