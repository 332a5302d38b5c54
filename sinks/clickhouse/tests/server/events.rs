//! Events in tables of their owners: the values are those of the server's own JSONEachRow, and each row occurs once.

use crate::support::{Server, batch_of_events, chunk, insert, open, policy, write, write_again};
use millpond_clickhouse::{ClickHouse, Config, EventTable, Origin, Unit, propose};
use millpond_consumer::{Batch, Chunk, Cut, Dropped, Found, PartTimes, RowId, Sink as _, SinkError};
use millpond_segment::Encoding;
use std::collections::BTreeMap;

const STREAM: &str = "events.signup";

/// The columns that each table of events needs.
const OWN: &str = "_millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3), \
     _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32";

fn config(server: &Server, columns: &[(&str, Origin)]) -> Config {
    let columns = columns
        .iter()
        .map(|(name, origin)| ((*name).to_owned(), origin.clone()));
    Config {
        signals: Vec::new(),
        event_tables: vec![EventTable {
            stream: STREAM.to_owned(),
            table: "signup".to_owned(),
            columns: columns.collect::<BTreeMap<_, _>>(),
            transform: None,
        }],
        ..server.config()
    }
}

async fn create(server: &Server, columns: &str) {
    server.run("CREATE DATABASE IF NOT EXISTS otel").await;
    server
        .run(&format!("CREATE TABLE otel.signup ({columns}, {OWN}) ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100"))
        .await;
}

fn message(rows: &[&str]) -> Vec<u8> {
    rows.join("\n").into_bytes()
}

/// The chunks of a batch, and the numbers, payloads and reasons of its unfit rows.
fn cuts(sink: &ClickHouse, batch: &Batch, rows: u64) -> (Vec<Chunk>, Vec<(u32, String, String)>) {
    let (mut chunks, mut unfit) = (Vec::new(), Vec::new());
    let policy = millpond_consumer::BatchingPolicy {
        chunk_rows: rows,
        ..policy()
    };
    let mut keep = |cut| {
        match cut {
            Cut::Chunk(chunk) => chunks.push(chunk),
            Cut::Unreadable { id, message, reason } => {
                let payload = String::from_utf8_lossy(&message.payload).into_owned();
                unfit.push((id.record, payload, reason));
            }
        }
        true
    };
    sink.chunks(batch, &policy, &mut keep).unwrap();
    (chunks, unfit)
}

/// Types, each with values that fit it.
const TYPES: &[(&str, &[&str])] = &[
    (
        "String",
        &[
            r#""""#,
            r#""é\n\u00e9\ud83d\ude00\"""#,
            "1.50",
            "true",
            r#"{"a": [1, "x"]}"#,
            "[1,2]",
            "null",
        ],
    ),
    ("FixedString(4)", &[r#""abcd""#, r#""é""#, r#""""#]),
    ("Bool", &["true", "false", "null"]),
    ("Int8", &["-128", "127", "\"5\"", "true"]),
    ("Int16", &["-32768", "32767"]),
    ("Int32", &["-2147483648", "2147483647"]),
    ("Int64", &["-9223372036854775808", "9223372036854775807"]),
    (
        "Int128",
        &[
            "-170141183460469231731687303715884105728",
            "170141183460469231731687303715884105727",
        ],
    ),
    ("UInt8", &["0", "255", "false"]),
    ("UInt16", &["65535"]),
    ("UInt32", &["4294967295"]),
    ("UInt64", &["18446744073709551615", "\"18446744073709551615\""]),
    ("UInt128", &["340282366920938463463374607431768211455"]),
    (
        "Int256",
        &[
            "-57896044618658097711785492504343953926634992332820282019728792003956564819968",
            "57896044618658097711785492504343953926634992332820282019728792003956564819967",
            "\"5\"",
        ],
    ),
    (
        "UInt256",
        &["115792089237316195423570985008687907853269984665640564039457584007913129639935"],
    ),
    ("BFloat16", &["0.5", "0.1", "-1e10", "3", "\"inf\""]),
    ("Float32", &["0.5", "-1e10", "3", "\"inf\"", "\"nan\""]),
    ("Float64", &["0.1", "-1.5e300", "3", "123456789.125", "\"-inf\""]),
    ("Decimal(9, 2)", &["1.25", "-9999999.99", "7", "\"3.5\""]),
    ("Decimal(18, 6)", &["1.25", "-0.000001"]),
    ("Decimal(38, 10)", &["1234567890123456789012345678.0123456789"]),
    (
        "Decimal(76, 20)",
        &[
            "-12345678901234567890123456789012345678901234567890123456.5",
            "1e-20",
            "\"3.5\"",
        ],
    ),
    (
        "Time",
        &[
            r#""12:30:45""#,
            r#""-01:01:01""#,
            r#""999:59:59""#,
            r#""-999:59:59""#,
        ],
    ),
    (
        "Time64(3)",
        &[r#""12:30:45.123""#, r#""-01:01:01.500""#, r#""999:59:59.999""#],
    ),
    ("JSON", &[r#"{"a":1,"b":{"c":[1,"x"]},"d":null}"#, "{}"]),
    ("JSON(a UInt8, SKIP b)", &[r#"{"a":1,"b":{"c":[1,"x"]}}"#]),
    ("Nullable(JSON)", &[r#"{"a":"2024-02-29"}"#, "null"]),
    ("Array(JSON)", &[r#"[{"a":1},{}]"#]),
    ("SimpleAggregateFunction(sum, UInt64)", &["7"]),
    ("Point", &["[1,2.5]"]),
    ("Polygon", &["[[[1,2],[3,4]],[]]"]),
    ("MultiPolygon", &["[[[[1,2],[3,4]]]]"]),
    ("Date", &[r#""1970-01-01""#, r#""2024-02-29""#, r#""2149-06-06""#]),
    (
        "Date32",
        &[r#""1900-01-01""#, r#""1969-12-31""#, r#""2299-12-31""#],
    ),
    ("DateTime('UTC')", &[r#""2024-02-29 12:30:45""#, "1700000000"]),
    (
        "DateTime64(3, 'UTC')",
        &[
            r#""2024-02-29 12:30:45.123""#,
            r#""1900-01-01 00:00:00.000""#,
            r#""1969-12-31 23:59:59.999""#,
        ],
    ),
    ("DateTime64(9, 'UTC')", &[r#""2024-02-29 12:30:45.123456789""#]),
    ("UUID", &[r#""6ba7b810-9dad-11d1-80b4-00c04fd430c8""#]),
    ("IPv4", &[r#""192.168.0.1""#]),
    ("IPv6", &[r#""2001:db8::1""#, r#""::""#]),
    (r"Enum8('a' = -1, 'b\'c' = 2)", &[r#""a""#, r#""b'c""#, "2"]),
    ("Enum16('x' = 1000)", &[r#""x""#]),
    (
        "Enum8('LowCardinality(String)' = 1, 'Array(' = 2)",
        &[r#""Array(""#],
    ),
    ("Nullable(String)", &[r#""x""#, "null"]),
    ("Nullable(UInt64)", &["7", "null"]),
    ("LowCardinality(String)", &[r#""x""#, r#""y""#, "null"]),
    ("LowCardinality(Nullable(String))", &[r#""x""#, "null"]),
    ("Array(String)", &["[]", r#"["a","b"]"#]),
    ("Array(LowCardinality(String))", &[r#"["a","a","b"]"#]),
    ("Array(Array(Nullable(Int32)))", &["[[1,null],[],[2]]", "[]"]),
    ("Map(String, UInt64)", &["{}", r#"{"a":1,"b":2}"#]),
    (
        "Map(LowCardinality(String), Array(String))",
        &[r#"{"a":["x","y"],"b":[]}"#],
    ),
    ("Map(UInt8, String)", &[r#"{"1":"x"}"#]),
    (
        "Tuple(a UInt8, b Array(String))",
        &[r#"{"a":1,"b":["x"]}"#, r#"{"b":["y"],"a":2}"#],
    ),
    ("Tuple(UInt8, Nullable(String))", &[r#"[1,"x"]"#, "[2,null]"]),
];

#[tokio::test]
async fn values_are_those_of_the_servers_own_json() {
    let server = Server::start();
    let columns: Vec<String> = (0..TYPES.len())
        .map(|at| format!("c{at} {}", TYPES[at].0))
        .collect();
    create(&server, &columns.join(", ")).await;
    let columns = columns.join(", ");
    server
        .run(&format!(
            "CREATE TABLE otel.theirs (_place UInt32, {columns}) ENGINE = MergeTree ORDER BY tuple()"
        ))
        .await;
    let longest = TYPES.iter().map(|(_, values)| values.len()).max().unwrap();
    // The values of each column in turn, and a row without any.
    let row = |number: usize| {
        let members = TYPES.iter().enumerate();
        let members =
            members.map(|(at, (_, values))| format!("\"c{at}\" : {}", values[number % values.len()]));
        members.collect::<Vec<_>>().join(", ")
    };
    let rows: Vec<String> = (0..longest)
        .map(|number| format!("{{{}}}", row(number)))
        .collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).chain(["{}"]).collect();
    let sink = open(config(&server, &[])).await;
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    let (chunks, unfit) = cuts(&sink, &batch, 3);
    assert_eq!(unfit, []);
    assert_eq!(chunks.len(), rows.len().div_ceil(3));
    for chunk in &chunks {
        // A retry selects its rows from the encoded block.
        let all: Vec<u64> = (0..chunk.rows).collect();
        let (first, rest) = all.split_at(1);
        for (round, some) in [first, rest]
            .into_iter()
            .filter(|some| !some.is_empty())
            .enumerate()
        {
            let token = format!("{}/{round}", batch.id.token(chunk.index, 0));
            insert(&sink, &sink.some(chunk, some), &token).await.unwrap();
        }
    }
    for (place, row) in rows.iter().enumerate() {
        let row = row.replacen(
            '{',
            &format!("{{\"_place\":{place}{}", if *row == "{}" { "" } else { "," }),
            1,
        );
        server
            .run(&format!(
                "INSERT INTO otel.theirs SETTINGS input_format_null_as_default = 1 FORMAT JSONEachRow {row}"
            ))
            .await;
    }
    let names: Vec<String> = (0..TYPES.len()).map(|at| format!("toString(c{at})")).collect();
    for (at, name) in names.iter().enumerate() {
        let ours = server
            .ask(&format!(
                "SELECT {name} FROM otel.signup ORDER BY _millpond_record"
            ))
            .await;
        let theirs = server
            .ask(&format!("SELECT {name} FROM otel.theirs ORDER BY _place"))
            .await;
        assert_eq!(ours, theirs, "{}", TYPES[at].0);
    }
}

#[tokio::test]
async fn columns_come_from_where_the_settings_say() {
    let server = Server::start();
    create(
        &server,
        "user_id UInt64, source String, at DateTime64(3, 'UTC'), arrived DateTime('UTC'), \
         created DateTime DEFAULT toDateTime(1000, 'UTC'), doubled UInt64 MATERIALIZED user_id * 2, plan String DEFAULT 'free'",
    )
    .await;
    let path = |keys: &[&str], unit| Origin::Path {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        unit,
    };
    let columns = [
        ("user_id", path(&["user", "id"], Unit::Seconds)),
        ("source", Origin::Constant("\"web\"".to_owned())),
        ("at", path(&["ts"], Unit::Millis)),
        ("arrived", Origin::ReceivedAt),
        ("plan", path(&["plan"], Unit::Seconds)),
    ];
    let sink = open(config(&server, &columns)).await;
    let rows = [
        r#"{"user":{"name":"x","id":7},"ts":1700000000123,"created":"2020-01-01 00:00:00","source":"app","plan":"pro"}"#,
        r#"{"user":{"id":1,"id":8},"ts":"2023-11-14T23:13:20.1239+01:00"}"#,
        r#"{"user":9}"#,
    ];
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(
        server
            .ask("SELECT user_id, source, at, arrived, toUnixTimestamp(created), doubled, plan FROM otel.signup ORDER BY _millpond_record")
            .await,
        "7\tweb\t2023-11-14 22:13:20.123\t2023-11-14 22:13:20\t1000\t14\tpro\n\
         8\tweb\t2023-11-14 22:13:20.123\t2023-11-14 22:13:20\t1000\t16\t\n\
         0\tweb\t1970-01-01 00:00:00.000\t2023-11-14 22:13:20\t1000\t0\t"
    );
}

#[tokio::test]
async fn a_nested_column_is_an_array_for_each_field() {
    let server = Server::start();
    create(&server, "items Nested(id UInt32, name String)").await;
    let sink = open(config(&server, &[])).await;
    let rows = [r#"{"items.id":[1,2],"items.name":["a","b"]}"#, "{}"];
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    let found = "SELECT items.id, items.name FROM otel.signup ORDER BY _millpond_record";
    assert_eq!(server.ask(found).await, "[1,2]\t['a','b']\n[]\t[]");
    // The server refuses arrays of different lengths, and the consumer then looks for the row.
    let rows = [r#"{"items.id":[1,2],"items.name":["a"]}"#];
    let batch = batch_of_events(STREAM, 2, &[message(&rows)]);
    let refused = write(&sink, &batch.id, &chunk(&sink, &batch)).await;
    assert!(matches!(refused, Err(SinkError::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn a_column_of_type_nested_takes_an_array_of_objects() {
    let server = Server::start();
    server.run("CREATE DATABASE IF NOT EXISTS otel").await;
    server
        .run(&format!("CREATE TABLE otel.signup (items Nested(id UInt32, name String), {OWN}) ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100 SETTINGS flatten_nested = 0"))
        .await;
    let sink = open(config(&server, &[])).await;
    let rows = [r#"{"items":[{"id":1,"name":"a"},{"name":"b"}]}"#, "{}"];
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    write(&sink, &batch.id, &chunk(&sink, &batch)).await.unwrap();
    let found = "SELECT items.id, items.name FROM otel.signup ORDER BY _millpond_record";
    assert_eq!(server.ask(found).await, "[1,0]\t['a','b']\n[]\t[]");
}

#[tokio::test]
async fn a_value_of_a_json_column_is_an_object() {
    let server = Server::start();
    create(&server, "data JSON(n UInt8)").await;
    let sink = open(config(&server, &[])).await;
    let rows = [r#"{"data":{"n":1}}"#, r#"{"data":[1]}"#, r#"{"data":"{}"}"#, "{}"];
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    let (chunks, unfit) = cuts(&sink, &batch, 100);
    let reasons: Vec<&str> = unfit.iter().map(|(_, _, reason)| reason.as_str()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0].ends_with("$.data: [1] is not an object (column data)"),
        "{reasons:?}"
    );
    write(&sink, &batch.id, &chunks[0]).await.unwrap();
    let found = "SELECT data FROM otel.signup ORDER BY _millpond_record";
    assert_eq!(server.ask(found).await, "{\"n\":1}\n{\"n\":0}");
    // The server parses the object, and the consumer looks for the row that it refuses.
    let rows = [r#"{"data":{"n":"x"}}"#];
    let batch = batch_of_events(STREAM, 2, &[message(&rows)]);
    let refused = write(&sink, &batch.id, &chunk(&sink, &batch)).await;
    assert!(matches!(refused, Err(SinkError::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn a_row_that_does_not_fit_leaves_the_others_alone() {
    let server = Server::start();
    create(
        &server,
        "id UInt8, tags Array(String), deep Tuple(a Map(String, Array(UInt8)))",
    )
    .await;
    let sink = open(config(&server, &[])).await;
    let rows = [
        r#"{"id":1,"tags":["a"]}"#,
        r#"{"tags":["lost"],"id":256}"#,
        r#"{"id":2,"tags":["b","c"],"deep":{"a":{"x":[1]}}}"#,
        r#"{"id":3,"deep":{"a":{"x":[1,2,-3]}}}"#,
        "7",
        r#"{"id":4} {"id":5"#,
    ];
    let batch = batch_of_events(STREAM, 1, &[message(&rows), b"{\"id\":6}".to_vec()]);
    let (chunks, unfit) = cuts(&sink, &batch, 100);
    let [chunk] = &chunks[..] else {
        panic!("{chunks:?}")
    };
    let ids: Vec<u32> = chunk.ids().map(|id| id.record).collect();
    assert_eq!(ids, [0, 2, 5, 7], "a row has the number of another");
    let found: Vec<(u32, &str)> = unfit
        .iter()
        .map(|(id, payload, _)| (*id, payload.as_str()))
        .collect();
    assert_eq!(found, [(1, rows[1]), (3, rows[3]), (4, "7"), (6, r#"{"id":5"#)]);
    for ((_, _, reason), words) in unfit.iter().zip([
        "$.id: 256 does not fit UInt8 (column id)",
        "$.deep.a.x[2]: -3 does not fit UInt8 (column deep)",
        "$: 7 is not an object",
        "malformed JSON",
    ]) {
        assert!(reason.contains(words), "{reason}");
    }
    write(&sink, &batch.id, chunk).await.unwrap();
    let found = server
        .ask("SELECT id, tags, deep.a FROM otel.signup ORDER BY _millpond_record")
        .await;
    assert_eq!(
        found,
        "1\t['a']\t{}\n2\t['b','c']\t{'x':[1]}\n4\t[]\t{}\n6\t[]\t{}"
    );
    let id = |record| RowId { sequence: 1, record };
    let records = sink.records(&batch, &[id(6), id(2)]).unwrap();
    assert_eq!(
        [&records[0].payload[..], &records[1].payload],
        [br#"{"id":5"#, rows[2].as_bytes()]
    );
    let readable: Vec<u32> = sink
        .numbering(&batch)
        .unwrap()
        .into_iter()
        .filter(|record| record.readable)
        .map(|record| record.id.record)
        .collect();
    assert_eq!(readable, [0, 2, 5, 7]);
}

#[tokio::test]
async fn rows_have_keys_and_those_that_are_dropped_keep_their_numbers() {
    let server = Server::start();
    create(&server, "id UInt8, n UInt64").await;
    let sink = open(config(&server, &[])).await;
    let rows = [
        r#"{"id":1,"n":10}"#,
        r#"{"n":11}"#,
        r#"{"id":999,"n":12}"#,
        r#"{"id":1,"n":13}"#,
    ];
    // The second message ends with a row that is no JSON.
    let mut batch = batch_of_events(STREAM, 1, &[message(&rows), b"{\"id\":2,\"n\":14} {".to_vec()]);
    let found = sink.keys(&batch, &["id".to_owned()]).unwrap();
    let [part] = &found[..] else { panic!("{found:?}") };
    let records: Vec<u32> = part.keys.iter().map(|key| key.record).collect();
    assert_eq!((part.sequence, records), (1, vec![0, 2, 3, 4]));
    let [first, unfit, again, other] = &part.keys[..] else {
        panic!("{part:?}")
    };
    assert_eq!({ first.key }, { again.key });
    assert!({ first.key } != { unfit.key } && { first.key } != { other.key });
    let PartTimes { median_us, newest_us } = part.received;
    assert_eq!(Some(other.at_us), newest_us, "the second message came later");
    assert!(first.at_us < other.at_us);
    assert_eq!(Some(first.at_us), median_us, "the earlier one of two counts");

    batch.parts[0].dropped = Dropped::of(&[2, 3]);
    let (chunks, unfit) = cuts(&sink, &batch, 100);
    let [chunk] = &chunks[..] else {
        panic!("{chunks:?}")
    };
    let ids: Vec<u32> = chunk.ids().map(|id| id.record).collect();
    assert_eq!(ids, [0, 1, 4], "a dropped row changes the number of another");
    let unfit: Vec<u32> = unfit.iter().map(|(id, ..)| *id).collect();
    assert_eq!(unfit, [5], "a dropped row is no dead letter");
    write(&sink, &batch.id, chunk).await.unwrap();
    let found = server
        .ask("SELECT n, _millpond_record FROM otel.signup ORDER BY n")
        .await;
    assert_eq!(found, "10\t0\n11\t1\n14\t4");
}

#[tokio::test]
async fn streams_that_are_not_events_have_no_keys() {
    let server = Server::start();
    create(&server, "id UInt8").await;
    let sink = open(config(&server, &[])).await;
    let batch = Batch {
        encoding: Encoding::Otlp,
        ..batch_of_events(STREAM, 1, &[])
    };
    let refused = sink.keys(&batch, &["id".to_owned()]);
    let Err(SinkError::Refused(reason)) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("--unique is for streams of events"), "{reason}");
}

#[tokio::test]
async fn a_resent_row_occurs_once_also_after_the_table_has_changed() {
    let server = Server::start();
    create(&server, "id UInt64").await;
    let sink = open(config(&server, &[])).await;
    let rows: Vec<String> = (0..10)
        .map(|id| format!("{{\"id\":{id},\"name\":\"n{id}\"}}"))
        .collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    let before = chunk(&sink, &batch);
    insert(&sink, &sink.some(&before, &[0, 3, 9]), "a part of it")
        .await
        .unwrap();
    server.run("ALTER TABLE otel.signup ADD COLUMN name String").await;
    let sink = open(config(&server, &[])).await;
    let after = chunk(&sink, &batch);
    let found = write_again(&sink, &batch.id, &after).await.unwrap();
    assert_eq!(found, Found::Some);
    let found = write_again(&sink, &batch.id, &after).await.unwrap();
    assert_eq!(found, Found::All);
    assert_eq!(
        server
            .ask("SELECT count(), uniqExact(id), countIf(name = '') FROM otel.signup")
            .await,
        "10\t10\t3"
    );
}

#[tokio::test]
async fn a_table_that_events_cannot_fill_ends_the_start() {
    let server = Server::start();
    let start = async |columns: &[(&str, Origin)]| match ClickHouse::open(config(&server, columns)).await {
        Ok(_) => panic!("it starts"),
        Err(SinkError::Schema(reason)) => reason,
        Err(error) => panic!("{error:?}"),
    };
    server.run("CREATE DATABASE otel").await;
    assert!(start(&[]).await.contains("there is no table `otel`.`signup`"));
    assert_eq!(server.ask("EXISTS TABLE otel.signup").await, "0");
    create(
        &server,
        "id UInt64, wide Dynamic, kind Enum8('a' = 1), late UInt8 ALIAS 1",
    )
    .await;
    let reason = start(&[
        ("kind", Origin::Constant("\"b\"".to_owned())),
        ("absent", Origin::ReceivedAt),
        ("id", Origin::ReceivedAt),
        ("late", Origin::ReceivedAt),
    ])
    .await;
    for words in [
        "column wide of table `otel`.`signup` has type Dynamic",
        "\"b\" is not a value of Enum8('a' = 1)",
        "column absent",
        "UInt64 is not a type of times",
        "late of table `otel`.`signup` is ALIAS",
    ] {
        assert!(reason.contains(words), "{words} in {reason}");
    }
    server.run("DROP TABLE otel.signup").await;
    server
        .run("CREATE TABLE otel.signup (id UInt64) ENGINE = MergeTree ORDER BY id")
        .await;
    assert!(start(&[]).await.contains("_millpond_source"));
    let two = Config {
        event_tables: [config(&server, &[]), config(&server, &[])]
            .into_iter()
            .flat_map(|config| config.event_tables)
            .collect(),
        ..server.config()
    };
    let error = ClickHouse::open(two).await.unwrap_err();
    assert!(error.to_string().contains("two tables"), "{error}");
    // The cursor of a consumer with a program for it could not be read any more.
    let mut no_stream = config(&server, &[]);
    no_stream.event_tables[0].stream = "acme.*".to_owned();
    let error = ClickHouse::open(no_stream).await.unwrap_err();
    assert!(error.to_string().contains("acme.*"), "{error}");
}

#[tokio::test]
async fn a_proposed_table_takes_its_sample() {
    let server = Server::start();
    let rows = [
        r#"{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","ts":1700000000123,"user":{"id":7,"name":"é`'"},"plan":"pro","n":1,
            "items":[{"sku":"a","price":1.5,"1":2}],"extra":{"a.b":[1,null]},"ip":"::1","ok":true,"at":"2024-02-29T12:30:45.123456Z"}"#,
        r#"{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430c9","ts":1700000000124,"user":{"id":8},"plan":"pro","free":{},"it's":[[]]}"#,
        r#"{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430ca","ts":1700000000125,"plan":"free","n":340282366920938463463374607431768211455}"#,
        r#"{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430cb","ts":1700000000126,"plan":"free","`":"x","items":[],"day":"2024-02-29"}"#,
    ];
    let config = Config {
        signals: Vec::new(),
        ..server.config()
    };
    let proposal = propose(&config, STREAM, "signup", &message(&rows)).unwrap();
    for statement in proposal.sql.trim_end().split_inclusive(";\n") {
        server.run(statement).await;
    }
    let sink = open(Config {
        event_tables: vec![proposal.table],
        ..config
    })
    .await;
    let batch = batch_of_events(STREAM, 1, &[message(&rows)]);
    let (chunks, unfit) = cuts(&sink, &batch, 10);
    assert_eq!(unfit, []);
    write(&sink, &batch.id, &chunks[0]).await.unwrap();
    assert_eq!(
        server
            .ask("SELECT plan, ts, user_id, user_name, n, items, toTypeName(n) FROM otel.signup ORDER BY ts")
            .await,
        "pro\t2023-11-14 22:13:20.123\t7\té`'\t1\t[('a',1.5,2)]\tNullable(UInt128)\n\
         pro\t2023-11-14 22:13:20.124\t8\t\t\\N\t[]\tNullable(UInt128)\n\
         free\t2023-11-14 22:13:20.125\t\\N\t\t340282366920938463463374607431768211455\t[]\tNullable(UInt128)\n\
         free\t2023-11-14 22:13:20.126\t\\N\t\t\\N\t[]\tNullable(UInt128)"
    );
}

#[tokio::test]
async fn a_sink_takes_the_streams_that_have_a_table() {
    let server = Server::start();
    create(&server, "id UInt64").await;
    let sink = open(config(&server, &[])).await;
    assert!(sink.accepts(STREAM, Encoding::Ndjson));
    assert!(!sink.accepts(STREAM, Encoding::Otlp));
    assert!(!sink.accepts("events.other", Encoding::Ndjson));
    assert_eq!(sink.name(), "clickhouse:otel.otel_logs,events.signup=signup");
}
