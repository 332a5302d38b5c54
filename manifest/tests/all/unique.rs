//! Deduplication in a cursor, as stories, and the golden files of its formats.

use millpond_manifest::cas::Object;
use millpond_manifest::cursor::{NO_UNIQUE, Opening, Ownership, Plan, UniqueSettings};
use millpond_manifest::unique::EarlierSnapshot;
use millpond_manifest::{
    BatchingPolicy, CURSOR_VERSION, Cursor, FormatError, UNIQUE_VERSION, UniqueReference, UniqueSetting,
    UniqueSnapshot,
};
use ulid::Ulid;
use uuid::Uuid;

const HOUR_MS: u64 = 60 * 60 * 1_000;

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

fn setting(window_ms: u64) -> UniqueSetting {
    UniqueSetting {
        key: vec!["event_id".into(), "user.id".into()],
        window_ms,
    }
}

fn settings(window_ms: u64) -> UniqueSettings {
    UniqueSettings::from([("events.a".to_owned(), setting(window_ms))])
}

/// Opens a cursor with these settings. Returns the state and whether other settings are pinned.
fn open(cursor: &Cursor, unique: &UniqueSettings) -> (Cursor, bool) {
    let policy = policy();
    let opening = Opening {
        owner: "host-1",
        id: 77,
        now_ms: 1_700_000_000_000,
        lease_ms: 100,
        policy: &policy,
        unique,
        take_over: true,
    };
    let opened = cursor.open(&opening).unwrap();
    opened.state.check().unwrap();
    (opened.state, opened.unique_pinned)
}

fn fresh() -> Cursor {
    let mut cursor = Cursor::new(Uuid::from_u128(9), 0, "default", 3, policy());
    cursor.limit_sent(0);
    cursor
}

fn name(next: u64) -> UniqueReference {
    UniqueReference {
        next,
        id: Ulid::from_parts(1_700_000_000_000, next.into()),
    }
}

fn at(cursor: &Cursor) -> (u64, u64, Option<u64>) {
    let (setting, of) = cursor.deduplicates("events.a").expect("it has a setting");
    (
        setting.window_ms,
        of.since,
        of.snapshot.map(|snapshot| snapshot.next),
    )
}

fn released(mut cursor: Cursor) -> Cursor {
    cursor.release(u64::MAX);
    cursor
}

/// Writes a batch of `events.a` from its position on, and acknowledges it.
fn write(cursor: &mut Cursor, next: u64) {
    let batch = Plan {
        low: cursor.next("events.a"),
        high: next - 1,
    };
    cursor.plan("events.a", batch).unwrap();
    cursor.acknowledge("events.a", next).unwrap();
}

#[test]
fn a_setting_begins_at_the_position_of_a_clean_cursor_and_is_pinned_after_that() {
    let (mut cursor, pinned) = open(&fresh(), &settings(HOUR_MS));
    assert_eq!((at(&cursor), pinned), ((HOUR_MS, 3, None), false));
    write(&mut cursor, 8);
    cursor.plan("events.a", Plan { low: 8, high: 9 }).unwrap();
    cursor.release(20);
    assert_eq!(cursor.ownership, Ownership::Abandoned);

    // Rows of the plan may be in the sink.
    for other in [settings(2 * HOUR_MS), NO_UNIQUE.clone()] {
        let (taken, pinned) = open(&cursor, &other);
        assert_eq!((at(&taken), pinned), ((HOUR_MS, 3, None), true));
    }
    let (mut cursor, _) = open(&cursor, &settings(HOUR_MS));
    cursor.acknowledge("events.a", 10).unwrap();
    cursor.snapshot_unique("events.a", name(9)).unwrap();
    cursor.count_duplicates("events.a", 4);
    cursor.release(20);

    let (same, pinned) = open(&cursor, &settings(HOUR_MS));
    assert_eq!((at(&same), pinned), ((HOUR_MS, 3, Some(9)), false));
    let (other, pinned) = open(&cursor, &settings(2 * HOUR_MS));
    assert_eq!((at(&other), pinned), ((2 * HOUR_MS, 10, None), false));
    assert_eq!(other.unique["events.a"].duplicates, 0);
    let (ended, pinned) = open(&cursor, &NO_UNIQUE);
    assert!(ended.deduplicates("events.a").is_none() && !pinned);
    // Nobody forgets where rows may be missing.
    for later in [&other, &ended] {
        assert_eq!(later.deduplicated_from("events.a"), Some(3));
    }
}

#[test]
fn a_snapshot_is_named_once_everything_before_it_is_acknowledged_and_keeps_the_log_after_it() {
    let (mut cursor, _) = open(&fresh(), &settings(HOUR_MS));
    cursor.acknowledge("events.b", 4).unwrap();
    let mut behind = cursor.clone();
    behind.begin_unique("events.a", 0);
    assert_eq!(at(&behind).1, 4, "the log may be trimmed up to the position");
    cursor.begin_unique("events.a", 5);
    cursor.acknowledge("events.b", 50).unwrap();
    cursor.acknowledge("events.a", 5).unwrap();
    write(&mut cursor, 8);
    assert_eq!((at(&cursor), cursor.needs()), ((HOUR_MS, 5, None), 5));
    cursor.begin_unique("events.a", 7);
    assert_eq!(at(&cursor).1, 5, "a stream with a position may have sent rows");
    assert!(cursor.snapshot_unique("events.a", name(9)).is_err());
    assert!(cursor.snapshot_unique("events.b", name(9)).is_err());
    cursor.snapshot_unique("events.a", name(7)).unwrap();
    assert_eq!(cursor.needs(), 7);
    for behind in [7, 6] {
        assert!(
            cursor.snapshot_unique("events.a", name(behind)).is_err(),
            "{behind}"
        );
    }
    cursor.snapshot_unique("events.a", name(8)).unwrap();
    assert_eq!(cursor.needs(), 8);
}

#[test]
fn a_setting_follows_its_position_until_a_batch_is_planned() {
    let (mut cursor, _) = open(&fresh(), &settings(HOUR_MS));
    for next in [4, 9] {
        cursor.acknowledge("events.a", next).unwrap();
        assert_eq!((at(&cursor).1, cursor.needs()), (next, next));
    }
    // A stream that others are ahead of waits for its beginning.
    let (mut late, _) = open(&fresh(), &settings(HOUR_MS));
    late.acknowledge("events.b", 20).unwrap();
    late.begin_unique("events.a", 0);
    write(&mut late, 12);
    assert_eq!(at(&late).1, 20);
    write(&mut late, 22);
    assert_eq!(at(&late).1, 20);

    write(&mut cursor, 12);
    cursor.acknowledge("events.a", 15).unwrap();
    assert_eq!(at(&cursor).1, 9, "its rows are in the sink");
    let (other, _) = open(&released(cursor), &settings(2 * HOUR_MS));
    assert_eq!((at(&other).1, other.deduplicated_from("events.a")), (15, Some(3)));
}

#[test]
fn a_reset_begins_again_without_keys_and_a_removal_ends_the_setting() {
    let (mut cursor, _) = open(&fresh(), &settings(HOUR_MS));
    write(&mut cursor, 8);
    cursor.snapshot_unique("events.a", name(8)).unwrap();
    for (position, from) in [(1, 1), (6, 3), (90, 3)] {
        let reset = cursor.reset(position);
        reset.check().unwrap();
        assert_eq!(at(&reset), (HOUR_MS, position, None));
        assert_eq!(reset.deduplicated_from("events.a"), Some(from));
    }
    let removed = cursor.remove();
    removed.check().unwrap();
    assert!(removed.deduplicates("events.a").is_none());
    let (again, _) = open(&removed.begin_again(40, policy()), &settings(HOUR_MS));
    assert_eq!(
        (at(&again), again.deduplicated_from("events.a")),
        ((HOUR_MS, 40, None), Some(3))
    );
}

#[test]
fn a_setting_that_makes_no_sense_is_refused() {
    setting(HOUR_MS).check().unwrap();
    let of = |key: &[&str], window_ms| UniqueSetting {
        key: key.iter().map(|path| (*path).to_owned()).collect(),
        window_ms,
    };
    for (wrong, words) in [
        (of(&[], HOUR_MS), "0 paths"),
        (of(&["a"; 9], HOUR_MS), "9 paths"),
        (of(&["a..b"], HOUR_MS), "is not a path"),
        (of(&[""], HOUR_MS), "is not a path"),
        (of(&["a"], 999), "1s to 366days"),
        (of(&["a"], 367 * 24 * HOUR_MS), "1s to 366days"),
    ] {
        let error = wrong.check().unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// Programs before version 2 reject the cursor: they would send rows that others drop.
#[test]
fn a_cursor_has_another_version_from_its_first_setting_on() {
    let version = |cursor: &Cursor| u16::from_le_bytes(cursor.encode()[4..6].try_into().unwrap());
    let (plain, _) = open(&fresh(), &NO_UNIQUE);
    assert_eq!(version(&plain), 1);
    let (mut with, _) = open(&fresh(), &settings(HOUR_MS));
    assert_eq!(version(&with), CURSOR_VERSION, "it has the newest rules");
    assert_eq!(version(&by_the_first_rules(with.clone())), UNIQUE_VERSION);
    with.release(0);
    let (ended, _) = open(&with, &NO_UNIQUE);
    assert_eq!(
        version(&ended),
        UNIQUE_VERSION,
        "a repair must know about missing rows"
    );
    let mut newer = with.encode().to_vec();
    newer[4] = 4;
    let refused = Cursor::decode(&newer);
    assert!(
        matches!(
            refused,
            Err(FormatError::Version {
                found: 4,
                newest: 3,
                ..
            })
        ),
        "{refused:?}"
    );
}

/// As an older program has it.
fn by_the_first_rules(mut cursor: Cursor) -> Cursor {
    let all = cursor.unique.values_mut();
    all.for_each(|of| of.medians_from = None);
    cursor
}

#[test]
fn the_rules_for_clocks_change_only_where_nobody_sends_and_keep_the_keys() {
    let medians_from = |cursor: &Cursor| cursor.unique["events.a"].medians_from;
    let (mut cursor, _) = open(&fresh(), &settings(HOUR_MS));
    assert_eq!(
        medians_from(&cursor),
        Some(3),
        "a new setting has the newest rules"
    );
    assert!(!cursor.goes_by_latest_times());
    cursor = by_the_first_rules(cursor);
    assert!(cursor.goes_by_latest_times());
    write(&mut cursor, 8);
    cursor.snapshot_unique("events.a", name(8)).unwrap();
    cursor.plan("events.a", Plan { low: 8, high: 9 }).unwrap();
    cursor.release(20);

    // Rows of the plan may be in the sink.
    let (mut taken, pinned) = open(&cursor, &settings(HOUR_MS));
    assert_eq!(
        (medians_from(&taken), pinned),
        (None, false),
        "the rules are pinned"
    );
    taken.acknowledge("events.a", 10).unwrap();
    let taken = released(taken);
    let (next, _) = open(&taken, &settings(HOUR_MS));
    assert_eq!(
        (at(&next), medians_from(&next)),
        ((HOUR_MS, 3, Some(8)), Some(10))
    );
    let (later, _) = open(&released(next.clone()), &settings(HOUR_MS));
    assert_eq!(medians_from(&later), Some(10));

    assert_eq!(medians_from(&next.reset(6)), Some(6));
    assert_eq!(medians_from(&taken.reset(6)), None, "an older program may go on");
    assert_eq!(medians_from(&next.remove()), None);
    let (ended, _) = open(&released(next), &NO_UNIQUE);
    assert_eq!(medians_from(&ended), None);
    assert!(!ended.goes_by_latest_times(), "no setting is in force");
}

fn golden_cursor() -> Cursor {
    let (mut cursor, _) = open(&fresh(), &settings(8 * HOUR_MS));
    write(&mut cursor, 8);
    cursor.snapshot_unique("events.a", name(7)).unwrap();
    cursor.count_duplicates("events.a", 12);
    cursor.stamped(0x0123_4567_89ab_cdef)
}

fn golden_cursors() -> [(&'static str, Cursor); 2] {
    [
        ("cursor-v2", by_the_first_rules(golden_cursor())),
        ("cursor-v3", golden_cursor()),
    ]
}

fn golden_snapshot() -> UniqueSnapshot {
    UniqueSnapshot {
        buffer_id: Uuid::from_u128(9),
        shard: 0,
        consumer: "default".into(),
        stream: "events.a".into(),
        setting: setting(8 * HOUR_MS),
        since: 3,
        next: 7,
        floor: -12,
        recent: vec![1_700_000_000_000_000, -5],
        duplicates: 12,
        earlier: vec![EarlierSnapshot {
            reference: name(5),
            newest_us: 1_700_000_000_000_001,
            keys: 2,
        }],
        entries: vec![(u128::MAX - 1, 1_700_000_000_000_000), (7, -5)],
    }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/");

#[test]
fn the_golden_files_are_read_and_written_alike() {
    for (name, cursor) in golden_cursors() {
        let bytes = std::fs::read(format!("{GOLDEN}{name}")).expect("the golden file is in the repository");
        assert_eq!(Cursor::decode(&bytes).unwrap(), cursor);
        assert_eq!(cursor.encode(), bytes);
    }
    let bytes =
        std::fs::read(format!("{GOLDEN}unique-snapshot-v1")).expect("the golden file is in the repository");
    assert_eq!(UniqueSnapshot::decode(&bytes).unwrap(), golden_snapshot());
    assert_eq!(golden_snapshot().encode(), bytes);
}

#[test]
#[ignore = "writes the golden files"]
fn write_golden() {
    for (name, cursor) in golden_cursors() {
        std::fs::write(format!("{GOLDEN}{name}"), cursor.encode()).unwrap();
    }
    std::fs::write(format!("{GOLDEN}unique-snapshot-v1"), golden_snapshot().encode()).unwrap();
}

#[test]
fn a_snapshot_that_breaks_a_rule_is_refused() {
    let refused = |change: &dyn Fn(&mut UniqueSnapshot), words: &str| {
        let mut snapshot = golden_snapshot();
        change(&mut snapshot);
        let error = UniqueSnapshot::decode(&snapshot.encode())
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&|snapshot| snapshot.recent = vec![0; 32], "31 count");
    refused(&|snapshot| snapshot.next = 5, "the state before 5 follows 5");
    refused(&|snapshot| snapshot.since = 5, "the state before 5 follows 5");
    refused(&|snapshot| snapshot.setting.window_ms = 0, "window");
    refused(&|snapshot| snapshot.consumer = "../x".into(), "not allowed");
    let mut damaged = golden_snapshot().encode().to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let error = UniqueSnapshot::decode(&damaged).unwrap_err();
    assert!(matches!(error, FormatError::Checksum { .. }), "{error}");
}
