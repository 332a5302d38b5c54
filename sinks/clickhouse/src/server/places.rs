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
    /// The identities of a table of the sink, and of those behind it. Empty if the user may not ask.
    ///
    /// # Errors
    /// `Transient` when the server cannot answer now.
    pub(crate) async fn identities_of(
        &self,
        name: &str,
        known: &Known,
    ) -> Result<BTreeSet<String>, SinkError> {
        let database = &self.config.database;
        let here = |table: &str| format!("system.{table}");
        let mut places = match self.places(&here, "", database, name).await {
            Err(SinkError::Schema(reason)) => {
                warn!("{reason}: nobody notices another consumer of table {database}.{name}");
                return Ok(BTreeSet::new());
            }
            places => places?,
        };
        if is_replicated(&known.engine) {
            for place in &mut places {
                // A Keeper that is away must not keep the consumer from its start.
                if let Ok(Kind::Replica { made, .. }) = self.replica(name, place.uuid.clone()).await {
                    place.made = made;
                }
            }
        }
        if let Some(Distributed {
            cluster,
            database: remote,
            table,
            ..
        }) = Distributed::parse(&known.engine_full)
        {
            let everywhere = |of: &str| all_servers(&cluster, "system", of);
            // A server of the cluster that is down is left out.
            let skip = " SETTINGS skip_unavailable_shards = 1";
            match self.places(&everywhere, skip, &remote, &table).await {
                Ok(behind) => places.extend(behind),
                Err(error) => warn!(
                    "{error}: nobody notices another consumer of the tables behind {database}.{name} in cluster {cluster}"
                ),
            }
        }
        Ok(places.iter().flat_map(Place::identities).collect())
    }

    /// The tables of this name, `from` these system tables: of one server or of several.
    async fn places(
        &self,
        from: &(dyn Fn(&str) -> String + Sync),
        settings: &str,
        database: &str,
        table: &str,
    ) -> Result<Vec<Place>, SinkError> {
        let (database_is, table_is) = (literal(database), literal(table));
        let sql = format!(
            "SELECT DISTINCT toString(serverUUID()), {SERVER}, toString(uuid), engine FROM {} \
             WHERE database = {database_is} AND name = {table_is}{settings}",
            from("tables")
        );
        let what = "asking which tables rows go to";
        let tables: Vec<(String, String, String, String)> =
            self.failing(what, self.client.rows(&sql).await)?;
        let mut paths: Vec<(String, String)> = Vec::new();
        if tables.iter().any(|(.., engine)| is_replicated(engine)) {
            let sql = format!(
                "SELECT DISTINCT {SERVER}, zookeeper_path FROM {} \
                 WHERE database = {database_is} AND table = {table_is}{settings}",
                from("replicas")
            );
            paths = self.failing("asking for the paths in Keeper", self.client.rows(&sql).await)?;
        }
        let place = |(server, host, uuid, engine): (String, String, String, String)| {
            let path = paths.iter().find(|(of, _)| *of == host);
            Place {
                server,
                database: database.to_owned(),
                table: table.to_owned(),
                uuid,
                path: path.map(|(_, path)| path.clone()).unwrap_or_default(),
                is_shared: is_replicated(&engine),
                made: None,
                host,
            }
        };
        Ok(tables.into_iter().map(place).collect())
    }
}
