//! Numbered requests go to the shard that has their client's row, the *home*, whatever shard the process writes to otherwise. A producer
//! for a home opens with the first request for it, follows a leader and never leads, and closes after some idle minutes.
//!
//! Requests of a client may follow each other without waiting for answers, so they stay in order: a home has one producer at a time. If
//! another one is about to replace it, new requests wait until the old one has committed everything.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::ClientId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{InUse, Member, Producers, State};
use crate::AppendError;

/// A request waits this long for its home. Its client may try again later.
const HOME_WAIT: Duration = Duration::from_secs(10);

/// A producer without requests for this long is closed at the next look.
const IDLE: Duration = Duration::from_secs(300);

/// The outcome of an opening, once there is one.
type Opened = Option<Result<(), Arc<str>>>;

/// A shard for numbered requests that is not the process's own.
pub(super) enum Home {
    /// Until the producer is registered.
    Opening(watch::Receiver<Opened>),
    Open(Member, Instant),
}

/// The next step of a request on its way to its home.
enum Step {
    Use(InUse),
    /// A producer of the shard is about to be replaced.
    WaitFor(CancellationToken),
    Open(watch::Receiver<Opened>),
}

impl Home {
    pub(super) fn member(&self) -> Option<&Member> {
        match self {
            Home::Opening(_) => None,
            Home::Open(member, _) => Some(member),
        }
    }
}

impl Producers {
    /// The producer of the shard that has this client's row.
    pub(super) async fn home(&self, client: ClientId) -> Result<InUse, AppendError> {
        let shard = self.state().buffer.home_of(client);
        let home = timeout(HOME_WAIT, self.producer_of(shard)).await;
        home.unwrap_or_else(|_| {
            let reason = "its shard has not opened yet";
            Err(not_here(shard, reason))
        })
    }

    async fn producer_of(&self, shard: u32) -> Result<InUse, AppendError> {
        loop {
            match self.step(shard)? {
                Step::Use(producer) => return Ok(producer),
                Step::WaitFor(left) => left.cancelled().await,
                Step::Open(mut opened) => match opened.wait_for(Option::is_some).await.as_deref() {
                    Ok(Some(Err(reason))) => return Err(not_here(shard, reason)),
                    Ok(_) => {}
                    Err(_) => return Err(AppendError::Closed),
                },
            }
        }
    }

    fn step(&self, shard: u32) -> Result<Step, AppendError> {
        let mut state = self.state();
        let mut leaving = state.leaving.iter();
        if let Some(leaving) = leaving.find(|leaving| leaving.producer.shard() == shard) {
            return Ok(Step::WaitFor(leaving.left.clone()));
        }
        match state.homes.get_mut(&shard) {
            Some(Home::Opening(opened)) => return Ok(Step::Open(opened.clone())),
            Some(Home::Open(member, used_at)) => {
                *used_at = Instant::now();
                return Ok(Step::Use(member.for_request()));
            }
            None => {}
        }
        if state.own.producer.shard() == shard {
            return Ok(Step::Use(state.own.for_request()));
        }
        if self.0.closing.is_cancelled() {
            return Err(AppendError::Closed);
        }
        Ok(Step::Open(self.begin_opening(&mut state, shard)))
    }

    /// Opens a home in the background: a caller that goes away ends nothing.
    fn begin_opening(&self, state: &mut State, shard: u32) -> watch::Receiver<Opened> {
        let (told, opened) = watch::channel(None);
        state.homes.insert(shard, Home::Opening(opened.clone()));
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
                        "cannot open shard {shard} for numbered requests: {error}: their clients try again"
                    );
                    all.state().homes.remove(&shard);
                    Err(error.to_string().into())
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
        info!("shard {shard} is open for numbered requests");
        state.homes.insert(shard, Home::Open(member, Instant::now()));
    }

    /// Closes the producer for the numbered requests of a shard, if there is one.
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
            info!("shard {shard} closes: no numbered request has come for it for a while");
            self.retire_home(&mut state, shard);
        }
    }
}

/// The answer to a request whose home cannot be used now.
fn not_here(shard: u32, reason: &str) -> AppendError {
    let reason = format!("shard {shard}, which has this client's numbers, cannot be used: {reason}");
    AppendError::NotCommitted(reason.into())
}
