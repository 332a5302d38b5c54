//! Where a consumer begins: at its position, or at its first start where it was told to.

use crate::config::Start;
use crate::error::ConsumeError;
use crate::owner::Owned;
use crate::schedule::begins;
use crate::shard::{Admitted, PageRead, Shard};
use millpond_manifest::{Entry, Log, Manifest};
use tracing::{info, warn};

impl Shard {
    /// The sequence at which a new cursor begins. Reads pages only for a time, and only if there is no cursor yet.
    pub(crate) async fn first_sequence(
        &self,
        log: Option<&Manifest>,
        known: bool,
    ) -> Result<u64, ConsumeError> {
        let Some(log) = log else { return Ok(0) };
        let (first, next) = (log.first_sequence, log.next_sequence);
        let at = match self.config.start {
            Start::Earliest => first,
            _ if !known && self.began_before_this_shard().await? => first,
            Start::Latest => next,
            Start::Sequence(sequence) => sequence,
            Start::Time(_) if known || self.has_cursor().await? => first,
            Start::Time(at_ms) => self.first_since(log, at_ms).await?,
        };
        Ok(at.clamp(first, next))
    }

    /// Returns true if the consumer began before the buffer had this shard: everything in it is newer. Where a first start begins is
    /// about the shards of that start alone.
    async fn began_before_this_shard(&self) -> Result<bool, ConsumeError> {
        if self.claim.shard == 0 || self.repair.is_some() {
            return Ok(false);
        }
        let register = self.claim.register().await?;
        let register = register.filter(|register| !register.is_removed());
        Ok(register.is_some_and(|register| register.shards <= self.claim.shard))
    }

    async fn has_cursor(&self) -> Result<bool, ConsumeError> {
        let found = self.claim.read().await?;
        Ok(found.is_some_and(|found| !found.state.is_removed()))
    }

    /// The first sequence that was committed at this time or later. Pages are in the order of their commits, so a few of many
    /// are enough; where the clocks of producers differ, it is one of those around that time.
    async fn first_since(&self, log: &Manifest, at_ms: u64) -> Result<u64, ConsumeError> {
        let first_of = |first: u64, entries: &[Entry]| {
            let mut entries = (first..).zip(entries);
            let found = entries.find(|(_, entry)| entry.committed_at_ms >= at_ms);
            found.map(|(sequence, _)| sequence)
        };
        let (mut low, mut high, mut found) = (0, log.pages.len(), None);
        while low < high {
            let middle = low + (high - low) / 2;
            let in_page = match self.read_page(&log.pages[middle]).await? {
                PageRead::Page(page) => first_of(page.first, &page.entries),
                // The log begins later by now.
                PageRead::Trimmed(_) => None,
            };
            match in_page {
                Some(sequence) => (found, high) = (Some(sequence), middle),
                None => low = middle + 1,
            }
        }
        let in_tail = || first_of(log.tail_start(), &log.tail);
        Ok(found.or_else(in_tail).unwrap_or(log.next_sequence))
    }

    /// Warns of a log that ends before what the consumer has read.
    pub(crate) fn warn_if_ahead(&self, read: u64, log_end: u64) {
        if let Some(reason) = is_ahead(read, log_end) {
            warn!(
                shard = self.claim.shard,
                "this consumer {reason}. Stop the gateways, and read what has come since with another consumer, into other tables"
            );
        }
    }

    /// Says where the owner begins, and how much lies ahead.
    pub(crate) fn announce_start(&self, owned: &Owned, log: Option<&Manifest>) {
        let (shard, cursor) = (self.claim.shard, &owned.durable.state);
        let is_first = owned.fresh || self.admitted == Admitted::Begins;
        if !is_first && self.config.start != Start::Earliest {
            info!(
                shard,
                "the consumer has a position: where a first start begins is ignored"
            );
        }
        let Some(log) = log else {
            if cursor.furthest() == 0 {
                info!(shard, "begins at sequence 0: the log is empty");
            }
            return;
        };
        let log = Log::new(log.clone());
        self.warn_if_ahead(cursor.furthest(), log.next_sequence);
        let (mut at, mut records, mut paged) = (log.next_sequence, 0, false);
        for (index, stream) in (0_u32..).zip(&log.streams) {
            if self.worker.takes(&stream.name, stream.encoding) {
                let next = begins(cursor, &log, &stream.name);
                at = at.min(next.max(log.first_sequence));
                let in_tail = log.records(index, next.max(log.tail_start()));
                records += in_tail;
            }
        }
        // Only the pages themselves tell streams apart.
        for page in log.pages.iter().filter(|page| page.last >= at) {
            records += page.records;
            paged = true;
        }
        let most = if paged { "at most " } else { "" };
        info!(
            shard,
            "begins at sequence {at}: {most}{records} records lie ahead"
        );
    }
}

/// Why a log cannot be the one that the consumer has read. `None`: it may be.
pub(crate) fn is_ahead(read: u64, log_end: u64) -> Option<String> {
    (read > log_end).then(|| {
        format!(
            "has read up to sequence {read}, and the log in the store ends at {log_end}: somebody restored the manifest, or the store serves \
             old copies. Nothing is sent until the log has these sequences"
        )
    })
}
