//! The manifest. Every transition of a valid manifest gives a valid manifest.
#![no_main]

use millpond_fuzz::objects;
use millpond_manifest::{
    Claim, ClientClaim, ClientId, Commit, Log, Manifest, NewPart, NewSegment, Numbers, ProducerId, SourceRow,
};
use millpond_segment::Encoding;
use ulid::Ulid;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(manifest) = objects::read::<Manifest>(data) else {
        return;
    };
    look(&manifest);
    let producer = manifest
        .producers
        .first()
        .map_or(ProducerId([7; 16]), |row| row.id);
    move_sources(&manifest);
    for now_ms in [0, manifest.orphan_floor_ms, u64::MAX] {
        let registered = manifest.register(producer, now_ms);
        objects::check(&registered);
        let commit = registered.producer(producer).map_or(0, |row| row.commit);
        for commit in [commit, commit.saturating_add(1)] {
            let claims = [Claim::one(producer, commit, 0..1)];
            if let Ok(Commit { state, .. }) = registered.commit(&claims, &[segment(now_ms)], now_ms) {
                objects::check(&*state);
                look(&state);
            }
        }
        for sequence in [
            0,
            manifest.first_sequence,
            manifest.tail_start(),
            manifest.next_sequence,
        ] {
            objects::check(&manifest.collect(sequence, now_ms));
            if let Some((page, sealed)) = manifest.seal(Ulid::from_parts(now_ms >> 16, 1), sequence) {
                objects::check(&page);
                objects::check(&sealed);
                let reference = sealed.pages.last().expect("sealing adds a page");
                assert_eq!(sealed.check_page(reference, &page), Ok(()));
            }
        }
    }
});

/// Moves the position of each source, with records and without, as far as it goes.
fn move_sources(manifest: &Manifest) {
    for row in &manifest.sources {
        let to = SourceRow {
            next: if row.shard == manifest.shard { u64::MAX } else { 0 },
            ..row.clone()
        };
        let moved = manifest.set_source(Some(row), to).expect("the row is there");
        assert_ne!(
            moved.source(&row.of).map(|row| row.incarnation),
            Some(row.incarnation)
        );
        objects::check(&moved);
        let claim = ClientClaim {
            client: ClientId([0; 16]),
            numbers: Numbers::Offsets {
                incarnation: row.incarnation,
                from: row.next,
                to: u64::MAX,
            },
            checksum: 0,
            segment: 0,
            source: Some(row.of.clone()),
        };
        if let Ok(checked) = manifest.check_clients(&[claim], u64::MAX) {
            let mut next = manifest.clone();
            next.enter_clients(checked, manifest.next_sequence, u64::MAX);
            assert_eq!(next.position(&row.of), Some(u64::MAX));
            objects::check(&next);
        }
    }
}

fn segment(now_ms: u64) -> NewSegment {
    NewSegment {
        segment: Ulid::from_parts(now_ms >> 16, 2),
        size: 100,
        parts: vec![NewPart {
            stream: "otlp.logs".into(),
            encoding: Encoding::Otlp,
            offset: 6,
            length: 50,
            raw_len: u64::MAX,
            messages: 3,
            records: u64::MAX,
            first_received_at_us: i64::MIN,
            last_received_at_us: i64::MAX,
        }],
    }
}

/// Runs the queries of a log's readers.
fn look(manifest: &Manifest) {
    let log = Log::new(manifest.clone());
    for from in [0, manifest.first_sequence, manifest.next_sequence, u64::MAX] {
        let horizon = log.horizon(from);
        assert!(log.entries(from).all(|(sequence, _)| sequence < horizon));
        for stream in 0..2 {
            assert!(log.parts(stream, from).count() <= log.entries(from).count());
            log.records(stream, from);
        }
    }
}
