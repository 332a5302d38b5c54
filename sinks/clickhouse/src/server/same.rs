//! Asks a server for the properties that distinguish its tables from those of other servers.

use super::Server;
use crate::presence::{SERVER, all_servers};
use crate::same::{Home, Kind, Tables};
use crate::schema::distributed::Distributed;
use crate::schema::judge::{self, Known};
use crate::schema::{cluster_name, literal};
use millpond_consumer::SinkError;

/// A table: its quoted and its plain name, and its engine.
pub(crate) struct Named<'a> {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) known: &'a Known,
}

impl Server {
    /// Describes these tables.
    pub(crate) async fn tables(&self, named: &[Named<'_>]) -> Result<Tables, SinkError> {
        let time_zone = self.one("asking for the time zone", "SELECT timezone()").await?;
        let mut tables = Tables {
            time_zone,
            tables: std::collections::BTreeMap::new(),
        };
        for Named { path, name, known } in named {
            let home = self.home(name, known).await?;
            tables.tables.insert(path.clone(), home);
        }
        Ok(tables)
    }

    async fn home(&self, name: &str, known: &Known) -> Result<Home, SinkError> {
        let sql = format!(
            "SELECT toString(uuid), arraySort(arrayMap((d, t) -> concat(d, '.', t), dependencies_database, dependencies_table)) \
             FROM system.tables WHERE {}",
            self.about_table("name", name)
        );
        let rows: Vec<(String, Vec<String>)> =
            self.failing("reading a table's UUID", self.client.rows(&sql).await)?;
        let (uuid, views) = rows.into_iter().next().unwrap_or_default();
        let engine = &known.engine;
        let kind = match Distributed::parse(&known.engine_full) {
            Some(arguments) => self.behind(arguments).await?,
            None if judge::is_replicated(engine) => self.replica(name, uuid).await?,
            None => Kind::Alone {
                engine: engine.clone(),
            },
        };
        Ok(Home { kind, views })
    }

    pub(super) async fn replica(&self, name: &str, uuid: String) -> Result<Kind, SinkError> {
        let sql = format!(
            "SELECT zookeeper_path FROM system.replicas WHERE {}",
            self.about_table("table", name)
        );
        let paths: Vec<String> = self.all("asking for a table's path in Keeper", &sql).await?;
        let path = paths.into_iter().next().unwrap_or_default();
        if path.is_empty() {
            let made = None;
            return Ok(Kind::Replica { path, made, uuid });
        }
        // Two Keepers with the same setup may have created the same path in the same transaction.
        let sql = format!(
            "SELECT if(name = 'replicas', concat(toString(czxid), ' ', toString(toUnixTimestamp(ctime))), value) AS made \
             FROM system.zookeeper WHERE path = {} AND name IN ('replicas', 'table_shared_id') ORDER BY name",
            literal(&path)
        );
        let made = match self.all::<String>("asking Keeper for a table's path", &sql).await {
            // Without that privilege the UUIDs must suffice.
            Err(SinkError::Schema(_)) => None,
            made => Some(made?)
                .filter(|made| !made.is_empty())
                .map(|made| made.join(" ")),
        };
        Ok(Kind::Replica { path, made, uuid })
    }

    async fn behind(&self, arguments: Distributed) -> Result<Kind, SinkError> {
        let Distributed {
            cluster,
            database,
            table,
            ..
        } = &arguments;
        let sql = format!(
            "SELECT concat(toString(shard_num), ' ', toString(shard_weight), ' ', host_name, ':', toString(port)) AS place \
             FROM system.clusters WHERE cluster = {} ORDER BY shard_num, place",
            cluster_name(cluster)
        );
        let layout: Vec<String> = self.all("asking for the shards of a cluster", &sql).await?;
        if layout.is_empty() {
            return Err(SinkError::Schema(format!(
                "{} knows no servers of cluster {cluster}, so nothing shows that the addresses lead to the same shards: check the \
                 table's engine and remote_servers, or give one address",
                self.url
            )));
        }
        let sql = format!(
            "SELECT DISTINCT concat({SERVER}, '/', toString(uuid)) AS place FROM {} WHERE database = {} AND name = {} ORDER BY place",
            all_servers(cluster, "system", "tables"),
            literal(database),
            literal(table)
        );
        let behind = self.all("asking for the tables behind a table", &sql).await?;
        Ok(Kind::Distributed {
            arguments: Box::new(arguments),
            layout,
            behind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::tests::{Answer, server_of, stand_in};
    use super::*;
    use crate::config::Config;
    use crate::presence::Ask;
    use crate::schema::partition::Partitioning;

    /// The description of a replica by a stub whose `system.zookeeper` gives these answers.
    async fn replica(keeper: impl Fn() -> Answer + Send + 'static) -> (Result<Tables, SinkError>, Server) {
        let (url, _) = stand_in(move |request| {
            let answers = [
                ("timezone()", "[\"UTC\"]\n"),
                ("system.tables", "[\"u\", [\"otel.v\"]]\n"),
                ("system.replicas", "[\"/t/1\"]\n"),
            ];
            let found = answers.iter().find(|(about, _)| request.contains(about));
            found.map_or_else(&keeper, |(_, rows)| Answer::Rows(rows))
        });
        let server = server_of(Config::default(), url);
        let known = Known {
            engine: "ReplicatedMergeTree".to_owned(),
            engine_full: "ReplicatedMergeTree('/t/1', 'r')".to_owned(),
            default_window: 0,
            partitioning: Partitioning::Whole,
            ask: Ask::Replicas,
            ttl: None,
            plan: None,
            sorting_key: None,
        };
        let named = Named {
            path: "t".to_owned(),
            name: "t".to_owned(),
            known: &known,
        };
        (server.tables(&[named]).await, server)
    }

    fn made(tables: &Tables) -> Option<&str> {
        match &tables.tables["t"].kind {
            Kind::Replica { path, made, uuid } => {
                assert_eq!((path.as_str(), uuid.as_str()), ("/t/1", "u"));
                made.as_deref()
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn keeper_says_when_it_made_the_path() {
        let (tables, _) = replica(|| Answer::Rows("[\"5 1700000000\"]\n[\"id\"]\n")).await;
        let tables = tables.unwrap();
        assert_eq!(made(&tables), Some("5 1700000000 id"));
        assert_eq!(tables.time_zone, "UTC");
        assert_eq!(tables.tables["t"].views, ["otel.v"]);
    }

    #[tokio::test]
    async fn a_missing_right_proves_nothing_and_an_absent_keeper_is_a_transient_error() {
        for silent in [|| Answer::Exception(497), || Answer::Empty] {
            let (tables, server) = replica(silent).await;
            assert_eq!(made(&tables.unwrap()), None);
            assert_eq!(server.away(), None);
        }
        let (tables, server) = replica(|| Answer::Exception(999)).await;
        assert!(matches!(tables, Err(SinkError::Transient(_))), "{tables:?}");
        assert!(server.away().is_some());
    }
}
