//! Asks a server which tables rows go to, so that another consumer of them can be noticed.

use super::Server;
use crate::places::Place;
use crate::presence::{SERVER, all_servers};
use crate::same::Kind;
use crate::schema::distributed::Distributed;
use crate::schema::judge::{Known, is_replicated};
use crate::schema::literal;
use millpond_consumer::SinkError;
use std::collections::BTreeSet;
use tracing::warn;

impl Server {
    /// The identities of tables of the sink, and of those behind them. Empty where the user may not ask.
    ///
    /// # Errors
    /// `Transient` when the server cannot answer now.
    pub(crate) async fn identities_of(
        &self,
        tables: &[(&str, &Known)],
    ) -> Result<Vec<BTreeSet<String>>, SinkError> {
        let database = &self.config.database;
        let names: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
        let here = |table: &str| format!("system.{table}");
        let found = match self.places(&here, "", database, &names).await {
            Err(SinkError::Schema(reason)) => {
                warn!("{reason}: nobody notices another consumer of the tables in {database}");
                return Ok(vec![BTreeSet::new(); tables.len()]);
            }
            found => found?,
        };
        let mut identities = Vec::with_capacity(tables.len());
        for (name, known) in tables {
            let own = found.iter().filter(|place| place.table == *name).cloned();
            let mut places: Vec<Place> = own.collect();
            for place in places.iter_mut().filter(|place| !place.path.is_empty()) {
                // A Keeper that is away must not keep the consumer from its start.
                if let Ok(Kind::Replica { made, .. }) = self.replica(name, place.uuid.clone()).await {
                    place.made = made;
                }
            }
            places.extend(self.places_behind(name, known).await);
            identities.push(places.iter().flat_map(Place::identities).collect());
        }
        Ok(identities)
    }

    /// The tables behind a Distributed table, on the servers that answer.
    async fn places_behind(&self, name: &str, known: &Known) -> Vec<Place> {
        let Some(Distributed {
            cluster,
            database,
            table,
            ..
        }) = Distributed::parse(&known.engine_full)
        else {
            return Vec::new();
        };
        let everywhere = |of: &str| all_servers(&cluster, "system", of);
        let skip = " SETTINGS skip_unavailable_shards = 1";
        let found = self.places(&everywhere, skip, &database, &[&table]).await;
        found.unwrap_or_else(|error| {
            warn!(
                "{error}: nobody notices another consumer of the tables behind {}.{name} in cluster {cluster}",
                self.config.database
            );
            Vec::new()
        })
    }

    /// The tables of these names, `from` these system tables: of one server or of several.
    async fn places(
        &self,
        from: &(dyn Fn(&str) -> String + Sync),
        settings: &str,
        database: &str,
        names: &[&str],
    ) -> Result<Vec<Place>, SinkError> {
        let names: Vec<String> = names.iter().map(|name| literal(name)).collect();
        let (database_is, names) = (literal(database), names.join(", "));
        let sql = format!(
            "SELECT DISTINCT toString(serverUUID()), {SERVER}, name, toString(uuid), engine FROM {} \
             WHERE database = {database_is} AND name IN ({names}){settings}",
            from("tables")
        );
        let what = "asking which tables rows go to";
        let tables: Vec<(String, String, String, String, String)> =
            self.failing(what, self.client.rows(&sql).await)?;
        let mut paths: Vec<(String, String, String)> = Vec::new();
        if tables.iter().any(|(.., engine)| is_replicated(engine)) {
            let sql = format!(
                "SELECT DISTINCT {SERVER}, table, zookeeper_path FROM {} \
                 WHERE database = {database_is} AND table IN ({names}){settings}",
                from("replicas")
            );
            paths = self.failing("asking for the paths in Keeper", self.client.rows(&sql).await)?;
        }
        let place = |(server, host, table, uuid, engine): (String, String, String, String, String)| {
            let path = paths.iter().find(|(of, name, _)| *of == host && *name == table);
            Place {
                server,
                database: database.to_owned(),
                path: path.map(|(.., path)| path.clone()).unwrap_or_default(),
                table,
                uuid,
                is_shared: is_replicated(&engine),
                made: None,
                host,
            }
        };
        Ok(tables.into_iter().map(place).collect())
    }
}
