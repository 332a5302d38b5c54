//! A snapshot of the keys of a stream.
#![no_main]

use millpond_fuzz::objects;
use millpond_manifest::UniqueSnapshot;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(snapshot) = objects::read::<UniqueSnapshot>(data) else {
        return;
    };
    assert!(snapshot.next > snapshot.since);
    assert!(
        snapshot
            .entries
            .iter()
            .all(|(_, at_us)| *at_us <= snapshot.newest_us())
    );
});
