//! Whether a shard's log is the one that its consumers have read. Somebody may have restored its manifest, or deleted it so that
//! producers began a new one.

use super::{CollectError, GarbageCollector, Needs};
use millpond_manifest::cas::{self, Snapshot};
use millpond_manifest::cursor::Seen;
use millpond_manifest::{Cursor, Manifest, layout};

/// The part of the log that a consumer has read.
#[derive(Debug)]
pub(super) struct HasRead {
    /// The key of its cursor.
    key: String,
    /// The sequence after it.
    end: u64,
    /// The newest segment that the consumer has seen.
    seen: Option<Seen>,
}

impl HasRead {
    pub(super) fn of(key: &str, cursor: &Cursor) -> HasRead {
        HasRead {
            key: key.to_owned(),
            end: cursor.furthest(),
            seen: cursor.seen,
        }
    }
}

/// The answer of [`GarbageCollector::recognize`].
pub(super) enum Recognized {
    /// This state may be of the log that all consumers have read.
    Yes(Box<Snapshot<Manifest>>),
    /// It is another log: the keys of the cursors, each with the reason.
    No(Vec<String>),
    /// The manifest is gone.
    Absent,
}

impl GarbageCollector {
    /// Compares a log with what its consumers have read, whose cursors were read after it.
    pub(super) async fn recognize(
        &mut self,
        log: Snapshot<Manifest>,
        needs: &Needs,
    ) -> Result<Recognized, CollectError> {
        let before = self.strangers(&log.state, needs).await;
        if matches!(&before, Ok(strangers) if strangers.is_empty()) {
            return Ok(Recognized::Yes(Box::new(log)));
        }
        // Meanwhile the log may have grown, or another garbage collector may have trimmed it and deleted a page.
        let Some(now) = cas::read::<Manifest>(&self.store, &layout::manifest(log.state.shard)).await? else {
            return Ok(Recognized::Absent);
        };
        if now.state.stamp == log.state.stamp {
            return before.map(Recognized::No);
        }
        let strangers = self.strangers(&now.state, needs).await?;
        Ok(if strangers.is_empty() {
            Recognized::Yes(Box::new(now))
        } else {
            Recognized::No(strangers)
        })
    }

    /// The cursors of consumers that have read another log than this one, each with the reason.
    async fn strangers(&mut self, log: &Manifest, needs: &Needs) -> Result<Vec<String>, CollectError> {
        let mut strangers = Vec::new();
        for HasRead { key, end, seen } in &needs.read {
            if *end > log.next_sequence {
                strangers.push(format!(
                    "{key}: it has read up to sequence {end}, and the log ends at {}: somebody restored the manifest, or the store serves \
                     old copies",
                    log.next_sequence
                ));
                continue;
            }
            let Some(Seen { sequence, segment }) = *seen else {
                continue;
            };
            match self.segment_at(log, sequence).await? {
                Some(found) if found != segment => strangers.push(format!(
                    "{key}: it has read segment {segment} at sequence {sequence}, and the log has {found} there: somebody restored the \
                     manifest, or deleted it so that gateways began a new one"
                )),
                _ => {}
            }
        }
        Ok(strangers)
    }

    /// The segment at a sequence of the log. `None`: the log begins after it, or ends before it.
    async fn segment_at(
        &mut self,
        log: &Manifest,
        sequence: u64,
    ) -> Result<Option<ulid::Ulid>, CollectError> {
        if sequence < log.first_sequence {
            return Ok(None);
        }
        let place = |first: u64| usize::try_from(sequence - first).unwrap_or(usize::MAX);
        if sequence >= log.tail_start() {
            let entry = log.tail.get(place(log.tail_start()));
            return Ok(entry.map(|entry| entry.segment));
        }
        let page = log.pages.partition_point(|page| page.last < sequence);
        let Some(reference) = log.pages.get(page).filter(|page| page.first <= sequence) else {
            return Ok(None);
        };
        let segments = self.segments_of(log, reference).await?;
        Ok(segments.get(place(reference.first)).copied())
    }
}
