//! Positions of bridges: the log has the records between two offsets once, whoever reads them, and nothing forgets a
//! position.

use std::sync::Arc;

use millpond_manifest::manifest::{
    PARTITION_MAX, SOURCE_NAME_MAX, SOURCES_MAX, TOPIC_NAME_MAX, UnusableClient,
};
use millpond_manifest::{
    Claim, ClientClaim, ClientId, ClientRefusal, Manifest, NewSegment, Numbers, Object, ProducerId,
    SourcePartition, SourceRefusal, SourceRow,
};
use proptest::prelude::*;
use ulid::Ulid;
use uuid::Uuid;

const GOLDEN: &str = "testdata/manifest-with-sources-v3";

fn empty() -> Manifest {
    Manifest::new(Uuid::from_u128(9), 0)
}

fn of(topic: &str, partition: u32) -> Arc<SourcePartition> {
    Arc::new(SourcePartition {
        source: "MkU3OEVBNTcwNTJENDM2Qk".into(),
        topic: topic.into(),
        partition,
        stream: topic.into(),
    })
}

fn row(of: &Arc<SourcePartition>, next: u64) -> SourceRow {
    SourceRow {
        of: Arc::clone(of),
        shard: 0,
        incarnation: 0,
        next,
        seen_at_ms: 5,
    }
}

fn with(rows: &[SourceRow]) -> Manifest {
    let set = |log: Manifest, row: &SourceRow| log.set_source(None, row.clone()).unwrap();
    rows.iter().fold(empty(), set)
}

fn claim(of: &Arc<SourcePartition>, from: u64, to: u64) -> ClientClaim {
    claim_of(0, of, from, to)
}

fn claim_of(incarnation: u64, of: &Arc<SourcePartition>, from: u64, to: u64) -> ClientClaim {
    ClientClaim {
        client: ClientId([1; 16]),
        numbers: Numbers::Offsets {
            incarnation,
            from,
            to,
        },
        checksum: 0,
        segment: 0,
        source: Some(Arc::clone(of)),
    }
}

fn enter(log: &Manifest, claims: &[ClientClaim]) -> Result<Manifest, Vec<UnusableClient>> {
    let checked = log.check_clients(claims, 7)?;
    let mut next = log.clone();
    next.enter_clients(checked, next.next_sequence, 7);
    assert_eq!(next.check(), Ok(()));
    Ok(next)
}

fn reasons(log: &Manifest, claims: &[ClientClaim]) -> Vec<(usize, ClientRefusal)> {
    let unusable = enter(log, claims).unwrap_err();
    unusable.into_iter().map(|it| (it.place, it.reason)).collect()
}

#[test]
fn a_claim_begins_at_the_position_and_moves_it_to_its_end() {
    let (a, b) = (of("orders", 0), of("orders", 1));
    let log = with(&[row(&b, 10), row(&a, 3)]);
    // Offsets have gaps: the end need not be the beginning and the number of records.
    let log = enter(&log, &[claim(&a, 3, 8), claim(&b, 10, 11), claim(&a, 8, 400)]).unwrap();
    assert_eq!((log.position(&a), log.position(&b)), (Some(400), Some(11)));
    assert_eq!(log.source(&a).unwrap().seen_at_ms, 7);
    let at = |next| ClientRefusal::Position { next };
    for (from, to) in [(3, 8), (8, 400), (399, 401), (401, 402)] {
        assert_eq!(reasons(&log, &[claim(&a, from, to)]), [(0, at(Some(400)))]);
    }
    assert!(matches!(
        reasons(&log, &[claim(&a, 400, 400)])[..],
        [(0, ClientRefusal::Invalid(_))]
    ));
}

#[test]
fn a_partition_without_a_row_in_the_shard_takes_no_records() {
    let (a, b) = (of("orders", 0), of("orders", 1));
    let elsewhere = SourceRow {
        shard: 3,
        ..row(&b, 0)
    };
    let log = with(&[elsewhere]);
    let missing = ClientRefusal::Position { next: None };
    assert_eq!(
        reasons(&log, &[claim(&a, 0, 1), claim(&b, 0, 1)]),
        [(0, missing.clone()), (1, missing)]
    );
}

#[test]
fn the_claims_after_an_unusable_one_are_unusable_too() {
    let a = of("orders", 0);
    let log = with(&[row(&a, 8)]);
    let refused = reasons(&log, &[claim(&a, 3, 6), claim(&a, 6, 9), claim(&a, 9, 10)]);
    let at = ClientRefusal::Position { next: Some(8) };
    assert_eq!(refused, [(0, at.clone()), (1, at.clone()), (2, at.clone())]);
    // The position of the answer is the one in the log, and not the one in this commit.
    assert_eq!(reasons(&log, &[claim(&a, 8, 12), claim(&a, 11, 13)]), [(1, at)]);
}

#[test]
fn a_position_is_set_only_by_who_knows_the_present_one() {
    let a = of("orders", 0);
    let log = with(&[row(&a, 8)]);
    let found = SourceRefusal::Moved(Some(row(&a, 8)));
    assert_eq!(log.set_source(None, row(&a, 0)), Err(found.clone()));
    assert_eq!(log.set_source(Some(&row(&a, 7)), row(&a, 9)), Err(found));
    let moved = log.set_source(Some(&row(&a, 8)), row(&a, 20)).unwrap();
    assert_eq!(moved.position(&a), Some(20));
    assert_eq!(moved.source(&a).unwrap().incarnation, 1);
    let missing = with(&[]).set_source(Some(&row(&a, 8)), row(&a, 9));
    assert_eq!(missing, Err(SourceRefusal::Moved(None)));
}

/// A topic is made again, and its new records begin where a bridge that stands still has old ones.
#[test]
fn a_claim_from_before_the_position_was_set_is_void_even_if_it_begins_there() {
    let a = of("orders", 0);
    let log = enter(&with(&[row(&a, 0)]), &[claim(&a, 0, 500)]).unwrap();
    let log = log.set_source(log.source(&a), row(&a, 0)).unwrap();
    let refused = reasons(&log, &[claim(&a, 0, 50), claim_of(2, &a, 0, 50)]);
    assert_eq!(
        refused,
        [(0, ClientRefusal::SetAnew), (1, ClientRefusal::SetAnew)]
    );
    let log = enter(&log, &[claim_of(1, &a, 0, 50)]).unwrap();
    assert_eq!(log.position(&a), Some(50));
}

#[test]
fn streams_that_take_the_same_partition_have_positions_that_do_not_meet() {
    let a = of("orders", 0);
    let raw = Arc::new(SourcePartition {
        stream: "audit".into(),
        ..(*a).clone()
    });
    let log = with(&[row(&a, 0), row(&raw, 7)]);
    let log = enter(&log, &[claim(&a, 0, 3)]).unwrap();
    assert_eq!((log.position(&a), log.position(&raw)), (Some(3), Some(7)));
}

#[test]
fn names_and_the_number_of_rows_have_limits() {
    let invalid = |partition: SourcePartition| {
        let refused = empty().set_source(None, row(&Arc::new(partition), 0));
        assert!(matches!(refused, Err(SourceRefusal::Invalid(_))), "{refused:?}");
    };
    let valid = (*of("orders", 0)).clone();
    for source in [String::new(), "x".repeat(SOURCE_NAME_MAX + 1), "a\nb".into()] {
        invalid(SourcePartition {
            source,
            ..valid.clone()
        });
    }
    for topic in [String::new(), "x".repeat(TOPIC_NAME_MAX + 1)] {
        invalid(SourcePartition {
            topic,
            ..valid.clone()
        });
    }
    invalid(SourcePartition {
        stream: "no stream".into(),
        ..valid.clone()
    });
    invalid(SourcePartition {
        partition: PARTITION_MAX + 1,
        ..valid
    });
    // Only shard 0 sends bridges to another shard.
    let elsewhere = SourceRow {
        shard: 0,
        ..row(&of("orders", 0), 0)
    };
    let refused = Manifest::new(Uuid::nil(), 1).set_source(None, elsewhere);
    assert!(matches!(refused, Err(SourceRefusal::Invalid(_))), "{refused:?}");
    let mut full = empty();
    full.sources = (0..u32::try_from(SOURCES_MAX).unwrap())
        .map(|partition| row(&of("orders", partition), 0))
        .collect();
    assert_eq!(
        full.set_source(None, row(&of("x", 0), 0)),
        Err(SourceRefusal::Full)
    );
    assert_eq!(Manifest::decode(&full.encode()).unwrap(), full);
    full.sources.push(row(&of("x", 0), 0));
    assert!(Manifest::decode(&full.encode()).is_err());
}

fn golden() -> Manifest {
    let elsewhere = SourceRow {
        shard: 2,
        ..row(&of("orders", 1), 0)
    };
    let rows = [
        row(&of("orders", 0), 1 << 40),
        elsewhere,
        row(&of("payments", 0), 0),
    ];
    let mut golden = with(&rows);
    golden.sources[0].incarnation = 3;
    golden
        .register(ProducerId([1; 16]), 10)
        .stamped(0x0123_4567_89ab_cdef)
}

#[test]
fn the_golden_manifest_with_sources_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(Manifest::decode(&bytes).unwrap(), golden());
    assert_eq!(golden().encode(), bytes);
}

#[test]
fn older_programs_refuse_a_manifest_with_positions() {
    assert_eq!(golden().encode()[4..6], [3, 0], "they would erase the positions");
}

#[test]
fn no_transition_forgets_a_position() {
    let log = golden();
    let segment = NewSegment {
        segment: Ulid::from_parts(50, 1),
        size: 1,
        parts: Vec::new(),
    };
    let committed = log
        .commit(&[Claim::one(ProducerId([1; 16]), 1, 0..1)], &[segment], 50)
        .unwrap();
    let (_, sealed) = committed.state.seal(Ulid::from_parts(50, 2), 0).unwrap();
    let registered = sealed.register(ProducerId([2; 16]), 50);
    for state in [
        &*committed.state,
        &sealed,
        &registered,
        &registered.collect(1, 60),
    ] {
        assert_eq!(state.sources, log.sources);
    }
}

#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
}

proptest! {
    /// Several bridges claim what they like, and restart from the manifest when it refuses them.
    #[test]
    fn each_offset_enters_once_and_in_order(
        turns in prop::collection::vec((0_usize..3, 1_u64..9, any::<bool>()), 1..60),
    ) {
        let a = of("orders", 0);
        let mut log = with(&[row(&a, 0)]);
        let mut bridges = [0_u64; 3];
        let mut entered = Vec::new();
        for (bridge, count, restarts) in turns {
            let from = bridges[bridge];
            match enter(&log, &[claim(&a, from, from + count)]) {
                Ok(next) => {
                    entered.extend(from..from + count);
                    log = next;
                    bridges[bridge] = from + count;
                }
                Err(_) if restarts => bridges[bridge] = log.position(&a).unwrap(),
                // A frozen bridge goes on as if nothing had happened.
                Err(_) => bridges[bridge] += count,
            }
        }
        prop_assert_eq!(&entered, &(0..log.position(&a).unwrap()).collect::<Vec<_>>());
    }
}
