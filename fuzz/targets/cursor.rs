//! A cursor. Every transition of a valid cursor gives a valid cursor.
#![no_main]

use millpond_fuzz::objects;
use millpond_manifest::Cursor;
use millpond_manifest::cursor::{NO_UNIQUE, Opening, Ownership, Plan, Skip};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(cursor) = objects::read::<Cursor>(data) else {
        return;
    };
    for (now_ms, take_over) in [(0, false), (u64::MAX, false), (0, true)] {
        let opening = Opening {
            id: 7,
            owner: "one",
            now_ms,
            lease_ms: 1000,
            policy: &cursor.policy,
            unique: &NO_UNIQUE,
            take_over,
        };
        if let Ok(opened) = cursor.open(&opening) {
            assert!(opened.state.epoch > cursor.epoch);
            objects::check(&opened.state);
        }
    }
    let tombstone = cursor.remove();
    objects::check(&tombstone);
    objects::check(&tombstone.begin_again(3, cursor.policy.clone()));
    let streams: Vec<String> = cursor.streams.keys().cloned().chain(["new".into()]).collect();
    for stream in &streams {
        let next = cursor.next(stream);
        let planned = cursor.planned(stream).last();
        for low in [
            0,
            next,
            planned.map_or(next, |plan| plan.high.saturating_add(1)),
            u64::MAX,
        ] {
            for high in [low, low.saturating_add(7)] {
                step(&cursor, |cursor| cursor.plan(stream, Plan { low, high }).is_ok());
            }
            step(&cursor, |cursor| cursor.acknowledge(stream, low).is_ok());
            step(&cursor, |cursor| {
                let skip = Skip {
                    stream: stream.clone(),
                    sequence: low,
                    at_ms: low,
                    reason: "unreadable".into(),
                };
                cursor.skip(skip).is_ok()
            });
            objects::check(&cursor.reset(low));
        }
        assert!(!cursor.streams.contains_key(stream) || cursor.needs() <= next);
    }
    step(&cursor, |cursor| {
        cursor.renew(u64::MAX, u64::MAX);
        cursor.release(u64::MAX);
        assert!(!matches!(cursor.ownership, Ownership::Held { .. }));
        true
    });
});

/// A successful transition leaves a valid cursor. A refused one leaves the acknowledged positions unchanged.
fn step(cursor: &Cursor, transition: impl FnOnce(&mut Cursor) -> bool) {
    let mut after = cursor.clone();
    if transition(&mut after) {
        objects::check(&after);
    } else {
        assert!(
            cursor
                .streams
                .keys()
                .all(|stream| after.next(stream) == cursor.next(stream))
        );
    }
}
