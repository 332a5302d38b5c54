//! Numbered requests go to the shard that has their client's row, the *home*, whatever shard the process writes to otherwise. Likewise, rows
//! of streams that the buffer routes go to the shard of their key. A producer for such a shard opens with the first request for it, follows
//! a leader and never leads, and closes after some idle hours.
//!
//! A home that does not open or commit must harm nobody else. The process is ready without it, and its requests are refused instead of
//! waiting one after another or filling the memory that all producers share.
//!
//! Requests of a client may follow each other without waiting for answers, so they stay in order: a home has one producer at a time. If
//! another one is about to replace it, new requests wait until the old one has committed everything.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use millpond_manifest::ClientId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{InUse, Member, Producers, State, shard_part};
use crate::AppendError;

/// Requests wait this long for a home, from the moment at which it begins to open. Their clients may try again later.
pub(super) const HOME_WAIT: Duration = Duration::from_secs(10);

/// The pause after a home that did not open.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);

/// A home whose store has failed for this long takes no further requests while it has some.
const STUCK: Duration = Duration::from_secs(10);

/// A producer without requests for this long is closed at the next look. Each opening leaves a row in the manifest for a day.
const IDLE: Duration = Duration::from_secs(6 * 3600);

/// The outcome of an opening, once there is one.
type Opened = Option<Result<(), Arc<str>>>;

/// A shard for requests that belong there, and that is not the process's own.
pub(super) enum Home {
    /// Until the producer is registered. Requests wait until this time.
    Opening(watch::Receiver<Opened>, Instant),
    /// It could not be opened, and nobody tries again before this time.
    Failed(Arc<str>, Instant),
    /// With the time of its last request.
    Open(Member, Instant),
}

/// The next step of a request on its way to its home.
enum Step {
    Use(InUse),
    /// Another producer is about to replace that of the shard. Requests wait for the old one until this time.
    WaitFor(CancellationToken, Instant),
    Open(watch::Receiver<Opened>, Instant),
}

impl Home {
    pub(super) fn member(&self) -> Option<&Member> {
        match self {
            Home::Opening(..) | Home::Failed(..) => None,
            Home::Open(member, _) => Some(member),
        }
    }
}

impl Producers {
    /// The producer of the shard that has this client's row.
    pub(super) async fn home(&self, client: ClientId) -> Result<InUse, AppendError> {
        let shard = self.state().buffer.home_of(client);
        let home = self.producer_of(shard).await;
        home.inspect_err(|_| {
            self.0.common.metrics.home_refused.inc();
        })
    }

    /// The producers of these shards, in ascending order, or the reason why one of them cannot be used.
    ///
    /// First all of them open, so that the waits begin at one moment. Then the caller gets them one after another: two callers that
    /// hold one each and wait for the other one could otherwise keep both from being replaced.
    pub(super) async fn producers_of(&self, shards: &[u32]) -> Result<Vec<InUse>, AppendError> {
        debug_assert!(shards.is_sorted(), "ascending");
        let producers = async {
            try_join_all(shards.iter().map(|shard| self.producer_of(*shard))).await?;
            let mut producers = Vec::with_capacity(shards.len());
            for shard in shards {
                producers.push(self.producer_of(*shard).await?);
            }
            Ok(producers)
        };
        let producers: Result<_, AppendError> = producers.await;
        producers.inspect_err(|_| {
            self.0.common.metrics.home_refused.inc();
        })
    }

    async fn producer_of(&self, shard: u32) -> Result<InUse, AppendError> {
        loop {
            match self.step(shard)? {
                Step::Use(producer) => return Ok(producer),
                Step::WaitFor(left, until) => {
                    let left = timeout_at(until, left.cancelled()).await;
                    left.map_err(|_| {
                        let reason = "the producer that writes there until now has not finished";
                        not_here(shard, reason)
                    })?;
                }
                Step::Open(mut opened, until) => {
                    let opened = timeout_at(until, opened.wait_for(Option::is_some)).await;
                    let opened = opened.map_err(|_| {
                        let reason = shard_part(&self.0.readiness, shard, true).sentence();
                        not_here(shard, reason.as_deref().unwrap_or("it has not opened yet"))
                    })?;
                    match opened.as_deref() {
                        Ok(Some(Err(reason))) => return Err(not_here(shard, reason)),
                        Ok(_) => {}
                        Err(_) => return Err(AppendError::Closed),
                    }
                }
            }
        }
    }

    fn step(&self, shard: u32) -> Result<Step, AppendError> {
        let mut state = self.state();
        let mut leaving = state.leaving.iter();
        if let Some(leaving) = leaving.find(|leaving| leaving.producer.shard() == shard) {
            return Ok(Step::WaitFor(leaving.left.clone(), leaving.since + HOME_WAIT));
        }
        let now = Instant::now();
        let is_own = state.own.producer.shard() == shard;
        let until = match state.homes.get_mut(&shard) {
            Some(Home::Opening(opened, until)) => return Ok(Step::Open(opened.clone(), *until)),
            Some(Home::Open(member, used_at)) => {
                if let Some(reason) = member.producer.is_stuck_for(STUCK) {
                    return Err(not_here(shard, &reason));
                }
                *used_at = now;
                return Ok(Step::Use(member.for_request()));
            }
            Some(Home::Failed(reason, again_at)) if !is_own && now < *again_at => {
                return Err(not_here(shard, reason));
            }
            // Nobody waits for another attempt.
            Some(Home::Failed(..)) => now,
            None => now + HOME_WAIT,
        };
        if is_own {
            return Ok(Step::Use(state.own.for_request()));
        }
        if self.0.closing.is_cancelled() {
            return Err(AppendError::Closed);
        }
        let opened = self.begin_opening(&mut state, shard, until);
        Ok(Step::Open(opened, until))
    }

    /// Opens a home in the background: a caller that goes away ends nothing.
    fn begin_opening(&self, state: &mut State, shard: u32, until: Instant) -> watch::Receiver<Opened> {
        let (told, opened) = watch::channel(None);
        state.homes.insert(shard, Home::Opening(opened.clone(), until));
        let all = self.clone();
        self.0.tasks.spawn(async move {
            let producer = tokio::select! {
                biased;
                () = all.0.closing.cancelled() => return,
                producer = all.open(shard, false) => producer,
            };
            let outcome = match producer {
                Ok(producer) => {
                    all.opened(Member::new(producer));
                    Ok(())
                }
                Err(error) => {
                    warn!(
                        "cannot open shard {shard} for requests that belong there: {error}: their clients try again"
                    );
                    let reason: Arc<str> = error.to_string().into();
                    let failed = Home::Failed(reason.clone(), Instant::now() + REOPEN_PAUSE);
                    all.state().homes.insert(shard, failed);
                    Err(reason)
                }
            };
            told.send_replace(Some(outcome));
        });
        opened
    }

    fn opened(&self, member: Member) {
        let shard = member.producer.shard();
        let mut state = self.state();
        // No request has it yet.
        if self.0.closing.is_cancelled() || state.own.producer.shard() == shard {
            state.homes.remove(&shard);
            self.retire(&mut state, member);
            return;
        }
        info!("shard {shard} is open for requests that belong there");
        state.homes.insert(shard, Home::Open(member, Instant::now()));
    }

    /// Closes the producer for the requests that belong to a shard, if there is one.
    pub(super) fn retire_home(&self, state: &mut State, shard: u32) {
        if let Some(Home::Open(..)) = state.homes.get(&shard)
            && let Some(Home::Open(member, _)) = state.homes.remove(&shard)
        {
            self.retire(state, member);
        }
    }

    /// Closes what no request has needed for a while.
    pub(super) fn close_idle(&self) {
        let mut state = self.state();
        let idle: Vec<u32> = state
            .homes
            .iter()
            .filter(|(_, home)| matches!(home, Home::Open(_, used_at) if used_at.elapsed() >= IDLE))
            .map(|(shard, _)| *shard)
            .collect();
        for shard in idle {
            info!("shard {shard} closes: no request has come for it for a while");
            self.retire_home(&mut state, shard);
        }
    }
}

/// The answer to a request whose home cannot be used now.
fn not_here(shard: u32, reason: &str) -> AppendError {
    let reason = format!("shard {shard}, to which the request belongs, cannot be used: {reason}");
    AppendError::NotCommitted(reason.into())
}
