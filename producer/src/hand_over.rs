//! Hands a group that lost a race over to the leader: it commits the uploaded segments, in place of another race. The rules
//! of `forward.rs` hold for the number.

use std::time::Duration;

use tokio::time::sleep;

use crate::claims::claims_of;
use crate::committer::{Committer, FOREIGN_SEGMENTS_MAX, Progress};
use crate::group::Members;
use crate::peers::Records;
use crate::segment::UploadedWork;

/// A producer that waits for its turn looks at the manifest this often.
const TURN_LOOK: Duration = Duration::from_secs(1);

impl Committer {
    /// Has the leader commit the group, if there is one to ask. Returns true if it was asked: the group is empty if the records
    /// are in the log, and waits for its own commit otherwise.
    pub(crate) async fn hand_over(&mut self, members: &mut Members) -> bool {
        // An older manifest may name a leader that leads no more.
        if self.commits.manifest().is_none() || !self.may_hand_over(members) {
            return false;
        }
        let Some(leader) = self.leader_to_ask() else {
            return false;
        };
        let segments = members.works.iter().map(UploadedWork::describe).collect();
        let clients = claims_of(members.works.iter().map(|uploaded| &uploaded.work));
        let answer = self.ask(&leader, Records::Segments(segments), clients).await;
        let Some(commit) = answer else { return true };
        for (sequence, uploaded) in (commit.first_sequence..).zip(members.works.drain(..)) {
            self.upload
                .metrics
                .delegated_bytes
                .inc_by(uploaded.work.encoded.size);
            self.answer_uploaded(uploaded.work, sequence);
        }
        true
    }

    /// Returns true if another producer may commit the group: nothing of it may have landed yet, all of it is this producer's
    /// alone, and neither a leader nor the known manifest refuses a client in it. If its records were sent before, the leader may
    /// have put them into one segment, so that it could not tell the sequences of several.
    fn may_hand_over(&self, members: &Members) -> bool {
        let is_sent = !self.commits.may_grow();
        let most = if is_sent { 1 } else { FOREIGN_SEGMENTS_MAX };
        let takes_all = self.takes_numbered() || !members.are_numbered();
        let refuses = || {
            let clients = claims_of(members.works.iter().map(|uploaded| &uploaded.work));
            self.refuses(&clients, false)
        };
        !self.keeps_group
            && takes_all
            && self.commits.may_forward()
            && members.may_be_forwarded()
            && (1..=most).contains(&members.works.len())
            && !refuses()
    }

    /// Waits after a lost race as long as others have waited longer. The leader waits for nobody: they may all wait for it.
    /// A group that the leader may commit waits only until there is a leader to ask. Returns true in this case.
    pub(crate) async fn wait_for_turn(&mut self, members: &Members) -> bool {
        let Some(wait) = self.turns.wait(self.elapsed()) else {
            return false;
        };
        let mut until = self.elapsed() + wait;
        let own = self.commits.producer();
        if self.election.leads(own) {
            return false;
        }
        loop {
            let mut pause = until.saturating_sub(self.elapsed()).min(TURN_LOOK);
            if pause.is_zero() {
                return false;
            }
            let avoided = self.election.avoided_for(own, self.elapsed());
            if let Some(avoided) = avoided.filter(|_| self.may_hand_over(members)) {
                pause = pause.min(avoided);
            }
            sleep(pause).await;
            if let Progress::HeldUp = self.read_manifest().await {
                // The step has the pauses for a store that does not answer.
                self.turns.held_up();
                return false;
            }
            // Another producer may lead by now.
            if self.may_hand_over(members) && self.leader_to_ask().is_some() {
                return true;
            }
            // Those that have waited longer may have committed, or had a leader do so.
            if let Some(manifest) = self.commits.manifest() {
                let now = self.elapsed();
                self.turns.lost(manifest, own, now);
                until = until.min(now + self.turns.wait(now).unwrap_or_default());
            }
        }
    }
}
