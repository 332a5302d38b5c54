//! The sink's tables as a cursor records them. [`crate::admission`] decides which consumer may have them.

use std::collections::BTreeSet;

/// Maximum tables in a cursor, and in its claim.
pub(crate) const TABLES_MAX: usize = 64;

/// Maximum identities of a table in a cursor, and of all its tables.
pub(crate) const IDENTITIES_MAX: (usize, usize) = (256, 4_096);

/// Maximum bytes of a table's name and of an identity.
const TEXT_MAX: usize = 512;

/// A table of a sink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SinkTable {
    /// Its name, for people.
    pub name: String,
    /// Two tables with an identity in common are the same, or lead to the same one.
    pub identities: BTreeSet<String>,
}

/// The tables of a consumer. Only the cursor in the first shard has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SinkTables {
    /// The tables that the consumer may write to, and those of its earlier settings: its rows are still there. Empty if the
    /// sink cannot tell, and in cursors of older programs.
    pub tables: Vec<SinkTable>,
    /// More tables that it asks for.
    pub claim: Option<TableClaim>,
    /// Somebody told it to share tables.
    pub shared: bool,
}

/// A consumer's request for tables, which others see while it looks for others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableClaim {
    /// A random number. A process that finds it again knows that the claim stood all the time.
    pub id: u64,
    /// The tables.
    pub tables: Vec<SinkTable>,
    /// Nobody waits for the claim after this time, unix ms.
    pub expires_at_ms: u64,
    /// Nobody else may have the tables while the claim stands, for however long that is.
    pub firm: bool,
}

impl SinkTable {
    /// A table with these identities, without those that a cursor cannot hold. A shorter list only notices less.
    pub fn new(name: &str, identities: impl IntoIterator<Item = String>) -> SinkTable {
        let short = |text: &String| !text.is_empty() && text.len() <= TEXT_MAX;
        let sorted: BTreeSet<String> = identities.into_iter().filter(short).collect();
        let end = name.floor_char_boundary(TEXT_MAX);
        SinkTable {
            name: name[..end].to_owned(),
            identities: sorted.into_iter().take(IDENTITIES_MAX.0).collect(),
        }
    }

    /// Returns true if the two are one table, or have one in common.
    pub fn is_among(&self, others: &[SinkTable]) -> bool {
        let mut others = others.iter();
        others.any(|other| !self.identities.is_disjoint(&other.identities))
    }
}

/// The first of these tables that others have, too.
pub(crate) fn common<'a>(tables: &'a [SinkTable], others: &[SinkTable]) -> Option<&'a SinkTable> {
    tables.iter().find(|table| table.is_among(others))
}

/// As many of these tables as a cursor can hold, without the first ones if they are too many.
pub(crate) fn fitting(mut tables: Vec<SinkTable>) -> Vec<SinkTable> {
    let too_many = |tables: &[SinkTable]| {
        let identities: usize = tables.iter().map(|table| table.identities.len()).sum();
        tables.len() > TABLES_MAX || identities > IDENTITIES_MAX.1
    };
    while too_many(&tables) {
        tables.remove(0);
    }
    tables
}

/// As many of a sink's tables as a cursor can hold, without those that cannot be told from others.
fn told(ours: &[SinkTable]) -> Vec<SinkTable> {
    let told = ours.iter().filter(|table| !table.identities.is_empty());
    fitting(told.cloned().collect())
}

impl SinkTables {
    /// Those of the sink's tables that have unknown identities, with these alone: another consumer may have them. A table without
    /// identities cannot be told from others.
    pub fn lacks(&self, ours: &[SinkTable]) -> Vec<SinkTable> {
        let known: BTreeSet<&String> = self.tables.iter().flat_map(|table| &table.identities).collect();
        let unknown = |table: SinkTable| SinkTable {
            identities: table
                .identities
                .into_iter()
                .filter(|id| !known.contains(id))
                .collect(),
            ..table
        };
        let lacking = told(ours).into_iter().map(unknown);
        lacking.filter(|table| !table.identities.is_empty()).collect()
    }

    /// The first of the sink's tables that is not among these. `None` if these are empty: the cursor does not say where its consumer
    /// writes.
    pub fn stranger<'a>(&self, ours: &'a [SinkTable]) -> Option<&'a SinkTable> {
        let told = ours.iter().filter(|table| !table.identities.is_empty());
        told.filter(|_| !self.tables.is_empty())
            .find(|table| !table.is_among(&self.tables))
    }

    /// These tables with those of the sink, if they lack some. The sink's come last.
    pub(crate) fn with(&self, ours: &[SinkTable]) -> Vec<SinkTable> {
        if self.lacks(ours).is_empty() {
            return self.tables.clone();
        }
        let ours = told(ours);
        let mut tables = self.tables.clone();
        for table in &ours {
            let (same, others): (Vec<_>, Vec<_>) = tables
                .into_iter()
                .partition(|earlier| earlier.is_among(std::slice::from_ref(table)));
            tables = others;
            let mut table = table.clone();
            for earlier in same {
                let both: BTreeSet<String> = table.identities.union(&earlier.identities).cloned().collect();
                if both.len() <= IDENTITIES_MAX.0 {
                    table.identities = both;
                } else {
                    tables.push(earlier);
                }
            }
            tables.push(table);
        }
        let with = SinkTables {
            tables: fitting(tables),
            ..SinkTables::default()
        };
        if with.lacks(&ours).is_empty() {
            return with.tables;
        }
        // With what they had before, the sink's own tables are too many.
        fitting([&*self.tables, &*ours].concat())
    }

    /// Names the first rule of the format that these break.
    pub(crate) fn check(&self) -> Result<(), String> {
        let claimed = self.claim.iter().flat_map(|claim| &claim.tables);
        for SinkTable { name, identities } in self.tables.iter().chain(claimed) {
            let longest = identities.iter().map(String::len).max().unwrap_or(0);
            if name.len().max(longest) > TEXT_MAX {
                return Err(format!(
                    "a table's name or identity has more than {TEXT_MAX} bytes"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, identities: &[&str]) -> SinkTable {
        SinkTable::new(name, identities.iter().map(|id| (*id).to_owned()))
    }

    fn having(tables: &[SinkTable]) -> SinkTables {
        SinkTables {
            tables: tables.to_vec(),
            ..SinkTables::default()
        }
    }

    #[test]
    fn a_table_is_known_by_one_identity_and_learns_the_others() {
        let had = having(&[table("a", &["1"]), table("b", &["2"])]);
        let ours = [table("a", &["1", "one"]), table("c", &["3"]), table("none", &[])];
        assert_eq!(had.lacks(&ours), [table("a", &["one"]), table("c", &["3"])]);
        let expected = [table("b", &["2"]), table("a", &["1", "one"]), table("c", &["3"])];
        assert_eq!(had.with(&ours), expected);
        assert_eq!(having(&expected).with(&ours), expected);
        // A server that is down now was asked before.
        assert_eq!(having(&expected).lacks(&[table("a", &["1"])]), []);
    }

    #[test]
    fn the_oldest_tables_make_room() {
        let many: Vec<SinkTable> = (0..TABLES_MAX).map(|n| table("t", &[&n.to_string()])).collect();
        let with = having(&many).with(&[table("new", &["new"])]);
        assert_eq!(with.len(), TABLES_MAX);
        assert_eq!((&with[0], &*with[TABLES_MAX - 1].name), (&many[1], "new"));
    }

    #[test]
    fn what_does_not_fit_into_a_cursor_is_left_out() {
        let many = (0..1_000).map(|id| format!("{id:04}"));
        let table = SinkTable::new("é".repeat(400).as_str(), many.chain(["x".repeat(513)]));
        assert_eq!(table.identities.len(), IDENTITIES_MAX.0);
        assert_eq!(table.name.len(), 512);
        assert_eq!(having(&[table]).check(), Ok(()));
    }

    /// Otherwise a consumer would ask for it again and again.
    #[test]
    fn no_table_of_the_sink_is_left_out_that_fits() {
        let many = |from: usize, count: usize| (from..from + count).map(|id| format!("{id:06}"));
        let one = |from, count| SinkTable::new("t", many(from, count));
        // Its union with the earlier one does not fit into one table.
        let (earlier, now) = (one(0, 200), one(100, 200));
        let with = having(std::slice::from_ref(&earlier)).with(std::slice::from_ref(&now));
        assert_eq!(with, [earlier.clone(), now.clone()]);
        assert_eq!(having(&with).lacks(&[earlier, now]), []);
        // The unions of all do not fit into one cursor.
        let before: Vec<SinkTable> = (0..16).map(|n| one(n * 1_000, 200)).collect();
        let now: Vec<SinkTable> = (0..32).map(|n| one(n * 500 + 100, 128)).collect();
        let with = having(&having(&before).with(&now));
        assert_eq!(with.lacks(&now), []);
        // The sink alone has too many.
        let now: Vec<SinkTable> = (0..TABLES_MAX + 1).map(|n| one(n * 10, 1)).collect();
        let with = having(&having(&[]).with(&now));
        assert_eq!((with.tables.len(), with.lacks(&now)), (TABLES_MAX, vec![]));
    }
}
