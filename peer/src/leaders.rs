//! A consumer's connections to leaders.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::{Request, StatusCode};
use millpond_consumer::{LeaderConnection, Leaders, WatchError, WatchedLeader};
use tokio::time::timeout;

use crate::client::{CONNECT, Connection, chain, open};
use crate::identity::Identity;
use crate::watch::{CONSUMER, NEWER_THAN, SHARD};
use crate::{NAME, WATCH_PATH};

/// Maximum bytes of a manifest. A larger one is read from the store alone.
const MANIFEST_MAX: usize = 16 << 20;
/// Maximum bytes of a refusal.
const REFUSAL_MAX: usize = 4 << 10;
/// Time limit for the body of an answer.
const BODY_WAIT: Duration = Duration::from_secs(5);

/// Watches leaders, over one connection to each.
pub struct WatchClient {
    identity: Arc<Identity>,
}

struct Watched {
    connection: Connection,
    shard: u32,
}

impl WatchClient {
    /// Presents this certificate.
    pub fn new(identity: Arc<Identity>) -> WatchClient {
        WatchClient { identity }
    }
}

#[async_trait]
impl Leaders for WatchClient {
    async fn connect(&self, leader: &WatchedLeader) -> Result<Box<dyn LeaderConnection>, String> {
        let opened = timeout(CONNECT, open(&self.identity, &leader.address, leader.certificate)).await;
        let opened = opened.map_err(|_| format!("no connection within {} s", CONNECT.as_secs()))??;
        Ok(Box::new(Watched {
            connection: opened,
            shard: leader.shard,
        }))
    }
}

#[async_trait]
impl LeaderConnection for Watched {
    async fn watch(&mut self, consumer: &str, newer_than: u64) -> Result<Bytes, WatchError> {
        let failed = |reason: String| WatchError::Failed(reason);
        let request = Request::post(format!("https://{NAME}{WATCH_PATH}"))
            .header(CONSUMER, consumer)
            .header(SHARD, self.shard)
            .header(NEWER_THAN, newer_than)
            .body(Full::default());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = self.connection.send.send_request(request).await;
        let response = response.map_err(|error| failed(chain(&error)))?;
        let status = response.status();
        let max = if status == StatusCode::OK {
            MANIFEST_MAX
        } else {
            REFUSAL_MAX
        };
        let length = response.body().size_hint().lower();
        if length > max as u64 {
            return Err(failed(format!("{status} with {length} bytes")));
        }
        let body = timeout(BODY_WAIT, Limited::new(response.into_body(), max).collect()).await;
        let body = body.map_err(|_| failed("the manifest took too long".to_owned()))?;
        let body = body.map_err(|error| failed(chain(&*error)))?.to_bytes();
        let reason = || format!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
        match status {
            StatusCode::OK => Ok(body),
            StatusCode::CONFLICT => Err(WatchError::NotLeading),
            _ => Err(WatchError::Refused(reason())),
        }
    }
}
