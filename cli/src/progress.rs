//! The progress of a command that takes a while: one line on a terminal, and nothing in a pipe. `NO_COLOR` turns off its colours.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// The interval between two frames.
const FRAME: Duration = Duration::from_millis(200);

const COUNTED: &str =
    "{elapsed} {wide_bar:.cyan} {human_pos}/{human_len} {prefix}, {per_sec}, {eta} left {msg:.yellow}";
const UNCOUNTED: &str = "{elapsed} {spinner} {msg}";

/// A line of progress on standard error. Dropping it clears the line.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Progress towards a number of things (`unit`: their plural).
    pub(crate) fn towards(total: u64, unit: &'static str) -> Progress {
        Progress::new(ProgressBar::new(total), COUNTED, unit)
    }

    /// Work without countable progress.
    pub(crate) fn unbounded(what: &'static str) -> Progress {
        let progress = Progress::new(ProgressBar::no_length(), UNCOUNTED, "");
        progress.because(what);
        progress
    }

    /// `bar` draws on standard error, and only if that is a terminal.
    fn new(bar: ProgressBar, template: &str, unit: &'static str) -> Progress {
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        bar.set_style(style);
        bar.set_prefix(unit);
        // A short command shows its line too, not only one that outlasts the first frame.
        bar.tick();
        bar.enable_steady_tick(FRAME);
        Progress(bar)
    }

    /// Reports how many of how many are done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Reports how many are done.
    pub(crate) fn done(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Shows why nothing happens, or an empty text.
    pub(crate) fn because(&self, reason: &str) {
        self.0.set_message(crate::output::inline(reason).into_owned());
    }

    /// Runs `print` without the line, so that neither overwrites the other.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        let progress = Progress::towards(10, "records");
        progress.set(3, 12);
        progress.because("the lease of\nanother");
        assert_eq!((progress.0.position(), progress.0.length()), (3, Some(12)));
        assert_eq!(progress.0.message(), "the lease of\\nanother");
        assert_eq!(Progress::unbounded("listing").0.message(), "listing");
    }
}
