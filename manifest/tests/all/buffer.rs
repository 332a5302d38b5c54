//! The buffer object: its bytes, and how its number of shards grows.

use millpond_manifest::buffer::{CannotGrow, CannotRoute, ROUTED_MAX, SHARDS_MAX};
use millpond_manifest::cas::{Object, Stamp};
use millpond_manifest::{Buffer, ClientId, FormatError, Route, Routes};
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
        routed: Routes::new(),
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

/// A buffer that routes two streams.
const ROUTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/buffer-v2");

fn route(key: &[&str], shards: u32) -> Route {
    let key = key.iter().map(|path| (*path).to_owned()).collect();
    Route { key, shards }
}

fn routes(all: &[(&str, Route)]) -> Routes {
    let all = all.iter();
    all.map(|(stream, route)| ((*stream).into(), route.clone().into()))
        .collect()
}

fn routed() -> Buffer {
    Buffer {
        routed: routes(&[
            ("events.order", route(&["event_id"], 2)),
            ("acme.clicks", route(&["user.id", "n"], 3)),
        ]),
        ..grown()
    }
}

#[test]
fn the_golden_buffers_are_read_and_written_alike() {
    for (path, buffer) in [
        (GOLDEN, golden()),
        (BEFORE_GROWTH, before_growth()),
        (GROWN, grown()),
        (ROUTED, routed()),
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
    std::fs::write(ROUTED, routed().encode()).unwrap();
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

/// The vectors of design/protocols.md, "Rows by key". The hash is the one of design/deduplication.md.
#[test]
fn the_shard_of_a_row_follows_from_its_key_and_the_shards_of_the_route() {
    let key = 0x7de5_6b25_f1f9_c9cb_696c_3077_8c79_33f3;
    for (shards, shard) in VECTORS {
        assert_eq!(route(&["id"], shards).shard_of(key), shard, "of {shards} shards");
    }
}

const VECTORS: [(u32, u32); 5] = [(1, 0), (2, 1), (3, 2), (7, 1), (10_000, 2_387)];

#[test]
fn a_buffer_with_routes_is_for_newer_programs_and_one_without_for_all() {
    let version = |buffer: &Buffer| buffer.encode()[4];
    assert_eq!((version(&golden()), version(&routed())), (1, 2));
    let ended = routed().unroute(&["events.order".to_owned(), "acme.clicks".to_owned()], 7);
    let ended = ended.expect("it had routes");
    assert_eq!((version(&ended), ended.stamp.version), (1, 3));
    assert_eq!(ended.unroute(&["events.order".to_owned()], 8), None);
    let newer = [&b"MPBF"[..], &[3, 0], &[0; 4]].concat();
    let error = Buffer::decode(&newer).unwrap_err();
    assert!(
        matches!(
            error,
            FormatError::Version {
                found: 3,
                newest: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_route_stays_as_it_is_also_when_the_buffer_grows() {
    let order = routes(&[("events.order", route(&["event_id"], 2))]);
    let first = golden().route(&order, 7).unwrap().expect("another state");
    assert_eq!((first.stamp.version, first.stamp.nonce, first.shards), (3, 7, 3));
    assert_eq!(first.route(&order, 8), Ok(None));
    let grown = first.grow(9, 8).unwrap().expect("another state");
    assert_eq!(grown.routed, order);
    let more = routes(&[("events.order", route(&["event_id"], 2)), ("a", route(&["n"], 9))]);
    assert_eq!(
        grown.route(&more, 9).unwrap().expect("another state").routed,
        more
    );
    for other in [route(&["event_id"], 3), route(&["id"], 2)] {
        let refused = grown.route(&routes(&[("events.order", other)]), 9).unwrap_err();
        assert!(matches!(refused, CannotRoute::Differs { .. }), "{refused}");
        assert!(
            refused
                .to_string()
                .contains("millpond buffer unroute events.order"),
            "{refused}"
        );
    }
}

#[test]
fn a_route_that_breaks_a_rule_is_an_error() {
    for (stream, wrong, words) in [
        (
            "events.order",
            route(&["id"], 4),
            "over 4 shards: the buffer has 3 shards",
        ),
        ("events.order", route(&["id"], 0), "over 0 shards"),
        ("events.order", route(&[], 1), "a key has 0 paths"),
        ("events.order", route(&["a..b"], 1), "is not a path"),
        ("", route(&["id"], 1), "stream "),
    ] {
        let routes = routes(&[(stream, wrong)]);
        let refused = golden().route(&routes, 7).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
        let written = Buffer {
            routed: routes,
            ..golden()
        };
        let refused = Buffer::decode(&written.encode()).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let names: Vec<String> = (0..=ROUTED_MAX).map(|number| format!("e{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, route(&["id"], 1))).collect();
    assert_eq!(golden().route(&routes(&many), 7), Err(CannotRoute::TooMany));
    let longest = "p".repeat(256);
    let largest: Vec<_> = many[1..]
        .iter()
        .map(|(name, _)| (*name, route(&[&*longest; 8], 3)))
        .collect();
    let largest = golden().route(&routes(&largest), 7).unwrap().unwrap();
    assert_eq!(Buffer::decode(&largest.encode()), Ok(largest));
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
