//! Whether a shard's log is the one that its consumers have read. Somebody may have restored its manifest, or deleted it so that
//! producers began a new one.

use super::{CollectError, GarbageCollector, Needs};
use millpond_manifest::cas::{ReadError, Snapshot};
use millpond_manifest::cursor::Seen;
use millpond_manifest::{Cursor, Manifest};

/// The part of the log that a consumer has read.
#[derive(Debug, Clone)]
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

/// The consumers whose log may be another one: the keys of their cursors, each with the reason.
#[derive(Default)]
struct Compared {
    /// They have read another log.
    strangers: Vec<String>,
    /// The page that would tell is lost or damaged.
    unknown: Vec<String>,
}

impl Compared {
    fn of(self, log: Snapshot<Manifest>) -> Recognized {
        match self.strangers.is_empty() {
            true => Recognized::Yes(Box::new(log), self.unknown),
            false => Recognized::No(self.strangers),
        }
    }
}

/// The answer of [`GarbageCollector::recognize`].
pub(super) enum Recognized {
    /// This state may be of the log that all consumers have read. For the cursors with these keys and reasons that is unknown.
    Yes(Box<Snapshot<Manifest>>, Vec<String>),
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
        let before = self.compare(&log.state, needs).await?;
        if before.strangers.is_empty() && before.unknown.is_empty() {
            return Ok(before.of(log));
        }
        // Meanwhile the log may have grown, or another garbage collector may have trimmed it and deleted a page.
        let Some(now) = self.log(log.state.shard).await? else {
            return Ok(Recognized::Absent);
        };
        if now.state.stamp == log.state.stamp {
            return Ok(before.of(now));
        }
        Ok(self.compare(&now.state, needs).await?.of(now))
    }

    /// Finds the consumers that have read another log than this one.
    async fn compare(&mut self, log: &Manifest, needs: &Needs) -> Result<Compared, CollectError> {
        let mut compared = Compared::default();
        let Compared { strangers, unknown } = &mut compared;
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
            let found = match self.segment_at(log, sequence).await {
                Ok(found) => found,
                Err(CollectError::Read(ReadError::Store(error))) => return Err(error.into()),
                Err(damage) => {
                    unknown.push(format!(
                        "{}: restore it: it has the newest segment that the consumer of {key} has seen, so whether that has read this log is \
                         unknown, and only retention trims it",
                        defect(&damage)
                    ));
                    continue;
                }
            };
            match found {
                Some(found) if found != segment => strangers.push(format!(
                    "{key}: it has read segment {segment} at sequence {sequence}, and the log has {found} there: somebody restored the \
                     manifest, or deleted it so that gateways began a new one"
                )),
                _ => {}
            }
        }
        Ok(compared)
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

/// The object and its defect, without the consequence.
fn defect(error: &CollectError) -> String {
    match error {
        CollectError::PageGone(key) => format!("{key} is gone"),
        CollectError::WrongPage { key, wrong } => format!("{key}: {wrong}"),
        error => error.to_string(),
    }
}
