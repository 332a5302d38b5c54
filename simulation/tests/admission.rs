//! Exhaustive searches of the guard against a second consumer of the same tables.

mod support;

use millpond_simulation::admission::{Admissions, Settings};
use support::holds;

fn asks(consumer: usize, tables: &[&'static str]) -> Settings {
    Settings {
        consumer,
        tables: tables.to_vec(),
        share: false,
    }
}

#[test]
fn two_consumers_that_start_at_once() {
    holds(Admissions {
        processes: vec![vec![asks(0, &["t"])], vec![asks(1, &["t"])]],
        ends: 0,
        faults: 0,
        skew: false,
        claims: 2,
        removals: 0,
    });
}

#[test]
fn two_consumers_whose_clocks_differ_and_that_crash() {
    holds(Admissions {
        processes: vec![vec![asks(0, &["t"])], vec![asks(1, &["t"])]],
        ends: 1,
        faults: 1,
        skew: true,
        claims: 3,
        removals: 0,
    });
}

#[test]
fn three_consumers_whose_clocks_differ() {
    holds(Admissions {
        processes: vec![
            vec![asks(0, &["t"])],
            vec![asks(1, &["t"])],
            vec![asks(2, &["t"])],
        ],
        ends: 0,
        faults: 0,
        skew: true,
        claims: 3,
        removals: 0,
    });
}

#[test]
fn two_processes_of_one_consumer_and_another_consumer() {
    holds(Admissions {
        processes: vec![
            vec![asks(0, &["t"])],
            vec![asks(0, &["t"])],
            vec![asks(1, &["t"])],
        ],
        ends: 1,
        faults: 0,
        skew: false,
        claims: 4,
        removals: 0,
    });
}

/// The first one has data in one table and asks for the other one's.
#[test]
fn a_consumer_that_adds_a_table() {
    holds(Admissions {
        processes: vec![
            vec![asks(0, &["t"]), asks(0, &["t", "u"])],
            vec![asks(1, &["u"]), asks(1, &["t"])],
        ],
        ends: 1,
        faults: 0,
        skew: true,
        claims: 4,
        removals: 0,
    });
}

#[test]
fn a_consumer_that_is_told_to_share() {
    let shares = Settings {
        share: true,
        ..asks(1, &["t"])
    };
    holds(Admissions {
        processes: vec![vec![asks(0, &["t"])], vec![asks(1, &["t"]), shares]],
        ends: 1,
        faults: 1,
        skew: false,
        claims: 4,
        removals: 0,
    });
}

/// A process of the first one stands by all the while, and its consumer has other settings afterwards.
#[test]
fn a_consumer_that_is_removed_and_starts_again() {
    holds(Admissions {
        processes: vec![
            vec![asks(0, &["t"])],
            vec![asks(0, &["u"])],
            vec![asks(1, &["t"])],
        ],
        ends: 0,
        faults: 0,
        skew: false,
        claims: 4,
        removals: 1,
    });
}
