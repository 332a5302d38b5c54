//! Whether the log is the one that the consumer has read. Somebody may have restored the manifest, or deleted it so that
//! producers began a new one: new records then have sequences that the consumer has behind it.

use super::{Tenure, replay};
use crate::discovery::Fallback;
use crate::error::ConsumeError;
use millpond_manifest::log::Continuity;
use millpond_manifest::{Cursor, Log, PageReference, layout};

impl Tenure<'_> {
    /// Looks for the newest segment that an owner has seen. Until the log has it, the consumer plans, sends and acknowledges nothing.
    pub(super) fn recognize(&mut self) -> Result<(), ConsumeError> {
        let Some(known) = self.log.as_ref().filter(|_| !self.recognized) else {
            return Ok(());
        };
        let cursor = &self.durable.state;
        if cursor.furthest() > known.log.next_sequence {
            return Ok(());
        }
        match continuity(cursor, &known.log) {
            Continuity::Same => {}
            Continuity::Short | Continuity::Unread(_) => return Ok(()),
            Continuity::Other(_) if known.is_hearsay() => {
                self.stop_watching(
                    Fallback::contradicted,
                    &"it shows another log than the one that was read",
                );
                return Ok(());
            }
            Continuity::Other(found) => {
                let shard = self.shard.claim.shard;
                return Err(ConsumeError::OtherLog {
                    key: layout::manifest(shard),
                    consumer: cursor.consumer.clone(),
                    sequence: cursor.seen.map_or(0, |seen| seen.sequence),
                    read: cursor.seen.map(|seen| seen.segment).unwrap_or_default(),
                    found,
                });
            }
        }
        self.recognized = true;
        if self.in_doubt {
            self.schedule = replay(self.shard, cursor, &known.log);
        }
        Ok(())
    }

    /// The page that tells whether the log is the right one, if that is not known yet.
    pub(super) fn recognizes_by<'l>(&self, log: &'l Log) -> Option<&'l PageReference> {
        match continuity(&self.durable.state, log) {
            Continuity::Unread(page) if !self.recognized => Some(page),
            _ => None,
        }
    }
}

/// A cursor that an older program wrote has no segment, and its log counts as the right one.
fn continuity<'l>(cursor: &Cursor, log: &'l Log) -> Continuity<'l> {
    cursor.seen.map_or(Continuity::Same, |seen| log.continuity(seen))
}
