//! Ends INSERTs of earlier openings by their query ids.

use super::Server;
use crate::client::Error;
use crate::presence::{Ask, all_servers};
use crate::schema::{literal, on_cluster};
use millpond_consumer::{Settled, SinkError};
use millpond_manifest::planted::{self, Bug};
use std::time::{Duration, Instant};
use tracing::debug;
use uuid::Uuid;

/// The pause between two checks of what still runs.
const PAUSE: Duration = Duration::from_millis(200);

impl Server {
    /// Kills the requests whose query id begins with `of` and does not contain `spared`, and waits for their end. `asks`: the
    /// strategies of the tables that they write to.
    pub(crate) async fn settle(
        &self,
        asks: &[&Ask],
        of: &str,
        spared: Option<&str>,
    ) -> Result<Settled, SinkError> {
        let cluster = self.config.cluster.as_deref();
        let one_server = asks.iter().all(|ask| **ask == Ask::Here);
        if cluster.is_none() && !one_server {
            return Ok(Settled::Waits);
        }
        // A Distributed table passes only the initial id on to its shards.
        let id = if planted::is(Bug::SettledByOwnId) {
            "query_id"
        } else {
            "initial_query_id"
        };
        let mut theirs = format!("startsWith({id}, {})", literal(of));
        if let Some(spared) = spared {
            theirs.push_str(&format!(" AND position({id}, {}) = 0", literal(spared)));
        }
        let processes = cluster.map_or("system.processes".to_owned(), |cluster| {
            all_servers(cluster, "system", "processes")
        });
        let kill = format!("KILL QUERY{} WHERE {theirs} SYNC", on_cluster(&self.config));
        let count = format!("SELECT count() FROM {processes} WHERE {theirs}");
        match self.kill(&kill, &count).await {
            // The server refuses to kill them. Waiting for their end is always safe.
            Err(error @ (Error::Exception { .. } | Error::Status { .. })) => {
                debug!("cannot end earlier requests, and waits for them instead: {error}");
                Ok(Settled::Waits)
            }
            settled => settled.map_err(|error| self.failed("ending earlier requests", &error)),
        }
    }

    async fn kill(&self, kill: &str, count: &str) -> Result<Settled, Error> {
        if !self.keeps_query_ids().await? {
            return Ok(Settled::Waits);
        }
        let until = Instant::now() + Duration::from_secs(self.config.timeout_seconds);
        loop {
            self.client.execute(kill).await?;
            let left: u64 = self.client.value(count).await?;
            if left == 0 {
                return Ok(Settled::Ended);
            }
            if Instant::now() >= until {
                return Ok(Settled::Waits);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Some proxies replace query ids.
    async fn keeps_query_ids(&self) -> Result<bool, Error> {
        let id = format!("millpond/{}", Uuid::new_v4());
        let client = self.client.clone().with_setting("query_id", &id);
        let found: String = client.value("SELECT query_id()").await?;
        Ok(found == id)
    }
}
