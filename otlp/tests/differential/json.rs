//! OTLP/JSON against an independent implementation. Messages drawn from OTLP's own descriptors, covering every field of
//! every message, become JSON by prost-reflect's mapping and must come back unchanged.

use crate::draw::Draw;
use millpond_otlp::{JsonError, Signal, protobuf_of_json, validate};
use proptest::prelude::*;
use prost_reflect::prost::Message;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, Kind, MessageDescriptor, SerializeOptions, Value,
};
use std::sync::LazyLock;

/// OTLP's descriptors from opentelemetry-proto.
static OTLP: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(opentelemetry_proto::DESCRIPTORS).expect("descriptors of OTLP"));

fn request(signal: Signal) -> MessageDescriptor {
    let name = match signal {
        Signal::Logs => "opentelemetry.proto.collector.logs.v1.ExportLogsServiceRequest",
        Signal::Traces => "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest",
        Signal::Metrics => "opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest",
    };
    OTLP.get_message_by_name(name).expect("a request of OTLP")
}

/// A message with some of its fields, fewer at greater depth.
fn message(draw: &mut Draw, descriptor: &MessageDescriptor, depth: u8) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let is_container = matches!(field.kind(), Kind::Message(_));
        let wanted = if is_container && depth < 4 {
            draw.below(4) != 0
        } else {
            depth < 12 && draw.below(3) == 0
        };
        if !wanted {
            continue;
        }
        let value = if field.cardinality() == Cardinality::Repeated {
            let values = (0..draw.below(3) + 1).map(|_| value(draw, &field.kind(), depth));
            Value::List(values.collect())
        } else {
            value(draw, &field.kind(), depth)
        };
        message.set_field(&field, value);
    }
    message
}

fn value(draw: &mut Draw, kind: &Kind, depth: u8) -> Value {
    let doubles = [
        0.0,
        -0.0,
        0.1,
        -1.5,
        f64::MIN_POSITIVE / 8.0,
        f64::MAX,
        1e21,
        9_007_199_254_740_993.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let number = draw.u64();
    let low = u32::from_le_bytes(number.to_le_bytes()[..4].try_into().expect("four bytes"));
    match kind {
        Kind::Double => {
            let some = doubles.get(usize::from(draw.below(12)));
            let any = f64::from_bits(number.rotate_left(u32::from(draw.byte())));
            Value::F64(some.copied().unwrap_or(if any.is_nan() { 1.0 } else { any }))
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(low.cast_signed()),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number.cast_signed()),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(low),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number),
        Kind::Bool => Value::Bool(draw.below(2) == 1),
        Kind::String => Value::String(text(draw)),
        Kind::Bytes => Value::Bytes(
            (0..draw.below(20))
                .map(|_| draw.byte())
                .collect::<Vec<u8>>()
                .into(),
        ),
        Kind::Enum(of) => {
            let numbers: Vec<i32> = of.values().map(|value| value.number()).collect();
            let some = numbers.get(usize::from(draw.byte()));
            Value::EnumNumber(some.copied().unwrap_or(low.cast_signed()))
        }
        Kind::Message(of) => Value::Message(message(draw, of, depth + 1)),
        Kind::Float => unreachable!("OTLP has no float"),
    }
}

fn text(draw: &mut Draw) -> String {
    let pieces = [
        "",
        "a",
        "service.name",
        "naïve",
        "\u{2028}<&>\"\\/",
        "\u{0}\u{8}\n\t\u{7f}",
        "😀",
        "\u{10ffff}",
    ];
    (0..draw.below(4))
        .map(|_| pieces[usize::from(draw.below(8))])
        .collect()
}

/// The choices of a JSON writer.
#[derive(Debug, Clone, Copy)]
struct Style {
    numbers_as_text: bool,
    enum_names: bool,
    original_names: bool,
    defaults: bool,
    pretty: bool,
    ascii: bool,
    unknown: bool,
}

impl Style {
    fn of(draw: &mut Draw) -> Style {
        let mut coin = || draw.below(2) == 1;
        Style {
            numbers_as_text: coin(),
            enum_names: coin(),
            original_names: coin(),
            defaults: coin(),
            pretty: coin(),
            ascii: coin(),
            unknown: coin(),
        }
    }

    fn json(self, message: &DynamicMessage) -> String {
        let options = SerializeOptions::new()
            .stringify_64_bit_integers(self.numbers_as_text)
            .use_enum_numbers(!self.enum_names)
            .use_proto_field_name(self.original_names)
            .skip_default_fields(!self.defaults);
        let json = message.serialize_with_options(serde_json::value::Serializer, &options);
        let mut json = json.expect("JSON");
        self.otlp(&mut json);
        let text = if self.pretty {
            serde_json::to_string_pretty(&json)
        } else {
            serde_json::to_string(&json)
        };
        let text = text.expect("JSON");
        if self.ascii { ascii(&text) } else { text }
    }

    /// Applies OTLP's deviation from protobuf: ids in hexadecimal.
    fn otlp(self, json: &mut serde_json::Value) {
        match json {
            serde_json::Value::Object(fields) => {
                for (key, value) in fields.iter_mut() {
                    let key = key.to_lowercase().replace('_', "");
                    match value {
                        serde_json::Value::String(text)
                            if key.ends_with("traceid") || key.ends_with("spanid") =>
                        {
                            *text = hex(text);
                        }
                        value => self.otlp(value),
                    }
                }
                if self.unknown {
                    let unknown = serde_json::json!({"deep": [[{"x": null}], -1.5e-3, "\u{1}", true]});
                    fields.insert("aFieldOfTomorrow".to_owned(), unknown);
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(|value| self.otlp(value)),
            _ => {}
        }
    }
}

/// Converts base64 to hexadecimal with serde_json's and prost-reflect's readers.
fn hex(base64: &str) -> String {
    let any_value = OTLP
        .get_message_by_name("opentelemetry.proto.common.v1.AnyValue")
        .expect("AnyValue");
    let json = serde_json::json!({ "bytesValue": base64 });
    let message = DynamicMessage::deserialize(any_value, json).expect("base64");
    let bytes = message.get_field_by_name("bytes_value").expect("bytes");
    let bytes = bytes.as_bytes().expect("bytes");
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Escapes everything beyond ASCII, in UTF-16 as in JSON.
fn ascii(json: &str) -> String {
    let mut units = [0; 2];
    json.chars()
        .map(|character| {
            if character.is_ascii() {
                return character.to_string();
            }
            let units = character.encode_utf16(&mut units);
            units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
        })
        .collect()
}

/// The protobuf encoding as a canonical form: `NaN` equals itself, and absent fields have their defaults.
fn canonical(descriptor: MessageDescriptor, bytes: &[u8]) -> Vec<u8> {
    let message = DynamicMessage::decode(descriptor, bytes).expect("protobuf");
    message.encode_to_vec()
}

/// Converts with the maximum room.
fn transcode(signal: Signal, json: &[u8]) -> Result<Vec<u8>, JsonError> {
    protobuf_of_json(signal, json, 5 * json.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_field_of_every_message_comes_back_as_it_was(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        signal in prop::sample::select(&Signal::ALL[..]),
    ) {
        let mut draw = Draw(bytes.iter());
        let style = Style::of(&mut draw);
        let descriptor = request(signal);
        let drawn = message(&mut draw, &descriptor, 0);
        let json = style.json(&drawn);
        let ours = transcode(signal, json.as_bytes()).map_err(|error| {
            TestCaseError::fail(format!("{error} in {style:?} {json}"))
        })?;
        validate(signal, &ours).expect("OTLP");
        prop_assert_eq!(canonical(descriptor, &ours), drawn.encode_to_vec(), "{:?} {}", style, json);
    }

    #[test]
    fn a_small_limit_is_reported_and_kept(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut draw = Draw(bytes.iter());
        let style = Style::of(&mut draw);
        let json = style.json(&message(&mut draw, &request(Signal::Metrics), 0));
        let whole = transcode(Signal::Metrics, json.as_bytes()).expect("OTLP/JSON");
        for room in whole.len().saturating_sub(40)..whole.len() {
            let ours = protobuf_of_json(Signal::Metrics, json.as_bytes(), room);
            prop_assert_eq!(ours, Err(JsonError::MoreRoom));
        }
        // An id or bytes briefly take the room of their text.
        let room = whole.len() + json.len();
        let ours = protobuf_of_json(Signal::Metrics, json.as_bytes(), room).expect("enough");
        prop_assert_eq!(&ours, &whole);
        prop_assert_eq!(ours.capacity(), room);
    }

    #[test]
    fn json_cut_short_or_mutated_is_refused_or_right(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in any::<prop::sample::Index>(),
        mutation in any::<u8>(),
    ) {
        let mut draw = Draw(bytes.iter());
        let style = Style::of(&mut draw);
        let mut json = style.json(&message(&mut draw, &request(Signal::Traces), 0)).into_bytes();
        let place = cut.index(json.len());
        let refused = transcode(Signal::Traces, &json[..place]);
        prop_assert!(matches!(refused, Err(JsonError::Malformed(_))), "{:?}", refused);
        json[place] = mutation;
        match transcode(Signal::Traces, &json) {
            Ok(ours) => prop_assert!(validate(Signal::Traces, &ours).is_ok()),
            Err(JsonError::Malformed(malformed)) => prop_assert!(malformed.offset <= json.len()),
            Err(JsonError::MoreRoom) => prop_assert!(false, "five times as long"),
        }
    }

    /// A field that OTLP does not define may hold any valid JSON, and nothing else.
    #[test]
    fn values_are_json_exactly_if_serde_json_accepts_them(text in r#"[\[\]{}:,"\\u0a1\-+.eE \ntrfalsn/bé]{0,12}"#) {
        let json = format!("{{\"unknown\":{text}}}");
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&json);
        let ours = transcode(Signal::Logs, json.as_bytes());
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{} {:?} {:?}", json, ours, theirs);
    }
}
