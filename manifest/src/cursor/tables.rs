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

impl SinkTables {
    /// Those of the sink's tables that are none of these. A table without identities cannot be told from others.
    pub fn lacks(&self, ours: &[SinkTable]) -> Vec<SinkTable> {
        let lacking = ours
            .iter()
            .filter(|table| !table.identities.is_empty() && !table.is_among(&self.tables));
        fitting(lacking.cloned().collect())
    }

    /// The first of the sink's tables that is none of these. Of cursors without tables, nobody knows.
    pub fn stranger<'a>(&self, ours: &'a [SinkTable]) -> Option<&'a SinkTable> {
        let told = ours.iter().filter(|table| !table.identities.is_empty());
        told.filter(|_| !self.tables.is_empty())
            .find(|table| !table.is_among(&self.tables))
    }

    /// These tables with those of the sink, whose identities may have changed since. The sink's come last.
    pub(crate) fn with(&self, ours: &[SinkTable]) -> Vec<SinkTable> {
        let mut tables = self.tables.clone();
        for table in ours.iter().filter(|table| !table.identities.is_empty()) {
            let (same, others): (Vec<_>, Vec<_>) = tables
                .into_iter()
                .partition(|earlier| earlier.is_among(std::slice::from_ref(table)));
            tables = others;
            let mut table = table.clone();
            for earlier in same {
                let both: BTreeSet<String> = table.identities.union(&earlier.identities).cloned().collect();
                if both.len() <= IDENTITIES_MAX.0 {
                    table.identities = both;
                }
            }
            tables.push(table);
        }
        fitting(tables)
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
        assert_eq!(had.lacks(&ours), [table("c", &["3"])]);
        let expected = [table("b", &["2"]), table("a", &["1", "one"]), table("c", &["3"])];
        assert_eq!(had.with(&ours), expected);
        assert_eq!(having(&expected).with(&ours), expected);
        // A server that is down now was asked before.
        assert_eq!(
            having(&expected).with(&[table("a", &["1"])])[2],
            table("a", &["1", "one"])
        );
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
}
