//! Exhaustive searches of producers that commit each other's records.

mod support;

use millpond_simulation::shared_commits::SharedCommits;
use support::holds;

fn two_producers() -> SharedCommits {
    SharedCommits {
        records: vec![1, 2],
        leaders: vec![0],
        forwards: 1,
        arrivals: 2,
        faults: 1,
        crashes: 0,
        expiries: 0,
        drops: 1,
        requests: 0,
        sends: 0,
    }
}

#[test]
fn a_follower_that_also_commits_by_itself() {
    holds(two_producers());
}

/// Requests and answers arrive again after the producers have gone on.
#[test]
fn messages_that_are_repeated() {
    holds(SharedCommits {
        forwards: 2,
        arrivals: 4,
        faults: 0,
        ..two_producers()
    });
}

#[test]
fn two_producers_that_hold_each_others_records() {
    holds(SharedCommits {
        records: vec![1, 1],
        leaders: vec![0, 1],
        forwards: 3,
        arrivals: 4,
        drops: 0,
        ..two_producers()
    });
}

/// A follower asks a second leader while the first one stands still.
#[test]
fn two_leaders_with_the_same_records() {
    holds(SharedCommits {
        records: vec![1, 0, 1],
        leaders: vec![0, 1],
        forwards: 2,
        arrivals: 3,
        drops: 0,
        ..two_producers()
    });
}

#[test]
fn producers_that_crash_and_are_forgotten() {
    holds(SharedCommits {
        records: vec![1, 1],
        crashes: 1,
        expiries: 1,
        forwards: 2,
        arrivals: 3,
        drops: 0,
        ..two_producers()
    });
}

/// A segment has the records of three producers, and any of them may turn out to be in the log already.
#[test]
fn a_leader_with_two_followers() {
    holds(SharedCommits {
        records: vec![1, 1, 1],
        forwards: 2,
        arrivals: 3,
        faults: 0,
        drops: 0,
        ..two_producers()
    });
}

fn numbered_requests() -> SharedCommits {
    SharedCommits {
        records: vec![0, 0],
        requests: 2,
        sends: 3,
        forwards: 2,
        drops: 0,
        ..two_producers()
    }
}

/// A client's requests pass through a leader. The second may reach it before the first is in the log, so that the leader refuses it.
#[test]
fn numbered_requests_through_a_leader() {
    holds(numbered_requests());
}

/// The client repeats its requests to the leader itself.
#[test]
fn numbered_requests_that_are_repeated_to_another_producer() {
    holds(SharedCommits {
        crashes: 1,
        faults: 0,
        ..numbered_requests()
    });
}
