//! A reader's view of a shard's log: the manifest and its loaded pages. It never reads a page itself, but reports which
//! one is missing.

use crate::cursor::Seen;
use crate::entry::{Entry, Part};
use crate::{Manifest, Page, PageReference};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use ulid::Ulid;

/// The manifest and its loaded pages. Derefs to the manifest.
#[derive(Debug, Clone)]
pub struct Log {
    manifest: Manifest,
    pages: BTreeMap<Ulid, Arc<Page>>,
}

/// The part of the log between a reader and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// Records.
    pub records: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// Commit time of its oldest entry (unix ms), as far as visible; `None` if it is empty.
    pub oldest_committed_at_ms: Option<u64>,
}

/// How a log relates to what a consumer has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity<'a> {
    /// The log has the newest segment that the consumer has seen, or begins after it, or nobody knows the segment: an older program wrote
    /// the cursor.
    Same,
    /// The log has another segment in its place: it is not the log that the consumer has read.
    Other {
        /// The segment that the consumer has seen.
        seen: Seen,
        /// The segment that is there now.
        found: Ulid,
    },
    /// The log ends before it, or before a position.
    Short,
    /// Only this page can tell, which is not loaded.
    Unread(&'a PageReference),
}

impl Lag {
    /// Adds a stream's part of the following entries.
    fn add<'a>(&mut self, stream: u32, entries: impl Iterator<Item = (u64, &'a Entry)>) {
        for (_, entry) in entries {
            for part in entry.parts.iter().filter(|part| part.stream == stream) {
                self.records = self.records.saturating_add(part.records);
                self.stored_bytes = self.stored_bytes.saturating_add(part.length);
                self.oldest_committed_at_ms.get_or_insert(entry.committed_at_ms);
            }
        }
    }
}

/// A page that does not match its reference.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("it is not the page that the manifest refers to: it holds sequences {first}..={last} of shard {shard:04}, its reference in the manifest says {}..={}", .reference.first, .reference.last)]
pub struct WrongPage {
    /// The manifest's reference to the page.
    pub reference: PageReference,
    /// The shard it names.
    pub shard: u32,
    /// Its first sequence.
    pub first: u64,
    /// Its last sequence.
    pub last: u64,
}

impl std::ops::Deref for Log {
    type Target = Manifest;

    fn deref(&self) -> &Manifest {
        &self.manifest
    }
}

impl Manifest {
    /// Checks that a page is the one that `reference`, from this manifest, refers to.
    pub fn check_page(&self, reference: &PageReference, page: &Page) -> Result<(), WrongPage> {
        let known = |entry: &Entry| {
            let mut parts = entry.parts.iter();
            parts.all(|part| (part.stream as usize) < self.streams.len())
        };
        if page.reference(reference.page) == *reference
            && page.entries.iter().all(known)
            && page.shard == self.shard
            && page.buffer_id == self.buffer_id
        {
            return Ok(());
        }
        Err(WrongPage {
            reference: reference.clone(),
            shard: page.shard,
            first: page.first,
            last: page.last(),
        })
    }
}

impl Log {
    /// A log without loaded pages.
    pub fn new(manifest: Manifest) -> Log {
        Log {
            manifest,
            pages: BTreeMap::new(),
        }
    }

    /// Moves on to a later state of the same manifest. Pages that it still has stay loaded.
    #[must_use]
    pub fn advanced(mut self, manifest: Manifest) -> Log {
        self.pages
            .retain(|name, _| manifest.pages.iter().any(|reference| reference.page == *name));
        Log {
            manifest,
            pages: self.pages,
        }
    }

    /// Adds a page that was read.
    pub fn load(&mut self, reference: &PageReference, page: Arc<Page>) -> Result<(), WrongPage> {
        self.manifest.check_page(reference, &page)?;
        self.pages.insert(reference.page, page);
        Ok(())
    }

    /// Unloads all pages except those that `keep` selects.
    pub fn unload(&mut self, keep: impl Fn(&PageReference) -> bool) {
        let manifest = &self.manifest;
        self.pages
            .retain(|name, _| manifest.pages.iter().any(|r| r.page == *name && keep(r)));
    }

    /// Returns true if a page is loaded.
    pub fn is_loaded(&self, reference: &PageReference) -> bool {
        self.pages.contains_key(&reference.page)
    }

    /// The page that has this sequence.
    pub fn page_of(&self, sequence: u64) -> Option<&PageReference> {
        let place = self.manifest.pages.partition_point(|page| page.last < sequence);
        let page = self.manifest.pages.get(place)?;
        (page.first <= sequence).then_some(page)
    }

    /// The first page from sequence `from` on that is not loaded.
    pub fn missing(&self, from: u64) -> Option<&PageReference> {
        let from = self.manifest.pages.partition_point(|page| page.last < from);
        self.manifest.pages[from..]
            .iter()
            .find(|page| !self.is_loaded(page))
    }

    /// The visible part of the log from sequence `from` on ends before this one: at the first page that is not loaded,
    /// or at the log's end.
    pub fn horizon(&self, from: u64) -> u64 {
        self.missing(from)
            .map_or(self.manifest.next_sequence, |page| page.first)
    }

    /// Compares the log with what a consumer has read: everything before sequence `read`, and the newest segment that it has seen.
    pub fn continuity(&self, read: u64, seen: Option<Seen>) -> Continuity<'_> {
        if seen.map_or(read, |seen| read.max(seen.end())) > self.manifest.next_sequence {
            return Continuity::Short;
        }
        let Some(seen) = seen.filter(|seen| seen.sequence >= self.manifest.first_sequence) else {
            return Continuity::Same;
        };
        if let Some(page) = self.page_of(seen.sequence).filter(|page| !self.is_loaded(page)) {
            return Continuity::Unread(page);
        }
        match self.entries(seen.sequence).next() {
            Some((_, entry)) if entry.segment != seen.segment => Continuity::Other {
                seen,
                found: entry.segment,
            },
            _ => Continuity::Same,
        }
    }

    /// The visible entries from a sequence on, oldest first.
    pub fn entries(&self, from: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let from = from.max(self.manifest.first_sequence);
        let horizon = self.horizon(from);
        let skipped = self.manifest.pages.partition_point(|page| page.last < from);
        let paged = self.manifest.pages[skipped..]
            .iter()
            .take_while(move |reference| reference.last < horizon)
            .filter_map(|reference| self.pages.get(&reference.page))
            .flat_map(move |page| seen(page.first, &page.entries, from));
        let tail = if horizon == self.manifest.next_sequence {
            &self.manifest.tail[..]
        } else {
            &[]
        };
        paged.chain(seen(self.manifest.tail_start(), tail, from))
    }

    /// Records of a stream from a sequence on, as [`Log::lag`] counts them.
    pub fn records(&self, stream: u32, from: u64) -> u64 {
        self.lag(stream, from).records
    }

    /// The lag of a reader at this sequence of a stream. For a page that is not loaded, all streams count: only the
    /// page can tell them apart.
    pub fn lag(&self, stream: u32, from: u64) -> Lag {
        let mut lag = Lag::default();
        let skipped = self.manifest.pages.partition_point(|page| page.last < from);
        for reference in &self.manifest.pages[skipped..] {
            match self.pages.get(&reference.page) {
                Some(page) => lag.add(stream, seen(page.first, &page.entries, from)),
                None => {
                    lag.records = lag.records.saturating_add(reference.records);
                    lag.stored_bytes = lag.stored_bytes.saturating_add(reference.bytes);
                }
            }
        }
        lag.add(
            stream,
            seen(self.manifest.tail_start(), &self.manifest.tail, from),
        );
        lag
    }

    /// The visible parts of a stream from a sequence on, oldest first.
    pub fn parts(&self, stream: u32, from: u64) -> impl Iterator<Item = (u64, &Entry, &Part)> {
        self.entries(from).filter_map(move |(sequence, entry)| {
            let part = entry.parts.iter().find(|part| part.stream == stream)?;
            Some((sequence, entry, part))
        })
    }
}

/// The entries of a run from sequence `from` on; the run begins at sequence `first`.
fn seen(first: u64, entries: &[Entry], from: u64) -> impl Iterator<Item = (u64, &Entry)> {
    let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
    (first..).zip(entries).skip(skip)
}
