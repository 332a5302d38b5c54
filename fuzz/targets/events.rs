//! Events from the network: no body makes the reader of rows take more memory than its length justifies, what it keeps is
//! part of the body, and reading that again gives the same rows, in the consumer, too. There a row fills a column of each
//! type or none, and a program over it makes JSON of it. Divided among shards, the rows are the same.
#![no_main]

use bytes::Bytes;
use millpond_clickhouse::read_events;
use millpond_fuzz::memory;
use millpond_gateway::rows::{Division, ERRORS_MAX, Form, Rows, read};
use millpond_manifest::Route;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    for form in [Form::Lines, Form::Any] {
        let rows = memory::bounded(ERRORS + PER_BYTE * data.len(), || read(&body, form));
        assert!(rows.payload.len() <= body.len() && rows.unread_bytes <= body.len());
        assert_eq!(rows.errors.len() as u64, rows.rejected.min(ERRORS_MAX as u64));
        for error in &rows.errors {
            assert!(error.line >= 1 && error.column >= 1);
        }
        let values = serde_json::Deserializer::from_slice(&rows.payload);
        let values = values.into_iter::<serde_json::value::Map<String, serde_json::Value>>();
        // Valid JSON that a Value cannot hold ends the comparison: half a surrogate pair, or 1e999.
        let mut found = 0;
        for value in values {
            let Ok(value) = value else { break };
            drop(value);
            found += 1;
        }
        assert!(found <= rows.accepted);
        // The gateway's count is the number of records in the log, so the consumer has to find as many.
        let (seen, fit, unread) = read_events(&rows.payload);
        assert_eq!((seen, unread), (rows.accepted, 0));
        assert!(fit <= seen);
        divide(&rows);
        // Rows without their own newlines are lines.
        let lines = rows.payload.iter().filter(|byte| **byte == b'\n').count() as u64;
        if rows.accepted > 0 && lines + 1 == rows.accepted {
            let again = read(&rows.payload, Form::Lines);
            assert_eq!((again.accepted, again.rejected), (rows.accepted, 0));
            assert_eq!(again.payload, rows.payload);
        }
    }
    read_events(data);
});

fn divide(rows: &Rows) {
    let key = vec!["a".to_owned(), "b.c".to_owned()];
    let route = Route { key, shards: 3 };
    let (payload, accepted) = (rows.payload.clone(), rows.accepted);
    let parts = memory::bounded(PER_BYTE * payload.len() + (64 << 10), || {
        Division::of(&payload, accepted, &route, 1, false).parts(&payload)
    });
    let parts: Vec<_> = parts.keyed.iter().chain(&parts.rest).collect();
    let bytes: usize = parts.iter().map(|part| part.payload.len()).sum();
    assert!(bytes <= rows.payload.len());
    assert_eq!(parts.iter().map(|part| part.records).sum::<u64>(), rows.accepted);
    for part in parts {
        let (seen, _, unread) = read_events(&part.payload);
        assert_eq!((seen, unread), (part.records, 0));
    }
}

/// The described errors.
const ERRORS: usize = 64 << 10;

/// A row of seven bytes with one key takes a list of keys; one of two bytes that is no row takes an error.
const PER_BYTE: usize = 128;
