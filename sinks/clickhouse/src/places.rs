//! What tells a table from all others, for the consumers of a buffer. Pure. `same.rs` is stricter: it must be certain that two tables
//! are one, and this only warns people.

use std::collections::BTreeSet;

/// A UUID that a table in a database of the engine Ordinary has, and a server that does not know its own.
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// A table on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The server's UUID.
    pub(crate) server: String,
    /// The server's name and port.
    pub(crate) host: String,
    pub(crate) database: String,
    pub(crate) table: String,
    pub(crate) uuid: String,
    /// The path in Keeper; empty if the table is not replicated, or has none in `system.replicas`.
    pub(crate) path: String,
    /// The replicas share the table's rows, and its UUID.
    pub(crate) is_shared: bool,
    /// When Keeper made the path. `None` if the user may not read `system.zookeeper`.
    pub(crate) made: Option<String>,
}

impl Place {
    /// The table's identities. Two places with one in common are one table.
    pub(crate) fn identities(&self) -> BTreeSet<String> {
        let Place {
            server,
            host,
            database,
            table,
            uuid,
            path,
            is_shared,
            made,
        } = self;
        let has_uuid = uuid != NIL && !uuid.is_empty();
        let mut identities = BTreeSet::new();
        if !path.is_empty() {
            // `{shard}` in the path: ON CLUSTER gives the tables of all shards one UUID, and different paths.
            identities.extend(has_uuid.then(|| format!("replica {path} {uuid}")));
            identities.extend(made.as_ref().map(|made| format!("keeper {path} {made}")));
        } else if *is_shared && has_uuid {
            identities.insert(format!("shared {uuid}"));
        }
        if identities.is_empty() {
            // ON CLUSTER gives tables of different servers one UUID.
            let server = if server == NIL { host } else { server };
            identities.insert(match has_uuid {
                true => format!("server {server} {uuid}"),
                false => format!("server {server} {database}.{table}"),
            });
        }
        identities
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            server: "S".to_owned(),
            host: "h:9000".to_owned(),
            database: "otel".to_owned(),
            table: "otel_logs".to_owned(),
            uuid: "U".to_owned(),
            path: String::new(),
            is_shared: false,
            made: None,
        }
    }

    fn replica(server: &str, path: &str, made: Option<&str>) -> Place {
        Place {
            server: server.to_owned(),
            path: path.to_owned(),
            is_shared: true,
            made: made.map(str::to_owned),
            ..place()
        }
    }

    fn one_table(a: &Place, b: &Place) -> bool {
        !a.identities().is_disjoint(&b.identities())
    }

    #[test]
    fn tables_that_one_statement_made_on_two_servers_are_two() {
        let other = Place {
            server: "T".to_owned(),
            ..place()
        };
        assert!(one_table(&place(), &place()) && !one_table(&place(), &other));
    }

    #[test]
    fn a_table_without_a_uuid_is_known_by_its_name() {
        let ordinary = Place {
            uuid: NIL.to_owned(),
            ..place()
        };
        let renamed = Place {
            table: "other".to_owned(),
            ..ordinary.clone()
        };
        assert!(one_table(&ordinary, &ordinary) && !one_table(&ordinary, &renamed));
    }

    #[test]
    fn a_server_without_a_uuid_is_known_by_its_host() {
        let here = Place {
            server: NIL.to_owned(),
            ..place()
        };
        let there = Place {
            host: "g:9000".to_owned(),
            ..here.clone()
        };
        assert!(one_table(&here, &here) && !one_table(&here, &there));
    }

    #[test]
    fn replicas_are_one_table_whoever_may_ask_keeper() {
        let made = Some("5 1700000000");
        let (one, other) = (replica("S", "/t/1", made), replica("T", "/t/1", made));
        assert!(one_table(&one, &other));
        assert!(one_table(&one, &replica("T", "/t/1", None)), "by path and UUID");
        // Each replica was made by a separate statement.
        let apart = Place {
            uuid: "V".to_owned(),
            ..other
        };
        assert!(one_table(&one, &apart), "by Keeper");
        assert!(!one_table(&one, &replica("T", "/t/2", None)), "another shard");
    }

    #[test]
    fn a_table_of_shared_storage_is_one_on_all_servers() {
        assert!(one_table(&replica("S", "", None), &replica("T", "", None)));
    }
}
