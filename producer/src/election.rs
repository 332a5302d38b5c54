//! Decides which producer another one asks to commit its records, and when it takes the lead itself. No promise depends on
//! it: two leaders, or none, cost requests and no records. Pure: the caller has the clock, which only goes forward and is
//! compared with itself alone.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Leader, Manifest, ProducerId};

use crate::commit::Office;

/// A leader that serves neither this producer nor anybody else is replaced after this number of the producer's lingers, or
/// of the leader's intervals if those are longer and it shows signs of life.
const PATIENCE_LINGERS: u32 = 2;
/// The shortest and the longest patience by the producer's linger, without takeovers.
const PATIENCE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(5);
/// The patience doubles with each takeover that a producer saw in this time: a lead that moves often is not worth much.
pub const TAKEOVERS_REMEMBERED: Duration = Duration::from_secs(600);
/// The longest patience after takeovers.
const PATIENCE_MAX: Duration = Duration::from_secs(80);
/// The number of takeovers that double the shortest patience to more than the longest.
const DOUBLINGS_MAX: usize = 7;
/// The time for which a producer avoids a leader that failed it once. It doubles with each further failure.
const AVOID: Duration = Duration::from_secs(1);
const AVOID_MAX: Duration = Duration::from_secs(8);

/// Why a leader did not serve a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nobody is there, or the connection broke.
    Unreachable,
    /// It refuses, or it is slow and shows signs of life.
    NotServed,
}

/// What one producer knows about the lead of its shard.
#[derive(Debug, Clone)]
pub struct Election {
    /// Where others reach this producer. `None`: it never leads.
    address: Option<Arc<str>>,
    /// For a leader that does not serve this producer and whose interval is unknown, before takeovers double it.
    patience: Duration,
    seen: Option<Seen>,
    /// When the last takeovers were seen, oldest first.
    takeovers: Vec<Duration>,
    closing: bool,
}

/// The leader that the manifest names.
#[derive(Debug, Clone)]
struct Seen {
    leader: Leader,
    /// The first time that the manifest had this leader with this count of shared commits.
    since: Duration,
    /// Its failures to serve this producer since it last did.
    failures: u32,
    /// When the first of these failures was.
    failed_at: Duration,
    /// The last of these failures was one to reach it.
    is_unreachable: bool,
    /// Nothing is sent to it before.
    avoid_until: Duration,
    /// It said that it stops leading.
    is_leaving: bool,
    /// It does not know numbered requests, and this producer has some.
    is_unnumbered: bool,
    /// The time between two of its segments, as its last answer had it.
    interval: Duration,
}

impl Election {
    /// Knows nothing yet. The linger is this producer's.
    pub fn new(address: Option<Arc<str>>, linger: Duration) -> Election {
        let patience = linger.saturating_mul(PATIENCE_LINGERS);
        Election {
            address,
            patience: patience.clamp(*PATIENCE.start(), *PATIENCE.end()),
            seen: None,
            takeovers: Vec::new(),
            closing: false,
        }
    }

    /// Takes note of a manifest that is in force, or was when it was read.
    pub fn see(&mut self, manifest: &Manifest, now: Duration) {
        let same_term = |seen: &Seen, leader: &Leader| {
            (seen.leader.producer, seen.leader.term) == (leader.producer, leader.term)
        };
        let Some(leader) = manifest.reachable_leader() else {
            self.seen = None;
            return;
        };
        match &mut self.seen {
            Some(seen) if same_term(seen, leader) => {
                if seen.leader.shared != leader.shared {
                    seen.since = now;
                    seen.leader = leader.clone();
                }
            }
            before => {
                let is_takeover = before.is_some();
                *before = Some(Seen {
                    leader: leader.clone(),
                    since: now,
                    failures: 0,
                    failed_at: now,
                    is_unreachable: false,
                    avoid_until: Duration::ZERO,
                    is_leaving: false,
                    is_unnumbered: false,
                    interval: Duration::ZERO,
                });
                if is_takeover {
                    self.takeovers.push(now);
                    let surplus = self.takeovers.len().saturating_sub(DOUBLINGS_MAX);
                    self.takeovers.drain(..surplus);
                }
            }
        }
    }

    /// The leader that the manifest names, whoever it is.
    pub fn leader(&self) -> Option<&Leader> {
        self.seen.as_ref().map(|seen| &seen.leader)
    }

    /// Returns true if this producer leads, as far as it knows.
    pub fn leads(&self, own: ProducerId) -> bool {
        self.leader().is_some_and(|leader| leader.producer == own)
    }

    /// The leader to ask for the next commit. `None`: this producer commits for itself.
    pub fn follows(&self, own: ProducerId, now: Duration) -> Option<&Leader> {
        let seen = self.seen.as_ref()?;
        let may = seen.leader.producer != own && now >= seen.avoid_until && !seen.is_leaving;
        may.then_some(&seen.leader)
    }

    /// The time for which this producer still avoids the leader. `None`: it asks that leader never, or at once.
    pub fn avoided_for(&self, own: ProducerId, now: Duration) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        let may = seen.leader.producer != own && !seen.is_leaving;
        seen.avoid_until.checked_sub(now).filter(|_| may)
    }

    /// Records that the leader of this term served this producer, and closes a segment in each interval.
    pub fn served(&mut self, term: u64, interval: Duration) {
        if let Some(seen) = self.of(term) {
            seen.interval = interval;
            seen.failures = 0;
            seen.avoid_until = Duration::ZERO;
        }
    }

    /// Records that the leader of this term refused a request because of what is in it. It lives, and may serve others or not.
    pub fn lives(&mut self, term: u64) {
        if let Some(seen) = self.of(term) {
            seen.is_unreachable = false;
        }
    }

    /// Records that the leader of this term did not serve this producer.
    pub fn failed(&mut self, term: u64, failure: Failure, now: Duration) {
        if let Some(seen) = self.of(term) {
            if seen.failures == 0 {
                seen.failed_at = now;
            }
            seen.is_unreachable = failure == Failure::Unreachable;
            let avoid = AVOID.saturating_mul(1 << seen.failures.min(16)).min(AVOID_MAX);
            seen.avoid_until = now.saturating_add(avoid);
            seen.failures = seen.failures.saturating_add(1);
        }
    }

    /// Records that the leader of this term stops leading.
    pub fn is_leaving(&mut self, term: u64) {
        if let Some(seen) = self.of(term) {
            seen.is_leaving = true;
        }
    }

    /// Records that the leader of this term does not know numbered requests, which this producer has. A leader that knows them
    /// replaces it: producers that commit such requests for themselves would race with it.
    pub fn knows_no_numbers(&mut self, term: u64) {
        if let Some(seen) = self.of(term) {
            seen.is_unnumbered = true;
        }
    }

    /// This producer stops: it leads no more.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// What the next commit of this producer does about the lead. The manifest that it replaces was the last to be seen.
    pub fn office(&self, own: ProducerId, now: Duration) -> Office {
        if self.closing {
            return Office::Leave;
        }
        let Some(address) = &self.address else {
            return Office::Keep;
        };
        let takes = match &self.seen {
            None => true,
            Some(seen) if seen.leader.producer == own => false,
            Some(seen) => {
                let still_since = seen.since.max(seen.failed_at);
                let is_still = now.saturating_sub(still_since) >= self.patience(seen, now);
                seen.is_leaving || seen.is_unnumbered || (seen.failures > 0 && is_still)
            }
        };
        if takes {
            Office::Take(Arc::clone(address))
        } else {
            Office::Keep
        }
    }

    /// A living leader may be busy with one segment for its whole interval, however short this producer's linger is.
    fn patience(&self, leader: &Seen, now: Duration) -> Duration {
        let recent = |at: &&Duration| now.saturating_sub(**at) < TAKEOVERS_REMEMBERED;
        let doublings = self.takeovers.iter().filter(recent).count().min(DOUBLINGS_MAX);
        let is_alive = !leader.is_unreachable;
        let interval = if is_alive { leader.interval } else { Duration::ZERO };
        let patience = self.patience.max(interval.saturating_mul(PATIENCE_LINGERS));
        patience.saturating_mul(1 << doublings).min(PATIENCE_MAX)
    }

    fn of(&mut self, term: u64) -> Option<&mut Seen> {
        self.seen.as_mut().filter(|seen| seen.leader.term == term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_manifest::Fingerprint;
    use uuid::Uuid;

    const OWN: ProducerId = ProducerId([1; 16]);
    const OTHER: ProducerId = ProducerId([2; 16]);
    const SECOND: Duration = Duration::from_secs(1);

    fn led(producer: ProducerId, term: u64, shared: u64) -> Manifest {
        let mut manifest = Manifest::new(Uuid::nil(), 0).register(producer, 0);
        manifest.certify(producer, Some(Fingerprint([7; 32])));
        manifest.leader = Some(Leader {
            producer,
            term,
            shared,
            address: "10.0.0.2:4319".into(),
        });
        manifest
    }

    fn take() -> Office {
        Office::Take("10.0.0.1:4319".into())
    }

    fn election() -> Election {
        Election::new(Some("10.0.0.1:4319".into()), 3 * SECOND)
    }

    #[test]
    fn the_first_producer_with_an_address_leads() {
        let mut first = election();
        first.see(&Manifest::new(Uuid::nil(), 0), SECOND);
        assert_eq!(first.office(OWN, SECOND), take());
        first.see(&led(OWN, 1, 0), SECOND);
        assert_eq!(first.office(OWN, 99 * SECOND), Office::Keep);
        assert!(first.leads(OWN));
        assert_eq!(first.follows(OWN, SECOND), None);
        let without = Election::new(None, SECOND);
        assert_eq!(without.office(OWN, SECOND), Office::Keep);
    }

    #[test]
    fn a_leader_that_nobody_can_ask_does_not_count() {
        let mut election = election();
        let mut manifest = led(OTHER, 1, 0);
        election.see(&manifest, SECOND);
        assert_eq!(election.office(OWN, SECOND), Office::Keep);
        manifest.certify(OTHER, None);
        election.see(&manifest, SECOND);
        assert_eq!(election.follows(OWN, SECOND), None);
        assert_eq!(election.office(OWN, SECOND), take());
    }

    #[test]
    fn a_leader_that_serves_nobody_is_replaced() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), SECOND);
        assert!(election.follows(OWN, SECOND).is_some());
        assert_eq!(
            election.office(OWN, 99 * SECOND),
            Office::Keep,
            "it has not failed"
        );
        election.failed(1, Failure::NotServed, 10 * SECOND);
        election.see(&led(OTHER, 1, 0), 14 * SECOND);
        assert_eq!(election.office(OWN, 14 * SECOND), Office::Keep);
        assert_eq!(election.office(OWN, 15 * SECOND), take());
    }

    #[test]
    fn a_leader_that_serves_others_keeps_the_lead() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), SECOND);
        election.failed(1, Failure::NotServed, SECOND);
        for at in 2..100 {
            election.see(&led(OTHER, 1, u64::from(at)), at * SECOND);
            election.failed(1, Failure::NotServed, at * SECOND);
            assert_eq!(election.office(OWN, at * SECOND), Office::Keep);
        }
        election.see(&led(OTHER, 1, 99), 104 * SECOND);
        assert_eq!(election.office(OWN, 104 * SECOND), take());
    }

    #[test]
    fn a_refused_client_is_no_failure_and_no_service() {
        let mut election = Election::new(Some("10.0.0.1:4319".into()), SECOND);
        election.see(&led(OTHER, 1, 0), SECOND);
        election.lives(1);
        assert!(election.follows(OWN, SECOND).is_some());
        assert_eq!(election.office(OWN, 99 * SECOND), Office::Keep);
        election.failed(1, Failure::NotServed, 100 * SECOND);
        election.lives(1);
        assert_eq!(election.office(OWN, 105 * SECOND), take());
    }

    #[test]
    fn a_leader_that_served_again_gets_the_whole_patience() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), SECOND);
        election.failed(1, Failure::NotServed, SECOND);
        election.served(1, Duration::ZERO);
        assert_eq!(election.office(OWN, 99 * SECOND), Office::Keep);
        election.failed(1, Failure::NotServed, 99 * SECOND);
        assert_eq!(election.office(OWN, 100 * SECOND), Office::Keep);
    }

    #[test]
    fn a_leader_with_a_longer_linger_has_the_time_for_two_of_its_segments() {
        let mut election = Election::new(Some("10.0.0.1:4319".into()), SECOND / 4);
        election.see(&led(OTHER, 1, 0), Duration::ZERO);
        election.served(1, 10 * SECOND);
        election.failed(1, Failure::NotServed, Duration::ZERO);
        assert_eq!(election.office(OWN, 19 * SECOND), Office::Keep);
        assert_eq!(election.office(OWN, 20 * SECOND), take());
        // Another leader may have another linger.
        election.see(&led(OTHER, 9, 0), 700 * SECOND);
        election.failed(9, Failure::NotServed, 700 * SECOND);
        assert_eq!(election.office(OWN, 702 * SECOND), take());
    }

    #[test]
    fn a_dead_leader_is_replaced_however_long_its_linger_was() {
        let mut election = Election::new(Some("10.0.0.1:4319".into()), SECOND / 4);
        election.see(&led(OTHER, 1, 0), Duration::ZERO);
        election.served(1, 10 * SECOND);
        election.failed(1, Failure::Unreachable, Duration::ZERO);
        assert_eq!(election.office(OWN, SECOND / 2), Office::Keep);
        assert_eq!(election.office(OWN, SECOND), take());
        // It lives: it was only out of reach.
        election.failed(1, Failure::NotServed, SECOND);
        assert_eq!(election.office(OWN, 2 * SECOND), Office::Keep);
    }

    #[test]
    fn an_interval_of_a_leader_keeps_it_in_office_for_a_limited_time() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), Duration::ZERO);
        election.served(1, Duration::MAX);
        election.failed(1, Failure::NotServed, Duration::ZERO);
        assert_eq!(election.office(OWN, 79 * SECOND), Office::Keep);
        assert_eq!(election.office(OWN, 80 * SECOND), take());
    }

    #[test]
    fn a_leader_that_failed_is_avoided_for_longer_each_time() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), Duration::ZERO);
        let mut now = Duration::ZERO;
        for avoided in [1, 2, 4, 8, 8] {
            election.failed(1, Failure::NotServed, now);
            now += SECOND * avoided;
            assert_eq!(election.follows(OWN, now - SECOND / 2), None);
            assert!(election.follows(OWN, now).is_some(), "after {avoided} s");
        }
    }

    #[test]
    fn an_answer_from_an_earlier_term_says_nothing_about_this_one() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), Duration::ZERO);
        election.see(&led(OTHER, 9, 0), SECOND);
        election.failed(1, Failure::NotServed, SECOND);
        election.is_leaving(1);
        assert!(election.follows(OWN, SECOND).is_some());
        assert_eq!(election.office(OWN, 99 * SECOND), Office::Keep);
    }

    #[test]
    fn a_leader_that_stops_is_replaced_at_once() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), SECOND);
        election.is_leaving(1);
        assert_eq!(election.follows(OWN, SECOND), None);
        assert_eq!(election.office(OWN, SECOND), take());
        election.close();
        assert_eq!(election.office(OWN, SECOND), Office::Leave);
    }

    #[test]
    fn a_leader_that_knows_no_numbered_requests_is_replaced_by_who_has_some() {
        let mut election = election();
        election.see(&led(OTHER, 1, 0), SECOND);
        election.knows_no_numbers(1);
        assert_eq!(election.office(OWN, SECOND), take());
        assert!(election.follows(OWN, SECOND).is_some(), "it takes other records");
        election.see(&led(OTHER, 9, 0), SECOND);
        election.knows_no_numbers(1);
        assert_eq!(election.office(OWN, SECOND), Office::Keep);
    }

    #[test]
    fn each_takeover_doubles_the_patience() {
        let mut election = election();
        for term in 1..=9_u32 {
            election.see(&led(OTHER, u64::from(term), 0), Duration::ZERO);
        }
        election.failed(9, Failure::NotServed, Duration::ZERO);
        assert_eq!(election.office(OWN, 79 * SECOND), Office::Keep);
        assert_eq!(election.office(OWN, 80 * SECOND), take());
        let later = TAKEOVERS_REMEMBERED;
        election.served(9, Duration::ZERO);
        election.failed(9, Failure::NotServed, later);
        assert_eq!(election.office(OWN, later + 5 * SECOND), take());
    }

    #[test]
    fn the_patience_is_two_lingers_of_at_least_one_and_at_most_five_seconds() {
        for (linger, patience) in [
            (SECOND / 5, SECOND),
            (SECOND, 2 * SECOND),
            (15 * SECOND, 5 * SECOND),
        ] {
            let mut election = Election::new(Some("10.0.0.1:4319".into()), linger);
            election.see(&led(OTHER, 1, 0), Duration::ZERO);
            election.failed(1, Failure::NotServed, Duration::ZERO);
            let early = patience - SECOND / 10;
            assert_eq!(election.office(OWN, early), Office::Keep, "{linger:?}");
            assert_eq!(election.office(OWN, patience), take(), "{linger:?}");
        }
    }
}
