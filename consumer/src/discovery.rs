//! Decides where a consumer learns of commits: from the leader of the shard, or by polls of the store. No promise depends on it.
//! Every state that a leader sends is checked as one from the store is, and the store is polled all the same. Pure: the caller has
//! the clock and makes the requests.

use crate::leaders::{WatchError, WatchedLeader};
use millpond_manifest::cas::Object;
use millpond_manifest::{Manifest, ProducerId};
use prometheus_client::encoding::EncodeLabelValue;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// The interval of polls while a leader tells of commits.
const BACKSTOP: Duration = Duration::from_secs(5);
/// The consumer polls as without a leader for this time after one has failed.
const AVOID: Duration = Duration::from_secs(60);
/// A leader that says that it does not lead may not know yet that it does, or the manifest names another one soon.
const AVOID_OTHER: Duration = Duration::from_secs(5);
/// A poll may find a commit before the leader has its answer. It must tell of the commit within this time.
const GRACE: Duration = Duration::from_secs(1);

/// Why a consumer polls although there is a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
pub(crate) enum Fallback {
    /// The leader cannot be reached, or shows no sign of life.
    failed,
    /// It does not serve this consumer.
    refused,
    /// It leads no more.
    not_leading,
    /// A poll found segments that it did not tell of.
    missed,
    /// It sent something else than this shard's manifest, or a state that the consumer had.
    invalid,
    /// Its state contradicts another one of the same shard.
    contradicted,
    /// The store returned a state from before one that it or the leader had shown.
    store_behind,
}

impl Fallback {
    pub(crate) const ALL: [Fallback; 7] = [
        Fallback::failed,
        Fallback::refused,
        Fallback::not_leading,
        Fallback::missed,
        Fallback::invalid,
        Fallback::contradicted,
        Fallback::store_behind,
    ];

    pub(crate) fn of(error: &WatchError) -> Fallback {
        match error {
            WatchError::NotLeading => Fallback::not_leading,
            WatchError::Refused(_) => Fallback::refused,
            WatchError::Failed(_) => Fallback::failed,
        }
    }
}

/// One time of one producer as the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    producer: ProducerId,
    term: u64,
    leader: WatchedLeader,
}

/// Where the owner of a cursor learns of commits.
#[derive(Debug)]
pub(crate) struct Discovery {
    /// False: it always polls.
    watches: bool,
    poll_interval: Duration,
    /// The leader that the newest manifest names.
    term: Option<Term>,
    avoid_until: Option<Instant>,
    /// The version of the leader's last answer since it was last asked anew.
    told: Option<u64>,
    /// A version that a poll found first, and when the leader must have told of it or of a later one.
    overdue: Option<(u64, Instant)>,
    /// Why the consumer last fell back, unless the leader has answered since.
    fell_back: Option<Fallback>,
}

/// The leader's place after a new manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lead {
    /// As before.
    Same,
    /// Another producer leads, or another time of the same one, or nobody.
    Changed,
}

impl Discovery {
    pub(crate) fn new(watches: bool, poll_interval: Duration) -> Discovery {
        Discovery {
            watches,
            poll_interval,
            term: None,
            avoid_until: None,
            told: None,
            overdue: None,
            fell_back: None,
        }
    }

    /// Takes note of the manifest in force.
    pub(crate) fn see(&mut self, manifest: &Manifest) -> Lead {
        let named = manifest.reachable_leader().and_then(|leader| {
            let row = manifest.producer(leader.producer)?;
            Some(Term {
                producer: leader.producer,
                term: leader.term,
                leader: WatchedLeader {
                    shard: manifest.shard,
                    address: leader.address.clone(),
                    certificate: row.certificate?,
                },
            })
        });
        let named = named.filter(|_| self.watches);
        if named == self.term {
            return Lead::Same;
        }
        self.term = named;
        self.avoid_until = None;
        self.told = None;
        self.overdue = None;
        self.fell_back = None;
        Lead::Changed
    }

    /// The leader that the manifest names.
    pub(crate) fn leader(&self) -> Option<&WatchedLeader> {
        self.term.as_ref().map(|term| &term.leader)
    }

    /// The leader to ask for news.
    pub(crate) fn asks(&self, now: Instant) -> Option<&WatchedLeader> {
        let avoided = self.avoid_until.is_some_and(|until| now < until);
        self.leader().filter(|_| !avoided)
    }

    /// Returns true while the leader tells of commits.
    pub(crate) fn works(&self) -> bool {
        self.told.is_some()
    }

    /// The version to ask for a newer one of: the last that the leader told of, not one that a poll found. So a leader that was slower
    /// than the poll still tells of that one, and shows that it works. 0: its first answer is to come at once.
    pub(crate) fn newer_than(&self) -> u64 {
        self.told.unwrap_or(0)
    }

    /// Records that the leader answered with this version. Returns true for its first answer.
    pub(crate) fn answered(&mut self, version: u64) -> bool {
        self.fell_back = None;
        self.overdue = self.overdue.filter(|(overdue, _)| version < *overdue);
        self.told.replace(version).is_none()
    }

    /// Records that a poll found segments first, in the manifest of this version.
    pub(crate) fn found_first(&mut self, version: u64, now: Instant) {
        if self.works() {
            self.overdue.get_or_insert((version, now + GRACE));
        }
    }

    /// Returns true if the leader should have told of a commit that a poll found.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.overdue.is_some_and(|(_, until)| now >= until)
    }

    /// Polls for a while instead of asking the leader. Returns true if people should hear of it: not of each attempt that fails alike.
    pub(crate) fn fall_back(&mut self, why: Fallback, now: Instant) -> bool {
        let avoid = match why {
            Fallback::not_leading => AVOID_OTHER,
            _ => AVOID,
        };
        self.avoid_until = Some(now + avoid);
        self.told = None;
        self.overdue = None;
        self.fell_back.replace(why) != Some(why)
    }

    /// The time from one poll to the next.
    pub(crate) fn poll_interval(&self) -> Duration {
        match self.works() {
            true => self.poll_interval.max(BACKSTOP),
            false => self.poll_interval,
        }
    }

    /// The time of the next decision without an event.
    pub(crate) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let overdue = self.overdue.map(|(_, until)| until);
        let avoided = self
            .avoid_until
            .filter(|until| now < *until && self.term.is_some());
        [overdue, avoided].into_iter().flatten().min()
    }
}

/// The question that a leader answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) buffer_id: Uuid,
    pub(crate) shard: u32,
    /// 0: any version.
    pub(crate) newer_than: u64,
}

/// The news in a state that a leader sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing: the known state is as new.
    None,
    /// The next state of the log.
    State(Box<Manifest>),
    /// A later state, in which the newest known segment is in a page. The store's word counts then.
    Hidden,
}

/// Checks the bytes that a leader sent. Returns their version and what is new in them.
pub(crate) fn judge(asked: Asked, known: &Manifest, bytes: &[u8]) -> Result<(u64, News), (Fallback, String)> {
    let invalid = |reason: String| Err((Fallback::invalid, reason));
    if bytes.len() as u64 > Manifest::BYTES_MAX {
        return invalid(format!("its manifest has {} bytes", bytes.len()));
    }
    let sent = match Manifest::decode(bytes) {
        Ok(sent) => sent,
        Err(wrong) => return invalid(format!("its manifest cannot be read: {wrong}")),
    };
    if (sent.buffer_id, sent.shard) != (asked.buffer_id, asked.shard) {
        return invalid(format!(
            "it sent the manifest of shard {:04} of buffer {}",
            sent.shard, sent.buffer_id
        ));
    }
    let version = sent.stamp.version;
    if asked.newer_than > 0 && version <= asked.newer_than {
        return invalid(format!(
            "it sent version {version} instead of one after {}",
            asked.newer_than
        ));
    }
    // A poll may have been faster.
    if version < known.stamp.version {
        return Ok((version, News::None));
    }
    if version == known.stamp.version {
        return match sent.stamp.nonce == known.stamp.nonce {
            true => Ok((version, News::None)),
            false => Err((
                Fallback::contradicted,
                format!("its version {version} is not the known one"),
            )),
        };
    }
    match continuation(known, &sent) {
        Continuation::Shown => Ok((version, News::State(Box::new(sent)))),
        Continuation::Hidden => Ok((version, News::Hidden)),
        Continuation::Contradicted => Err((
            Fallback::contradicted,
            format!("the log of its version {version} does not continue the known one"),
        )),
    }
}

/// Whether a state continues the log of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// It does.
    Shown,
    /// The newest segment of the earlier one is in a page or trimmed, so the states alone do not tell.
    Hidden,
    /// They are of different logs.
    Contradicted,
}

/// Compares two states by the newest segment of the earlier one.
pub(crate) fn continuation(known: &Manifest, news: &Manifest) -> Continuation {
    if news.next_sequence < known.next_sequence || news.first_sequence < known.first_sequence {
        return Continuation::Contradicted;
    }
    let segment = |manifest: &Manifest, sequence: u64| {
        let place = usize::try_from(sequence.checked_sub(manifest.tail_start())?).ok()?;
        manifest.tail.get(place).map(|entry| entry.segment)
    };
    let Some(last) = known.next_sequence.checked_sub(1) else {
        return Continuation::Shown;
    };
    match (segment(known, last), segment(news, last)) {
        (Some(known), Some(news)) if known == news => Continuation::Shown,
        (Some(_), Some(_)) => Continuation::Contradicted,
        _ => Continuation::Hidden,
    }
}

#[cfg(test)]
mod tests;
