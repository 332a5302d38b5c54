//! Decides if two addresses lead to the same tables. Pure: compares the descriptions by two servers.

use crate::schema::distributed::Distributed;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The UUID of a table in a database with the engine Ordinary.
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// A server's description of the tables for rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    /// The server's time zone. The partition of a row may depend on it.
    pub(crate) time_zone: String,
    /// The tables, by their quoted names.
    pub(crate) tables: BTreeMap<String, Home>,
}

/// The properties that distinguish a table from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) kind: Kind,
    /// Materialized views of the table on this server.
    pub(crate) views: Vec<String>,
}

/// The location of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On this server alone.
    Alone {
        /// The table's engine.
        engine: String,
    },
    /// On all replicas.
    Replica {
        /// The path in Keeper; empty for engines without one in `system.replicas`.
        path: String,
        /// The time at which Keeper created the path, and the table's ID there. `None` if the user may not read
        /// `system.zookeeper`.
        made: Option<String>,
        /// The table's UUID. Replicas share it only if one statement created them.
        uuid: String,
    },
    /// Behind a Distributed table.
    Distributed {
        /// The arguments of the engine.
        arguments: Box<Distributed>,
        /// Each replica's shard, weight, host and port in the server's configuration: they determine a row's shard.
        layout: Vec<String>,
        /// The servers and the UUIDs of the tables behind it.
        behind: Vec<String>,
    },
}

/// Returns the reason why several addresses cannot be used for these tables.
pub(crate) fn alone(url: &str, tables: &Tables) -> Option<String> {
    tables.tables.iter().find_map(|(path, home)| match &home.kind {
        Kind::Alone { engine } => Some(format!(
            "table {path} at {url} has engine {engine}, which does not replicate, so that each address would have some of the rows: \
             give one address, or use replicated or Distributed tables"
        )),
        Kind::Replica { .. } | Kind::Distributed { .. } => None,
    })
}

/// Returns the reason why the tables at `their_url` are not those at `our_url`. `None`: they are.
pub(crate) fn difference(our_url: &str, ours: &Tables, their_url: &str, theirs: &Tables) -> Option<String> {
    let both = format!("at {our_url} and {their_url}");
    if ours.time_zone != theirs.time_zone {
        return Some(format!(
            "the servers {both} have different time zones ({} and {}), so that a row that is sent again could go to another \
             partition: give them the same timezone",
            ours.time_zone, theirs.time_zone
        ));
    }
    if let Some(path) = ours.tables.keys().find(|path| !theirs.tables.contains_key(*path)) {
        return Some(format!(
            "there is no table {path} at {their_url}: {our_url} has it"
        ));
    }
    if let Some(path) = theirs.tables.keys().find(|path| !ours.tables.contains_key(*path)) {
        return Some(format!(
            "there is no table {path} at {our_url}: {their_url} has it"
        ));
    }
    let mut pairs = ours.tables.iter().zip(theirs.tables.values());
    pairs.find_map(|((path, ours), theirs)| {
        let why = other(&ours.kind, &theirs.kind)?;
        Some(format!("table {path} {both} {why}"))
    })
}

fn other(ours: &Kind, theirs: &Kind) -> Option<String> {
    match (ours, theirs) {
        (
            Kind::Replica { path, made, uuid },
            Kind::Replica {
                path: their_path,
                made: their_made,
                uuid: their_uuid,
            },
        ) => {
            if path != their_path {
                return Some(format!(
                    "is not one table: its paths in Keeper are {path:?} and {their_path:?}"
                ));
            }
            match (made, their_made) {
                (Some(made), Some(their_made)) if made == their_made && !path.is_empty() => None,
                (Some(_), Some(_)) if !path.is_empty() => Some(format!(
                    "is not one table: the path {path:?} is in two different Keepers"
                )),
                _ if uuid == their_uuid && uuid != NIL => None,
                _ => Some(
                    "cannot be shown to be one table: grant SELECT ON system.zookeeper to the user, create it ON CLUSTER, or give one address".to_owned(),
                ),
            }
        }
        (
            Kind::Distributed {
                arguments,
                layout,
                behind,
            },
            Kind::Distributed {
                arguments: their_arguments,
                layout: their_layout,
                behind: their_behind,
            },
        ) => {
            let mut why = String::new();
            if arguments != their_arguments {
                why.push_str("has different clusters, tables or sharding keys");
            } else if layout != their_layout {
                let _ = write!(why, "sees different shards in cluster {}", arguments.cluster);
            } else if behind != their_behind {
                let _ = write!(
                    why,
                    "has different tables behind it in cluster {}",
                    arguments.cluster
                );
            } else {
                return None;
            }
            Some(format!(
                "{why}, so that a row that is sent again could go to another shard"
            ))
        }
        _ => Some("is not one table: its engines differ".to_owned()),
    }
}

/// Returns the materialized views that only one of two addresses has: they do not get the rows that are written through
/// the other.
pub(crate) fn views_of_one(ours: &Tables, theirs: &Tables) -> Vec<String> {
    let mut found = Vec::new();
    for (path, home) in &ours.tables {
        let Some(other) = theirs.tables.get(path) else {
            continue;
        };
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            these
                .iter()
                .filter(|view| !those.contains(view))
                .cloned()
                .collect()
        };
        found.extend(only(&home.views, &other.views));
        found.extend(only(&other.views, &home.views));
    }
    found
}

#[cfg(test)]
mod tests;
