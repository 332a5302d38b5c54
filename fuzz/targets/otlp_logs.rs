//! OTLP logs from the network: a request that passes the gateway's validation has views, and both count the same
//! records.
#![no_main]

use millpond_fuzz::memory;
use millpond_otlp::logs::Request;
use millpond_otlp::{AnyValue, DEPTH_MAX, KeyValue};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // A rejection has the path to the fault; an acceptance allocates nothing.
    let request = match memory::bounded(of_a_refusal(data.len()), || Request::parse(data)) {
        Ok(request) => request,
        Err(malformed) => {
            assert!(malformed.offset <= data.len());
            assert!(!malformed.field.is_empty());
            return;
        }
    };
    memory::bounded(0, || Request::parse(data).is_ok());
    let records = memory::bounded(0, || views(&request));
    assert_eq!(records, request.counts().records);
});

/// The limit for a rejection: for each open message the counts of its repeated fields. A byte opens at most two
/// messages.
fn of_a_refusal(bytes: usize) -> usize {
    64 * 1024 + bytes
}

fn views(request: &Request) -> u64 {
    let mut records = 0;
    for resource in request.resources() {
        resource.attributes().for_each(pair);
        for scope in resource.scopes() {
            scope.attributes().for_each(pair);
            for record in scope.items() {
                records += 1;
                value(record.body, 0);
                record.attributes().for_each(pair);
            }
        }
    }
    records
}

fn pair(pair: KeyValue) {
    value(pair.value, 0);
}

/// Reads the value at every depth, which validation has limited.
fn value(of: AnyValue, depth: u32) {
    assert!(depth <= DEPTH_MAX);
    match of {
        AnyValue::Array(values) => values.for_each(|of| value(of, depth + 1)),
        AnyValue::Map(pairs) => pairs.for_each(|pair| value(pair.value, depth + 1)),
        _ => {}
    }
}
