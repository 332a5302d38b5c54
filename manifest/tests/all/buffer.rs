//! The buffer object: its bytes, and how its number of shards grows.

use millpond_manifest::buffer::{CannotGrow, SHARDS_MAX};
use millpond_manifest::cas::{Object, Stamp};
use millpond_manifest::{Buffer, ClientId};
use proptest::prelude::*;
use uuid::Uuid;

fn golden() -> Buffer {
    let id = Uuid::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
    let stamp = Stamp {
        version: 2,
        nonce: 0xfedc_ba98_7654_3210,
    };
    Buffer {
        id,
        shards: 3,
        home_shards: None,
        stamp,
    }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v1");

/// Programs before growth wrote no stamp.
const BEFORE_GROWTH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v1-before-growth");

fn before_growth() -> Buffer {
    let stamp = Stamp { version: 0, nonce: 0 };
    Buffer { stamp, ..golden() }
}

/// A buffer that has grown from one shard.
const GROWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v1-grown");

fn grown() -> Buffer {
    Buffer {
        home_shards: Some(1),
        ..golden()
    }
}

#[test]
fn the_golden_buffers_are_read_and_written_alike() {
    for (path, buffer) in [
        (GOLDEN, golden()),
        (BEFORE_GROWTH, before_growth()),
        (GROWN, grown()),
    ] {
        let bytes = std::fs::read(path).expect("the golden file is in the repository");
        assert_eq!(Buffer::decode(&bytes).unwrap(), buffer);
        assert_eq!(buffer.encode(), bytes);
    }
}

#[test]
#[ignore = "writes the golden file"]
fn write_golden() {
    std::fs::write(GOLDEN, golden().encode()).unwrap();
    std::fs::write(BEFORE_GROWTH, before_growth().encode()).unwrap();
    std::fs::write(GROWN, grown().encode()).unwrap();
}

/// The vectors of design/protocols.md, "Home shards".
#[test]
fn the_home_of_a_client_follows_from_its_id_and_the_first_number_of_shards() {
    let of = |shards, id: u128| Buffer::new(Uuid::from_u128(7), shards).home_of(ClientId(id.to_be_bytes()));
    let id = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
    for (shards, home) in [(1, 0), (2, 0), (3, 0), (7, 2), (10_000, 4_720)] {
        assert_eq!(of(shards, id), home, "of {shards} shards");
    }
    assert_eq!((of(3, id + 1), of(7, id + 1)), (1, 3));
    // The first eight bytes have no part in it: half of them name a group, whose clients spread over all homes.
    assert_eq!(of(7, id & u128::from(u64::MAX)), 2);
}

#[test]
fn more_home_shards_than_shards_are_an_error() {
    let wrong = Buffer {
        home_shards: Some(4),
        ..golden()
    };
    let error = Buffer::decode(&wrong.encode()).unwrap_err().to_string();
    assert!(
        error.contains("4 home shards, which is more than its 3 shards"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn a_buffer_only_grows_and_each_state_is_distinct(shards in 1..=SHARDS_MAX, asked in 0..=SHARDS_MAX + 2, nonce: u64) {
        let before = Buffer::new(Uuid::from_u128(7), shards);
        match before.grow(asked, nonce) {
            Ok(Some(grown)) => {
                prop_assert!(asked > shards && asked <= SHARDS_MAX);
                prop_assert_eq!((grown.id, grown.shards), (before.id, asked));
                prop_assert_eq!(grown.homes(), shards);
                if let Ok(Some(again)) = grown.grow(asked + 1, nonce) {
                    prop_assert_eq!((again.shards, again.homes()), (asked + 1, shards));
                }
                prop_assert_eq!(grown.stamp, Stamp { version: before.stamp.version + 1, nonce });
                prop_assert_eq!(Buffer::decode(&grown.encode()).unwrap(), grown);
            }
            Ok(None) => prop_assert_eq!(asked, shards),
            Err(CannotGrow::Shrinks { has, asked: to }) => {
                prop_assert_eq!((has, to), (shards, asked));
                prop_assert!(asked < shards);
            }
            Err(CannotGrow::TooMany(many)) => prop_assert!(many == asked && asked > SHARDS_MAX),
        }
    }
}
