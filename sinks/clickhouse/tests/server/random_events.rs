//! Random tables and events: the values are those of the server's own JSONEachRow, and rows have the order of the table.

use crate::support::{Server, batch_of_events, chunk, insert, open};
use clickhouse::{Client, Compression};
use millpond_clickhouse::{Config, EventTable};
use millpond_consumer::{Chunk, Sink as _};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::net::{Ipv4Addr, Ipv6Addr};

const STREAM: &str = "events.random";

const OWN: &str = "_millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3), \
     _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32";

/// A type of a column.
#[derive(Clone, Debug)]
enum Type {
    Text,
    FixedText,
    Bool,
    /// A width in bits.
    Int(u32),
    UInt(u32),
    Float(u32),
    /// Precision and scale.
    Decimal(u32, u32),
    Date,
    Date32,
    DateTime,
    /// The digits of a second.
    DateTime64(u32),
    Time,
    Time64(u32),
    Uuid,
    Ipv4,
    Ipv6,
    Enum,
    Json,
    Point,
    LowCardinality,
    Nullable(Box<Type>),
    Array(Box<Type>),
    /// Keys of the first type.
    Map(Box<Type>, Box<Type>),
    Tuple(Vec<Type>),
}

/// A type of values that can be NULL, and elements of keys.
fn scalar() -> impl Strategy<Value = Type> {
    prop_oneof![
        Just(Type::Text),
        Just(Type::FixedText),
        Just(Type::Bool),
        select(vec![8, 16, 32, 64, 128, 256]).prop_map(Type::Int),
        select(vec![8, 16, 32, 64, 128, 256]).prop_map(Type::UInt),
        select(vec![32, 64]).prop_map(Type::Float),
        (1_u32..=76)
            .prop_flat_map(|digits| (Just(digits), 0..=digits))
            .prop_map(|(precision, scale)| Type::Decimal(precision, scale)),
        Just(Type::Date),
        Just(Type::Date32),
        Just(Type::DateTime),
        (0_u32..=9).prop_map(Type::DateTime64),
        Just(Type::Time),
        (0_u32..=9).prop_map(Type::Time64),
        Just(Type::Uuid),
        Just(Type::Ipv4),
        Just(Type::Ipv6),
        Just(Type::Enum),
    ]
}

fn any_type() -> impl Strategy<Value = Type> {
    let leaf = prop_oneof![
        6 => scalar(),
        1 => scalar().prop_map(|inner| Type::Nullable(Box::new(inner))),
        1 => select(vec![Type::Json, Type::Point, Type::LowCardinality]),
    ];
    let key = select(vec![
        Type::Text,
        Type::UInt(8),
        Type::Int(64),
        Type::LowCardinality,
    ]);
    leaf.prop_recursive(3, 8, 3, move |inner| {
        prop_oneof![
            inner.clone().prop_map(|items| Type::Array(Box::new(items))),
            (key.clone(), inner.clone()).prop_map(|(key, value)| Type::Map(Box::new(key), Box::new(value))),
            vec(inner, 1..4).prop_map(Type::Tuple),
        ]
    })
}

impl Type {
    fn name(&self) -> String {
        match self {
            Type::Text => "String".to_owned(),
            Type::FixedText => "FixedString(5)".to_owned(),
            Type::Bool => "Bool".to_owned(),
            Type::Int(bits) => format!("Int{bits}"),
            Type::UInt(bits) => format!("UInt{bits}"),
            Type::Float(bits) => format!("Float{bits}"),
            Type::Decimal(precision, scale) => format!("Decimal({precision}, {scale})"),
            Type::Date => "Date".to_owned(),
            Type::Date32 => "Date32".to_owned(),
            Type::DateTime => "DateTime('UTC')".to_owned(),
            Type::DateTime64(digits) => format!("DateTime64({digits}, 'UTC')"),
            Type::Time => "Time".to_owned(),
            Type::Time64(digits) => format!("Time64({digits})"),
            Type::Uuid => "UUID".to_owned(),
            Type::Ipv4 => "IPv4".to_owned(),
            Type::Ipv6 => "IPv6".to_owned(),
            Type::Enum => "Enum16('a' = -300, 'b' = 0, 'c,' = 7)".to_owned(),
            Type::Json => "JSON".to_owned(),
            Type::Point => "Point".to_owned(),
            Type::LowCardinality => "LowCardinality(Nullable(String))".to_owned(),
            Type::Nullable(inner) => format!("Nullable({})", inner.name()),
            Type::Array(items) => format!("Array({})", items.name()),
            Type::Map(key, value) => {
                let key = key.name().replace("Nullable(String)", "String");
                format!("Map({key}, {})", value.name())
            }
            Type::Tuple(fields) => {
                let fields = fields.iter().zip(0..);
                let fields: Vec<String> = fields
                    .map(|(field, at)| format!("f{at} {}", field.name()))
                    .collect();
                format!("Tuple({})", fields.join(", "))
            }
        }
    }

    /// JSON that fits the type, in the forms that the server reads as well.
    fn values(&self) -> BoxedStrategy<String> {
        let quoted = |values: BoxedStrategy<String>| values.prop_map(|text| format!("\"{text}\"")).boxed();
        match self {
            Type::Text | Type::LowCardinality => prop_oneof![
                4 => any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
                2 => "[a-c]{0,2}".prop_map(|text| format!("\"{text}\"")),
                1 => any::<i64>().prop_map(|number| number.to_string()),
            ]
            .boxed(),
            Type::FixedText => quoted("[ -!#-Z]{0,5}".boxed()),
            Type::Bool => any::<bool>().prop_map(|value| value.to_string()).boxed(),
            Type::Int(bits) => {
                let shift = 128_u32.saturating_sub(*bits);
                number(
                    any::<i128>()
                        .prop_map(move |number| (number >> shift).to_string())
                        .boxed(),
                )
            }
            Type::UInt(bits) => {
                let shift = 128_u32.saturating_sub(*bits);
                number(
                    any::<u128>()
                        .prop_map(move |number| (number >> shift).to_string())
                        .boxed(),
                )
            }
            Type::Float(32) => prop::num::f32::NORMAL
                .prop_map(|number| format!("{number:?}"))
                .boxed(),
            Type::Float(_) => prop::num::f64::NORMAL
                .prop_map(|number| format!("{number:?}"))
                .boxed(),
            Type::Decimal(precision, scale) => {
                let (whole, fraction) = (precision - scale, *scale);
                let sign = select(vec!["", "-"]);
                (
                    sign,
                    digits(whole).prop_map(|whole| trimmed(&whole)),
                    digits(fraction),
                )
                    .prop_map(|(sign, whole, fraction)| match fraction.as_str() {
                        "" => format!("\"{sign}{whole}\""),
                        fraction => format!("\"{sign}{whole}.{fraction}\""),
                    })
                    .boxed()
            }
            Type::Date => quoted((0..=65_535_i64).prop_map(day).boxed()),
            // From 1900-01-01 to 2299-12-31.
            Type::Date32 => quoted((-25_567..=120_529_i64).prop_map(day).boxed()),
            Type::DateTime => prop_oneof![
                any::<u32>().prop_map(|seconds| seconds.to_string()),
                any::<u32>().prop_map(|seconds| format!("\"{}\"", second(seconds.into()))),
            ]
            .boxed(),
            Type::DateTime64(digits) => {
                let years = match digits {
                    // From 1900 to 2262-04-11, where nanoseconds end.
                    9 => -2_208_988_800_i64..9_223_372_036,
                    _ => -2_208_988_800_i64..10_413_792_000,
                };
                let fraction = fraction(*digits);
                let text = (years, fraction).prop_map(|(seconds, fraction)| second(seconds) + &fraction);
                quoted(text.boxed())
            }
            Type::Time => quoted(clock().boxed()),
            Type::Time64(digits) => {
                let text = (clock(), fraction(*digits)).prop_map(|(clock, fraction)| clock + &fraction);
                quoted(text.boxed())
            }
            Type::Uuid => {
                let text = any::<u128>().prop_map(|bits| uuid::Uuid::from_u128(bits).to_string());
                quoted(text.boxed())
            }
            Type::Ipv4 => quoted(any::<Ipv4Addr>().prop_map(|address| address.to_string()).boxed()),
            Type::Ipv6 => quoted(any::<Ipv6Addr>().prop_map(|address| address.to_string()).boxed()),
            Type::Enum => select(vec!["\"a\"", "\"b\"", "\"c,\""])
                .prop_map(str::to_owned)
                .boxed(),
            Type::Json => btree_map("[a-c]{1,2}", any::<i32>(), 0..3)
                .prop_map(|members| serde_json::to_string(&members).unwrap())
                .boxed(),
            Type::Point => any::<(i16, i16)>()
                .prop_map(|(x, y)| format!("[{x}, {y}.5]"))
                .boxed(),
            Type::Nullable(inner) => prop_oneof![3 => inner.values(), 1 => Just("null".to_owned())].boxed(),
            Type::Array(items) => vec(items.values(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(" , ")))
                .boxed(),
            Type::Map(key, value) => {
                let key = match &**key {
                    Type::Text | Type::LowCardinality => "[a-zé]{0,3}".boxed(),
                    other => other
                        .values()
                        .prop_map(|key| key.trim_matches('"').to_owned())
                        .boxed(),
                };
                btree_map(key, value.values(), 0..4).prop_map(object).boxed()
            }
            Type::Tuple(fields) => {
                let fields: Vec<_> = fields.iter().map(Type::values).collect();
                fields
                    .prop_map(|fields| {
                        let fields = fields.into_iter().zip(0..);
                        object(fields.map(|(field, at)| (format!("f{at}"), field)))
                    })
                    .boxed()
            }
        }
    }

    /// Expressions for sorting keys that the sink can compute from column `name`.
    fn keys(&self, name: &str) -> Vec<String> {
        match self {
            Type::DateTime | Type::DateTime64(_) => ["toStartOfHour", "toUnixTimestamp"]
                .iter()
                // These end in 2106.
                .filter(|_| matches!(self, Type::DateTime))
                .map(|function| format!("{function}({name})"))
                .chain([name.to_owned()])
                .collect(),
            Type::Float(_)
            | Type::Json
            | Type::Point
            | Type::LowCardinality
            | Type::Nullable(_)
            | Type::Array(_)
            | Type::Map(..)
            | Type::Tuple(_) => Vec::new(),
            _ => vec![name.to_owned()],
        }
    }
}

/// A number, sometimes as a string.
fn number(values: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let quoted = values.clone().prop_map(|number| format!("\"{number}\""));
    prop_oneof![3 => values, 1 => quoted].boxed()
}

fn object(members: impl IntoIterator<Item = (String, String)>) -> String {
    let members = members
        .into_iter()
        .map(|(key, value)| format!("\"{key}\": {value}"));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

/// Digits without leading zeros.
fn trimmed(digits: &str) -> String {
    match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        rest => rest.to_owned(),
    }
}

/// The date this many days after 1970-01-01.
fn day(days: i64) -> String {
    // Days of the year begin in March; an era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{date:02}", era * 400 + year + next)
}

fn second(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    format!(
        "{} {:02}:{:02}:{:02}",
        day(days),
        rest / 3_600,
        rest / 60 % 60,
        rest % 60
    )
}

fn clock() -> impl Strategy<Value = String> {
    (select(vec!["", "-"]), 0..1_000, 0..60, 0..60)
        .prop_map(|(sign, hours, minutes, seconds)| format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"))
}

fn digits(count: u32) -> BoxedStrategy<String> {
    vec(0..10_u8, count as usize)
        .prop_map(|digits| digits.iter().map(u8::to_string).collect())
        .boxed()
}

fn fraction(count: u32) -> BoxedStrategy<String> {
    match count {
        0 => Just(String::new()).boxed(),
        _ => digits(count).prop_map(|digits| format!(".{digits}")).boxed(),
    }
}

/// A table with its sorting key, and rows. A row lacks the values that are `None`.
#[derive(Clone, Debug)]
struct Case {
    types: Vec<Type>,
    key: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
}

fn case() -> impl Strategy<Value = Case> {
    let types = (vec(any_type(), 1..5), vec(scalar(), 1..3)).prop_map(|(some, more)| [some, more].concat());
    types.prop_flat_map(|types| {
        let values: Vec<_> = types
            .iter()
            .map(|kind| prop::option::weighted(0.9, kind.values()))
            .collect();
        let expressions: Vec<String> = types
            .iter()
            .zip(0..)
            .flat_map(|(kind, at)| kind.keys(&format!("c{at}")))
            .collect();
        let most = expressions.len().min(3);
        let key = subsequence(expressions, 0..=most).prop_shuffle();
        (Just(types), key, vec(values, 1..20)).prop_map(|(types, key, rows)| Case { types, key, rows })
    })
}

fn row(values: &[Option<String>], first: Option<String>) -> String {
    let values = values.iter().zip(0..);
    let values = values.filter_map(|(value, at)| Some((format!("c{at}"), value.clone()?)));
    object(
        first
            .map(|place| ("place".to_owned(), place))
            .into_iter()
            .chain(values),
    )
}

/// Inserts a chunk into a table that keeps the order of rows.
async fn insert_in_order(server: &Server, chunk: &Chunk, columns: &str) {
    server.run("DROP TABLE IF EXISTS otel.written").await;
    server
        .run(&format!(
            "CREATE TABLE otel.written ({OWN}, {columns}) ENGINE = Memory"
        ))
        .await;
    let client = Client::default()
        .with_url(&server.url)
        .with_compression(Compression::None)
        .with_setting("decompress", "1");
    let mut insert = client.insert_formatted_with("INSERT INTO otel.written FORMAT Native");
    for bytes in &chunk.body {
        insert.send(bytes.clone()).await.unwrap();
    }
    insert.end().await.unwrap();
}

async fn check(server: &Server, case: &Case) -> Result<(), TestCaseError> {
    let Case { types, key, rows } = case;
    let columns: Vec<String> = types
        .iter()
        .zip(0..)
        .map(|(kind, at)| format!("c{at} {}", kind.name()))
        .collect();
    let columns = columns.join(", ");
    server.run("DROP TABLE IF EXISTS otel.ours").await;
    server.run("DROP TABLE IF EXISTS otel.theirs").await;
    let key = key.join(", ");
    server
        .run(&format!(
            "CREATE TABLE otel.ours ({columns}, {OWN}) ENGINE = MergeTree ORDER BY ({key}) \
             SETTINGS non_replicated_deduplication_window = 100"
        ))
        .await;
    server
        .run(&format!(
            "CREATE TABLE otel.theirs (place UInt32, {columns}) ENGINE = MergeTree ORDER BY tuple()"
        ))
        .await;

    let sink = open(Config {
        signals: Vec::new(),
        event_tables: vec![EventTable {
            stream: STREAM.to_owned(),
            table: "ours".to_owned(),
            columns: Default::default(),
            transform: None,
        }],
        ..server.config()
    })
    .await;
    let lines: Vec<String> = rows.iter().map(|values| row(values, None)).collect();
    let batch = batch_of_events(STREAM, 1, &[lines.join("\n").into_bytes()]);
    let chunk = chunk(&sink, &batch);
    // A retry selects its rows from the encoded block.
    let (even, odd): (Vec<u64>, Vec<u64>) = (0..chunk.rows).partition(|place| place % 2 == 0);
    for (places, round) in [even, odd]
        .iter()
        .zip(0..)
        .filter(|(places, _)| !places.is_empty())
    {
        let token = format!("{}/{round}", batch.id.token(chunk.index, 0));
        let some = sink.some(&chunk, places);
        insert(&sink, &some, &token).await.unwrap();
    }
    let theirs: Vec<String> = rows
        .iter()
        .zip(0..)
        .map(|(values, place): (_, usize)| row(values, Some(place.to_string())))
        .collect();
    server
        .run(&format!(
            "INSERT INTO otel.theirs SETTINGS input_format_null_as_default = 1, precise_float_parsing = 1 \
             FORMAT JSONEachRow {}",
            theirs.join("\n")
        ))
        .await;
    for (kind, at) in types.iter().zip(0..) {
        let of =
            |table: &str, place: &str| format!("SELECT toString(c{at}) FROM otel.{table} ORDER BY {place}");
        let ours = server.ask(&of("ours", "_millpond_record")).await;
        let theirs = server.ask(&of("theirs", "place")).await;
        prop_assert_eq!(ours, theirs, "c{} {}", at, kind.name());
    }

    insert_in_order(server, &chunk, &columns).await;
    if !key.is_empty() {
        let sorted = server
            .ask(&format!(
                "SELECT arraySort(all) = all FROM (SELECT groupArray(({key}, _millpond_record)) AS all FROM otel.written) \
                 SETTINGS max_threads = 1"
            ))
            .await;
        prop_assert_eq!(sorted, "1", "rows are not in the order of ({})", key);
    }
    Ok(())
}

#[test]
fn tables_take_events_as_the_server_would_and_in_their_order() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(server.run("CREATE DATABASE otel"));
    // Each case takes as long as a thousand of other properties. Without PROPTEST_CASES they are the same in each run.
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.map(|cases| cases.parse().expect("PROPTEST_CASES is a number"));
    let config = ProptestConfig {
        cases: cases.unwrap_or(32),
        failure_persistence: None,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    };
    let mut runner = match cases {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let outcome = runner.run(&case(), |case| runtime.block_on(check(&server, &case)));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
