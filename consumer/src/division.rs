//! Decides which process of a consumer works on which shard. Pure: the caller reads the list of members and the clock.
//!
//! No promise depends on it. A cursor's lease alone decides who owns a shard; the division only says when a process lets
//! a free shard be, and when it gives one away.

use millpond_manifest::Members;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

/// One process's view of its consumer's members. Times are on that process's own clock.
#[derive(Debug)]
pub(crate) struct Division {
    me: String,
    lease: Duration,
    shards: u32,
    /// The signs of life of each member, and when they last changed.
    seen: BTreeMap<String, (u64, Duration)>,
    /// The rightful member of each shard, and since when it is.
    rightful: Vec<(String, Duration)>,
    /// Members that let a free shard be although it was theirs, until this time.
    doubted: BTreeMap<(u32, String), Duration>,
}

/// Leases without a sign of life after which a member is removed from the list.
const LEASES_UNTIL_GONE: u32 = 10;

/// Leases during which a member that did not take its free shard is not offered it again.
const LEASES_OF_DOUBT: u32 = 10;

impl Division {
    pub(crate) fn new(me: &str, lease: Duration) -> Division {
        Division {
            me: me.to_owned(),
            lease,
            shards: 1,
            seen: BTreeMap::new(),
            rightful: Vec::new(),
            doubted: BTreeMap::new(),
        }
    }

    /// Sets the number of shards. With one there is nothing to divide.
    pub(crate) fn set_shards(&mut self, shards: u32, now: Duration) {
        self.shards = shards;
        self.divide(now);
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.shards > 1
    }

    /// Takes over the list of members. Returns true if it divides the shards in another way.
    pub(crate) fn observe(&mut self, members: &Members, now: Duration) -> bool {
        let before = std::mem::take(&mut self.seen);
        for (instance, beats) in &members.beats {
            let seen = before.get(instance).filter(|(known, _)| known == beats);
            self.seen
                .insert(instance.clone(), seen.copied().unwrap_or((*beats, now)));
        }
        self.doubted.retain(|_, until| *until > now);
        let before = self.rightful.clone();
        self.divide(now);
        self.rightful != before
    }

    /// The members that have been silent for so long that they leave the list.
    pub(crate) fn gone(&self, now: Duration) -> Vec<String> {
        let silent =
            |(_, changed): &(u64, Duration)| now.saturating_sub(*changed) > LEASES_UNTIL_GONE * self.lease;
        let gone = self.seen.iter().filter(|(_, seen)| silent(seen));
        gone.map(|(instance, _)| instance.clone()).collect()
    }

    /// The members that have given a sign of life lately, in order.
    pub(crate) fn living(&self, now: Duration) -> Vec<&str> {
        let lives = |(_, changed): &(u64, Duration)| now.saturating_sub(*changed) < 2 * self.lease / 3;
        let living = self.seen.iter().filter(|(_, seen)| lives(seen));
        living.map(|(instance, _)| instance.as_str()).collect()
    }

    /// Divides the shards among the living members. A change of the members moves few shards.
    fn divide(&mut self, now: Duration) {
        let living = self.living(now);
        let assigned: Vec<String> = match living.is_empty() {
            true => Vec::new(),
            false => assign(&living, self.shards)
                .into_iter()
                .map(|place| living[place].to_owned())
                .collect(),
        };
        let before = std::mem::take(&mut self.rightful);
        let mut before = before.into_iter();
        for member in assigned {
            let since = before.next().filter(|(known, _)| *known == member);
            self.rightful.push(since.unwrap_or((member, now)));
        }
    }

    fn rightful(&self, shard: u32) -> Option<&(String, Duration)> {
        self.rightful.get(usize::try_from(shard).unwrap_or(usize::MAX))
    }

    /// Returns true if the shard is this process's.
    pub(crate) fn is_mine(&self, shard: u32) -> bool {
        self.rightful(shard).is_some_and(|(member, _)| *member == self.me)
    }

    /// Returns true if this process may take a shard that nobody has owned since `free_since`: its own at once, another
    /// member's after a lease, because that member evidently cannot take it.
    pub(crate) fn may_take(&self, shard: u32, free_since: Duration, now: Duration) -> bool {
        !self.is_needed() || self.is_mine(shard) || now.saturating_sub(free_since) >= self.lease
    }

    /// Records that this process took a shard. If it is another one's, that one did not take it in time.
    pub(crate) fn took(&mut self, shard: u32, now: Duration) {
        if !self.is_needed() || self.is_mine(shard) {
            return;
        }
        if let Some((member, _)) = self.rightful(shard) {
            let doubted = (shard, member.clone());
            self.doubted.insert(doubted, now + LEASES_OF_DOUBT * self.lease);
        }
    }

    /// The member that gets a shard of this process: it has been the rightful one for a while, and lives.
    pub(crate) fn gives(&self, shard: u32, now: Duration) -> Option<&str> {
        let (member, since) = self.rightful(shard).filter(|(member, _)| *member != self.me)?;
        let settled = now.saturating_sub(*since) >= 2 * self.lease / 3;
        let doubted = self.doubted.get(&(shard, member.clone()));
        let trusted = doubted.is_none_or(|until| now >= *until);
        let lives = self.living(now).contains(&member.as_str());
        (self.is_needed() && settled && trusted && lives).then_some(member.as_str())
    }
}

/// Assigns each shard to a member, by its place: rendezvous hashing, as far as every member gets its share. `members` is
/// not empty.
fn assign(members: &[&str], shards: u32) -> Vec<usize> {
    let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let (share, mut larger) = (shards / count, shards % count);
    let mut loads = vec![0; members.len()];
    let mut assigned = Vec::new();
    for shard in 0..shards {
        let mut ranked: Vec<usize> = (0..members.len()).collect();
        ranked.sort_by_cached_key(|place| hash(shard, members[*place]));
        let fits = |place: &usize| loads[*place] < share || loads[*place] == share && larger > 0;
        let place = ranked.into_iter().find(fits).unwrap_or(0);
        larger -= u32::from(loads[place] == share);
        loads[place] += 1;
        assigned.push(place);
    }
    assigned
}

fn hash(shard: u32, member: &str) -> [u8; 32] {
    let hashed = Sha256::new()
        .chain_update(shard.to_be_bytes())
        .chain_update(member);
    hashed.finalize().into()
}

#[cfg(test)]
mod tests;
