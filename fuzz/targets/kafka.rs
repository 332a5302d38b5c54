//! Requests and record batches of Kafka's clients: none takes more memory than its length justifies, and a request that is
//! answered gets an answer with its length and its number.
#![no_main]

use bytes::Bytes;
use millpond_fuzz::memory;
use millpond_kafka::{Batch, Body, Request, api_versions};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    let read = memory::bounded(FIXED + PER_BYTE * data.len(), || Request::read(body.clone()));
    if let Ok(request) = read {
        let answer = api_versions(
            &request.header,
            matches!(request.body, Body::ApiVersions { is_known: true }),
        );
        assert_eq!(
            answer[..4],
            u32::try_from(answer.len() - 4).expect("short").to_be_bytes()
        );
        assert_eq!(answer[4..8], request.header.correlation_id.to_be_bytes());
        if let Body::Produce(produce) = request.body {
            for partition in produce.topics.into_iter().flat_map(|topic| topic.partitions) {
                records(&partition.records.unwrap_or_default());
            }
        }
    }
    records(&body);
    records(&valid(data));
});

/// Memory beside what the bytes justify.
const FIXED: usize = 4 << 10;

/// A topic takes three bytes at least and 48 in memory, and a partition six and 40. The last topic may announce partitions that do not follow.
const PER_BYTE: usize = 32;

fn records(bytes: &Bytes) {
    let Ok(batch) = memory::bounded(FIXED, || Batch::read(bytes)) else {
        return;
    };
    let mut found = 0;
    memory::bounded(FIXED, || {
        for record in batch.records(&batch.body) {
            let Ok(record) = record else {
                break;
            };
            found += 1;
            for header in record.headers {
                assert!(header.key.len() + header.value.map_or(0, <[u8]>::len) <= batch.body.len());
            }
        }
    });
    assert!(found <= batch.count);
}

/// A batch with the right length, format and checksum around these bytes.
fn valid(data: &[u8]) -> Bytes {
    let mut batch = vec![0; 21];
    batch.extend_from_slice(data);
    let length = u32::try_from(batch.len() - 12).unwrap_or_default();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    let checksum = crc32c::crc32c(data);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    batch.into()
}
