//! Validation and views against prost's decoder of the same bytes: messages with their fields in any
//! order, repeated, merged, unknown; then the same bytes cut short, mutated, or random.

use millpond_otlp::{AnyValue, KeyValue, Malformed, Reason, logs::Request, validate_logs};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1 as common;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use proptest::prelude::*;
use prost::Message;

/// Draws choices from bytes (and zeros after their end), so that proptest can shrink what it builds.
struct Draw<'a>(std::slice::Iter<'a, u8>);

impl Draw<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit
    }

    fn u64(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => u64::MAX - u64::from(self.byte()),
            2 => u64::from(self.byte()) << 40,
            _ => u64::from(self.byte()),
        }
    }

    fn text(&mut self) -> Vec<u8> {
        let text = ["", "a", "service.name", "naïve", "\u{2028}<&>\"", "{\"k\":[1]}"];
        let mut text = text[usize::from(self.below(6))].as_bytes().to_vec();
        if self.below(16) == 15 {
            text = vec![b'x'; 200];
        }
        text
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn put_varint(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3, out);
    varint(value, out);
}

fn put_fixed64(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3 | 1, out);
    out.extend(value.to_le_bytes());
}

fn put_fixed32(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3 | 5, out);
    out.extend(&value.to_le_bytes()[..4]);
}

fn put_bytes(number: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend(value);
}

fn unknown(draw: &mut Draw, out: &mut Vec<u8>) {
    let number = [20, 99, 1001, (1 << 29) - 1][usize::from(draw.below(4))];
    match draw.below(4) {
        0 => put_varint(number, draw.u64(), out),
        1 => put_fixed64(number, draw.u64(), out),
        2 => put_fixed32(number, draw.u64(), out),
        _ => put_bytes(number, &draw.text(), out),
    }
}

fn scalar(draw: &mut Draw, out: &mut Vec<u8>) {
    match draw.below(7) {
        0 => {}
        1 => put_bytes(1, &draw.text(), out),
        2 => put_varint(2, draw.u64(), out),
        3 => put_varint(3, draw.u64(), out),
        4 => put_fixed64(
            4,
            [0, 1, 0x3ff0 << 48, 0x7ff0 << 48][usize::from(draw.below(4))],
            out,
        ),
        5 => put_bytes(7, &draw.text(), out),
        _ => put_varint(8, draw.u64(), out),
    }
}

/// One occurrence of an AnyValue. Only the first occurrence of a field is an array or a map, because a
/// second one is where we follow the Collector and not protobuf (see the test of that name).
fn any_value(draw: &mut Draw, first: bool, depth: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(3) {
        scalar(draw, &mut out);
    }
    let mut inner = Vec::new();
    match draw.below(6) {
        0 if first && depth < 4 => {
            for _ in 0..draw.below(4) {
                put_bytes(1, &any_value(draw, true, depth + 1), &mut inner);
            }
            put_bytes(5, &inner, &mut out);
        }
        1 if first && depth < 4 => {
            for _ in 0..draw.below(4) {
                put_bytes(1, &key_value(draw, depth + 1), &mut inner);
            }
            put_bytes(6, &inner, &mut out);
        }
        2 => unknown(draw, &mut out),
        _ => scalar(draw, &mut out),
    }
    out
}

fn key_value(draw: &mut Draw, depth: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut first = true;
    for _ in 0..draw.below(4) {
        match draw.below(6) {
            0 | 1 => put_bytes(1, &draw.text(), &mut out),
            2 | 3 => {
                put_bytes(2, &any_value(draw, first, depth), &mut out);
                first = false;
            }
            4 => put_varint(3, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn log_record(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    let mut first = true;
    for _ in 0..draw.below(12) {
        match draw.below(14) {
            1 => put_fixed64(1, draw.u64(), &mut out),
            2 => put_varint(2, draw.u64(), &mut out),
            3 => put_bytes(3, &draw.text(), &mut out),
            5 => {
                put_bytes(5, &any_value(draw, first, 0), &mut out);
                first = false;
            }
            7 => put_varint(7, draw.u64(), &mut out),
            8 => put_fixed32(8, draw.u64(), &mut out),
            9 => put_bytes(9, &[draw.byte(); 16], &mut out),
            10 => put_bytes(10, &[draw.byte(); 8], &mut out),
            11 => put_fixed64(11, draw.u64(), &mut out),
            12 => put_bytes(12, &draw.text(), &mut out),
            13 => unknown(draw, &mut out),
            _ => put_bytes(6, &key_value(draw, 0), &mut out),
        }
    }
    out
}

fn scope(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        match draw.below(5) {
            0 => put_bytes(1, &draw.text(), &mut out),
            1 => put_bytes(2, &draw.text(), &mut out),
            2 => put_bytes(3, &key_value(draw, 0), &mut out),
            3 => put_varint(4, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn scope_logs(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(6) {
        match draw.below(6) {
            0 => put_bytes(1, &scope(draw), &mut out),
            1 => put_bytes(3, &draw.text(), &mut out),
            2 => unknown(draw, &mut out),
            _ => put_bytes(2, &log_record(draw), &mut out),
        }
    }
    out
}

fn resource(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        match draw.below(5) {
            0 | 1 => put_bytes(1, &key_value(draw, 0), &mut out),
            2 => put_varint(2, draw.u64(), &mut out),
            3 => {
                let mut entity = Vec::new();
                put_bytes(1 + u64::from(draw.below(4)), &draw.text(), &mut entity);
                put_bytes(3, &entity, &mut out);
            }
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn request(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(3) + 1 {
        let mut logs = Vec::new();
        for _ in 0..draw.below(6) {
            match draw.below(6) {
                0 => put_bytes(1, &resource(draw), &mut logs),
                1 => put_bytes(3, &draw.text(), &mut logs),
                2 => unknown(draw, &mut logs),
                _ => put_bytes(2, &scope_logs(draw), &mut logs),
            }
        }
        put_bytes(1, &logs, &mut out);
        if draw.below(8) == 7 {
            unknown(draw, &mut out);
        }
    }
    out
}

fn same_value(ours: AnyValue, theirs: Option<&common::AnyValue>) -> bool {
    match (ours, theirs.and_then(|value| value.value.as_ref())) {
        (AnyValue::Empty, None) => true,
        (AnyValue::String(ours), Some(Value::StringValue(theirs))) => ours == theirs.as_bytes(),
        (AnyValue::Bool(ours), Some(Value::BoolValue(theirs))) => ours == *theirs,
        (AnyValue::Int(ours), Some(Value::IntValue(theirs))) => ours == *theirs,
        (AnyValue::Double(ours), Some(Value::DoubleValue(theirs))) => ours.to_bits() == theirs.to_bits(),
        (AnyValue::Bytes(ours), Some(Value::BytesValue(theirs))) => ours == theirs,
        (AnyValue::StringIndex(ours), Some(Value::StringValueStrindex(theirs))) => ours == *theirs,
        (AnyValue::Array(ours), Some(Value::ArrayValue(theirs))) => {
            ours.count() == theirs.values.len()
                && ours
                    .zip(&theirs.values)
                    .all(|(ours, theirs)| same_value(ours, Some(theirs)))
        }
        (AnyValue::Map(ours), Some(Value::KvlistValue(theirs))) => same_pairs(ours, &theirs.values),
        _ => false,
    }
}

fn same_pairs<'a>(ours: impl Iterator<Item = KeyValue<'a>>, theirs: &[common::KeyValue]) -> bool {
    let ours: Vec<_> = ours.collect();
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(ours, theirs)| {
            ours.key == theirs.key.as_bytes() && same_value(ours.value, theirs.value.as_ref())
        })
}

/// Every field of every view equals what prost decoded.
fn assert_same(ours: Request, theirs: &ExportLogsServiceRequest) {
    let mut records = 0;
    assert_eq!(ours.resource_logs().count(), theirs.resource_logs.len());
    for (ours, theirs) in ours.resource_logs().zip(&theirs.resource_logs) {
        let resource = theirs.resource.clone().unwrap_or_default();
        assert_eq!(ours.schema_url, theirs.schema_url.as_bytes());
        assert!(same_pairs(ours.resource_attributes(), &resource.attributes));
        assert_eq!(ours.scope_logs().count(), theirs.scope_logs.len());
        for (ours, theirs) in ours.scope_logs().zip(&theirs.scope_logs) {
            let scope = theirs.scope.clone().unwrap_or_default();
            assert_eq!(ours.schema_url, theirs.schema_url.as_bytes());
            assert_eq!(ours.scope_name, scope.name.as_bytes());
            assert_eq!(ours.scope_version, scope.version.as_bytes());
            assert!(same_pairs(ours.scope_attributes(), &scope.attributes));
            assert_eq!(ours.log_records().count(), theirs.log_records.len());
            for (ours, theirs) in ours.log_records().zip(&theirs.log_records) {
                records += 1;
                assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
                assert_eq!(ours.observed_time_unix_nano, theirs.observed_time_unix_nano);
                assert_eq!(ours.severity_number, theirs.severity_number);
                assert_eq!(ours.severity_text, theirs.severity_text.as_bytes());
                assert!(
                    same_value(ours.body, theirs.body.as_ref()),
                    "{:?} is not {:?}",
                    ours.body,
                    theirs.body
                );
                assert!(same_pairs(ours.attributes(), &theirs.attributes));
                assert_eq!(ours.dropped_attributes_count, theirs.dropped_attributes_count);
                assert_eq!(ours.flags, theirs.flags);
                assert_eq!(ours.trace_id, theirs.trace_id);
                assert_eq!(ours.span_id, theirs.span_id);
                assert_eq!(ours.event_name, theirs.event_name.as_bytes());
            }
        }
    }
    assert_eq!(ours.counts().records, records);
}

/// Both decoders on any bytes: they agree, or the difference is one of those we chose.
fn compare(bytes: &[u8]) {
    let theirs = ExportLogsServiceRequest::decode(bytes);
    match (Request::parse(bytes), theirs) {
        (Ok(ours), Ok(theirs)) => {
            // To prost the field that scope_logs replaced is unknown; it counts where scope_logs is absent.
            let records: usize = theirs
                .resource_logs
                .iter()
                .flat_map(|logs| &logs.scope_logs)
                .map(|scope| scope.log_records.len())
                .sum();
            let old = theirs.resource_logs.iter().any(|logs| logs.scope_logs.is_empty());
            assert!(ours.counts().records == records as u64 || old);
        }
        (Err(_), Err(_)) => {}
        (Ok(_), Err(theirs)) => {
            // prost checks UTF-8; the Collector and we do not. prost also counts the skipping of an unknown
            // field as one more level of nesting.
            let theirs = theirs.to_string();
            assert!(
                theirs.contains("UTF-8") || theirs.contains("recursion"),
                "only prost refuses: {theirs}"
            );
        }
        (Err(ours), Ok(_)) => {
            // prost skips groups where it knows no field, and does not look into the field that scope_logs
            // replaced.
            let old = ours.field.contains("instrumentation_library_logs");
            assert!(ours.reason == Reason::Group || old, "only we refuse: {ours}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn what_prost_reads_we_read(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
        let bytes = request(&mut Draw(entropy.iter()));
        let theirs = ExportLogsServiceRequest::decode(&*bytes).unwrap();
        assert_same(Request::parse(&bytes).unwrap(), &theirs);
    }

    #[test]
    fn what_prost_writes_we_read(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
        let theirs = ExportLogsServiceRequest::decode(&*request(&mut Draw(entropy.iter()))).unwrap();
        let bytes = theirs.encode_to_vec();
        assert_same(Request::parse(&bytes).unwrap(), &theirs);
    }

    #[test]
    fn cut_short_it_is_refused_as_prost_refuses_it(
        entropy in proptest::collection::vec(any::<u8>(), 0..300),
        cut in any::<proptest::sample::Index>(),
    ) {
        let bytes = request(&mut Draw(entropy.iter()));
        compare(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn mutated_bytes_are_judged_as_prost_judges_them(
        entropy in proptest::collection::vec(any::<u8>(), 0..300),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = request(&mut Draw(entropy.iter()));
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        compare(&bytes);
    }

    #[test]
    fn random_bytes_are_judged_as_prost_judges_them(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        compare(&bytes);
    }
}

/// Embeds `bytes` in `path`, innermost first.
fn wrap(bytes: &[u8], path: &[u64]) -> Vec<u8> {
    path.iter().fold(bytes.to_vec(), |inner, &number| {
        let mut out = Vec::new();
        put_bytes(number, &inner, &mut out);
        out
    })
}

const RECORD: [u64; 3] = [2, 2, 1];

#[test]
fn an_error_says_where() {
    let mut record = Vec::new();
    put_bytes(6, &[], &mut record);
    let mut pair = Vec::new();
    put_bytes(1, b"key", &mut pair);
    put_varint(2, 1, &mut pair);
    put_bytes(6, &pair, &mut record);
    let mut scope = wrap(&[], &[2]);
    put_bytes(2, &record, &mut scope);
    let bytes = wrap(&scope, &[2, 1]);
    let error = validate_logs(&bytes).unwrap_err();
    assert_eq!(
        error,
        Malformed {
            offset: bytes.len() - 2,
            field: "resource_logs[0].scope_logs[0].log_records[1].attributes[1].value".into(),
            reason: Reason::WireType,
        }
    );
    assert_eq!(
        error.to_string(),
        "malformed OTLP at byte 17 (resource_logs[0].scope_logs[0].log_records[1].attributes[1].value): \
         the wire type is not the one that OTLP gives this field"
    );
    let error = validate_logs(&[0x0a]).unwrap_err();
    assert_eq!(
        (error.offset, error.field.as_str(), error.reason),
        (0, "resource_logs[0]", Reason::Truncated)
    );
    let error = validate_logs(&[0x00]).unwrap_err();
    assert_eq!(
        (error.offset, error.field.as_str(), error.reason),
        (0, "the request itself", Reason::FieldNumber)
    );
    let error = validate_logs(&wrap(&[0xfa, 0x06, 0xff], &RECORD)).unwrap_err();
    assert_eq!(
        error.field,
        "resource_logs[0].scope_logs[0].log_records[0].unknown field 111"
    );
}

#[test]
fn each_fault_has_its_reason() {
    for (record, reason) in [
        (&[0x0b, 0x0c][..], Reason::Group),
        (&[0xa3, 0x06, 0xa4, 0x06], Reason::Group),
        (&[0xa6, 0x06], Reason::UnknownWireType),
        (&[0x08, 0x01], Reason::WireType),
        (&[0x09, 1, 2, 3], Reason::Truncated),
        (&[0x2a, 0x05, 0x0a], Reason::Truncated),
        (
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            Reason::Varint,
        ),
        (
            &[0x2a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            Reason::Truncated,
        ),
        (&[0x05, 0, 0, 0, 0], Reason::FieldNumber),
    ] {
        assert_eq!(
            validate_logs(&wrap(record, &RECORD)).unwrap_err().reason,
            reason,
            "{record:x?}"
        );
    }
}

#[test]
fn an_empty_request_has_no_records() {
    assert_eq!(validate_logs(&[]).unwrap().records, 0);
    assert_eq!(validate_logs(&wrap(&[], &RECORD)).unwrap().records, 1);
}

#[test]
fn strings_that_are_not_utf8_pass_as_in_the_collector() {
    let mut record = Vec::new();
    put_bytes(3, &[0xff, 0xfe], &mut record);
    let bytes = wrap(&record, &RECORD);
    assert!(ExportLogsServiceRequest::decode(&*bytes).is_err());
    let request = Request::parse(&bytes).unwrap();
    let record = request
        .resource_logs()
        .next()
        .unwrap()
        .scope_logs()
        .next()
        .unwrap()
        .log_records()
        .next()
        .unwrap();
    assert_eq!(record.severity_text, [0xff, 0xfe]);
}

/// Protobuf merges occurrences of a message, oneof or not; the Collector replaces the array or map.
#[test]
fn a_second_array_replaces_the_first_as_in_the_collector() {
    let mut body = wrap(&wrap(b"a", &[1]), &[1, 5]);
    body.extend(wrap(&wrap(b"b", &[1]), &[1, 5]));
    let bytes = wrap(&wrap(&body, &[5]), &RECORD);
    let request = Request::parse(&bytes).unwrap();
    let record = request
        .resource_logs()
        .next()
        .unwrap()
        .scope_logs()
        .next()
        .unwrap()
        .log_records()
        .next()
        .unwrap();
    let AnyValue::Array(values) = record.body else {
        panic!("{:?}", record.body)
    };
    assert_eq!(values.collect::<Vec<_>>(), [AnyValue::String(b"b")]);
}

/// Senders from before OTLP 0.15 use field 1000; the Collector reads it where scope_logs is absent.
#[test]
fn the_field_that_scope_logs_replaced_counts_alone() {
    let old = wrap(&wrap(&[], &[2]), &[1000]);
    let bytes = wrap(&old, &[1]);
    assert_eq!(validate_logs(&bytes).unwrap().records, 1);
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(
        request
            .resource_logs()
            .flat_map(|logs| logs.scope_logs())
            .flat_map(|s| s.log_records())
            .count(),
        1
    );

    let mut both = old;
    both.extend(wrap(&[], &[2]));
    let bytes = wrap(&both, &[1]);
    assert_eq!(validate_logs(&bytes).unwrap().records, 0);
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(
        request
            .resource_logs()
            .flat_map(|logs| logs.scope_logs())
            .flat_map(|s| s.log_records())
            .count(),
        0
    );
}

#[test]
fn nesting_is_bounded() {
    // Four messages down to the body, then two for each array within another.
    let nested = |arrays: usize| {
        let mut value = Vec::new();
        for _ in 0..arrays {
            value = wrap(&value, &[1, 5]);
        }
        wrap(&wrap(&value, &[5]), &RECORD)
    };
    assert!(validate_logs(&nested(48)).is_ok());
    assert!(ExportLogsServiceRequest::decode(&*nested(48)).is_ok());
    assert_eq!(validate_logs(&nested(49)).unwrap_err().reason, Reason::Depth);
    assert!(ExportLogsServiceRequest::decode(&*nested(49)).is_err());
    assert_eq!(validate_logs(&nested(20_000)).unwrap_err().reason, Reason::Depth);
}
