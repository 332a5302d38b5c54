//! Sealing and collecting, as stories and as properties: after any sealing and trimming, a reader with the pages sees
//! the same log, and the manifest stays small.

use millpond_manifest::cas::Object;
use millpond_manifest::manifest::TAIL_MAX;
use millpond_manifest::{Claim, Commit, FormatError, Log, Manifest, NewPart, NewSegment, Page, ProducerId};
use millpond_segment::Encoding;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use ulid::Ulid;
use uuid::Uuid;

const A: ProducerId = ProducerId([1; 16]);

fn segment(time_ms: u64, random: u128) -> NewSegment {
    let part = NewPart {
        stream: if random.is_multiple_of(3) {
            "otlp.traces"
        } else {
            "otlp.logs"
        }
        .into(),
        encoding: Encoding::Otlp,
        offset: 5,
        length: 90,
        raw_len: 400,
        messages: 2,
        records: 20,
        first_received_at_us: 1_000,
        last_received_at_us: 2_000,
    };
    NewSegment {
        segment: Ulid::from_parts(time_ms, random),
        size: 100,
        parts: vec![part],
    }
}

/// A manifest, its pages, and the names of all segments ever committed.
struct Shard {
    manifest: Manifest,
    pages: BTreeMap<Ulid, Page>,
    committed: Vec<Ulid>,
    now_ms: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            manifest: Manifest::new(Uuid::from_u128(9), 0).register(A, 0),
            pages: BTreeMap::new(),
            committed: Vec::new(),
            now_ms: 1_000,
        }
    }

    fn commit(&mut self, count: usize) {
        self.now_ms += 1;
        let from = self.committed.len() as u128;
        let segments: Vec<_> = (0..count as u128)
            .map(|i| segment(self.now_ms, from + i))
            .collect();
        let number = self.manifest.producer(A).expect("registered").commit + 1;
        let claims = [Claim::one(A, number, 0..segments.len())];
        match self.manifest.commit(&claims, &segments, self.now_ms) {
            Ok(Commit { state, .. }) => self.manifest = *state,
            other => panic!("{other:?}"),
        }
        self.committed.extend(segments.iter().map(|s| s.segment));
    }

    fn seal(&mut self, last: u64) {
        let name = Ulid::from_parts(self.now_ms, u128::from(last));
        if let Some((page, next)) = self.manifest.seal(name, last) {
            self.manifest = next;
            self.pages.insert(name, page);
        }
    }

    fn log(&self) -> Log {
        let mut log = Log::new(self.manifest.clone());
        while let Some(reference) = log.missing(0).cloned() {
            let page = self.pages[&reference.page].clone();
            log.load(&reference, Arc::new(page)).expect("the matching page");
        }
        log
    }

    /// Checks that a reader sees exactly the retained entries, in order, from any start.
    fn check(&self) {
        assert_eq!(self.manifest.check(), Ok(()));
        let log = self.log();
        let first = self.manifest.first_sequence;
        for from in [
            0,
            first,
            first + 1,
            self.manifest.tail_start(),
            self.manifest.next_sequence,
        ] {
            let seen: Vec<_> = log
                .entries(from)
                .map(|(sequence, e)| (sequence, e.segment))
                .collect();
            let from = from.max(first);
            let there: Vec<_> = (0..)
                .zip(self.committed.iter().copied())
                .skip(usize::try_from(from).unwrap())
                .collect();
            assert_eq!(seen, there, "from {from}");
        }
        let again = Manifest::decode(&self.manifest.encode()).expect("the bytes read back");
        assert_eq!(again, self.manifest);
        for page in self.pages.values() {
            assert_eq!(Page::decode(&page.encode()).as_ref(), Ok(page));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Commit(usize),
    Seal(u64),
    Collect(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..5_usize).prop_map(Step::Commit),
        (0..12_u64).prop_map(Step::Seal),
        (0..6_u64).prop_map(Step::Collect),
    ]
}

proptest! {
    #[test]
    fn sealing_and_trimming_change_nothing_for_readers(steps in prop::collection::vec(step(), 1..40)) {
        let mut shard = Shard::new();
        for step in steps {
            match step {
                Step::Commit(count) => shard.commit(count),
                Step::Seal(ahead) => shard.seal(shard.manifest.tail_start() + ahead),
                Step::Collect(ahead) => {
                    let first = shard.manifest.first_sequence + ahead;
                    shard.manifest = shard.manifest.collect(first, 0);
                }
            }
            shard.check();
        }
    }

    #[test]
    fn a_damaged_page_is_refused(byte in 0..10_000_usize, bit in 0..8_u8) {
        let mut shard = Shard::new();
        shard.commit(3);
        shard.seal(2);
        let mut bytes = shard.pages.first_key_value().expect("a page").1.encode().to_vec();
        let place = byte % bytes.len();
        bytes[place] ^= 1 << bit;
        prop_assert!(Page::decode(&bytes).is_err());
    }
}

#[test]
fn the_first_unloaded_page_is_a_horizon_and_not_the_end() {
    let mut shard = Shard::new();
    shard.commit(4);
    shard.seal(1);
    shard.seal(3);
    shard.commit(2);
    let all = shard.log();
    let [first, second] = &shard.manifest.pages[..] else {
        panic!("two pages")
    };
    let mut log = Log::new(shard.manifest.clone());
    assert_eq!(
        (log.horizon(0), log.horizon(4), log.entries(0).count()),
        (0, 6, 0)
    );
    assert_eq!(log.entries(4).count(), 2);
    log.load(first, Arc::new(shard.pages[&first.page].clone()))
        .expect("it is");
    assert_eq!((log.horizon(0), log.entries(1).count()), (2, 1));
    log.load(second, Arc::new(shard.pages[&second.page].clone()))
        .expect("it is");
    assert_eq!((log.horizon(0), log.missing(0)), (6, None));
    assert!(log.entries(0).eq(all.entries(0)));

    log.unload(|page| page.last >= 2);
    assert!(!log.is_loaded(first) && log.is_loaded(second));
    // A page other than the referenced one never joins the log.
    let mistaken = log
        .load(first, Arc::new(shard.pages[&second.page].clone()))
        .expect_err("another page");
    assert_eq!((mistaken.first, mistaken.last), (2, 3));
    let mut altered = shard.pages[&first.page].clone();
    altered.entries[0].parts[0].records += 1;
    assert!(log.load(first, Arc::new(altered)).is_err());

    // A later state without the first page.
    let log = all.advanced(shard.manifest.collect(2, 0));
    assert_eq!(
        log.entries(0).map(|(sequence, _)| sequence).collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
}

#[test]
fn a_page_named_before_the_floor_is_never_referred_to() {
    let mut shard = Shard::new();
    shard.commit(3);
    let old = Ulid::from_parts(10, 1);
    shard.manifest = shard.manifest.collect(0, 11);
    assert!(shard.manifest.seal(old, 2).is_none());
    assert!(shard.manifest.seal(Ulid::from_parts(11, 1), 2).is_some());
    assert!(
        shard.manifest.seal(Ulid::from_parts(11, 1), 3).is_none(),
        "past the end"
    );
}

#[test]
fn gc_moves_the_log_forward_only() {
    let mut shard = Shard::new();
    shard.commit(5);
    shard.seal(2);
    let collected = shard.manifest.collect(1, 50);
    // Inside the page: it stays until all of it is trimmed.
    assert_eq!((collected.first_sequence, collected.pages.len()), (1, 1));
    let collected = collected.collect(4, 40);
    assert_eq!(
        (
            collected.first_sequence,
            collected.pages.len(),
            collected.tail.len()
        ),
        (4, 0, 1)
    );
    assert_eq!(collected.orphan_floor_ms, 50);
    let collected = collected.collect(0, 0).collect(99, 0);
    assert_eq!(
        (
            collected.first_sequence,
            collected.next_sequence,
            collected.tail.len()
        ),
        (5, 5, 0)
    );
    assert_eq!(collected.check(), Ok(()));
}

#[test]
fn the_manifest_of_a_million_segments_is_hardly_larger_than_that_of_a_thousand() {
    let mut shard = Shard::new();
    for _ in 0..1_000 {
        shard.commit(1);
    }
    let thousand = shard.manifest.encode().len();
    // Pages alone: their entries cost nothing here.
    let page = shard
        .manifest
        .seal(Ulid::from_parts(9_999, 0), 999)
        .expect("sealed")
        .1
        .pages
        .remove(0);
    let pages = 1_000_000 / TAIL_MAX as u64;
    shard.manifest.first_sequence = 0;
    shard.manifest.pages = (0..pages)
        .map(|i| {
            let mut page = page.clone();
            (page.first, page.last) = (i * TAIL_MAX as u64, (i + 1) * TAIL_MAX as u64 - 1);
            page
        })
        .collect();
    shard.manifest.next_sequence = pages * TAIL_MAX as u64 + 1_000;
    assert_eq!(shard.manifest.check(), Ok(()));
    let million = shard.manifest.encode().len();
    assert!(million < 2 * thousand, "{million} bytes against {thousand}");
}

#[test]
fn a_page_without_entries_is_not_valid() {
    let page = Page {
        buffer_id: Uuid::from_u128(9),
        shard: 0,
        first: 7,
        entries: Vec::new(),
    };
    assert!(matches!(
        Page::decode(&page.encode()),
        Err(FormatError::Content { .. })
    ));
}

/// A log that a second implementation must read: it begins inside its first page, which is sealed, and continues in the
/// tail. Written by `cargo test -p millpond-manifest -- --ignored write_golden`; a change of these bytes is a change of
/// the format.
fn golden() -> (Manifest, Page) {
    let mut shard = Shard::new();
    shard.now_ms = 1_700_000_000_000;
    shard.commit(3);
    shard.seal(2);
    shard.commit(2);
    let (_, page) = shard.pages.pop_first().expect("a page");
    let collected = shard.manifest.collect(1, 1_699_999_999_000);
    (collected.stamped(0x0123_4567_89ab_cdef), page)
}

const GOLDEN_MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/manifest-with-pages-v1");
const GOLDEN_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/page-v1");

#[test]
fn the_golden_page_and_its_manifest_are_read_and_written_alike() {
    let (manifest, page) = golden();
    let bytes = std::fs::read(GOLDEN_MANIFEST).expect("the golden file is in the repository");
    assert_eq!(Manifest::decode(&bytes).as_ref(), Ok(&manifest));
    assert_eq!(manifest.encode(), bytes);
    let bytes = std::fs::read(GOLDEN_PAGE).expect("the golden file is in the repository");
    assert_eq!(Page::decode(&bytes).as_ref(), Ok(&page));
    assert_eq!(page.encode(), bytes);
    // The page and the manifest belong together.
    let reference = manifest.pages[0].clone();
    assert_eq!((reference.first, reference.last), (0, 2));
    let mut log = Log::new(manifest);
    log.load(&reference, Arc::new(page)).expect("the referenced page");
    let sequences: Vec<_> = log.entries(0).map(|(sequence, _)| sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4]);
}

#[test]
#[ignore = "writes the golden files"]
fn write_golden() {
    let (manifest, page) = golden();
    std::fs::write(GOLDEN_MANIFEST, manifest.encode()).unwrap();
    std::fs::write(GOLDEN_PAGE, page.encode()).unwrap();
}
