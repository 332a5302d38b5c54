//! The log's transitions, as stories and as properties: the effect of a commit, its refusals, and that a state either
//! reads back as written or not at all.

use millpond_manifest::cas::{self, Object};
use millpond_manifest::manifest::{
    ADDRESS_MAX, ENTRIES_MAX, PRODUCER_EXPIRY_MS, PRODUCERS_KEPT, PRODUCERS_MAX, ProducerRow, Unusable,
};
use millpond_manifest::{
    Claim, ClaimRefusal, Commit, CommitRefusal, Entry, Fingerprint, FormatError, Leader, Log, Manifest,
    NewPart, NewSegment, Page, ProducerId, Swap,
};
use millpond_segment::Encoding;
use millpond_storage::{ErrorKind, Store};
use proptest::prelude::*;
use ulid::Ulid;
use uuid::Uuid;

const A: ProducerId = ProducerId([1; 16]);
const B: ProducerId = ProducerId([2; 16]);

fn segment(time_ms: u64, random: u128) -> NewSegment {
    let part = NewPart {
        stream: "otlp.logs".into(),
        encoding: Encoding::Otlp,
        offset: 5,
        length: 90,
        raw_len: 400,
        messages: 2,
        records: 20,
        first_received_at_us: 1_000,
        last_received_at_us: 2_000,
    };
    NewSegment {
        segment: Ulid::from_parts(time_ms, random),
        size: 100,
        parts: vec![part],
    }
}

fn empty() -> Manifest {
    Manifest::new(Uuid::from_u128(9), 0)
}

fn next(outcome: Result<Commit, CommitRefusal>) -> (Manifest, u64) {
    match outcome {
        Ok(Commit {
            state,
            first_sequence,
        }) => (*state, first_sequence),
        other => panic!("not a new state: {other:?}"),
    }
}

/// Commits as a producer that holds nobody else's records.
fn commit(
    log: &Manifest,
    producer: ProducerId,
    number: u64,
    segments: &[NewSegment],
    now_ms: u64,
) -> Result<Commit, CommitRefusal> {
    log.commit(
        &[Claim::one(producer, number, 0..segments.len())],
        segments,
        now_ms,
    )
}

/// The refusal of a commit with a single claim.
fn unusable(reason: ClaimRefusal) -> Result<Commit, CommitRefusal> {
    Err(CommitRefusal::Claims(vec![Unusable { claim: 0, reason }]))
}

#[test]
fn a_commit_appends_in_order_and_a_repeated_one_is_recognised() {
    let log = empty().register(A, 10).register(B, 10);
    let (log, first) = next(commit(&log, A, 1, &[segment(1, 1), segment(1, 2)], 11));
    assert_eq!((first, log.next_sequence), (0, 2));
    let (log, first) = next(commit(&log, B, 1, &[segment(1, 3)], 12));
    assert_eq!((first, log.next_sequence), (2, 3));

    // The case of the lost answer: A never heard of its commit 1 and asks again.
    let again = commit(&log, A, 1, &[segment(1, 1), segment(1, 2)], 13);
    let row = log.producer(A).unwrap().clone();
    assert_eq!((row.commit, row.first_sequence, row.count), (1, 0, 2));
    assert_eq!(again, unusable(ClaimRefusal::Taken { first: 1, row }));

    let log = Log::new(log);
    let sequences: Vec<_> = log.parts(0, 0).map(|(s, e, _)| (s, e.segment.random())).collect();
    assert_eq!(sequences, [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(log.parts(0, 2).count(), 1);
    assert_eq!(log.parts(1, 0).count(), 0);
}

#[test]
fn a_spent_number_has_no_records_and_cannot_be_committed() {
    let (log, _) = next(commit(&empty().register(A, 10), A, 1, &[segment(1, 1)], 11));
    let wrong = [(A, 1), (A, 3), (B, 1)].map(|(producer, number)| log.spend(producer, number, 12));
    assert_eq!(wrong, [None, None, None]);
    let spent = log.spend(A, 2, 12).unwrap();
    let row = spent.producer(A).unwrap().clone();
    assert!(row.is_spent() && !log.producer(A).unwrap().is_spent());
    assert_eq!((&spent.tail, spent.next_sequence), (&log.tail, log.next_sequence));
    let late = commit(&spent, A, 2, &[segment(1, 2)], 13);
    assert_eq!(late, unusable(ClaimRefusal::Taken { first: 2, row }));
    let stored = spent.clone().stamped(1);
    assert_eq!(Manifest::decode(&stored.encode()).unwrap(), stored);
    let (log, first) = next(commit(&spent, A, 3, &[segment(1, 2)], 13));
    assert_eq!((first, log.producer(A).unwrap().is_spent()), (1, false));
}

#[test]
fn commits_that_would_break_the_log_are_refused() {
    let log = empty().register(A, 10);
    assert_eq!(
        commit(&log, B, 1, &[segment(1, 1)], 11),
        unusable(ClaimRefusal::NotRegistered(B))
    );
    let gap = ClaimRefusal::Gap {
        producer: A,
        first: 2,
        last: 0,
    };
    assert_eq!(commit(&log, A, 2, &[segment(1, 1)], 11), unusable(gap));
    let empty = ClaimRefusal::Invalid {
        producer: A,
        reason: "its segments are not in the commit",
    };
    assert_eq!(commit(&log, A, 1, &[], 11), unusable(empty));

    let (log, _) = next(commit(&log, A, 1, &[segment(1, 1)], 11));
    let (log, _) = next(commit(&log, A, 2, &[segment(1, 2)], 11));
    let row = log.producer(A).unwrap().clone();
    assert_eq!(
        commit(&log, A, 1, &[segment(1, 1)], 12),
        unusable(ClaimRefusal::Taken { first: 1, row })
    );
    assert!(matches!(
        commit(&log, A, 3, &[segment(1, 2)], 12),
        Err(CommitRefusal::Invalid(_))
    ));

    // Once in the log, and once in the same commit.
    assert!(matches!(
        commit(&log, A, 3, &[segment(1, 3), segment(1, 4), segment(1, 3)], 12),
        Err(CommitRefusal::Invalid(_))
    ));

    let mut outside = segment(1, 3);
    outside.parts[0].length = 96;
    assert!(matches!(
        commit(&log, A, 3, &[outside], 12),
        Err(CommitRefusal::Invalid(_))
    ));
    let mut other_encoding = segment(1, 3);
    other_encoding.parts[0].encoding = Encoding::Ndjson;
    assert!(matches!(
        commit(&log, A, 3, &[other_encoding], 12),
        Err(CommitRefusal::Invalid(_))
    ));
    let mut bad_name = segment(1, 3);
    bad_name.parts[0].stream = "a/b".into();
    assert!(matches!(
        commit(&log, A, 3, &[bad_name], 12),
        Err(CommitRefusal::Invalid(_))
    ));
}

#[test]
fn a_segment_below_the_orphan_floor_must_be_uploaded_anew() {
    let mut log = empty().register(A, 10);
    log.orphan_floor_ms = 100;
    let refused = commit(&log, A, 1, &[segment(100, 1), segment(99, 2)], 200);
    assert_eq!(
        refused,
        Err(CommitRefusal::BelowFloor {
            segments: vec![1],
            floor_ms: 100
        })
    );
}

/// A table of producers with one commit each, in the order of their ids and with these times.
fn committed(seen_ms: impl IntoIterator<Item = u64>) -> Manifest {
    let mut log = empty();
    for (i, seen_at_ms) in (0_u64..).zip(seen_ms) {
        log.producers.push(ProducerRow {
            id: id(i),
            commit: 1,
            first_sequence: i,
            count: 1,
            seen_at_ms,
            certificate: None,
        });
        log.next_sequence = i + 1;
        log.first_sequence = log.next_sequence;
    }
    log
}

fn id(i: u64) -> ProducerId {
    ProducerId(u128::from(i).to_be_bytes())
}

const NEW: ProducerId = ProducerId([255; 16]);
const KEPT: u64 = PRODUCERS_KEPT as u64;

#[test]
fn the_clock_of_a_producer_that_registers_forgets_nobody() {
    for others in [1, KEPT, KEPT + 100] {
        let log = committed((0..others).map(|_| 0));
        for now_ms in [0, PRODUCER_EXPIRY_MS, 10 * PRODUCER_EXPIRY_MS, u64::MAX] {
            let registered = log.register(NEW, now_ms);
            assert_eq!(registered.producers.len() as u64, others + 1, "at {now_ms} ms");
        }
    }
}

#[test]
fn producers_long_gone_are_forgotten_when_others_have_taken_their_place() {
    let later = |after_ms| {
        let seen_ms = (0..KEPT).map(|_| 0).chain((0..=KEPT).map(|_| after_ms));
        committed(seen_ms).register(NEW, 0)
    };
    let kept = later(PRODUCER_EXPIRY_MS - 1);
    assert_eq!(kept.producers.len() as u64, 2 * KEPT + 2);
    let forgotten = later(PRODUCER_EXPIRY_MS);
    assert_eq!(forgotten.producers.len() as u64, KEPT + 2);
    assert!(forgotten.producer(id(KEPT - 1)).is_none() && forgotten.producer(id(KEPT)).is_some());
}

#[test]
fn a_producer_seen_in_the_future_is_forgotten_once_others_have_taken_its_place() {
    let row = std::iter::once(u64::MAX);
    let log = committed(row.clone().chain((1..KEPT).map(|_| 5)));
    assert!(log.register(NEW, 5).producer(id(0)).is_some());
    let log = committed(row.chain((0..KEPT).map(|_| 5)));
    assert!(log.register(NEW, 5).producer(id(0)).is_none());
    assert_eq!(
        log.register(NEW, 5).producers.len() as u64,
        KEPT + 1,
        "another producer is forgotten"
    );
}

#[test]
fn a_full_table_forgets_the_producer_whose_commit_is_furthest_back_in_the_log() {
    let full = committed((0..PRODUCERS_MAX as u64).map(|i| PRODUCERS_MAX as u64 - i));
    let registered = full.register(NEW, 0);
    assert_eq!(registered.producers.len(), PRODUCERS_MAX);
    assert!(registered.producer(id(0)).is_none());
    assert!(registered.producer(NEW).is_some());
    // The next producer takes the place of one that has committed nothing.
    let again = registered.register(ProducerId([254; 16]), 0);
    assert_eq!(again.producers.len(), PRODUCERS_MAX);
    assert!(again.producer(NEW).is_none() && again.producer(id(1)).is_some());
    assert_eq!(again.check(), Ok(()));
}

#[test]
fn a_registration_that_is_repeated_changes_nothing() {
    let (log, _) = next(commit(&empty().register(A, 0), A, 1, &[segment(1, 1)], 5));
    assert_eq!(log.register(A, 99), log);
}

fn some_log() -> impl Strategy<Value = Manifest> {
    let commits = prop::collection::vec((0_u8..4, 1_usize..4, any::<u64>(), 0_u8..3), 0..30);
    commits.prop_map(|commits| {
        let mut log = empty();
        for id in 0..4 {
            log = log.register(ProducerId([id; 16]), u64::from(id));
        }
        let mut random = 0;
        for (id, count, now, stream) in commits {
            let producer = ProducerId([id; 16]);
            let number = log.producer(producer).unwrap().commit + 1;
            let segments: Vec<_> = (0..count)
                .map(|_| {
                    random += 1;
                    let mut segment = segment(now >> 20, random);
                    segment.parts[0].stream = format!("events.{stream}");
                    segment
                })
                .collect();
            log = next(commit(&log, producer, number, &segments, now))
                .0
                .stamped(now);
        }
        log
    })
}

proptest! {
    #[test]
    fn a_single_clock_forgets_nobody_else(
        seen_ms in prop::collection::vec(10 * PRODUCER_EXPIRY_MS..11 * PRODUCER_EXPIRY_MS, 300..400),
        whose in any::<prop::sample::Index>(),
        wrong_ms in any::<u64>(),
        now_ms in any::<u64>(),
    ) {
        let mut log = committed(seen_ms);
        let whose = whose.index(log.producers.len());
        log.producers[whose].seen_at_ms = wrong_ms;
        let registered = log.register(NEW, now_ms);
        prop_assert_eq!(registered.check(), Ok(()));
        for (place, row) in log.producers.iter().enumerate() {
            prop_assert!(place == whose || registered.producer(row.id) == Some(row));
        }
        // Whatever the clock of the registering producer shows, the manifest forgets the same producers.
        let others = |log: &Manifest| log.producers.iter().filter(|row| row.id != NEW).cloned().collect::<Vec<_>>();
        prop_assert_eq!(others(&registered), others(&log.register(NEW, 0)));
    }

    #[test]
    fn a_log_reads_back_as_it_was_written(log in some_log()) {
        prop_assert_eq!(log.check(), Ok(()));
        prop_assert_eq!(Manifest::decode(&log.encode()).unwrap(), log);
    }

    #[test]
    fn a_flipped_bit_or_a_cut_is_found(log in some_log(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let good = log.encode();
        let at = at.index(good.len());
        let mut bad = good.to_vec();
        bad[at] ^= 1_u8 << bit;
        prop_assert!(Manifest::decode(&bad).is_err());
        prop_assert!(Manifest::decode(&good[..at]).is_err());
    }

    #[test]
    fn random_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::decode(&bytes).is_err());
    }
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let good = empty().encode();
    assert!(matches!(Manifest::decode(b""), Err(FormatError::Short { .. })));
    assert!(matches!(
        Manifest::decode(b"MPCR......"),
        Err(FormatError::Magic { .. })
    ));
    let mut newer = good.to_vec();
    newer[4] = 4;
    assert!(matches!(
        Manifest::decode(&newer),
        Err(FormatError::Version {
            found: 4,
            newest: 3,
            ..
        })
    ));
    let mut damaged = good.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(
        Manifest::decode(&damaged),
        Err(FormatError::Checksum { .. })
    ));
}

/// A state that a second implementation must read. Written by `cargo test -p millpond-manifest -- --ignored
/// write_golden`; a change of these bytes is a change of the format.
fn golden() -> Manifest {
    let log = empty().register(A, 10).register(B, 20);
    let mut two_streams = segment(1_700_000_000_000, 0xfeed);
    let mut traces = two_streams.parts[0].clone();
    traces.stream = "otlp.traces".into();
    traces.offset = 95;
    traces.length = 5;
    two_streams.parts.push(traces);
    let (log, _) = next(commit(
        &log,
        A,
        1,
        &[two_streams, segment(1_700_000_000_001, 2)],
        1_700_000_000_002,
    ));
    log.stamped(0x0123_4567_89ab_cdef)
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/manifest-v1");

#[test]
fn the_golden_manifest_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(Manifest::decode(&bytes).unwrap(), golden());
    assert_eq!(golden().encode(), bytes);
}

const GOLDEN_LED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/manifest-with-leader-v1");

fn golden_led() -> Manifest {
    let mut led = empty().register(A, 10).register(B, 20);
    led.certify(A, Some(Fingerprint([0xab; 32])));
    led.leader = Some(Leader {
        producer: A,
        term: 7,
        shared: 3,
        address: "10.0.0.7:4319".into(),
    });
    led.stamped(0x0123_4567_89ab_cdef)
}

#[test]
fn the_golden_manifest_with_a_leader_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN_LED).expect("the golden file is in the repository");
    assert_eq!(Manifest::decode(&bytes).unwrap(), golden_led());
    assert_eq!(golden_led().encode(), bytes);
}

#[test]
#[ignore = "writes the golden files"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
    std::fs::write(GOLDEN_LED, golden_led().encode()).unwrap();
}

#[test]
fn a_commit_keeps_the_leader_and_the_certificates() {
    let led = golden_led();
    let (after, _) = next(commit(&led, A, 1, &[segment(1_700_000_000_001, 2)], 30));
    assert_eq!(after.leader, led.leader);
    assert_eq!(
        after.producer(A).unwrap().certificate,
        Some(Fingerprint([0xab; 32]))
    );
    assert_eq!(after.producer(B).unwrap().certificate, None);
}

#[test]
fn only_the_leader_counts_shared_commits_and_leaves() {
    let mut led = golden_led();
    led.count_shared(B);
    led.leave_lead(B);
    assert_eq!(led.leader, golden_led().leader);
    led.count_shared(A);
    assert_eq!(led.leader.as_ref().unwrap().shared, 4);
    led.take_lead(B, "10.0.0.8:4319");
    let expected = Leader {
        producer: B,
        term: led.stamp.version + 1,
        shared: 0,
        address: "10.0.0.8:4319".into(),
    };
    assert_eq!(led.leader, Some(expected));
    led.leave_lead(B);
    assert_eq!(led.leader, None);
}

#[test]
fn an_address_that_no_name_can_have_is_refused() {
    let mut led = golden_led();
    led.take_lead(A, &"x".repeat(ADDRESS_MAX + 1));
    let error = Manifest::decode(&led.encode()).unwrap_err().to_string();
    assert!(error.contains("the leader's address has 260 bytes"), "{error}");
}

#[test]
fn numbers_that_no_producer_would_write_do_not_overflow() {
    let mut enormous = segment(1, 1);
    enormous.parts[0].records = u64::MAX;
    let (log, _) = next(commit(
        &empty().register(A, 10),
        A,
        1,
        &[enormous, segment(1, 2)],
        11,
    ));
    assert_eq!(Log::new(log.clone()).records(0, 0), u64::MAX);
    let (page, sealed) = log.seal(Ulid::from_parts(1, 3), 1).unwrap();
    assert_eq!(sealed.pages[0].records, u64::MAX);
    assert_eq!(sealed.check_page(&sealed.pages[0], &page), Ok(()));

    let mut last = empty().register(A, 10);
    (last.first_sequence, last.next_sequence) = (u64::MAX, u64::MAX);
    last.stamp.version = u64::MAX;
    last = Manifest::decode(&last.stamped(7).encode()).unwrap();
    let refused = commit(&last, A, 1, &[segment(1, 1)], 11);
    assert!(matches!(refused, Err(CommitRefusal::Invalid(_))), "{refused:?}");
    last.producers[0].commit = u64::MAX;
    let row = last.producers[0].clone();
    let taken = ClaimRefusal::Taken { first: u64::MAX, row };
    assert_eq!(commit(&last, A, u64::MAX, &[segment(1, 1)], 11), unusable(taken));
}

/// A log with this many entries in its tail, and A registered.
fn long(entries: usize) -> Manifest {
    let (mut log, _) = next(commit(&empty().register(A, 10), A, 1, &[segment(1, 1)], 11));
    let entry = log.tail[0].clone();
    log.tail = (0..entries as u128)
        .map(|number| Entry {
            segment: Ulid::from_parts(1, number),
            ..entry.clone()
        })
        .collect();
    log.next_sequence = entries as u64;
    log
}

#[test]
fn a_commit_makes_no_tail_that_readers_refuse() {
    let log = long(ENTRIES_MAX - 1);
    let (full, _) = next(commit(&log, A, 2, &[segment(2, 1)], 12));
    assert_eq!(Manifest::decode(&full.encode()).unwrap(), full);
    let refused = commit(&full, A, 3, &[segment(2, 2)], 13);
    let reason = "the log would have 4097 entries in the manifest, and readers accept 4096".to_owned();
    assert_eq!(refused, Err(CommitRefusal::Invalid(reason)));
}

/// Earlier versions could write such a tail and not read it.
#[test]
fn a_tail_that_earlier_versions_could_write_is_read_and_sealed() {
    let log = long(65_535 + 512);
    let read = Manifest::decode(&log.encode()).unwrap();
    let (page, sealed) = read.seal(Ulid::from_parts(2, 1), read.next_sequence - 1).unwrap();
    assert_eq!(Page::decode(&page.encode()).unwrap(), page);
    let (after, first) = next(commit(&sealed, A, 2, &[segment(2, 2)], 12));
    assert_eq!((first, after.tail.len()), (66_047, 1));
    assert!(Manifest::decode(&long(1 << 17).encode()).is_err());
}

#[tokio::test]
async fn a_state_that_readers_refuse_is_not_sent() {
    let store = Store::memory();
    let swap = cas::swap(&store, "manifest", None, long(1 << 17)).await;
    let Swap::Unknown(error) = swap else {
        panic!("{swap:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("not sent"), "{error}");
    assert_eq!(store.requests().put, 0);
    assert!(store.get("manifest").await.unwrap().is_none());
}
