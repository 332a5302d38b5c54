//! Decides whether a consumer may write to its tables, before it opens any cursor: a guard for people who start a second
//! consumer with the settings of the first. Exactly-once does not depend on it. Pure.
//!
//! The cursor in the first shard is the register of a consumer's tables, for all shards. A consumer asks for tables in three
//! steps, with a look at the registers of all others before each: it claims them, makes the claim firm, and takes them. Two
//! consumers cannot both take a table: the one whose claim was firm later looks after that, and sees the other's. This holds
//! whatever the clocks show. Time only ends the wait for a claim that is not firm.

use crate::cursor::Ownership;
use crate::cursor::tables::{SinkTable, SinkTables, TableClaim, common};
use crate::{BatchingPolicy, Cursor, layout};
use uuid::Uuid;

/// A process's request for the tables of its sink.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The tables.
    pub tables: &'a [SinkTable],
    /// Somebody told the consumer to share them.
    pub share: bool,
    /// Unix ms.
    pub now_ms: u64,
    /// Duration of a claim without renewal, in milliseconds.
    pub lease_ms: u64,
    /// A random number for a new claim.
    pub id: u64,
    /// The claim that this process has written or renewed since its last look, by its id.
    pub renewed: Option<u64>,
    /// The configured batching policy, for a new cursor.
    pub policy: &'a BatchingPolicy,
}

/// The part of a consumer's request that others can see when it begins to look at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing yet.
    Hidden,
    /// The claim of this id.
    Claimed(u64),
    /// The firm claim of this id.
    Firm(u64),
}

/// The next step of a process that asks for tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The consumer has its tables.
    Admitted,
    /// Read the cursors of all other consumers in the first shard, and [`look`] at them.
    Look(Stage, Vec<SinkTable>),
    /// Swap in this state. If it makes a cursor of a tombstone, set the start first.
    Swap(Box<Cursor>),
    /// Another process of the consumer asks for other tables, at most until then (unix ms).
    Wait(u64),
}

/// The result of a look at the other consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight<'a> {
    /// Nobody else has the tables or asks for them.
    Free,
    /// This consumer has this table, or asks for it and goes first.
    Taken(&'a Cursor, &'a SinkTable),
    /// This consumer asks for this table and has the greater name. It gives way unless it looked before our claim was there,
    /// so wait until it has the table or gives up, at most until then (unix ms).
    Wait(&'a Cursor, &'a SinkTable, u64),
}

/// Looks at the cursors of the first shard.
///
/// If two consumers ask at once and see each other, the one with the greater name gives way.
///
/// A table that consumers share already may gain an identity, as when a server joins its cluster: they go on sharing it.
pub fn look<'a>(
    own: &Cursor,
    stage: Stage,
    tables: &'a [SinkTable],
    cursors: impl IntoIterator<Item = &'a Cursor>,
    now_ms: u64,
) -> Sight<'a> {
    let consumer = own.consumer.as_str();
    let others = cursors
        .into_iter()
        .filter(|other| other.consumer != consumer && layout::repaired_by(&other.consumer).is_none());
    let mut waits_for = Sight::Free;
    for other in others {
        let asked = tables.iter().filter(|table| !own.shares(table, other));
        let common = |theirs: &[SinkTable]| asked.clone().find(|table| table.is_among(theirs));
        if let Some(table) = common(&other.tables.tables).filter(|_| !other.is_removed()) {
            return Sight::Taken(other, table);
        }
        let Some(claim) = &other.tables.claim else {
            continue;
        };
        let Some(table) = common(&claim.tables) else {
            continue;
        };
        let goes_first = match stage {
            // It has looked once, and will see this claim when it looks again.
            Stage::Hidden | Stage::Firm(_) if !claim.firm => continue,
            Stage::Hidden => false,
            Stage::Claimed(_) if !claim.firm && claim.expires_at_ms <= now_ms => continue,
            Stage::Claimed(_) | Stage::Firm(_) => consumer < other.consumer.as_str(),
        };
        if !goes_first || claim.expires_at_ms <= now_ms {
            return Sight::Taken(other, table);
        }
        waits_for = Sight::Wait(other, table, claim.expires_at_ms);
    }
    waits_for
}

impl Cursor {
    /// A consumer that has asked for nothing and read nothing: nothing is kept for it.
    pub fn unborn(buffer_id: Uuid, shard: u32, consumer: &str, policy: BatchingPolicy) -> Cursor {
        Cursor {
            ownership: Ownership::Removed,
            ..Cursor::new(buffer_id, shard, consumer, 0, policy)
        }
    }

    /// Returns true if the two consumers have this table already, and one was told to share.
    fn shares(&self, table: &SinkTable, other: &Cursor) -> bool {
        let mut known = self.tables.tables.iter().filter(|known| known.name == table.name);
        (self.tables.shared || other.tables.shared)
            && !other.is_removed()
            && known.any(|known| known.is_among(&other.tables.tables))
    }

    /// The next step of a process of this consumer. `free`: the last look that found nobody, if this state or an earlier one
    /// with the same claim was in force when it began.
    pub fn admission(&self, request: &Request<'_>, free: Option<Stage>) -> Step {
        let lacking = self.tables.lacks(request.tables);
        // Older programs wrote no tables down, so nobody knows whether these are more.
        let is_older = !self.is_removed() && self.tables.tables.is_empty();
        if lacking.is_empty() || request.share || is_older {
            let next = self.admitted(request);
            return if next == *self {
                Step::Admitted
            } else {
                Step::Swap(Box::new(next))
            };
        }
        self.asks_for(lacking, request, free)
    }

    fn asks_for(&self, lacking: Vec<SinkTable>, request: &Request<'_>, free: Option<Stage>) -> Step {
        let claims = |claim: TableClaim| {
            let mut next = self.clone();
            next.tables.claim = Some(claim);
            Step::Swap(Box::new(next))
        };
        let expires_at_ms = request.now_ms.saturating_add(request.lease_ms);
        let new = |tables| TableClaim {
            id: request.id,
            tables,
            expires_at_ms,
            firm: false,
        };
        let Some(claim) = &self.tables.claim else {
            return match free {
                Some(Stage::Hidden) => claims(new(lacking)),
                _ => Step::Look(Stage::Hidden, lacking),
            };
        };
        // Others see the tables of the claim, so they must be those of the look.
        if claim.tables != lacking {
            return if claim.expires_at_ms > request.now_ms {
                Step::Wait(claim.expires_at_ms)
            } else {
                claims(new(lacking))
            };
        }
        let stage = if claim.firm {
            Stage::Firm(claim.id)
        } else {
            Stage::Claimed(claim.id)
        };
        let renewed = TableClaim {
            expires_at_ms,
            ..claim.clone()
        };
        if free == Some(stage) {
            return if claim.firm {
                Step::Swap(Box::new(self.admitted(request)))
            } else {
                claims(TableClaim {
                    firm: true,
                    ..renewed
                })
            };
        }
        // Others wait for a claim that is renewed in time. Where a renewal takes longer than that, it looks all the same.
        if request.renewed != Some(claim.id)
            && claim.expires_at_ms < request.now_ms.saturating_add(request.lease_ms / 2)
        {
            return claims(renewed);
        }
        Step::Look(stage, lacking)
    }

    /// This consumer with the tables of the request, and without a claim.
    fn admitted(&self, request: &Request<'_>) -> Cursor {
        let mut next = if self.is_removed() {
            self.begin_again(0, request.policy.clone())
        } else {
            self.clone()
        };
        next.tables.tables = self.tables.with(request.tables);
        next.tables.claim = None;
        next.tables.shared |= request.share;
        next
    }

    /// This cursor for a process that was admitted with these tables, and opens it now. `None`: the consumer was removed meanwhile
    /// and began again with other tables, so the process has to ask again.
    pub fn still_admits(&self, tables: &[SinkTable], share: bool) -> Option<Cursor> {
        let mut next = self.clone();
        if next.tables.tables.is_empty() {
            // An older program owned the cursor meanwhile and dropped them.
            next.tables.tables = self.tables.with(tables);
            next.tables.shared |= share;
        }
        let lacking = next.tables.lacks(tables);
        lacking.is_empty().then_some(next)
    }

    /// The consumer asks for nothing any more.
    #[must_use]
    pub fn without_claim(&self) -> Cursor {
        let mut next = self.clone();
        next.tables.claim = None;
        next
    }
}

impl SinkTables {
    /// The cursors after each cursor that have a table in common with it, and the table. Leaves out tombstones, and tables that
    /// a consumer has only asked for.
    pub fn pairs(cursors: &[Cursor]) -> impl Iterator<Item = (&Cursor, &Cursor, &SinkTable)> {
        let lives = |cursor: &&Cursor| !cursor.is_removed();
        let numbered = cursors
            .iter()
            .enumerate()
            .filter(move |(_, cursor)| lives(cursor));
        numbered.flat_map(move |(place, one)| {
            let others = cursors[place + 1..].iter().filter(lives);
            others.filter_map(move |other| {
                let table = common(&one.tables.tables, &other.tables.tables)?;
                Some((one, other, table))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::tables::SinkTable;

    fn policy() -> BatchingPolicy {
        BatchingPolicy {
            batch_records: 1,
            batch_bytes: 1,
            chunk_rows: 1,
            chunk_bytes: 1,
            max_partitions_per_chunk: 1,
            max_in_flight: 1,
            sink: String::new(),
            schema_version: 1,
        }
    }

    #[test]
    fn a_claim_that_takes_longer_than_its_lease_is_looked_from() {
        let tables = [SinkTable::new("t", ["t".to_owned()])];
        let policy = policy();
        let request = |now_ms, renewed| Request {
            tables: &tables,
            share: false,
            now_ms,
            lease_ms: 100,
            id: 7,
            renewed,
            policy: &policy,
        };
        let unborn = Cursor::unborn(Uuid::nil(), 0, "a", policy.clone());
        let Step::Swap(claims) = unborn.admission(&request(0, None), Some(Stage::Hidden)) else {
            panic!("a claim")
        };
        // Another process of the consumer has written the claim.
        assert!(matches!(
            claims.admission(&request(1_000, None), None),
            Step::Swap(_)
        ));
        let step = claims.admission(&request(1_000, Some(7)), None);
        assert_eq!(step, Step::Look(Stage::Claimed(7), tables.to_vec()));
    }
}
