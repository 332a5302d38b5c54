//! What a consumer does that finds another one's tables among its own. A guard for
//! people who start a second consumer with the settings of the first: exactly-once does not depend on it. Pure.

use crate::{Cursor, layout};

pub use crate::cursor::tables::{IDENTITIES_MAX, SinkTable, SinkTables, TABLES_MAX};

/// What a consumer does that is about to write to tables.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed<'a> {
    /// Nobody else writes to them.
    Free,
    /// This consumer writes to this table.
    Taken(&'a Cursor, &'a SinkTable),
    /// This consumer looks at the same time, and gives way or does not.
    Wait(&'a Cursor),
}

impl SinkTables {
    /// The first table that others have, too.
    pub fn shares(&self, others: &SinkTables) -> Option<&SinkTable> {
        let with = |table: &&SinkTable| {
            let mut others = others.tables.iter();
            others.any(|other| !table.identities.is_disjoint(&other.identities))
        };
        self.tables.iter().find(with)
    }

    /// Whether some of these tables are none of the earlier ones. Nothing is known of the tables of an older program.
    pub fn adds_to(&self, earlier: &SinkTables) -> bool {
        let is_new = |table: &SinkTable| {
            let table = SinkTables {
                tables: vec![table.clone()],
                ..SinkTables::default()
            };
            table.shares(earlier).is_none()
        };
        !earlier.tables.is_empty() && self.tables.iter().any(is_new)
    }

    /// What the consumer of this name does, given the other cursors of its shard. `opened`: its cursor has these tables, unchecked,
    /// so that others see it.
    ///
    /// Of two consumers that start at once, the later one to open its cursor sees the other. If both see each other, the one with
    /// the greater name gives way. The other one waits for that: the greater one may have looked before it could see anything.
    pub fn claim<'a>(
        &'a self,
        consumer: &str,
        others: &'a [Cursor],
        opened: bool,
        now_ms: u64,
    ) -> Claimed<'a> {
        let mut waits_for = None;
        for other in others {
            let is_reader = other.consumer != consumer
                && !other.is_removed()
                && layout::repaired_by(&other.consumer).is_none();
            let Some(table) = self.shares(&other.tables).filter(|_| is_reader) else {
                continue;
            };
            if other.tables.unchecked {
                // It has sent nothing, and looks again when it comes back.
                if other.held_at(now_ms).is_none() {
                    continue;
                }
                if opened && consumer < other.consumer.as_str() {
                    waits_for = Some(other);
                    continue;
                }
            }
            return Claimed::Taken(other, table);
        }
        waits_for.map_or(Claimed::Free, Claimed::Wait)
    }

    /// The cursors after each cursor that have a table in common with it, and the table. Leaves out tombstones and those whose
    /// owner has sent nothing yet.
    pub fn pairs(cursors: &[Cursor]) -> impl Iterator<Item = (&Cursor, &Cursor, &SinkTable)> {
        let lives = |cursor: &&Cursor| !cursor.is_removed() && !cursor.tables.unchecked;
        let numbered = cursors
            .iter()
            .enumerate()
            .filter(move |(_, cursor)| lives(cursor));
        numbered.flat_map(move |(place, one)| {
            let others = cursors[place + 1..].iter().filter(lives);
            others.filter_map(move |other| Some((one, other, one.tables.shares(&other.tables)?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchingPolicy;
    use crate::cursor::Opening;
    use uuid::Uuid;

    fn tables(identities: &[&str]) -> SinkTables {
        let table = |id: &&str| SinkTable::new(&format!("t {id}"), [(*id).to_owned()]);
        SinkTables {
            tables: identities.iter().map(table).collect(),
            ..SinkTables::default()
        }
    }

    /// A cursor that is held until 100, with one table.
    fn held(consumer: &str, unchecked: bool) -> Cursor {
        let policy = BatchingPolicy {
            batch_records: 1,
            batch_bytes: 1,
            chunk_rows: 1,
            chunk_bytes: 1,
            max_partitions_per_chunk: 1,
            max_in_flight: 1,
            sink: String::new(),
            schema_version: 1,
        };
        let opening = Opening {
            owner: "o",
            id: 1,
            now_ms: 0,
            lease_ms: 100,
            policy: &policy,
            take_over: false,
        };
        let cursor = Cursor::new(Uuid::nil(), 0, consumer, 0, policy.clone());
        let mut state = cursor.open(&opening).unwrap().state;
        state.tables = SinkTables {
            unchecked,
            ..tables(&["one"])
        };
        state
    }

    #[test]
    fn a_table_of_another_consumer_is_taken() {
        let ours = tables(&["two", "one"]);
        let others = [held("b", false)];
        for (name, opened) in [("a", false), ("a", true), ("c", false), ("c", true)] {
            let Claimed::Taken(by, table) = ours.claim(name, &others, opened, 50) else {
                panic!("{name}, opened: {opened}")
            };
            assert_eq!((by.consumer.as_str(), table.name.as_str()), ("b", "t one"));
        }
        // Whether it runs or not: it has written there.
        assert!(matches!(ours.claim("a", &others, false, 500), Claimed::Taken(..)));
        assert_eq!(tables(&["two"]).claim("a", &others, false, 50), Claimed::Free);
    }

    #[test]
    fn its_own_cursor_tombstones_and_repairs_take_nothing() {
        let mut removed = held("gone", false);
        let taken = removed.tables.clone();
        removed = removed.remove();
        removed.tables = taken;
        let others = [held("a", false), removed, held("b.repair", false)];
        assert_eq!(tables(&["one"]).claim("a", &others, false, 50), Claimed::Free);
    }

    #[test]
    fn of_two_that_start_at_once_the_greater_name_gives_way_and_the_other_waits() {
        let ours = tables(&["one"]);
        let greater = [held("b", true)];
        assert!(matches!(ours.claim("a", &greater, true, 50), Claimed::Wait(_)));
        let lesser = [held("a", true)];
        assert!(matches!(ours.claim("b", &lesser, true, 50), Claimed::Taken(..)));
        // Nobody can see the one that has not opened its cursor.
        assert!(matches!(ours.claim("a", &greater, false, 50), Claimed::Taken(..)));
        let both = [held("b", true), held("c", false)];
        assert!(matches!(ours.claim("a", &both, true, 50), Claimed::Taken(..)));
    }

    #[test]
    fn one_that_died_before_it_had_looked_takes_nothing() {
        let others = [held("b", true)];
        for opened in [false, true] {
            let claimed = tables(&["one"]);
            assert_eq!(claimed.claim("c", &others, opened, 100), Claimed::Free);
        }
    }

    #[test]
    fn operators_see_who_shares_a_table() {
        let cursors = [held("a", false), held("b", true), held("c", false)];
        let pairs: Vec<_> = SinkTables::pairs(&cursors)
            .map(|(one, other, table)| (&*one.consumer, &*other.consumer, &*table.name))
            .collect();
        assert_eq!(pairs, [("a", "c", "t one")]);
    }

    #[test]
    fn what_an_older_program_wrote_to_is_not_known() {
        let ours = tables(&["one", "two"]);
        assert!(ours.adds_to(&tables(&["one"])) && ours.adds_to(&tables(&["three"])));
        assert!(!ours.adds_to(&tables(&["two", "one", "three"])));
        assert!(!ours.adds_to(&tables(&[])));
    }

    #[test]
    fn what_does_not_fit_into_a_cursor_is_left_out() {
        let many = (0..1_000).map(|id| format!("{id:04}"));
        let table = SinkTable::new("é".repeat(400).as_str(), many.chain(["x".repeat(513)]));
        assert_eq!(table.identities.len(), IDENTITIES_MAX.0);
        assert_eq!(table.name.len(), 512);
        let tables = SinkTables {
            tables: vec![table],
            ..SinkTables::default()
        };
        assert_eq!(tables.check(), Ok(()));
    }
}
