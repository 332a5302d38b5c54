//! Follows the growth of the buffer: a process without a fixed shard moves to a new one with the probability that leaves all shards
//! equally used. A look or a move that fails is repeated, and ends nothing.

use std::ops::Range;
use std::time::Duration;

use millpond_manifest::buffer::SHARDS_MAX;
use millpond_manifest::{Buffer, LookError, layout};
use millpond_runtime::Looks;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::homes::HOME_WAIT;
use super::{Member, Producers};
use crate::StartError;

/// The pause between two looks that requests ask for.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The shard after a growth, by a number drawn from all shards. So each shard is equally likely, and no more processes move than needed.
fn shard_after(growth: &Range<u32>, shard: u32, drawn: u32) -> u32 {
    if growth.contains(&drawn) { drawn } else { shard }
}

/// How a process follows the growth.
struct Course {
    /// The number of shards that it has drawn from.
    drawn_from: u32,
    /// The shard that it should write to.
    wanted: u32,
}

impl Producers {
    /// Looks at the buffer from time to time, and follows its growth until [`drain`](Self::drain).
    pub async fn follow_growth(&self) {
        let mut looks = Looks::new(self.0.common.config.growth_interval);
        let mut course = Course {
            drawn_from: self.0.shards_at_start,
            wanted: self.shard(),
        };
        let following = async {
            loop {
                looks.due(self.environment()).await;
                if let Err(reason) = self.look().await {
                    let shards = self.shards();
                    warn!(
                        "cannot look for new shards: {reason}: this process goes on with {shards}, and looks again"
                    );
                }
                self.follow(&mut course).await;
                self.close_idle();
                looks.looked();
            }
        };
        tokio::select! {
            biased;
            () = self.0.closing.cancelled() => {}
            () = following => {}
        }
    }

    /// Returns true if the buffer has this shard. If it does not as far as the process knows, the process looks at the buffer, at most
    /// once a second.
    pub async fn has_shard(&self, shard: u32) -> bool {
        let is_known = || shard < self.shards();
        if !is_known() && shard < SHARDS_MAX && self.may_look_now() {
            // The next look that is due reports what is wrong.
            let _ = timeout(HOME_WAIT, self.look()).await;
        }
        is_known()
    }

    fn may_look_now(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let may_look = state
            .looked_at
            .is_none_or(|looked_at| now >= looked_at + LOOK_PAUSE);
        if may_look {
            state.looked_at = Some(now);
        }
        may_look
    }

    async fn look(&self) -> Result<(), LookError> {
        let mut known = self.0.known.lock().await;
        self.0.common.metrics.looks.inc();
        let before = known.buffer().stamp;
        let growth = known.look(&self.0.common.store).await?;
        if !growth.is_empty() {
            info!(before = growth.start, now = growth.end, "the buffer has grown");
        }
        if known.buffer().stamp != before {
            self.take(known.buffer());
        }
        Ok(())
    }

    /// Goes by another state of the buffer, except for the number of its home shards: that of a row never changes.
    fn take(&self, grown: &Buffer) {
        let mut state = self.state();
        let homes = state.buffer.homes();
        if grown.homes() != homes {
            warn!(
                "{} names {} shards for numbered requests instead of {homes}: an older program has grown the buffer, and a repeated \
                 request may be stored twice",
                layout::BUFFER,
                grown.homes()
            );
        }
        if grown.routed != state.buffer.routed {
            let streams: Vec<&str> = grown.routed.keys().map(|stream| &**stream).collect();
            info!(
                streams = streams.join(", "),
                "the streams whose rows are routed by key have changed"
            );
        }
        state.buffer = Buffer {
            home_shards: Some(homes),
            ..grown.clone()
        };
    }

    async fn follow(&self, course: &mut Course) {
        let shards = self.shards();
        if shards > course.drawn_from && self.0.common.config.shard.is_none() {
            let growth = course.drawn_from..shards;
            course.wanted = shard_after(&growth, course.wanted, self.environment().below(shards));
            course.drawn_from = shards;
        }
        let (shard, wanted) = (self.shard(), course.wanted);
        if shard == wanted {
            return;
        }
        if let Err(error) = self.move_to(wanted).await {
            warn!(
                "cannot move to shard {wanted}: {error}: this process stays in shard {shard} and tries again"
            );
        }
    }

    async fn move_to(&self, shard: u32) -> Result<(), StartError> {
        let producer = self.open(shard, true).await?;
        let mut state = self.state();
        // A drain that begins later closes the new producer, too.
        if self.0.closing.is_cancelled() {
            producer.close();
            return Ok(());
        }
        let shards = state.buffer.shards;
        let before = std::mem::replace(&mut state.own, Member::new(producer));
        let from = before.producer.shard();
        self.retire(&mut state, before);
        // The new producer takes the numbered requests of its shard when this one has left.
        self.retire_home(&mut state, shard);
        drop(state);
        self.0.common.metrics.shard.set(shard.into());
        info!(from, to = shard, shards, "this process writes to another shard");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_are_equally_likely_and_nobody_moves_between_old_ones() {
        for (before, now) in [(1, 2), (2, 3), (4, 12), (7, 8)] {
            let mut processes = vec![0; now as usize];
            // Every shard and every drawn number once.
            for shard in 0..before {
                for drawn in 0..now {
                    let after = shard_after(&(before..now), shard, drawn);
                    assert!(after == shard || after >= before, "{shard} to {after}");
                    processes[after as usize] += 1;
                }
            }
            assert_eq!(processes, vec![before; now as usize], "from {before} to {now}");
        }
    }
}
