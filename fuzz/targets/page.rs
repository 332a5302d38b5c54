//! A page. It fits its own reference.
#![no_main]

use millpond_fuzz::objects;
use millpond_manifest::{Manifest, Page};
use ulid::Ulid;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(page) = objects::read::<Page>(data) else {
        return;
    };
    let reference = page.reference(Ulid::from_parts(1, 1));
    assert_eq!(reference.last - reference.first, page.entries.len() as u64 - 1);
    let mut manifest = Manifest::new(page.buffer_id, page.shard);
    // The table has no streams, so only a page whose entries have no parts fits.
    let fits = manifest.check_page(&reference, &page).is_ok();
    assert_eq!(fits, page.entries.iter().all(|entry| entry.parts.is_empty()));
    manifest.shard = page.shard.wrapping_add(1);
    assert!(manifest.check_page(&reference, &page).is_err());
});
