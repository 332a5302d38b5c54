//! The sink's tables as a cursor records them.

use std::collections::BTreeSet;

/// Maximum tables in a cursor.
pub const TABLES_MAX: usize = 64;

/// Maximum identities of a table in a cursor, and of all its tables.
pub const IDENTITIES_MAX: (usize, usize) = (256, 4_096);

/// Maximum bytes of a table's name and of an identity.
const TEXT_MAX: usize = 512;

/// A table of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkTable {
    /// Its name, for people.
    pub name: String,
    /// What tells it from all other tables. Two names with an identity in common are one table, or have one in common.
    pub identities: BTreeSet<String>,
}

/// The tables that a consumer writes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkTables {
    /// Empty if the sink cannot tell, and in cursors of older programs.
    pub tables: Vec<SinkTable>,
    /// The owner has not sent anything to them: it still looks for other consumers of them.
    pub unchecked: bool,
    /// The owner was told to share them.
    pub shared: bool,
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
}

impl SinkTables {
    /// Names the first rule of the format that these break.
    pub(crate) fn check(&self) -> Result<(), String> {
        for SinkTable { name, identities } in &self.tables {
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
