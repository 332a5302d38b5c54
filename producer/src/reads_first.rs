//! Whether a group reads the manifest before it swaps it, although the producer knows one. This saves refused swaps, and no
//! promise depends on it: so the model leaves it out.

use crate::commit::{Commits, Found, News};

/// After another producer has committed between two of our commits, this many commits read the manifest before they swap
/// it (12: a read costs a twelfth of a swap that is refused).
pub const READS_FIRST: u32 = 12;

/// How many more groups read first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadsFirst(u32);

impl ReadsFirst {
    /// There was news.
    pub fn hear(&mut self, news: News) {
        if news.met_another {
            self.0 = READS_FIRST;
        }
    }

    /// A group begins.
    pub fn begin<S: Found>(&mut self, commits: &mut Commits<S>) {
        if self.0 > 0 && commits.doubt_known() {
            self.0 -= 1;
        }
    }
}
