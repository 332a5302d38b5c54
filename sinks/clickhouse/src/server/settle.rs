//! Ends INSERTs of earlier openings by their query ids.

use super::Server;
use crate::client::{Client, Error};
use crate::presence::{Ask, all_servers};
use crate::schema::{literal, on_cluster};
use millpond_consumer::{Settled, SinkError};
use millpond_runtime::{Environment as _, SystemEnvironment};
use std::time::Duration;
use tokio::time::Instant;
use tracing::debug;

/// The pause between two checks of what still runs.
const PAUSE: Duration = Duration::from_millis(200);

impl Server {
    /// Kills the requests whose query id begins with `of` and does not contain `spared`, and waits for their end. `asks`: the
    /// strategies of the tables that they write to. `others`: the other addresses, where requests may be under way too.
    pub(crate) async fn settle(
        &self,
        asks: &[&Ask],
        of: &str,
        spared: Option<&str>,
        others: &[&Client],
    ) -> Result<Settled, SinkError> {
        let cluster = self.config.cluster.as_deref();
        let one_server = asks.iter().all(|ask| **ask == Ask::Here);
        if cluster.is_none() && !one_server {
            return Ok(Settled::Waits);
        }
        // A Distributed table passes only the initial id on to its shards.
        let id = "initial_query_id";
        let mut theirs = format!("startsWith({id}, {})", literal(of));
        if let Some(spared) = spared {
            theirs.push_str(&format!(" AND position({id}, {}) = 0", literal(spared)));
        }
        let here = Requests {
            kill: format!("KILL QUERY WHERE {theirs} SYNC"),
            count: format!("SELECT count() FROM system.processes WHERE {theirs}"),
        };
        let Some(cluster) = cluster else {
            return self.ended(kill(&self.client, &here, self.until()).await);
        };
        let everywhere = Requests {
            kill: format!("KILL QUERY{} WHERE {theirs} SYNC", on_cluster(&self.config)),
            count: format!(
                "SELECT count() FROM {} WHERE {theirs}",
                all_servers(cluster, "system", "processes")
            ),
        };
        if others.is_empty() {
            return self.ended(kill(&self.client, &everywhere, self.until()).await);
        }
        // An address may lead to a server that the cluster does not name.
        for client in others {
            match kill(client, &here, self.until()).await {
                Ok(Settled::Ended) => {}
                Ok(Settled::Waits) => return Ok(Settled::Waits),
                Err(error) => {
                    debug!(
                        "cannot end earlier requests at another address, and waits for them instead: {error}"
                    );
                    return Ok(Settled::Waits);
                }
            }
        }
        let settled = kill(&self.client, &here, self.until()).await;
        match self.ended(settled)? {
            Settled::Ended => self.ended(end_everywhere(&self.client, &everywhere, self.until()).await),
            Settled::Waits => Ok(Settled::Waits),
        }
    }

    fn until(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.config.timeout_seconds)
    }

    /// The server may refuse to kill requests. Waiting for their end is always safe.
    fn ended(&self, settled: Result<Settled, Error>) -> Result<Settled, SinkError> {
        match settled {
            Err(error @ (Error::Exception { .. } | Error::Status { .. })) => {
                debug!("cannot end earlier requests, and waits for them instead: {error}");
                self.note(&error);
                Ok(Settled::Waits)
            }
            settled => settled.map_err(|error| self.failed("ending earlier requests", &error)),
        }
    }
}

/// The statements that kill and count the requests to end.
struct Requests {
    kill: String,
    count: String,
}

/// Kills until no request is left.
async fn kill(client: &Client, requests: &Requests, until: Instant) -> Result<Settled, Error> {
    if !keeps_query_ids(client).await? {
        return Ok(Settled::Waits);
    }
    loop {
        client.execute(&requests.kill).await?;
        let left: u64 = client.value(&requests.count).await?;
        if left == 0 {
            return Ok(Settled::Ended);
        }
        if Instant::now() >= until {
            return Ok(Settled::Waits);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Kills the remaining requests on the cluster, which the addresses did not know: a statement for a cluster waits for
/// every server of it.
async fn end_everywhere(client: &Client, requests: &Requests, until: Instant) -> Result<Settled, Error> {
    let left: u64 = client.value(&requests.count).await?;
    match left {
        0 => Ok(Settled::Ended),
        _ => kill(client, requests, until).await,
    }
}

/// Some proxies replace query ids.
async fn keeps_query_ids(client: &Client) -> Result<bool, Error> {
    let id = format!("millpond/{}", SystemEnvironment.uuid());
    let client = client.clone().with_setting("query_id", &id);
    let found: String = client.value("SELECT query_id()").await?;
    Ok(found == id)
}
