//! Whether the log is the one that the consumer has read. Somebody may have restored the manifest, or deleted it so that
//! producers began a new one: new records then have sequences that the consumer has behind it.

use super::{Tenure, replay};
use crate::discovery::Fallback;
use crate::error::ConsumeError;
use millpond_manifest::log::Continuity;
use millpond_manifest::{Log, PageReference, layout};

impl Tenure<'_> {
    /// Looks for the newest segment that an owner has seen. Until the log has it, the consumer plans, sends and acknowledges nothing.
    pub(super) fn recognize(&mut self) -> Result<(), ConsumeError> {
        let Some(known) = self.log.as_ref().filter(|_| !self.recognized) else {
            return Ok(());
        };
        match known.log.continuity(&self.durable.state) {
            Continuity::Same => {}
            Continuity::Short | Continuity::Unread(_) => return Ok(()),
            Continuity::Other { .. } if known.is_hearsay() => {
                self.stop_watching(
                    Fallback::contradicted,
                    &"it shows another log than the one that was read",
                );
                return Ok(());
            }
            Continuity::Other { seen, found } => {
                return Err(ConsumeError::OtherLog {
                    key: layout::manifest(self.shard.claim.shard),
                    consumer: self.shard.claim.consumer.clone(),
                    sequence: seen.sequence,
                    read: seen.segment,
                    found,
                });
            }
        }
        self.recognized = true;
        if self.in_doubt {
            self.schedule = replay(self.shard, &self.durable.state, &known.log);
        }
        Ok(())
    }

    /// The page that tells whether the log is the right one, if that is not known yet.
    pub(super) fn recognizes_by<'l>(&self, log: &'l Log) -> Option<&'l PageReference> {
        if self.recognized {
            return None;
        }
        match log.continuity(&self.durable.state) {
            Continuity::Unread(page) => Some(page),
            _ => None,
        }
    }
}
