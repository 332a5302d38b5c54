//! Pages: sealed runs of the log's entries in immutable objects. A page is written before a manifest refers to it, and
//! never changes; only the manifest decides which pages belong to the log.

use crate::entry::{
    ENTRIES_READ_MAX, Entry, LOG_BYTES_MAX, PARTS_MAX, check_entry, decode_entry, encode_entry,
};
use crate::error::PAGE;
use crate::object::{Object, Stamp};
use crate::{Count, FormatError, envelope, proto};
use bytes::Bytes;
use ulid::Ulid;
use uuid::Uuid;

/// A sealed run of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The buffer of this page.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// Sequence of the first entry.
    pub first: u64,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// A manifest's reference to a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageReference {
    /// Sequence of its first entry.
    pub first: u64,
    /// Sequence of its last entry.
    pub last: u64,
    /// The page's id.
    pub page: Ulid,
    /// Bytes of the segments in it.
    pub bytes: u64,
    /// Messages in it.
    pub messages: u64,
    /// Records in it.
    pub records: u64,
}

/// A saturating sum of untrusted numbers.
fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl Page {
    /// The manifest's reference to this page, under the name `page`.
    pub fn reference(&self, page: Ulid) -> PageReference {
        let parts = || self.entries.iter().flat_map(|entry| &entry.parts);
        PageReference {
            first: self.first,
            last: self.last(),
            page,
            bytes: total(self.entries.iter().map(|entry| entry.size)),
            messages: total(parts().map(|part| part.messages)),
            records: total(parts().map(|part| part.records)),
        }
    }

    /// Sequence of the last entry.
    pub fn last(&self) -> u64 {
        self.first + (self.entries.len() as u64).saturating_sub(1)
    }

    /// Names the first rule of the format that this page breaks.
    fn check(&self) -> Result<(), String> {
        if self.entries.is_empty() {
            return Err("it has no entries".into());
        }
        if self.first.checked_add(self.entries.len() as u64).is_none() {
            return Err("it ends past the last sequence".into());
        }
        for (sequence, entry) in (self.first..).zip(&self.entries) {
            // The stream table is unknown here: it is in the manifest and only grows.
            check_entry(entry, usize::MAX).map_err(|e| format!("sequence {sequence}: {e}"))?;
        }
        Ok(())
    }
}

impl PageReference {
    pub(crate) fn encode(&self) -> proto::PageReference {
        let &PageReference {
            first,
            last,
            page,
            bytes,
            messages,
            records,
        } = self;
        proto::PageReference {
            first,
            last,
            page: page.to_bytes().to_vec(),
            bytes,
            messages,
            records,
        }
    }

    pub(crate) fn decode(reference: &proto::PageReference) -> Result<Self, FormatError> {
        let proto::PageReference {
            first,
            last,
            page,
            bytes,
            messages,
            records,
        } = reference;
        Ok(PageReference {
            first: *first,
            last: *last,
            page: Ulid::from_bytes(envelope::sixteen(Page::NAME, "pages.page", page)?),
            bytes: *bytes,
            messages: *messages,
            records: *records,
        })
    }
}

impl Object for Page {
    const NAME: &'static str = PAGE;
    const MAGIC: [u8; 4] = *b"MPPG";
    const BYTES_MAX: u64 = LOG_BYTES_MAX;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "entries",
            path: &[4],
            max: ENTRIES_READ_MAX,
        },
        Count {
            of: "parts of segments",
            path: &[4, 4],
            max: PARTS_MAX,
        },
    ];

    fn encode(&self) -> Bytes {
        let Page {
            buffer_id,
            shard,
            first,
            entries,
        } = self;
        envelope::wrap(
            Self::MAGIC,
            &proto::Page {
                buffer_id: buffer_id.as_bytes().to_vec(),
                shard: *shard,
                first: *first,
                entries: entries.iter().map(encode_entry).collect(),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message: proto::Page = envelope::unwrap::<Self, _>(bytes)?;
        let page = Page {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &message.buffer_id)?),
            shard: message.shard,
            first: message.first,
            entries: message
                .entries
                .iter()
                .map(|entry| decode_entry(Self::NAME, entry))
                .collect::<Result<_, _>>()?,
        };
        page.check().map_err(|reason| FormatError::Content {
            object: Self::NAME,
            reason,
        })?;
        Ok(page)
    }

    fn stamp(&self) -> Stamp {
        // The object is never replaced: its first sequence and its first segment identify it.
        let nonce = self
            .entries
            .first()
            .map_or(0, |entry| entry.segment.timestamp_ms());
        Stamp {
            version: self.first,
            nonce,
        }
    }
}
