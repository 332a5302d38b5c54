use super::*;
use crate::events::Plan;
use crate::events::time::Unit;
use crate::schema::judge::Found;
use proptest::prelude::*;
use serde_json::{Value, json};

fn proposed(sample: &str) -> Result<Proposal, String> {
    propose(&Config::default(), "events.signup", "signup", sample.as_bytes())
}

/// The names and types of the proposed columns.
fn columns_of(sample: &str) -> Vec<(String, String)> {
    let rows = read(sample.as_bytes()).unwrap();
    let columns = columns::of(&rows).into_iter();
    columns.map(|column| (column.name, column.kind)).collect()
}

fn kind_of(values: &[&str]) -> String {
    let rows: Vec<String> = values.iter().map(|value| format!("{{\"x\":{value}}}")).collect();
    let [(_, kind)] = columns_of(&rows.join("\n")).try_into().unwrap();
    kind
}

#[test]
fn a_type_takes_all_values() {
    for (values, kind) in [
        (&["1", "-7"][..], "Int64"),
        (&["18446744073709551615"], "UInt64"),
        (&["-1", "18446744073709551615"], "Int128"),
        (&["1", "1.5"], "Float64"),
        (&["1e3"], "Float64"),
        (&["true", "false"], "Bool"),
        (&["true", "null"], "Nullable(Bool)"),
        (&["null"], "String"),
        (&[r#""a""#, r#""b""#], "String"),
        (&[r#""a""#, r#""a""#], "LowCardinality(String)"),
        (&[r#""a""#, "null", "null"], "String"),
        (&[r#""a""#, "1"], "String"),
        (&["[]", r#"{"a":1}"#], "String"),
        (&[r#""7""#, r#""8""#], "String"),
        (&[r#""2024-02-29""#], "Date"),
        (&[r#""1901-02-28""#], "Date32"),
        (&[r#""2024-02-29T12:30:45Z""#], "DateTime64(3, 'UTC')"),
        (&[r#""2024-02-29 12:30:45.000100""#], "DateTime64(6, 'UTC')"),
        (
            &[r#""2024-02-29T12:30:45.123456789+01:00""#],
            "DateTime64(9, 'UTC')",
        ),
        (&[r#""2290-02-28T12:30:45.123456789Z""#], "DateTime64(6, 'UTC')"),
        (&[r#""6ba7b810-9dad-11d1-80b4-00c04fd430c8""#], "UUID"),
        (&[r#""192.168.0.1""#], "IPv4"),
        (&[r#""2001:db8::1""#], "IPv6"),
        (&["[]"], "Array(String)"),
        (&["[1]", "[2.5,null]"], "Array(Nullable(Float64))"),
        (&["[[1],[]]"], "Array(Array(Int64))"),
        (
            &[r#"[{"id":1,"sku":"x"},{"id":2}]"#],
            "Array(Tuple(`id` Int64, `sku` String))",
        ),
        (
            &[r#"[{"a":1},{"b":2}]"#],
            "Array(Tuple(`a` Nullable(Int64), `b` Nullable(Int64)))",
        ),
        (&[r#"{"a.b":1}"#], "Tuple(`a.b` Int64)"),
        (&["{}"], "JSON"),
    ] {
        assert_eq!(kind_of(values), kind, "{values:?}");
    }
    let many = |value: &str| {
        let members: Vec<String> = (0..20).map(|key| format!("\"k{key}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(kind_of(&[&many("7")]), "Map(LowCardinality(String), Int64)");
    assert_eq!(kind_of(&[&many("[7]")]), "JSON");
}

#[test]
fn the_keys_of_small_objects_are_columns() {
    let sample = r#"{"user":{"id":7,"geo":{"city":"Ulm"}},"user_id":1,"USER_ID":2,"_millpond_source":"x","a.b":1,"":3}"#;
    let names: Vec<String> = columns_of(sample).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "user_id",
        "user_geo_city",
        "user_id_2",
        "USER_ID_3",
        "_millpond_source_2",
        "a.b",
    ];
    assert_eq!(names, expected);
    let columns = proposed(sample).unwrap().table.columns;
    let path = |keys: &[&str]| Origin::Path {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        unit: Unit::default(),
    };
    assert_eq!(columns["user_id"], path(&["user", "id"]));
    assert_eq!(columns["user_id_2"], path(&["user_id"]));
    assert!(!columns.contains_key("a.b"));
}

#[test]
fn numbers_are_times_by_their_key_and_their_size() {
    for (key, value, unit) in [
        ("ts", "1700000000", Some(Unit::Seconds)),
        ("createdAt", "1700000000123", Some(Unit::Millis)),
        ("sent_at", "1700000000123456", Some(Unit::Micros)),
        ("timestamp", "1700000000123456789", Some(Unit::Nanos)),
        ("ts", "17", None),
        ("ts", "1700000000.5", None),
        ("amount", "1700000000", None),
        ("seat", "1700000000", None),
    ] {
        let columns = proposed(&format!("{{\"{key}\":{value}}}")).unwrap().table.columns;
        let found = columns.get(key).map(|origin| match origin {
            Origin::Path { unit, .. } => *unit,
            other => panic!("{other:?}"),
        });
        assert_eq!(found, unit, "{key}: {value}");
    }
}

#[test]
fn rows_are_sorted_by_words_and_time() {
    let rows = [
        r#"{"plan":"pro","city":"Ulm","note":"a","ts":1700000000123}"#,
        r#"{"plan":"free","city":"Ulm","note":"b","ts":1700000000124}"#,
        r#"{"plan":"free","city":"Ulm","ts":1700000000125}"#,
        r#"{"plan":"pro","city":"Ulm","ts":1700000000126}"#,
    ];
    let sql = proposed(&rows.join("\n")).unwrap().sql;
    for line in [
        "CREATE TABLE IF NOT EXISTS `otel`.`signup` (",
        "    `plan` LowCardinality(String),",
        "    `note` String,",
        "    `ts` DateTime64(3, 'UTC'),",
        "PARTITION BY toDate(`ts`)",
        "ORDER BY (`plan`, `ts`)",
        "-- note: 2 of 4 rows have no value, and get an empty one.",
        "-- ts: numbers in ms since 1970.",
    ] {
        assert!(sql.lines().any(|found| found == line), "{line}\n{sql}");
    }
    let sql = proposed(r#"{"n":1}"#).unwrap().sql;
    assert!(
        sql.contains("PARTITION BY toDate(`_millpond_received_at`)\nORDER BY (`_millpond_received_at`)"),
        "{sql}"
    );
}

#[test]
fn a_sample_is_rows_or_an_array_of_them() {
    let two = columns_of("{\"a\":1}\n{\"b\":2}");
    assert_eq!(two.len(), 2);
    assert_eq!(columns_of("[{\"a\":1},\n {\"b\":2}]\n"), two);
    for (sample, error) in [
        ("", "there is no row"),
        ("[]", "there is no row"),
        ("{}", "no row has a key"),
        (
            "{\"a\":1}\n{\"a\":}",
            "malformed JSON: expected value at line 2 column 6",
        ),
        ("{\"a\":1}\n 7", "line 2, column 2: 7 is not an object"),
        ("[{\"a\":1},\n\"x\"]", "line 2, column 1: \"x\" is not an object"),
    ] {
        assert_eq!(proposed(sample), Err(error.to_owned()));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (1_600_000_000_u64..1_800_000_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,1}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "20[0-9]{2}-0[1-9]-[0-3][0-9](T[0-2][0-9]:00:00(\\.[0-9]{1,9})?Z)?".prop_map(Value::from),
        "[12]{1,2}\\.0\\.0\\.1".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-d.]{0,2}", inner, 0..4).prop_map(|members| json!(members)),
        ]
    })
}

proptest! {
    #[test]
    fn every_row_of_a_sample_fits_its_table(
        rows in proptest::collection::vec(
            proptest::collection::btree_map("(ts|a|b|c|A|\\PC{0,3})", any_json(), 1..6), 1..12),
    ) {
        let rows: Vec<String> = rows.iter().map(|row| json!(row).to_string()).collect();
        let sample = rows.join("\n");
        let Ok(proposal) = proposed(&sample) else {
            prop_assert!(rows.iter().all(|row| row.starts_with("{\"\":")), "{sample}");
            return Ok(());
        };
        let found: Vec<Found> = columns_of(&sample)
            .into_iter()
            .map(|(name, kind)| Found {
                name,
                kind,
                default_kind: String::new(),
                default_expression: String::new(),
                is_in_partition_key: 0,
            })
            .collect();
        let plan = Plan::new(&proposal.table, "otel.signup", &found).unwrap();
        let mut columns = plan.empty();
        for row in &rows {
            prop_assert_eq!(plan.push(row, 0, &mut columns), Ok(()));
        }
    }
}
