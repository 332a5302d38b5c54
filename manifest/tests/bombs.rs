//! Small objects that would fill a large memory: the decoder rejects them before it allocates anything for their
//! repeated fields. Anybody who may write to a folder of the bucket can put them there.

use bytes::Bytes;
use millpond_manifest::{
    Buffer, Cursor, DeadLetter, FORMAT_VERSION, FormatError, Manifest, Object, Page, ReadError,
    UniqueSnapshot, cas,
};
use millpond_storage::{Created, Store};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::fmt::Debug;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A single test, so that no other test allocates.
#[test]
fn an_object_that_repeats_something_too_often_is_refused_before_it_is_decoded() {
    // 7 MiB: four million empty skipped parts.
    refused::<Cursor>("skipped parts", &field(13, &[]).repeat(4_000_000));
    refused::<Cursor>("streams", &field(12, &[]).repeat(1_000_000));
    refused::<Cursor>("planned batches", &field(12, &field(3, &[]).repeat(1_000_000)));
    let spread = field(12, &field(3, &[]).repeat(300)).repeat(1_000);
    refused::<Cursor>("planned batches", &spread);
    refused::<Cursor>("refused batches", &field(14, &[]).repeat(1_000_000));
    refused::<Cursor>("refused pieces", &field(14, &field(4, &[1; 1_000_000])));
    refused::<Cursor>("refused pieces", &field(14, &[4 << 3, 1].repeat(1_000_000)));
    refused::<Cursor>("reasons for waiting", &field(15, &[]).repeat(1_000_000));
    refused::<Cursor>("tables", &field(21, &field(1, &[]).repeat(1_000_000)));
    refused::<Cursor>(
        "identities of tables",
        &field(21, &field(1, &field(2, &[]).repeat(1_000_000))),
    );
    let claim = |tables: &[u8]| field(21, &field(4, tables));
    refused::<Cursor>("claimed tables", &claim(&field(2, &[]).repeat(1_000_000)));
    refused::<Cursor>(
        "identities of claimed tables",
        &claim(&field(2, &field(2, &[]).repeat(1_000_000))),
    );
    refused::<Cursor>(
        "streams without repeated events",
        &field(24, &[]).repeat(1_000_000),
    );
    refused::<Cursor>(
        "paths of keys",
        &field(24, &field(2, &field(1, &[]).repeat(1_000_000))),
    );
    refused::<UniqueSnapshot>("earlier snapshots", &field(10, &[]).repeat(1_000_000));
    refused::<Manifest>("streams", &field(8, &[]).repeat(1_000_000));
    refused::<Manifest>("pages", &field(9, &[]).repeat(2_000_000));
    refused::<Manifest>("entries", &field(10, &[]).repeat(1_000_000));
    refused::<Manifest>("parts of segments", &field(10, &field(4, &[]).repeat(5_000_000)));
    refused::<Manifest>("producers", &field(11, &[]).repeat(1_000_000));
    refused::<Manifest>("clients", &field(13, &[]).repeat(1_000_000));
    refused::<Manifest>("idempotency keys", &field(14, &[]).repeat(1_000_000));
    refused::<Page>("entries", &field(4, &[]).repeat(1_000_000));
    refused::<Page>("parts of segments", &field(4, &field(4, &[]).repeat(5_000_000)));
    // Groups nest without a length, so their content cannot be counted.
    let grouped = [
        &[99 << 3 & 0x7f | 3][..],
        &field(13, &[]).repeat(1_000),
        &[99 << 3 & 0x7f | 4],
    ]
    .concat();
    refused::<Cursor>("it is not a protobuf message", &grouped);
    refused::<Cursor>("it is not a protobuf message", &[13 << 3 | 2, 5, 0]);
    refused::<Cursor>("it is not a protobuf message", &[0xff; 11]);

    too_large::<Buffer>();
    too_large::<Cursor>();
    too_large::<DeadLetter>();
    unread();
}

/// A field of bytes, or a message in it.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = match number {
        0..16 => vec![number << 3 | 2],
        _ => vec![number << 3 & 0x7f | 0x82, number >> 4],
    };
    let mut length = content.len();
    while length >= 0x80 {
        field.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    field.push(length.to_le_bytes()[0]);
    field.extend_from_slice(content);
    field
}

fn enveloped<T: Object>(body: &[u8]) -> Vec<u8> {
    let version = FORMAT_VERSION.to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&version), body);
    [&T::MAGIC[..], &version, &checksum.to_le_bytes(), body].concat()
}

fn refused<T: Object + Debug>(what: &str, body: &[u8]) {
    let bytes = enveloped::<T>(body);
    let region = Region::new(ALLOCATOR);
    let error = T::decode(&bytes).unwrap_err();
    let allocated = region.change().bytes_allocated;
    assert!(matches!(error, FormatError::Content { .. }), "{what}: {error}");
    assert!(error.to_string().contains(what), "{what}: {error}");
    assert!(allocated < 4_096, "{what}: {allocated} bytes were allocated");
}

fn too_large<T: Object + Debug>() {
    let bytes = vec![0; usize::try_from(T::BYTES_MAX).unwrap() + 1];
    let error = T::decode(&bytes).unwrap_err();
    assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
}

/// The reader does not even read an object that is too large.
fn unread() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let url = millpond_storage::BufferUrl::parse(&format!("file://{}", folder.path().display())).unwrap();
        let store = Store::open(&url, &Default::default()).await.unwrap();
        let body = Bytes::from(vec![0; 100 << 20]);
        assert_eq!(
            store.put_if_absent("cursor", vec![body]).await.unwrap(),
            Created::New
        );
        let region = Region::new(ALLOCATOR);
        let error = cas::read::<Cursor>(&store, "cursor").await.unwrap_err();
        let allocated = region.change().bytes_allocated;
        let ReadError::Format { wrong, .. } = &error else {
            panic!("{error}")
        };
        assert!(
            matches!(
                wrong,
                FormatError::TooLarge {
                    bytes: 104_857_600,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("consumer remove --force"), "{error}");
        assert!(allocated < 1 << 20, "{allocated} bytes were allocated");
    });
}
