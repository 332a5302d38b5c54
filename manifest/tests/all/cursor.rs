//! The cursor's transitions, as stories and as properties: the owner, the policy in force, and the rules for plans and
//! acknowledgements.

use millpond_manifest::cas::Object;
use millpond_manifest::cursor::{
    NO_UNIQUE, Opening, OtherProgram, Ownership, PIECES_MAX, Plan, ProgramHash, Programs, SENT_UNKNOWN, Skip,
};
use millpond_manifest::piece;
use millpond_manifest::plan::{Candidate, PlanStatus, Size, candidates};
use millpond_manifest::{BatchingPolicy, Cursor, Fingerprint, SinkTable, SinkTables, TableClaim};
use proptest::prelude::*;
use uuid::Uuid;

fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 100,
        batch_bytes: 1_000,
        chunk_rows: 100,
        chunk_bytes: 1_000,
        max_partitions_per_chunk: 50,
        max_in_flight: 4,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 1,
    }
}

fn two_policies() -> (BatchingPolicy, BatchingPolicy) {
    let other = BatchingPolicy {
        chunk_rows: 7,
        ..policy()
    };
    (policy(), other)
}

/// A new cursor whose log is empty.
fn fresh() -> Cursor {
    let mut cursor = unlimited();
    cursor.limit_sent(0);
    cursor
}

fn unlimited() -> Cursor {
    Cursor::new(Uuid::from_u128(9), 0, "default", 0, policy())
}

fn opening<'a>(owner: &'a str, now_ms: u64, policy: &'a BatchingPolicy) -> Opening<'a> {
    Opening {
        owner,
        id: 77,
        now_ms,
        lease_ms: 100,
        policy,
        unique: &NO_UNIQUE,
        take_over: false,
    }
}

fn plan(low: u64, high: u64) -> Plan {
    Plan { low, high }
}

#[test]
fn an_owner_holds_the_cursor_until_its_lease_runs_out() {
    let policy = policy();
    let held = fresh().open(&opening("a", 0, &policy)).unwrap();
    assert_eq!((held.state.epoch, held.in_doubt), (1, false));
    let refused = held.state.open(&opening("b", 99, &policy)).unwrap_err();
    assert_eq!((refused.owner.as_str(), refused.lease_expires_at_ms), ("a", 100));

    let taken = held.state.open(&opening("b", 100, &policy)).unwrap();
    assert_eq!((taken.state.epoch, taken.in_doubt), (2, true));
    let forced = held
        .state
        .open(&Opening {
            take_over: true,
            ..opening("b", 50, &policy)
        })
        .unwrap();
    assert_eq!((forced.state.epoch, forced.in_doubt), (2, true));
    let restarted = held.state.open(&opening("a", 50, &policy)).unwrap();
    assert_eq!((restarted.state.epoch, restarted.in_doubt), (2, true));
}

#[test]
fn the_rule_changes_only_where_nothing_is_in_doubt() {
    let (old, new) = two_policies();
    let mut cursor = fresh().open(&opening("a", 0, &old)).unwrap().state;

    let crashed = cursor.open(&opening("b", 500, &new)).unwrap();
    assert!(crashed.policy_pinned && crashed.in_doubt);
    assert_eq!(crashed.state.policy, old);

    cursor.plan("otlp.logs", plan(0, 3)).unwrap();
    cursor.release(4);
    assert_eq!(
        cursor.ownership,
        Ownership::Abandoned,
        "a planned batch is in doubt"
    );
    assert!(cursor.open(&opening("b", 0, &new)).unwrap().policy_pinned);

    cursor.acknowledge("otlp.logs", 4).unwrap();
    cursor.release(4);
    let clean = cursor.open(&opening("b", 0, &new)).unwrap();
    assert!(!clean.policy_pinned && !clean.in_doubt);
    assert_eq!(clean.state.policy, new);
}

/// An earlier owner that does not know that it is fenced may send the plans ahead of the log at any time.
#[test]
fn plans_ahead_of_the_log_leave_no_batch_in_doubt_and_pin_what_decides_their_rows() {
    let (old, new) = two_policies();
    let mut cursor = fresh().open(&opening("a", 0, &old)).unwrap().state;
    cursor.plan("s", plan(5, 5)).unwrap();
    cursor.plan("t", plan(4, 4)).unwrap();
    cursor.release(5);
    assert_eq!(cursor.ownership, Ownership::Abandoned, "4 is in the log");
    cursor.acknowledge("t", 5).unwrap();
    cursor.release(5);
    assert_eq!(cursor.ownership, Ownership::Released, "5 is not in the log");
    assert!(!cursor.is_clean() && cursor.plans() == 1);

    let hurried = Opening {
        lease_ms: 7,
        ..opening("b", 0, &new)
    };
    let opened = cursor.open(&hurried).unwrap();
    assert!(!opened.in_doubt && opened.policy_pinned);
    assert_eq!((&opened.state.policy, opened.state.lease_ms), (&old, 100));
    assert_eq!(opened.state.planned("s").collect::<Vec<_>>(), [plan(5, 5)]);
    assert_eq!(cursor.reset(0).lease_ms, 100, "the next owner waits that long");

    cursor.acknowledge("s", 6).unwrap();
    cursor.release(6);
    assert!(cursor.is_clean());
    let opened = cursor.open(&hurried).unwrap();
    assert_eq!((&opened.state.policy, opened.state.lease_ms), (&new, 7));
}

#[test]
fn a_plan_is_never_unmade_and_never_cut() {
    let mut cursor = fresh();
    cursor.plan("s", plan(2, 5)).unwrap();
    assert!(cursor.plan("s", plan(5, 6)).is_err(), "5 is already planned");
    assert!(cursor.plan("s", plan(7, 6)).is_err(), "it is empty");
    cursor.plan("s", plan(8, 9)).unwrap();

    assert!(cursor.acknowledge("s", 4).is_err(), "it cuts 2..=5");
    cursor.acknowledge("s", 2).unwrap();
    cursor.acknowledge("s", 6).unwrap();
    assert_eq!(cursor.planned("s").collect::<Vec<_>>(), [plan(8, 9)]);
    assert!(cursor.acknowledge("s", 5).is_err(), "it goes back");
    assert_eq!((cursor.next("s"), cursor.next("other")), (6, 0));
}

#[test]
fn a_cursor_reads_back_as_it_was_written() {
    let mut cursor = fresh().open(&opening("host-1", 7, &policy())).unwrap().state;
    cursor.plan("otlp.logs", plan(2, 5)).unwrap();
    cursor.acknowledge("otlp.traces", 11).unwrap();
    cursor.wait_for(&["the sink: it is away".to_owned()]);
    for ownership in [
        cursor.ownership.clone(),
        Ownership::Released,
        Ownership::Abandoned,
        Ownership::Removed,
    ] {
        let cursor = Cursor {
            ownership,
            generation: 3,
            unsettled: true,
            sent_below: 12,
            deduplicated_below: 9,
            ..cursor.clone()
        }
        .stamped(5);
        assert_eq!(Cursor::decode(&cursor.encode()).unwrap(), cursor);
    }
}

#[test]
fn small_neighbours_are_one_batch_and_large_segments_are_their_own() {
    let small = Size {
        records: 40,
        raw_bytes: 10,
    };
    let large = Size {
        records: 50,
        raw_bytes: 10,
    };
    let wide = Size {
        records: 1,
        raw_bytes: 500,
    };
    let log = [
        (0, small),
        (1, small),
        (2, small),
        (3, small),
        (5, large),
        (6, small),
        (7, wide),
        (8, small),
    ];
    let found: Vec<_> = candidates(&policy(), [], log, 100)
        .iter()
        .map(|c| (c.plan.low, c.plan.high, c.status))
        .collect();
    assert_eq!(
        found,
        [
            (0, 2, PlanStatus::Full),
            (3, 3, PlanStatus::Full),
            (5, 5, PlanStatus::Full),
            (6, 6, PlanStatus::Full),
            (7, 7, PlanStatus::Full),
            (8, 8, PlanStatus::Open),
        ]
    );
}

#[test]
fn plans_stay_even_if_the_policy_would_now_differ() {
    let small = Size {
        records: 40,
        raw_bytes: 10,
    };
    let log = (0..6).map(|s| (s, small));
    let found: Vec<_> = candidates(&policy(), [plan(0, 0), plan(1, 3)], log, 100)
        .iter()
        .map(|c| (c.plan.low, c.plan.high, c.status, c.size.records))
        .collect();
    assert_eq!(
        found,
        [
            (0, 0, PlanStatus::Planned, 40),
            (1, 3, PlanStatus::Planned, 120),
            (4, 5, PlanStatus::Open, 80)
        ]
    );
}

fn some_log() -> impl Strategy<Value = Vec<(u64, Size)>> {
    prop::collection::vec((1_u64..3, 1_u64..80, 1_u64..700), 0..60).prop_map(|steps| {
        let mut sequence = 0;
        let part = |(gap, records, raw_bytes)| {
            sequence += gap;
            (sequence, Size { records, raw_bytes })
        };
        steps.into_iter().map(part).collect()
    })
}

/// Plans as an owner makes them: some prefix of the candidates, at some length of the log.
fn plans_made(log: &[(u64, Size)], seen: usize, wanted: usize) -> Vec<Plan> {
    candidates(&policy(), [], log[..seen].iter().copied(), 1_000)
        .into_iter()
        .take(wanted)
        .map(|c| c.plan)
        .collect()
}

proptest! {
    /// The part of invariant 4 that planning guarantees: a successor that sees a longer log finds every batch that its
    /// predecessor may have sent, with the same boundaries.
    #[test]
    fn a_successor_finds_every_batch_its_predecessor_could_send(
        log in some_log(), seen in any::<prop::sample::Index>(), wanted in 0_usize..20,
    ) {
        let seen = if log.is_empty() { 0 } else { seen.index(log.len()) };
        let before: Vec<Candidate> = candidates(&policy(), [], log[..seen].iter().copied(), 1_000);
        let plans = plans_made(&log, seen, wanted);
        let after = candidates(&policy(), plans.clone(), log.iter().copied(), 1_000);
        for sent in before.iter().take(wanted) {
            prop_assert!(after.iter().any(|c| c.plan == sent.plan), "{sent:?} is missing from {after:?}");
        }
    }

    #[test]
    fn batches_cover_the_log_once_and_in_order(log in some_log(), seen in any::<prop::sample::Index>(), wanted in 0_usize..20) {
        let seen = if log.is_empty() { 0 } else { seen.index(log.len()) };
        let plans = plans_made(&log, seen, wanted);
        let found = candidates(&policy(), plans, log.iter().copied(), 1_000);
        let mut parts = log.iter();
        for candidate in &found {
            let mut records = 0;
            while records < candidate.size.records {
                let (sequence, size) = parts.next().unwrap();
                prop_assert!(candidate.plan.low <= *sequence && *sequence <= candidate.plan.high);
                records += size.records;
            }
        }
        prop_assert!(parts.next().is_none());
        prop_assert!(found.is_sorted_by(|a, b| a.plan.high < b.plan.low));
        prop_assert!(found.iter().rev().skip(1).all(|c| c.status != PlanStatus::Open));
    }

    #[test]
    fn a_limit_gives_the_same_batches_but_fewer(log in some_log(), limit in 1_usize..10) {
        let all = candidates(&policy(), [], log.iter().copied(), 1_000);
        let few = candidates(&policy(), [], log.iter().copied(), limit);
        prop_assert_eq!(&all[..limit.min(all.len())], &few[..]);
    }

    #[test]
    fn a_flipped_bit_is_found(at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut bytes = fresh().encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(Cursor::decode(&bytes).is_err());
    }
}

#[test]
fn the_reasons_for_waiting_are_bounded_and_end_with_the_owner() {
    let mut cursor = fresh().open(&opening("a", 0, &policy())).unwrap().state;
    let reasons: Vec<String> = (0..20).map(|n| format!("{n}{}", "ü".repeat(2_000))).collect();
    cursor.wait_for(&reasons);
    assert_eq!(cursor.waiting_for.len(), 8);
    assert!(
        cursor
            .waiting_for
            .iter()
            .all(|reason| reason.chars().count() == 1_000)
    );
    assert!(
        cursor
            .open(&opening("a", 1, &policy()))
            .unwrap()
            .state
            .waiting_for
            .is_empty()
    );
    assert!(cursor.reset(0).waiting_for.is_empty());
    cursor.wait_for(&[]);
    assert!(cursor.waiting_for.is_empty());
}

fn golden() -> Cursor {
    let mut cursor = fresh()
        .open(&opening("host-1", 1_700_000_000_000, &policy()))
        .unwrap()
        .state;
    cursor.acknowledge("otlp.logs", 3).unwrap();
    cursor.plan("otlp.logs", plan(3, 5)).unwrap();
    cursor.plan("otlp.logs", plan(7, 7)).unwrap();
    cursor.tables = SinkTables {
        tables: vec![SinkTable::new(
            "otel.otel_logs",
            ["server 1 2".to_owned(), "replica /t 2".to_owned()],
        )],
        claim: Some(TableClaim {
            id: 0xfedc_ba98_7654_3210,
            tables: vec![SinkTable::new("otel.otel_traces", ["server 1 3".to_owned()])],
            expires_at_ms: 1_700_000_015_000,
            firm: true,
        }),
        shared: true,
    };
    cursor.shards = 3;
    cursor.stamped(0x0123_4567_89ab_cdef)
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/cursor-v1");

#[test]
fn the_golden_cursor_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(Cursor::decode(&bytes).unwrap(), golden());
    assert_eq!(golden().encode(), bytes);
}

/// The golden cursor of an owner that watches.
fn golden_watching() -> Cursor {
    Cursor {
        certificate: Some(Fingerprint(std::array::from_fn(|place| {
            u8::try_from(place + 1).unwrap()
        }))),
        ..golden()
    }
}

const GOLDEN_WATCHING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/cursor-watching-v1");

#[test]
fn the_golden_cursor_of_an_owner_that_watches_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN_WATCHING).expect("the golden file is in the repository");
    assert_eq!(Cursor::decode(&bytes).unwrap(), golden_watching());
    assert_eq!(golden_watching().encode(), bytes);
}

/// The golden cursor of a sink with programs.
fn golden_programs() -> Cursor {
    Cursor {
        programs: Some(Programs::from([
            ("events.order".into(), ProgramHash([0xa5; 32])),
            ("events.signup".into(), ProgramHash([0x5a; 32])),
        ])),
        ..golden()
    }
}

const GOLDEN_PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/cursor-programs-v1");

#[test]
fn the_golden_cursor_of_a_sink_with_programs_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN_PROGRAMS).expect("the golden file is in the repository");
    assert_eq!(Cursor::decode(&bytes).unwrap(), golden_programs());
    assert_eq!(golden_programs().encode(), bytes);
}

/// A sink without programs is not one of an older program, which says nothing about them.
#[test]
fn no_programs_are_told_from_unknown_ones() {
    for programs in [None, Some(Programs::new())] {
        let cursor = Cursor { programs, ..golden() };
        assert_eq!(Cursor::decode(&cursor.encode()).unwrap(), cursor);
    }
    let named = |stream: &str| Cursor {
        programs: Some(Programs::from([(stream.to_owned(), ProgramHash([1; 32]))])),
        ..golden()
    };
    assert_eq!(named("events.order").check(), Ok(()));
    assert!(named("../x").check().is_err());
}

#[test]
fn programs_are_those_of_the_owner_alone() {
    let opened = golden_programs().open(&opening("host-2", 1_800_000_000_000, &policy()));
    assert_eq!(opened.unwrap().state.programs, None, "it enters its own");
    assert_eq!(golden_programs().remove().programs, None);
    let mut released = golden_programs();
    released.release(u64::MAX);
    assert_eq!(released.programs, golden_programs().programs);
    assert_eq!(golden_programs().reset(0).programs, golden_programs().programs);
}

#[test]
fn another_program_is_told_by_its_stream() {
    let ours = Programs::from([
        ("events.order".into(), ProgramHash([0xa5; 32])),
        ("events.signup".into(), ProgramHash([1; 32])),
        ("events.new".into(), ProgramHash([0xa5; 32])),
    ]);
    for (stream, ours, expected) in [
        ("events.order", &ours, None),
        ("events.signup", &ours, Some(OtherProgram::Another)),
        ("events.new", &ours, Some(OtherProgram::Added)),
        ("events.order", &Programs::new(), Some(OtherProgram::Missing)),
        ("otlp.logs", &ours, None),
    ] {
        assert_eq!(
            golden_programs().other_program(stream, ours),
            expected,
            "{stream}"
        );
        assert_eq!(golden().other_program(stream, ours), None, "nobody knows");
    }
}

#[test]
#[ignore = "writes the golden files"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
    std::fs::write(GOLDEN_WATCHING, golden_watching().encode()).unwrap();
    std::fs::write(GOLDEN_PROGRAMS, golden_programs().encode()).unwrap();
}

#[test]
fn a_certificate_is_that_of_the_owner_alone() {
    let certified = || golden_watching();
    let now_ms = 1_800_000_000_000;
    let opened = certified().open(&opening("host-2", now_ms, &policy())).unwrap();
    assert_eq!(opened.state.certificate, None, "another owner took it");
    let mut released = certified();
    released.release(u64::MAX);
    assert_eq!(released.certificate, None);
    assert_eq!(certified().reset(0).certificate, None);
    assert_eq!(certified().remove().certificate, None);
    let mut renewed = certified();
    renewed.renew(now_ms, 15_000);
    assert_eq!(renewed.certificate, certified().certificate);
}

#[test]
fn a_part_is_left_out_only_where_it_still_matters_and_the_reason_is_kept() {
    let mut cursor = fresh();
    let skip = |sequence| Skip {
        stream: "s".into(),
        sequence,
        at_ms: 5,
        reason: "damaged".into(),
    };
    cursor.acknowledge("s", 3).expect("forward");
    assert!(
        cursor
            .skip(skip(2))
            .expect_err("past")
            .reason
            .contains("acknowledged 3")
    );
    cursor.skip(skip(3)).expect("not acknowledged");
    assert!(
        cursor
            .skip(skip(3))
            .expect_err("twice")
            .reason
            .contains("already")
    );
    assert!(cursor.is_skipped("s", 3) && !cursor.is_skipped("s", 4) && !cursor.is_skipped("t", 3));
    let read = Cursor::decode(&cursor.encode()).expect("the bytes read back");
    assert_eq!(read.skipped, [skip(3)]);
}

#[test]
fn a_new_cursor_takes_the_whole_log_for_sent() {
    let mut cursor = unlimited();
    let anywhere = plan(1_000_000, 1_000_000);
    assert!(
        cursor.may_have_sent(anywhere),
        "an earlier cursor may have been deleted"
    );
    assert!(cursor.remove().begin_again(0, policy()).may_have_sent(anywhere));
    cursor.limit_sent(20);
    assert!(cursor.may_have_sent(plan(19, 25)) && !cursor.may_have_sent(plan(20, 25)));
    cursor.limit_sent(30);
    assert_eq!(cursor.sent_below, 20, "the rest is its own");
    assert_eq!(
        Cursor::decode(&unlimited().encode()).unwrap().sent_below,
        SENT_UNKNOWN
    );
}

#[test]
fn a_reset_reads_again_from_one_position_and_remembers_what_was_sent() {
    let mut cursor = fresh().open(&opening("a", 0, &policy())).unwrap().state;
    cursor.plan("s", Plan { low: 1, high: 4 }).expect("a plan");
    cursor.acknowledge("t", 9).expect("forward");
    let reset = cursor.reset(2);
    assert_eq!((reset.next("s"), reset.next("t"), reset.needs()), (2, 2, 2));
    assert_eq!((reset.planned("s").count(), reset.epoch), (0, cursor.epoch + 1));
    assert_eq!(reset.ownership, Ownership::Released);
    assert_eq!(cursor.needs(), 0);
    assert_eq!((reset.generation, reset.sent_below), (1, 9));
    assert!(!reset.is_of(&cursor), "its owner is fenced");
    // Rows up to the end of plans ahead of the log may have been sent.
    cursor.plan("t", Plan { low: 12, high: 12 }).expect("a plan");
    assert_eq!(cursor.reset(2).sent_below, 13);
    assert_eq!(
        reset.reset(20).sent_below,
        9,
        "rows that were never sent need no question"
    );
    assert!(reset.may_have_sent(plan(8, 12)) && !reset.may_have_sent(plan(9, 12)));
}

/// Somebody deletes the cursor, and it is created again: its epochs start at 1 again.
#[test]
fn an_opening_of_the_same_epoch_is_another_opening() {
    let policy = policy();
    let one = fresh().open(&opening("a", 0, &policy)).unwrap().state;
    let other = Opening {
        id: 78,
        ..opening("b", 0, &policy)
    };
    let other = fresh().open(&other).unwrap().state;
    assert_eq!(one.epoch, other.epoch);
    assert!(
        one.is_of(&one) && !other.is_of(&one),
        "an owner takes another's cursor for its own"
    );
}

#[test]
fn every_change_by_an_operator_leaves_the_cursor_unsettled() {
    let released = fresh();
    let held = released.open(&opening("a", 0, &policy())).unwrap().state;
    let mut abandoned = held.clone();
    abandoned.plan("s", plan(0, 3)).unwrap();
    abandoned.release(4);
    for cursor in [released, held, abandoned] {
        for changed in [cursor.reset(0), cursor.remove()] {
            assert!(changed.unsettled);
            // Any change may follow before an owner reports that it has waited.
            let mut later = changed.reset(0).remove().begin_again(0, policy());
            later = later.open(&opening("b", 0, &policy())).unwrap().state;
            assert!(later.unsettled);
            later.settle();
            assert!(!later.unsettled);
        }
    }
}

#[test]
fn the_longest_lease_of_those_who_may_send_is_known() {
    let short = policy();
    let held = fresh().open(&opening("a", 0, &short)).unwrap().state;
    assert_eq!(held.lease_ms, 100);
    let hurried = Opening {
        lease_ms: 7,
        take_over: true,
        ..opening("b", 0, &short)
    };
    let taken = held.open(&hurried).unwrap().state;
    assert_eq!(taken.lease_ms, 100, "the fenced owner does not know it yet");
    assert_eq!(taken.reset(0).open(&hurried).unwrap().state.lease_ms, 100);
    // A reset releases the cursor too, and the fenced owner may send for just as long after a second reset.
    assert_eq!(taken.reset(0).reset(0).lease_ms, 100);
    let mut released = taken;
    released.release(4);
    assert_eq!(
        released.reset(0).lease_ms,
        0,
        "nobody sends after a clean release"
    );
}

#[test]
fn a_removed_consumer_leaves_what_protects_its_rows() {
    let mut cursor = fresh().open(&opening("a", 0, &policy())).unwrap().state;
    cursor.acknowledge("s", 9).expect("forward");
    let tombstone = cursor.remove();
    assert!(tombstone.is_removed() && !tombstone.is_of(&cursor));
    assert_eq!((tombstone.generation, tombstone.sent_below), (1, 9));
    assert_eq!(Cursor::decode(&tombstone.encode()), Ok(tombstone.clone()));
    let again = tombstone.begin_again(4, policy());
    let opened = again.open(&opening("b", 0, &policy())).unwrap();
    assert!(!opened.in_doubt, "it plans nothing");
    let state = opened.state;
    assert_eq!((state.next("s"), state.sent_below, state.generation), (4, 9, 1));
    assert_eq!(state.epoch, tombstone.epoch + 1);
}

/// A sink that does not take a stream for a while (an older program, say) must not cause the loss of that stream's
/// data.
#[test]
fn only_streams_with_a_position_keep_the_log() {
    let mut cursor = Cursor::new(Uuid::nil(), 0, "default", 5, policy());
    assert_eq!(cursor.needs(), 5, "it has seen nothing yet");
    cursor.acknowledge("s", 9).expect("forward");
    assert_eq!((cursor.needs(), cursor.next("t")), (9, 5));
    cursor.acknowledge("t", 5).expect("an unchanged position");
    assert_eq!(cursor.needs(), 5, "t is consumed");
    cursor.acknowledge("t", 12).expect("forward");
    assert_eq!(cursor.needs(), 9);
}

#[test]
fn the_last_possible_plan_and_epoch_are_refused() {
    let mut cursor = fresh();
    assert!(cursor.plan("otlp.logs", plan(3, u64::MAX)).is_err());
    cursor.epoch = u64::MAX;
    let error = Cursor::decode(&cursor.encode()).unwrap_err().to_string();
    assert!(error.contains("its epoch"), "{error}");
}

#[test]
fn refusals_stay_until_their_batch_is_acknowledged() {
    let mut cursor = fresh();
    let batch = plan(3, 5);
    cursor.refuse("s", batch, &[0], "bad").expect("a chunk");
    let [first, second] = piece::halves(0);
    assert!(cursor.refused("s", batch).expect("a refusal").covers(0));
    assert!(!cursor.refused("s", batch).expect("a refusal").covers(first));

    // A refused half also stands for the whole chunk.
    cursor.refuse("s", batch, &[second], "worse").expect("a half");
    let refused = cursor.refused("s", batch).expect("a refusal");
    assert_eq!(
        (refused.pieces.len(), refused.reason.as_str()),
        (1, "worse"),
        "{refused:?}"
    );
    assert!(refused.covers(0) && refused.covers(second) && !refused.covers(first));

    // A known refusal changes nothing. Other chunks and batches are separate.
    cursor.refuse("s", batch, &[0, 1], "bad").expect("again");
    assert_eq!(cursor.refused("s", batch).expect("a refusal").pieces.len(), 2);
    assert_eq!(
        (cursor.refused("s", plan(3, 6)), cursor.refused("t", batch)),
        (None, None)
    );

    let read = Cursor::decode(&cursor.encode()).expect("the bytes read back");
    assert_eq!(read, cursor);
    assert!(cursor.reset(3).refused.is_empty());
    cursor.acknowledge("s", 3).expect("forward");
    assert!(cursor.refused("s", batch).is_some());
    cursor.acknowledge("t", 9).expect("forward");
    cursor.acknowledge("s", 6).expect("forward");
    assert!(cursor.refused.is_empty());
}

#[test]
fn refusals_that_cannot_be_are_forbidden() {
    let mut cursor = fresh();
    cursor.acknowledge("s", 3).expect("forward");
    let many: Vec<u32> = (0..u32::try_from(PIECES_MAX).expect("small") + 1)
        .map(|place| 0x8010_0000 + place)
        .collect();
    for (batch, pieces, expected) in [
        (plan(2, 5), &[0][..], "does not follow 3"),
        (plan(5, 4), &[0], "does not follow"),
        (plan(3, 5), &[], "0 refused pieces"),
        (plan(3, 5), &[piece::PIECES], "no piece"),
        (plan(3, 5), &many, "1001 refused pieces"),
    ] {
        let forbidden = cursor.refuse("s", batch, pieces, "bad").expect_err(expected);
        assert!(forbidden.reason.contains(expected), "{forbidden}");
        assert!(cursor.refused.is_empty());
    }
}

/// The batch's chunks change, so its earlier tokens no longer stand for the same rows.
#[test]
fn a_skip_within_a_planned_batch_fences_its_owner_and_changes_the_tokens() {
    let mut cursor = fresh().open(&opening("a", 0, &policy())).unwrap().state;
    let owned = cursor.clone();
    cursor.plan("s", plan(3, 5)).expect("a plan");
    cursor.refuse("s", plan(3, 5), &[0], "bad").expect("a chunk");
    let skip = |stream: &str, sequence| Skip {
        stream: stream.into(),
        sequence,
        at_ms: 5,
        reason: "damaged".into(),
    };
    cursor.skip(skip("s", 6)).expect("of no batch yet");
    cursor.skip(skip("t", 4)).expect("of another stream");
    assert!(cursor.is_of(&owned) && cursor.generation == 0);
    cursor.skip(skip("s", 4)).expect("of a planned batch");
    assert!(!cursor.is_of(&owned) && cursor.generation == 1 && cursor.unsettled);
    assert_eq!(cursor.ownership, Ownership::Abandoned);
    assert_eq!((cursor.planned("s").count(), cursor.refused.len()), (1, 0));
    assert!(cursor.may_have_sent(plan(3, 5)));
}
