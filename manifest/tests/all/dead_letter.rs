//! Dead letters read back as written, the checksum detects any changed bit, and a name follows from the content.

use bytes::Bytes;
use millpond_manifest::cas::Object;
use millpond_manifest::dead_letter::Kind;
use millpond_manifest::{DeadLetter, FormatError};
use millpond_segment::Encoding;
use proptest::prelude::*;
use uuid::Uuid;

fn letter() -> DeadLetter {
    DeadLetter {
        buffer_id: Uuid::from_u128(9),
        shard: 3,
        stream: "otlp.logs".into(),
        consumer: "default".into(),
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 1,
        sequence: 13,
        record: 5,
        kind: Kind::Refused,
        encoding: Encoding::Otlp,
        received_at_us: 1_700_000_000_000_000,
        payload: Bytes::from_static(b"\x0a\x02\x12\x00"),
        reason: "Code: 469. DB::Exception: Constraint `tidy` is violated. (VIOLATED_CONSTRAINT)".into(),
        written_at_ms: 1_700_000_000_123,
    }
}

#[test]
fn the_name_depends_on_neither_the_time_nor_the_reason() {
    let key = letter().key();
    assert_eq!(
        key,
        "shards/0003/dead-letters/default/00000000000000000013-otlp.logs-0000000005-e93cb66e"
    );
    let again = DeadLetter {
        reason: "another server says it otherwise".into(),
        written_at_ms: 5,
        ..letter()
    };
    assert_eq!(again.key(), key);
}

#[test]
fn letters_of_different_things_have_different_names() {
    let changes: [fn(&mut DeadLetter); 11] = [
        |letter| letter.buffer_id = Uuid::from_u128(10),
        |letter| letter.shard = 4,
        |letter| letter.stream = "otlp.traces".into(),
        |letter| letter.consumer = "other".into(),
        |letter| letter.sink = "clickhouse:otel.other".into(),
        |letter| letter.schema_version = 2,
        |letter| letter.sequence = 14,
        |letter| letter.record += 1,
        |letter| letter.kind = Kind::Unreadable,
        |letter| letter.received_at_us += 1,
        |letter| letter.payload = Bytes::from_static(b"\x0a\x02\x12\x01"),
    ];
    for change in changes {
        let mut other = letter();
        change(&mut other);
        assert_ne!(other.key(), letter().key());
        assert_eq!(DeadLetter::decode(&other.encode()), Ok(other));
    }
}

#[test]
fn a_letter_that_breaks_a_rule_is_refused_with_its_name() {
    type Change = fn(&mut DeadLetter);
    let bad: [(Change, &str); 2] = [
        (|letter| letter.consumer = "../x".into(), "../x"),
        (|letter| letter.stream = String::new(), "stream"),
    ];
    for (change, expected) in bad {
        let mut letter = letter();
        change(&mut letter);
        let Err(FormatError::Content { reason, .. }) = DeadLetter::decode(&letter.encode()) else {
            panic!("{letter:?} is taken")
        };
        assert!(reason.contains(expected), "{reason}");
    }
}

proptest! {
    #[test]
    fn any_dead_letter_reads_back(payload in prop::collection::vec(any::<u8>(), 0..300), reason in ".{0,80}", record in any::<u32>()) {
        let letter = DeadLetter { payload: payload.into(), reason, record, ..letter() };
        prop_assert_eq!(DeadLetter::decode(&letter.encode()), Ok(letter));
    }

    #[test]
    fn a_flipped_bit_is_found(at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut bytes = letter().encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(DeadLetter::decode(&bytes).is_err());
    }

    #[test]
    fn a_truncated_dead_letter_is_refused(at in any::<prop::sample::Index>()) {
        let bytes = letter().encode();
        prop_assert!(DeadLetter::decode(&bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn bytes_that_are_no_letter_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(DeadLetter::decode(&bytes).is_err());
    }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/dead-letter-v1");

/// Written by `cargo test -p millpond-manifest -- --ignored write_golden`; a change of these bytes is a change of the format.
#[test]
fn the_golden_letter_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(DeadLetter::decode(&bytes), Ok(letter()));
    assert_eq!(letter().encode(), bytes);
}

#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    std::fs::write(GOLDEN, letter().encode()).expect("the folder exists");
}
