//! The buffer object: its bytes, and how its number of shards grows.

use millpond_manifest::Buffer;
use millpond_manifest::buffer::{CannotGrow, SHARDS_MAX};
use millpond_manifest::cas::{Object, Stamp};
use proptest::prelude::*;
use uuid::Uuid;

fn golden() -> Buffer {
    let id = Uuid::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
    let stamp = Stamp {
        version: 2,
        nonce: 0xfedc_ba98_7654_3210,
    };
    Buffer { id, shards: 3, stamp }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v1");

/// Programs before growth wrote no stamp.
const BEFORE_GROWTH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v1-before-growth");

fn before_growth() -> Buffer {
    let stamp = Stamp { version: 0, nonce: 0 };
    Buffer { stamp, ..golden() }
}

#[test]
fn the_golden_buffers_are_read_and_written_alike() {
    for (path, buffer) in [(GOLDEN, golden()), (BEFORE_GROWTH, before_growth())] {
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
}

proptest! {
    #[test]
    fn a_buffer_only_grows_and_each_state_is_distinct(shards in 1..=SHARDS_MAX, asked in 0..=SHARDS_MAX + 2, nonce: u64) {
        let before = Buffer::new(Uuid::from_u128(7), shards);
        match before.grow(asked, nonce) {
            Ok(Some(grown)) => {
                prop_assert!(asked > shards && asked <= SHARDS_MAX);
                prop_assert_eq!((grown.id, grown.shards), (before.id, asked));
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
