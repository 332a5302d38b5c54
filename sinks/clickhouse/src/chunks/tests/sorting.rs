//! Chunks whose rows have the order of their table.

use super::*;
use crate::recovery;
use crate::sorting::Sorting;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use std::sync::Arc;

/// The batch's chunks without the order of tables, and with it.
fn both(batch: &Batch, policy: &BatchingPolicy, columns: Columns) -> [Vec<Chunk>; 2] {
    [Sorting::default(), Sorting::of_new_tables()].map(|sorting| {
        let workspace = Workspace::new().unwrap().sorting(Arc::new(sorting));
        cut_with(workspace, batch, policy, columns)
    })
}

/// Spans with events and links, arrays of every kind of column.
fn spans(number: usize, times: &[u64]) -> Vec<u8> {
    let span = |(index, &time): (usize, &u64)| Span {
        name: format!("span{}", index % 3),
        start_time_unix_nano: time,
        end_time_unix_nano: time + 1,
        events: (0..index % 3)
            .map(|event| Event {
                time_unix_nano: time + event as u64,
                name: format!("event{event}"),
                attributes: (0..event)
                    .map(|key| pair(&format!("key{key}"), "value"))
                    .collect(),
                ..Event::default()
            })
            .collect(),
        links: (0..index % 2)
            .map(|link| Link {
                trace_id: vec![u8::try_from(number % 250).unwrap() + 1; 16],
                span_id: vec![u8::try_from(link + 1).unwrap(); 8],
                attributes: vec![pair("link", &format!("{index}"))],
                ..Link::default()
            })
            .collect(),
        attributes: (0..index % 4)
            .map(|key| pair(&format!("key{key}"), &format!("{number}")))
            .collect(),
        ..Span::default()
    };
    let spans = ResourceSpans {
        resource: Some(Resource {
            attributes: vec![pair("service.name", &format!("service{}", number * 7 % 3))],
            ..Resource::default()
        }),
        scope_spans: vec![ScopeSpans {
            spans: times.iter().enumerate().map(span).collect(),
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![spans],
    }
    .encode_to_vec()
}

/// The expressions of the key, in an order that is the key's.
fn key_of(signal: Signal, row: &BTreeMap<String, String>) -> (u64, String, String, u64) {
    let time: u64 = row["Timestamp"].parse().unwrap();
    let service = row["ServiceName"].clone();
    match signal {
        Signal::Logs => (time / 300_000_000_000, service, String::new(), time),
        _ => (0, service, row["SpanName"].clone(), time / 1_000_000_000),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// The order of a chunk's rows changes neither the rows, nor the chunks, nor the places of rows in them.
    #[test]
    fn only_the_order_of_rows_follows_the_table(
        requests in proptest::collection::vec(proptest::collection::vec(0_u64..700, 0..20), 1..8),
        is_logs in any::<bool>(),
        chunk_rows in 1_u64..60,
        chosen in proptest::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let signal = if is_logs { Signal::Logs } else { Signal::Traces };
        let messages: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(number, seconds)| {
                let times: Vec<u64> = seconds.iter().map(|second| second * 1_000_000_000 + 1).collect();
                if is_logs { request(number, &times) } else { spans(number, &times) }
            })
            .collect();
        let batch = batch_of(signal, &messages, 2, 2);
        let policy = policy(chunk_rows, 1 << 20, 50);
        let [arrived, sorted] = both(&batch, &policy, Columns::All);
        prop_assert_eq!(arrived.len(), sorted.len());
        for (one, other) in arrived.iter().zip(&sorted) {
            prop_assert_eq!(&one.received, &other.received);
            prop_assert_eq!(one.table, other.table);
            let rows = read(other);
            prop_assert!(rows.iter().is_sorted_by_key(|row| key_of(signal, row)));
            let mut by_place = rows;
            by_place.sort_by_key(id_of);
            prop_assert_eq!(&by_place, &read(one));

            let ticks = |chunk: &Chunk| recovery::ticks(&chunk.body, "Timestamp");
            prop_assert_eq!(ticks(other), ticks(one), "a row has the place of another");
            prop_assert_eq!(recovery::source(&other.body), recovery::source(&one.body));
            let mut places: Vec<usize> = chosen.iter().map(|place| place.index(by_place.len())).collect();
            places.sort_unstable();
            places.dedup();
            let of = |chunk: &Chunk| {
                let block = recovery::some(&chunk.body, &places);
                let rows: Vec<u64> = places.iter().map(|&place| place as u64).collect();
                read(&Chunk {
                    rows: block.rows,
                    raw_bytes: block.raw_bytes,
                    body: block.body,
                    received: chunk.received(&rows),
                    ..chunk.clone()
                })
            };
            prop_assert_eq!(of(other), of(one), "a row has the place of another");
        }
        // Nothing else tells the place of a row.
        let [arrived, sorted] = both(&batch, &policy, Columns::None);
        for (one, other) in arrived.iter().zip(&sorted) {
            prop_assert_eq!(&one.body, &other.body);
        }
    }
}
