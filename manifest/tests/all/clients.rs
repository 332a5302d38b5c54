//! Requests of clients that number them: each number enters the log once, and the row of a client tells the outcome.

use millpond_manifest::manifest::{CLIENTS_MAX, ClientRow, KEY_EXPIRY_MS, KEYS_MAX, UnusableClient};
use millpond_manifest::{ClientClaim, ClientId, ClientRefusal, Manifest, Numbers, Object, ProducerId};
use proptest::prelude::*;
use uuid::Uuid;

const GOLDEN: &str = "testdata/manifest-with-clients-v2";
const A: ClientId = ClientId([0xa; 16]);
const B: ClientId = ClientId([0xb; 16]);

fn empty() -> Manifest {
    Manifest::new(Uuid::from_u128(9), 0)
}

fn counted(client: ClientId, number: u64) -> ClientClaim {
    ClientClaim {
        client,
        numbers: Numbers::Counted { number },
        checksum: u32::try_from(number).unwrap(),
        segment: 0,
        source: None,
    }
}

fn sequence(epoch: u16, first: u32, count: u32) -> ClientClaim {
    ClientClaim {
        client: A,
        numbers: Numbers::Sequence { epoch, first, count },
        checksum: 0,
        segment: 0,
        source: None,
    }
}

fn key(id: ClientId) -> ClientClaim {
    ClientClaim {
        client: id,
        numbers: Numbers::Once,
        checksum: 5,
        segment: 0,
        source: None,
    }
}

fn enter(log: &Manifest, claims: &[ClientClaim], now_ms: u64) -> Result<Manifest, Vec<UnusableClient>> {
    let checked = log.check_clients(claims, now_ms)?;
    let mut next = log.clone();
    let first_sequence = next.next_sequence;
    next.enter_clients(checked, first_sequence, now_ms);
    assert_eq!(next.check(), Ok(()));
    Ok(next)
}

fn entered(log: &Manifest, claims: &[ClientClaim]) -> Manifest {
    enter(log, claims, 1).unwrap()
}

fn refused(log: &Manifest, claim: ClientClaim) -> ClientRefusal {
    let mut unusable = enter(log, &[claim], 1).unwrap_err();
    assert_eq!(unusable.len(), 1);
    unusable.remove(0).reason
}

#[test]
fn a_counting_client_begins_with_1_and_leaves_no_number_out() {
    let repeated = ClientRefusal::Repeated { last_sequence: 0 };
    assert_eq!(refused(&empty(), counted(A, 2)), ClientRefusal::Unknown);
    assert!(matches!(
        refused(&empty(), counted(A, 0)),
        ClientRefusal::Invalid(_)
    ));
    let log = entered(&empty(), &[counted(A, 1), counted(A, 2), counted(B, 1)]);
    assert_eq!(refused(&log, counted(A, 2)), repeated);
    assert_eq!(refused(&log, counted(A, 1)), repeated);
    assert_eq!(refused(&log, counted(A, 4)), ClientRefusal::Gap { last: 2 });
    assert_eq!(refused(&log, counted(B, 3)), ClientRefusal::Gap { last: 1 });
    let other = ClientClaim {
        checksum: 99,
        ..counted(A, 2)
    };
    assert_eq!(refused(&log, other), ClientRefusal::Reused);
    assert_eq!(entered(&log, &[counted(A, 3)]).clients[0].last, 3);
}

#[test]
fn a_commit_has_each_number_once_and_names_every_claim_that_it_cannot_have() {
    let log = entered(&empty(), &[counted(A, 1)]);
    let claims = [
        counted(A, 2),
        counted(A, 2),
        counted(B, 1),
        counted(A, 1),
        counted(B, 3),
    ];
    let unusable = enter(&log, &claims, 1).unwrap_err();
    let reasons: Vec<_> = unusable.iter().map(|it| (it.place, it.reason.clone())).collect();
    // The numbers of this commit are not in the log yet, so a copy must not pass for a repetition.
    let expected = [
        (1, ClientRefusal::Overlaps),
        (3, ClientRefusal::Repeated { last_sequence: 0 }),
        // Nor is it the last number in the log: its client would take the request before for stored.
        (4, ClientRefusal::Gap { last: 0 }),
    ];
    assert_eq!(reasons, expected);
    let overtaken = enter(&log, &[counted(A, 2), counted(A, 4)], 1).unwrap_err();
    assert_eq!(overtaken[0].reason, ClientRefusal::Gap { last: 1 });
}

#[test]
fn a_row_has_the_place_of_the_last_request() {
    let mut log = empty();
    log.next_sequence = 40;
    log.first_sequence = 40;
    let later = ClientClaim {
        segment: 3,
        ..counted(A, 2)
    };
    let log = enter(&log, &[counted(A, 1), later], 77).unwrap();
    let row = log.client(A, Numbers::Counted { number: 2 }).unwrap();
    assert_eq!((row.sequence, row.seen_at_ms, row.checksum), (43, 77, 2));
}

#[test]
fn a_kafka_producer_counts_records_under_its_epoch() {
    assert_eq!(refused(&empty(), sequence(0, 3, 1)), ClientRefusal::Unknown);
    let log = entered(&empty(), &[sequence(4, 0, 10), sequence(4, 10, 5)]);
    assert_eq!(log.clients[0].last, 15);
    for (again, expected) in [
        (sequence(4, 10, 5), ClientRefusal::Repeated { last_sequence: 0 }),
        (sequence(4, 0, 10), ClientRefusal::Repeated { last_sequence: 0 }),
        (sequence(4, 12, 5), ClientRefusal::Overlaps),
        (sequence(4, 16, 1), ClientRefusal::Gap { last: 15 }),
        (sequence(3, 15, 1), ClientRefusal::Fenced { epoch: 4 }),
        (sequence(5, 15, 1), ClientRefusal::Gap { last: 0 }),
    ] {
        assert_eq!(refused(&log, again.clone()), expected, "{again:?}");
    }
    let log = entered(&log, &[sequence(5, 0, 2)]);
    assert_eq!((log.clients[0].epoch, log.clients[0].last), (5, 2));
    assert_eq!(
        refused(&log, sequence(4, 15, 1)),
        ClientRefusal::Fenced { epoch: 5 }
    );
}

#[test]
fn the_table_of_clients_forgets_those_furthest_back_in_the_log_and_no_producer() {
    let producer = ProducerId([1; 16]);
    let mut log = empty().register(producer, 1);
    for number in 0..CLIENTS_MAX as u128 + 2 {
        log.next_sequence += 1;
        log.first_sequence = log.next_sequence;
        log = entered(&log, &[counted(ClientId(number.to_be_bytes()), 1)]);
    }
    assert_eq!(log.clients.len(), CLIENTS_MAX);
    assert!(log.producer(producer).is_some());
    for (number, is_known) in [(0, false), (1, false), (2, true), (CLIENTS_MAX as u128 + 1, true)] {
        let id = ClientId(u128::to_be_bytes(number));
        assert_eq!(log.client(id, Numbers::Counted { number: 1 }).is_some(), is_known);
        let again = enter(&log, &[counted(id, 2)], 1);
        let expected = if is_known {
            Ok(())
        } else {
            Err(ClientRefusal::Unknown)
        };
        assert_eq!(again.map(drop).map_err(|it| it[0].reason.clone()), expected);
    }
}

/// A client of a group.
fn of(group: u8, number: usize) -> ClientId {
    let mut client = [0; 32];
    client[..8].copy_from_slice(&(number as u64).to_be_bytes());
    ClientId::new(&[group; 32], &client)
}

#[test]
fn a_group_with_many_clients_makes_the_table_forget_no_client_of_others() {
    let mut log = empty();
    for number in 0..10 {
        log.next_sequence += 1;
        log.first_sequence = log.next_sequence;
        log = entered(&log, &[counted(of(1, number), 1)]);
    }
    for number in 0..2 * CLIENTS_MAX {
        log.next_sequence += 1;
        log.first_sequence = log.next_sequence;
        log = entered(&log, &[counted(of(2, number), 1)]);
    }
    assert_eq!(log.clients.len(), CLIENTS_MAX);
    for number in 0..10 {
        assert!(
            log.client(of(1, number), Numbers::Counted { number: 1 })
                .is_some(),
            "a client of the small group is forgotten"
        );
    }
    let first_kept = 2 * CLIENTS_MAX - (CLIENTS_MAX - 10);
    for (number, is_known) in [(0, false), (first_kept - 1, false), (first_kept, true)] {
        let row = log.client(of(2, number), Numbers::Counted { number: 1 });
        assert_eq!(row.is_some(), is_known, "{number}");
    }
}

#[test]
fn of_groups_with_as_many_clients_the_one_furthest_back_forgets() {
    let mut log = empty();
    let half = CLIENTS_MAX / 2;
    for (group, clients) in [(2, 1..half), (1, 0..half), (2, 0..1), (3, 0..1)] {
        for number in clients {
            log.next_sequence += 1;
            log.first_sequence = log.next_sequence;
            log = entered(&log, &[counted(of(group, number), 1)]);
        }
    }
    let is_known = |group, number| {
        log.client(of(group, number), Numbers::Counted { number: 1 })
            .is_some()
    };
    assert_eq!(
        [is_known(2, 1), is_known(2, 2), is_known(1, 0), is_known(3, 0)],
        [false, true, true, true]
    );
}

#[test]
fn groups_that_want_more_keys_get_equal_shares() {
    let mut log = empty();
    let mut wants = vec![(1, 0), (2, 0)];
    while !wants.is_empty() {
        wants.retain_mut(
            |(group, number)| match enter(&log, &[key(of(*group, *number))], 1_000) {
                Ok(next) => {
                    log = next;
                    *number += 1;
                    true
                }
                Err(_) => false,
            },
        );
    }
    assert_eq!(log.keys.len(), 1_756 + 1_755);
}

/// Enters keys of a group until one is refused, and returns how many the table took.
fn fill(log: &mut Manifest, group: u8, now_ms: u64) -> usize {
    for number in 0.. {
        match enter(log, &[key(of(group, number))], now_ms) {
            Ok(next) => *log = next,
            Err(unusable) => {
                assert_eq!(unusable[0].reason, ClientRefusal::Full);
                return number;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_key_is_remembered_for_a_day_at_least() {
    let mut log = empty();
    let share = fill(&mut log, 1, 1_000);
    let later = 1_000 + KEY_EXPIRY_MS;
    let next = key(of(1, share));
    assert_eq!(
        enter(&log, std::slice::from_ref(&next), later - 1).unwrap_err()[0].reason,
        ClientRefusal::Full
    );
    let repeated = enter(&log, &[key(of(1, 7))], later).unwrap_err();
    assert!(matches!(repeated[0].reason, ClientRefusal::Repeated { .. }));
    // Expired keys take no room: they make it when a key needs it.
    for number in share..KEYS_MAX + 2 {
        log = enter(&log, &[key(of(1, number))], later).unwrap();
    }
    assert_eq!(log.keys.len(), KEYS_MAX + 2 - share);
    let other = ClientClaim { checksum: 6, ..next };
    assert_eq!(
        enter(&log, &[other], later).unwrap_err()[0].reason,
        ClientRefusal::Reused
    );
    // A client and a key do not share a table.
    assert_eq!(entered(&log, &[counted(next.client, 1)]).clients.len(), 1);
}

#[test]
fn a_group_with_many_keys_leaves_room_for_others() {
    let mut log = empty();
    let shares: Vec<_> = (1..=6).map(|group| fill(&mut log, group, 1_000)).collect();
    assert_eq!(
        shares[0],
        KEYS_MAX * 3 / 4,
        "the first group has more than its share"
    );
    assert!(shares.is_sorted_by(|before, after| before > after), "{shares:?}");
    assert!(shares[5] > 0 && log.keys.len() <= KEYS_MAX, "{shares:?}");
    // Within one commit, too.
    let claims: Vec<_> = (0..KEYS_MAX).map(|number| key(of(7, number))).collect();
    let unusable = enter(&empty(), &claims, 1_000).unwrap_err();
    assert_eq!(unusable.len(), KEYS_MAX - shares[0]);
    assert_eq!(unusable[0].place, shares[0]);
}

fn golden() -> Manifest {
    let mut log = empty().register(ProducerId([1; 16]), 10);
    log.next_sequence = 9;
    log.first_sequence = 9;
    let claims = [counted(A, 1), sequence_of_b(), key(A)];
    let mut log = enter(&log, &claims, 1_700_000_000_000).unwrap();
    log = log.stamped(0x0123_4567_89ab_cdef);
    log
}

fn sequence_of_b() -> ClientClaim {
    ClientClaim {
        client: B,
        segment: 1,
        ..sequence(3, 0, 500)
    }
}

#[test]
fn the_golden_manifest_with_clients_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(
        bytes[4..6],
        [2, 0],
        "older programs would erase the clients, so they must refuse it"
    );
    assert_eq!(Manifest::decode(&bytes).unwrap(), golden());
    assert_eq!(golden().encode(), bytes);
    assert_eq!(empty().encode()[4..6], [1, 0]);
}

#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Enters clients of several groups in any order, many at a time.
    #[test]
    fn no_group_within_an_equal_share_loses_a_client(
        turns in prop::collection::vec((1_u8..6, 1_usize..1_500), 1..16),
    ) {
        let mut log = empty();
        let mut entered_of = [0_usize; 6];
        for (group, count) in turns {
            let of_group = &mut entered_of[usize::from(group)];
            let claims: Vec<_> = (*of_group..*of_group + count)
                .map(|number| counted(of(group, number), 1))
                .collect();
            *of_group += count;
            log.next_sequence += 1;
            log.first_sequence = log.next_sequence;
            log = entered(&log, &claims);
        }
        let all: usize = entered_of.iter().sum();
        prop_assert_eq!(log.clients.len(), all.min(CLIENTS_MAX));
        let groups = entered_of.iter().filter(|count| **count > 0).count();
        for (group, count) in (0_u8..).zip(entered_of) {
            let known = (0..count)
                .filter(|number| log.client(of(group, *number), Numbers::Counted { number: 1 }).is_some())
                .count();
            prop_assert!(known >= count.min(CLIENTS_MAX / groups), "group {group}: {known} of {count}");
        }
    }
}

proptest! {
    /// Repeats batches of a Kafka producer at will, around the end of the sequence numbers.
    #[test]
    fn each_record_of_a_kafka_producer_enters_once(
        start in prop_oneof![Just(0_u64), Just((1 << 31) - 40), Just((1 << 32) - 3)],
        counts in prop::collection::vec(1_u32..30, 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut log = empty();
        let row = ClientRow { id: A, epoch: 0, last: start, sequence: 0, seen_at_ms: 0, checksum: 0 };
        log.clients.push(row);
        let mut firsts = vec![start];
        for count in &counts {
            firsts.push(firsts.last().unwrap() + u64::from(*count));
        }
        let claim = |place: usize| {
            let first = u32::try_from(firsts[place] % (1 << 31)).unwrap();
            sequence(0, first, counts[place])
        };
        let mut done = 0;
        for at in order {
            let place = at.index(counts.len());
            match enter(&log, &[claim(place)], 1) {
                Ok(next) => {
                    prop_assert_eq!(place, done);
                    done += 1;
                    log = next;
                }
                Err(unusable) => match &unusable[0].reason {
                    ClientRefusal::Repeated { .. } => prop_assert!(place < done),
                    ClientRefusal::Gap { last } => {
                        prop_assert!(place > done);
                        prop_assert_eq!(*last, firsts[done]);
                    }
                    other => prop_assert!(false, "{:?}", other),
                },
            }
            prop_assert_eq!(log.clients[0].last, firsts[done]);
        }
    }
}
