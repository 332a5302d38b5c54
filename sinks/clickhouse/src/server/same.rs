//! Asks a server what tells its tables from those of other servers.

use super::Server;
use crate::presence::{SERVER, all_servers};
use crate::same::{Home, Kind, Tables};
use crate::schema::distributed::Distributed;
use crate::schema::judge::{self, Known};
use crate::schema::literal;
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

    async fn replica(&self, name: &str, uuid: String) -> Result<Kind, SinkError> {
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
        // Two Keepers that were set up alike can have made the same path by the same transaction.
        let sql = format!(
            "SELECT if(name = 'replicas', concat(toString(czxid), ' ', toString(toUnixTimestamp(ctime))), value) AS made \
             FROM system.zookeeper WHERE path = {} AND name IN ('replicas', 'table_shared_id') ORDER BY name",
            literal(&path)
        );
        let made = match self.all::<String>("asking Keeper for a table's path", &sql).await {
            // Without that right the UUIDs have to do.
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
            literal(cluster)
        );
        let layout = self.all("asking for the shards of a cluster", &sql).await?;
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
