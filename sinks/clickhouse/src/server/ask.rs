//! Asks for the rows of a chunk, by the strategy of their table.

use super::Server;
use crate::answer::IDENTITIES_BYTES_MAX;
use crate::client::Client;
use crate::failure::is_exception;
use crate::presence::{Ask, ReadFrom, Span, There};
use crate::schema::judge::sync_replica;
use crate::schema::{Table, lookup_path, lookup_rows_missing};
use millpond_consumer::SinkError;
use millpond_runtime::{Environment as _, SystemEnvironment};
use serde::de::DeserializeOwned;
use tracing::warn;

/// Sessions per question. A load balancer can send the two requests of a session to different servers.
const SESSIONS: usize = 3;

const SESSION_NOT_FOUND: u32 = 372;

impl Server {
    /// Returns what a table has within the span of a chunk, and whether no other server can have more.
    pub(crate) async fn there(
        &self,
        table: Table,
        ask: &Ask,
        source: &str,
        span: &Span,
    ) -> Result<(Vec<There>, bool), SinkError> {
        let condition = span.condition(table, source);
        let here = ReadFrom::table(&table.path(&self.config)).numbers(&condition);
        self.asked(table, ask, here, &|from| from.numbers(&condition))
            .await
    }

    /// Reports whether an answer about a table's rows would be certain.
    pub(crate) async fn is_certain(&self, table: Table, ask: &Ask) -> Result<bool, SinkError> {
        let nothing = "SELECT 1 LIMIT 0".to_owned();
        let question = |_: &ReadFrom| nothing.clone();
        let answer = self.asked::<(u8,)>(table, ask, nothing.clone(), &question).await;
        answer.map(|(_, certain)| certain)
    }

    /// Asks by a strategy: `here` is the question to one server, `question` builds the one to several.
    pub(super) async fn asked<T>(
        &self,
        table: Table,
        ask: &Ask,
        here: String,
        question: &(dyn Fn(&ReadFrom) -> String + Sync),
    ) -> Result<(Vec<T>, bool), SinkError>
    where
        T: DeserializeOwned,
    {
        match ask {
            Ask::Here => self.identities(&here).await.map(|rows| (rows, true)),
            Ask::Replicas => self.of_replicas(table, here, question).await,
            Ask::Behind(behind, _) => {
                let from = ReadFrom::cluster(&behind.cluster, &behind.database, &behind.table);
                self.identities(&question(&from)).await.map(|rows| (rows, true))
            }
            Ask::Never | Ask::Denied(_) => Err(SinkError::Schema(format!(
                "table {} does not keep the identities of its rows",
                table.path(&self.config)
            ))),
        }
    }

    async fn of_replicas<T>(
        &self,
        table: Table,
        here: String,
        question: &(dyn Fn(&ReadFrom) -> String + Sync),
    ) -> Result<(Vec<T>, bool), SinkError>
    where
        T: DeserializeOwned,
    {
        if let Some(rows) = self.caught_up(&self.client, table, &here).await? {
            return Ok((rows, true));
        }
        let config = &self.config;
        if let Some(cluster) = &config.cluster {
            let from = ReadFrom::cluster(cluster, &config.database, table.name(config));
            match self.identities(&question(&from)).await {
                Err(SinkError::Schema(reason)) => {
                    warn!("cannot ask all replicas of {}: {reason}", table.path(config));
                }
                answer => return answer.map(|rows| (rows, true)),
            }
        }
        self.identities(&here).await.map(|rows| (rows, false))
    }

    /// Returns the answer of a replica that has caught up. Only the server that holds a session knows it, so the session proves that both
    /// requests reached the same server. Returns `None` if SYNC is denied or no session holds.
    async fn caught_up<T>(
        &self,
        client: &Client,
        table: Table,
        sql: &str,
    ) -> Result<Option<Vec<T>>, SinkError>
    where
        T: DeserializeOwned,
    {
        let sync = sync_replica(&self.config, table);
        for _ in 0..SESSIONS {
            let session = SystemEnvironment.uuid().to_string();
            let client = client.clone().with_setting("session_id", &session);
            let told = client.execute(&sync).await;
            match self.failing("waiting for the replica to catch up", told) {
                Err(SinkError::Schema(reason)) => {
                    warn!(
                        "cannot wait for replicas of {}: {reason}",
                        table.path(&self.config)
                    );
                    return Ok(None);
                }
                told => told?,
            }
            let client = client.with_setting("session_check", "1");
            match client.rows_of(sql, IDENTITIES_BYTES_MAX).await {
                Ok(rows) => return Ok(Some(rows)),
                Err(error) if is_exception(&error, SESSION_NOT_FOUND) => {}
                Err(error) => return Err(self.failed(ASKING, &error)),
            }
        }
        Ok(None)
    }

    /// Adds the missing times of these rows' traces to the trace lookup table. A view fills it after the spans have
    /// landed, so an attempt may have died in between.
    ///
    /// If both tables are Distributed, each subquery runs once, for all shards (`GLOBAL`; without it the server refuses
    /// the query, or asks each shard for its own rows alone), and one server compares all times, instead of each shard
    /// its own.
    ///
    /// A lagging replica lacks the spans too, so it first catches up, if the user may request that.
    pub(crate) async fn complete_lookup(
        &self,
        ask: &Ask,
        source: &str,
        span: &Span,
    ) -> Result<(), SinkError> {
        let condition = span.condition(Table::Traces, source);
        let sql = lookup_rows_missing(&self.config, &condition);
        let client = self
            .client
            .clone()
            .with_setting("async_insert", "0")
            .with_setting("insert_distributed_sync", "1")
            .with_setting("parallel_distributed_insert_select", "0")
            .with_setting("max_partitions_per_insert_block", "0");
        if *ask == Ask::Replicas {
            let caught_up = self.caught_up::<(u8,)>(&client, Table::Traces, &sql);
            if caught_up.await?.is_some() {
                return Ok(());
            }
        }
        let what = format!("completing {}", lookup_path(&self.config));
        self.failing(&what, client.execute(&sql).await)
    }

    /// Asks for identities of rows.
    async fn identities<T: DeserializeOwned>(&self, sql: &str) -> Result<Vec<T>, SinkError> {
        self.failing(ASKING, self.client.rows_of(sql, IDENTITIES_BYTES_MAX).await)
    }
}

const ASKING: &str = "asking which rows a table has";

#[cfg(test)]
pub(super) mod tests;
