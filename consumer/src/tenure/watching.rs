//! The owner's talk with the leader of its shard, which tells of commits. [`crate::discovery`] decides; this file asks, and hands
//! over what is newer.

use super::Tenure;
use crate::discovery::{Asked, Fallback, Lead, News, judge};
use crate::error::ConsumeError;
use crate::leaders::{LeaderConnection, WatchError};
use crate::metrics::InStage;
use crate::reading::BEHIND_WAIT;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, OptionFuture};
use millpond_manifest::layout;
use millpond_runtime::Level;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// The longest pause before the leader is asked again: half of the time that it has to tell of a commit.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The connection to the leader, and the question that it has not answered.
#[derive(Default)]
pub(super) struct Watch {
    connection: Option<Box<dyn LeaderConnection>>,
    asking: Option<BoxFuture<'static, Heard>>,
    /// While the leader tells of commits.
    shown: Option<InStage>,
}

/// The leader's answer.
pub(super) struct Heard {
    connection: Option<Box<dyn LeaderConnection>>,
    asked: Asked,
    answer: Result<Bytes, WatchError>,
}

impl Watch {
    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Waits for the answer, if the leader was asked.
    pub(super) async fn next(&mut self) -> Heard {
        match OptionFuture::from(self.asking.as_mut()).await {
            Some(heard) => {
                self.asking = None;
                heard
            }
            None => std::future::pending().await,
        }
    }
}

impl Tenure<'_> {
    /// Takes note of the leader that the manifest names.
    pub(super) fn see_leader(&mut self) {
        let Some(known) = &self.log else { return };
        if self.discovery.see(&known.log) == Lead::Changed {
            let shown = std::mem::take(&mut self.watch).shown.is_some();
            if shown {
                info!(
                    shard = self.shard.claim.shard,
                    "polling the store: another producer leads, or none"
                );
                self.poll_at = Instant::now();
            }
        }
    }

    /// Asks the leader for news, if there is one that answers.
    pub(super) fn begin_watch(&mut self) {
        let Some(watching) = &self.shard.watching else {
            return;
        };
        let Some(leader) = self.discovery.asks(Instant::now()) else {
            return;
        };
        if self.watch.is_asking() {
            return;
        }
        let claim = &self.shard.claim;
        let asked = Asked {
            buffer_id: claim.buffer_id,
            shard: claim.shard,
            newer_than: self.discovery.newer_than(),
        };
        let (consumer, leader) = (claim.consumer.clone(), leader.clone());
        // News that comes more often than polls would find it costs more swaps of the cursor than it saves in time.
        let pause = self.shard.config.poll_interval.min(PAUSE_MAX);
        let (leaders, open) = (watching.leaders.clone(), self.watch.connection.take());
        let ask = async move {
            let connection = match open {
                Some(connection) => {
                    tokio::time::sleep(pause).await;
                    Ok(connection)
                }
                None => leaders.connect(&leader).await.map_err(WatchError::Failed),
            };
            match connection {
                Ok(mut connection) => Heard {
                    asked,
                    answer: connection.watch(&consumer, asked.newer_than).await,
                    connection: Some(connection),
                },
                Err(error) => Heard {
                    asked,
                    answer: Err(error),
                    connection: None,
                },
            }
        };
        self.watch.asking = Some(ask.boxed());
    }

    /// Takes over what the leader sent.
    pub(super) fn heard(&mut self, heard: Heard) {
        let Some(known) = &self.log else { return };
        let bytes = match heard.answer {
            Ok(bytes) => bytes,
            Err(error) => return self.stop_watching(Fallback::of(&error), &error),
        };
        let (version, news) = match judge(heard.asked, &known.log, &bytes) {
            Ok(judged) => judged,
            Err((why, reason)) => return self.stop_watching(why, &reason),
        };
        self.watch.connection = heard.connection;
        let metrics = &self.shard.worker.metrics;
        if self.discovery.answered(version)
            && let Some(leader) = self.discovery.leader()
        {
            let shard = self.shard.claim.shard;
            info!(shard, "watching the leader at {}", leader.address);
            self.watch.shown = Some(InStage::of(&metrics.watched_shards));
        }
        metrics.watch_states.inc();
        match news {
            News::None => {}
            News::State(news) => {
                self.advance(*news);
                self.show_backlog();
            }
            News::Hidden => self.poll_at = Instant::now(),
        }
    }

    /// Falls back if a poll found what the leader should have told of.
    pub(super) fn look_overdue(&mut self) {
        if self.discovery.is_overdue(Instant::now()) {
            self.stop_watching(
                Fallback::missed,
                &"it did not tell of a commit that is in the store",
            );
        }
    }

    /// Waits for a store that returned a state from before the known one, for a minute. 0: it has none.
    pub(super) fn store_is_behind(&mut self, what: &str, found: u64) -> Result<(), ConsumeError> {
        let Some(known) = &self.log else { return Ok(()) };
        let shown = known.log.stamp.version;
        let since = *self.behind_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= BEHIND_WAIT {
            let key = layout::manifest(self.shard.claim.shard);
            return Err(match found {
                0 => ConsumeError::Gone { key, shown },
                found => ConsumeError::Behind { key, found, shown },
            });
        }
        let who = if known.is_hearsay() { "the leader" } else { "it" };
        let reason = match found {
            0 => format!("the store has no manifest, and {who} showed version {shown}"),
            found => format!("the store returns version {found}, and {who} showed version {shown}"),
        };
        let readiness = &self.shard.claim.readiness;
        readiness.waits(what, &reason, Level::Warn);
        if self.discovery.works() {
            self.stop_watching(Fallback::store_behind, &reason);
        }
        Ok(())
    }

    /// Polls for a while instead of asking the leader.
    pub(super) fn stop_watching(&mut self, why: Fallback, reason: &dyn std::fmt::Display) {
        let Some(leader) = self.discovery.leader() else {
            return;
        };
        let (shard, address) = (self.shard.claim.shard, leader.address.clone());
        let is_news = self.discovery.fall_back(why, Instant::now());
        match why {
            _ if !is_news => {}
            Fallback::failed | Fallback::refused | Fallback::not_leading | Fallback::missed => {
                info!(shard, "polling the store: the leader at {address}: {reason}");
            }
            Fallback::invalid | Fallback::contradicted | Fallback::store_behind => {
                warn!(shard, "polling the store: the leader at {address}: {reason}");
            }
        }
        self.watch = Watch::default();
        self.shard.worker.metrics.fell_back(why);
        self.poll_at = Instant::now();
    }
}
