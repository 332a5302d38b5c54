//! Commits that carry the claims of several producers: all of them enter the log, or none does.

use millpond_manifest::manifest::{ClaimRefusal, Unusable};
use millpond_manifest::{Claim, Commit, CommitRefusal, Manifest, NewPart, NewSegment, ProducerId};
use millpond_segment::Encoding;
use proptest::prelude::*;
use std::ops::Range;
use ulid::Ulid;
use uuid::Uuid;

const A: ProducerId = ProducerId([1; 16]);
const B: ProducerId = ProducerId([2; 16]);
const C: ProducerId = ProducerId([3; 16]);
const STRANGER: ProducerId = ProducerId([9; 16]);

fn segment(random: u128) -> NewSegment {
    let part = NewPart {
        stream: "otlp.logs".into(),
        encoding: Encoding::Otlp,
        offset: 0,
        length: 1,
        raw_len: 1,
        messages: 1,
        records: 1,
        first_received_at_us: 0,
        last_received_at_us: 0,
    };
    NewSegment {
        segment: Ulid::from_parts(1, random),
        size: 1,
        parts: vec![part],
    }
}

fn segments(names: Range<u128>) -> Vec<NewSegment> {
    names.map(segment).collect()
}

fn registered() -> Manifest {
    let log = Manifest::new(Uuid::nil(), 0);
    log.register(A, 0).register(B, 0).register(C, 0)
}

fn run(producer: ProducerId, first: u64, last: u64, segments: Range<usize>) -> Claim {
    Claim {
        producer,
        first,
        last,
        segments,
    }
}

/// The last number of a producer and the place of its records.
fn row(log: &Manifest, producer: ProducerId) -> (u64, u64, u64) {
    let row = log.producer(producer).unwrap();
    (row.commit, row.first_sequence, row.count)
}

fn committed(log: &Manifest, claims: &[Claim], segments: &[NewSegment]) -> Manifest {
    *log.commit(claims, segments, 7).unwrap().state
}

fn refused(log: &Manifest, claims: &[Claim], segments: &[NewSegment]) -> CommitRefusal {
    log.commit(claims, segments, 7).unwrap_err()
}

fn unusable(claims: impl IntoIterator<Item = (usize, ClaimRefusal)>) -> CommitRefusal {
    let unusable = claims.into_iter();
    CommitRefusal::Claims(
        unusable
            .map(|(claim, reason)| Unusable { claim, reason })
            .collect(),
    )
}

#[test]
fn every_producer_has_the_place_of_its_own_records() {
    let log = committed(&registered(), &[Claim::one(A, 1, 0..1)], &segments(0..1));
    // B's records are in one of A's segments. C claims three numbers with two segments that it uploaded itself.
    let claims = [Claim::one(A, 2, 0..2), Claim::one(B, 1, 1..2), run(C, 1, 3, 2..4)];
    let log = committed(&log, &claims, &segments(1..5));
    assert_eq!(log.next_sequence, 5);
    assert_eq!(row(&log, A), (2, 1, 2));
    assert_eq!(row(&log, B), (1, 2, 1));
    assert_eq!(row(&log, C), (3, 3, 2));
    assert!(log.producers.iter().all(|row| row.seen_at_ms == 7));
}

#[test]
fn every_unusable_claim_is_named() {
    let log = committed(&registered(), &[run(B, 1, 4, 0..1)], &segments(0..1));
    let claims = [
        Claim::one(A, 1, 0..1),
        run(B, 4, 5, 1..2),
        Claim::one(STRANGER, 1, 2..3),
        Claim::one(C, 3, 3..4),
    ];
    let taken = ClaimRefusal::Taken {
        first: 4,
        row: log.producer(B).unwrap().clone(),
    };
    let gap = ClaimRefusal::Gap {
        producer: C,
        first: 3,
        last: 0,
    };
    assert_eq!(
        refused(&log, &claims, &segments(1..5)),
        unusable([(1, taken), (2, ClaimRefusal::NotRegistered(STRANGER)), (3, gap)])
    );
    // The rest is usable by itself.
    committed(&log, &claims[..1], &segments(1..2));
}

/// If a proxy repeats a request, both copies may otherwise get into one segment.
#[test]
fn a_producer_cannot_occur_twice() {
    for again in [Claim::one(B, 1, 1..2), Claim::one(B, 2, 1..2)] {
        let claims = [Claim::one(B, 1, 0..1), Claim::one(A, 1, 0..2), again];
        assert_eq!(
            refused(&registered(), &claims, &segments(0..2)),
            unusable([(0, ClaimRefusal::Twice(B)), (2, ClaimRefusal::Twice(B))])
        );
    }
}

#[test]
fn a_claim_has_numbers_and_segments_of_its_commit() {
    let no_number = "it has no number";
    let elsewhere = "its segments are not in the commit";
    for (claim, reason) in [
        (run(A, 0, 0, 0..1), no_number),
        (run(A, 2, 1, 0..1), no_number),
        (run(A, 1, 1, 0..0), elsewhere),
        (run(A, 1, 1, 0..2), elsewhere),
        (run(A, 1, 1, 1..2), elsewhere),
    ] {
        let invalid = ClaimRefusal::Invalid { producer: A, reason };
        assert_eq!(
            refused(&registered(), &[claim], &segments(0..1)),
            unusable([(0, invalid)])
        );
    }
}

/// Nothing would prevent a second copy of its records.
#[test]
fn a_segment_without_a_claim_is_refused() {
    for claims in [&[][..], &[Claim::one(A, 1, 0..1)]] {
        let refusal = refused(&registered(), claims, &segments(0..2));
        assert!(
            matches!(&refusal, CommitRefusal::Invalid(reason) if reason.ends_with("belongs to no claim"))
        );
    }
}

/// A commit of claims that may be unusable in any way.
fn attempt() -> impl Strategy<Value = (Vec<Claim>, usize)> {
    let id = prop_oneof![8 => Just(A), 8 => Just(B), 8 => Just(C), 1 => Just(STRANGER)];
    let claim =
        (id, 0_u64..6, 0_u64..3, 0_usize..3, 1_usize..3).prop_map(|(producer, first, more, start, count)| {
            run(producer, first, first + more, start..start + count)
        });
    (prop::collection::vec(claim, 0..4), 0_usize..4)
}

proptest! {
    /// Whoever commits a number, its records are in the log at most once, and never without the rest of their commit.
    #[test]
    fn a_number_enters_the_log_at_most_once(attempts in prop::collection::vec(attempt(), 0..60)) {
        let mut log = registered();
        let mut taken = std::collections::BTreeMap::<ProducerId, u64>::new();
        let mut name = 0_u128;
        for (claims, count) in attempts {
            let new = segments(name..name + count as u128);
            name += count as u128;
            let usable: Vec<bool> = claims.iter().map(|claim| {
                let next = taken.get(&claim.producer).map_or(1, |last| last + 1);
                let others = claims.iter().filter(|other| other.producer == claim.producer).count();
                claim.first == next && claim.segments.end <= count && others == 1 && claim.producer != STRANGER
            }).collect();
            let covered = (0..count).all(|place| claims.iter().any(|claim| claim.segments.contains(&place)));
            match log.commit(&claims, &new, 0) {
                Ok(Commit { state, first_sequence }) => {
                    prop_assert!(usable.iter().all(|usable| *usable) && covered && count > 0);
                    prop_assert_eq!(first_sequence, log.next_sequence);
                    prop_assert_eq!(state.next_sequence, first_sequence + count as u64);
                    for claim in &claims {
                        taken.insert(claim.producer, claim.last);
                        let place = (first_sequence + claim.segments.start as u64, claim.segments.len() as u64);
                        prop_assert_eq!(row(&state, claim.producer), (claim.last, place.0, place.1));
                    }
                    for row in &log.producers {
                        let is_claimed = claims.iter().any(|claim| claim.producer == row.id);
                        prop_assert!(is_claimed || state.producer(row.id) == Some(row));
                    }
                    prop_assert_eq!(state.check(), Ok(()));
                    log = *state;
                }
                Err(CommitRefusal::Claims(unusable)) => {
                    let named: Vec<usize> = unusable.iter().map(|unusable| unusable.claim).collect();
                    let expected: Vec<usize> = (0..claims.len()).filter(|place| !usable[*place]).collect();
                    prop_assert_eq!(named, expected);
                }
                Err(CommitRefusal::Invalid(_)) => prop_assert!(count == 0 || !covered),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
