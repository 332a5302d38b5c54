//! Whether the log is the one that the consumer has read. Somebody may have restored the manifest, or deleted it so that
//! producers began a new one: new records then have sequences that the consumer has behind it.

use super::{Tenure, replay};
use crate::discovery::Fallback;
use crate::error::ConsumeError;
use millpond_manifest::cursor::Seen;
use millpond_manifest::log::Continuity;
use millpond_manifest::{Cursor, Log, PageReference, layout};

impl Tenure<'_> {
    /// Looks for the newest segment that an owner has seen, unless the log is known to have it. Until then the consumer plans, begins and
    /// acknowledges nothing.
    pub(super) fn recognize(&mut self) -> Result<(), ConsumeError> {
        let Some(known) = &self.log else { return Ok(()) };
        if !self.recognized {
            match self.continuity(&known.log) {
                Continuity::Same => {}
                Continuity::Short | Continuity::Unread(_) => return Ok(()),
                Continuity::Other { .. } if known.is_hearsay() => {
                    self.distrust_leader();
                    return Ok(());
                }
                Continuity::Other { seen, found } => return Err(self.other_log(seen, found)),
            }
            self.recognized = true;
            // Once: from here on this owner knows its batches.
            if std::mem::take(&mut self.in_doubt) {
                self.schedule = replay(self.shard, &self.durable.state, &known.log);
            }
        }
        if let Some(newest) = Seen::newest(&known.log) {
            self.seen = Some(newest);
        }
        self.warn_of_trimmed();
        Ok(())
    }

    /// Enters the newest segment that this owner has seen, also after the log has ceased to show it: rows of it may have been sent, and the
    /// next owner must not take another log for this one.
    pub(super) fn remember_seen(&self, cursor: &mut Cursor) {
        if let Some(seen) = self.seen {
            cursor.see(seen);
        }
    }

    /// Returns true while the page on its way tells whether the log is the right one.
    pub(super) fn is_recognizing(&self) -> bool {
        let known = self.log.as_ref().filter(|_| !self.recognized);
        known.is_some_and(|known| matches!(self.continuity(&known.log), Continuity::Unread(_)))
    }

    /// The sequence after what the consumer has read or seen.
    pub(super) fn read_up_to(&self) -> u64 {
        let seen = self.seen.map_or(0, |seen| seen.end());
        self.durable.state.furthest().max(seen)
    }

    fn continuity<'l>(&self, log: &'l Log) -> Continuity<'l> {
        log.continuity(self.read_up_to(), self.seen)
    }

    fn distrust_leader(&mut self) {
        // It is asked again only after a while.
        if self.discovery.works() {
            let reason = "it shows another log than the one that was read";
            self.stop_watching(Fallback::contradicted, &reason);
        }
    }

    fn other_log(&self, seen: Seen, found: ulid::Ulid) -> ConsumeError {
        ConsumeError::OtherLog {
            key: layout::manifest(self.shard.claim.shard),
            consumer: self.shard.claim.consumer.clone(),
            sequence: seen.sequence,
            read: seen.segment,
            found,
        }
    }

    /// The page that tells whether the log is the right one, if that is not known yet.
    pub(super) fn recognizes_by<'l>(&self, log: &'l Log) -> Option<&'l PageReference> {
        let seen = self.seen.filter(|_| !self.recognized)?;
        log.page_of(seen.sequence)
    }
}
