//! Who may have sent what is planned ahead of the log.

use super::{Key, LogRead, Schedule};
use millpond_manifest::cursor::Plan;
use millpond_manifest::{BatchingPolicy, Commit, Cursor, Log, Manifest, NewPart, NewSegment, ProducerId};
use millpond_segment::Encoding;
use std::time::Duration;
use ulid::Ulid;
use uuid::Uuid;

const STREAM: &str = "events.test";
/// When the leases of earlier owners have run out.
const OUTLIVED: Duration = Duration::from_secs(60);

fn single(sequence: u64) -> Key {
    let plan = Plan {
        low: sequence,
        high: sequence,
    };
    (STREAM.to_owned(), plan)
}

fn log(segments: u64) -> Log {
    let producer = ProducerId([7; 16]);
    let mut manifest = Manifest::new(Uuid::nil(), 0).register(producer, 1);
    for number in 1..=segments {
        let part = NewPart {
            stream: STREAM.to_owned(),
            encoding: Encoding::Ndjson,
            offset: 6,
            length: 30,
            raw_len: 5,
            messages: 1,
            records: 1,
            first_received_at_us: 1,
            last_received_at_us: 1,
        };
        let segment = NewSegment {
            segment: Ulid::from_parts(1, number.into()),
            size: 100,
            parts: vec![part],
        };
        let Ok(Commit::Next { state, .. }) = manifest.commit(producer, number, &[segment], 1) else {
            panic!("the log refuses a segment")
        };
        manifest = *state;
    }
    Log::new(manifest)
}

/// A cursor with these sequences planned.
fn planned(sequences: std::ops::Range<u64>) -> Cursor {
    let policy = BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1,
        chunk_rows: 1,
        chunk_bytes: 1,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: String::new(),
        schema_version: 1,
    };
    let mut cursor = Cursor::new(Uuid::nil(), 0, "default", 0, policy);
    for sequence in sequences {
        cursor.plan(STREAM, single(sequence).1).unwrap();
    }
    cursor
}

fn successor(cursor: &Cursor, log: &Log) -> Schedule {
    Schedule::in_doubt(cursor, log, &|_| true)
}

fn read(began: u64, ended: u64) -> LogRead {
    LogRead {
        began: Duration::from_secs(began),
        ended: Duration::from_secs(ended),
    }
}

#[test]
fn what_an_earlier_owner_planned_ahead_may_be_sent_until_its_lease_has_run_out() {
    let (cursor, log) = (planned(1..4), log(2));
    let mut schedule = successor(&cursor, &log);
    assert_eq!(schedule.unsent(&cursor, &log), []);
    assert!(schedule.inherits_ahead(&cursor, &log));
    schedule.log_read(&log, read(59, 59), OUTLIVED);
    assert_eq!(schedule.unsent(&cursor, &log), []);
    schedule.log_read(&log, read(60, 60), OUTLIVED);
    assert_eq!(schedule.unsent(&cursor, &log), [single(2), single(3)]);
    assert!(!schedule.inherits_ahead(&cursor, &log));
    assert_eq!(schedule.doubtful(), 1, "what is in the log may have been sent");
    assert!(schedule.is_inherited(&single(1)) && !schedule.is_inherited(&single(2)));
}

/// The store may have answered before an earlier owner saw the next segment, and sent it with a lease that still ran.
#[test]
fn a_read_that_began_before_the_lease_ran_out_shows_nothing() {
    let (cursor, log) = (planned(1..4), log(2));
    let mut schedule = successor(&cursor, &log);
    schedule.log_read(&log, read(59, 61), OUTLIVED);
    assert_eq!(schedule.unsent(&cursor, &log), []);
    assert_eq!(schedule.doubtful(), 3);
}

/// The log goes on: what nobody had sent then, this owner alone has sent since.
#[test]
fn what_was_shown_once_stays() {
    let (cursor, before, after) = (planned(1..4), log(2), log(3));
    let mut schedule = successor(&cursor, &before);
    schedule.log_read(&before, read(60, 60), OUTLIVED);
    schedule.log_read(&after, read(70, 70), OUTLIVED);
    assert!(!schedule.is_inherited(&single(2)));
    assert_eq!(schedule.unsent(&cursor, &after), [single(3)]);
}

#[test]
fn own_plans_ahead_are_withdrawn_at_any_time() {
    let (mut cursor, log) = (planned(1..3), log(2));
    let schedule = successor(&cursor, &log);
    cursor.plan(STREAM, single(3).1).unwrap();
    assert_eq!(schedule.unsent(&cursor, &log), [single(3)]);
}
