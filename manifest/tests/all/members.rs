//! The list of a consumer's processes: its bytes, and its limits.

use millpond_manifest::Members;
use millpond_manifest::cas::{Object, Stamp};
use millpond_manifest::members::MEMBERS_MAX;
use proptest::prelude::*;
use uuid::Uuid;

fn golden() -> Members {
    let members = Members::new(Uuid::from_u128(7)).beat("consumer-0", []);
    let members = members.beat("consumer-1", []).beat("consumer-0", []);
    let stamp = Stamp {
        version: 3,
        nonce: 0x0123,
    };
    Members { stamp, ..members }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/members-v1");

#[test]
fn the_golden_list_is_read_and_written_alike() {
    let bytes = std::fs::read(GOLDEN).expect("the golden file is in the repository");
    assert_eq!(Members::decode(&bytes).unwrap(), golden());
    assert_eq!(golden().encode(), bytes);
}

#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
}

#[test]
fn a_full_list_keeps_its_members_and_takes_no_other() {
    let mut members = Members::new(Uuid::nil());
    for i in 0..MEMBERS_MAX {
        members = members.beat(&format!("{i:04}"), []);
    }
    let full = members.beat("another", []);
    assert_eq!(full, members);
    assert_eq!(members.beat("0000", []).beats["0000"], 2);
    assert_eq!(members.beat("another", ["0007"]).beats["another"], 1);
    assert!(Members::decode(&members.encode()).is_ok());
    members.beats.insert("too many".to_owned(), 1);
    assert!(Members::decode(&members.encode()).is_err());
}

#[test]
fn a_name_that_is_too_long_is_left_out() {
    let members = Members::new(Uuid::nil()).beat(&"x".repeat(1_001), []);
    assert!(members.beats.is_empty());
}

proptest! {
    #[test]
    fn a_list_reads_back_as_it_was_written(names in prop::collection::btree_map("[a-z0-9.-]{1,20}", any::<u64>(), 0..20), nonce: u64) {
        let mut members = Members::new(Uuid::from_u128(9)).stamped(nonce);
        members.beats = names;
        prop_assert_eq!(Members::decode(&members.encode()).unwrap(), members);
    }

    #[test]
    fn random_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Members::decode(&bytes).is_err());
    }
}
