//! Decides whether a group reads the manifest before it swaps it, although the producer knows one. This saves refused
//! swaps. No promise depends on it, so the model leaves it out.

use crate::commit::{Commits, Found, News};

/// The number of commits that read the manifest first after another producer has committed between two of ours (12: a
/// read costs a twelfth of a refused swap).
pub const READS_FIRST: u32 = 12;

/// The number of further groups that read first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadsFirst(u32);

impl ReadsFirst {
    /// Takes note of news.
    pub fn hear(&mut self, news: News) {
        if news.met_another {
            self.0 = READS_FIRST;
        }
    }

    /// Starts a group.
    pub fn begin<S: Found>(&mut self, commits: &mut Commits<S>) {
        if self.0 > 0 && commits.doubt_known() {
            self.0 -= 1;
        }
    }
}
