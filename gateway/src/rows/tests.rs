use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn detected(body: &str) -> Rows {
    read(&Bytes::copy_from_slice(body.as_bytes()), Form::Any)
}

fn lines(body: &str) -> Rows {
    read(&Bytes::copy_from_slice(body.as_bytes()), Form::Lines)
}

fn text(rows: &Rows) -> &str {
    std::str::from_utf8(&rows.payload).unwrap()
}

/// (line, column, reason) of each error.
fn errors(rows: &Rows) -> Vec<(u64, u64, &str)> {
    rows.errors
        .iter()
        .map(|error| (error.line, error.column, &error.reason[..]))
        .collect()
}

#[test]
fn lines_an_array_and_one_object_give_their_rows_with_their_bytes() {
    for (body, payload, accepted) in [
        ("{\"a\": 1}", "{\"a\": 1}", 1),
        (
            "\n {\"a\":1}\r\n\r\n\t{\"b\" : 2.50}\n",
            "{\"a\":1}\n{\"b\" : 2.50}",
            2,
        ),
        (
            "[{\"a\":1} ,\n {\"a\":\"],[{\\\"\"}]\n",
            "{\"a\":1}\n{\"a\":\"],[{\\\"\"}",
            2,
        ),
        (
            "{\n  \"a\": {\n    \"b\": []\n  }\n}\n",
            "{\n  \"a\": {\n    \"b\": []\n  }\n}",
            1,
        ),
        (
            "{\n \"a\": 1\n}\n{\"b\": 2}\n{\n}",
            "{\n \"a\": 1\n}\n{\"b\": 2}\n{\n}",
            3,
        ),
        ("[]", "", 0),
        (" [ \n ] ", "", 0),
    ] {
        let rows = detected(body);
        assert_eq!(
            (text(&rows), rows.accepted, rows.rejected),
            (payload, accepted, 0),
            "{body}"
        );
        assert!(!rows.is_blank && rows.unread_bytes == 0, "{body}");
    }
}

#[test]
fn rows_that_are_lines_already_are_not_copied() {
    let body = Bytes::from_static(b"\n{\"a\":1}\n{\"b\":2}\n{}\n\n");
    let rows = read(&body, Form::Lines);
    assert_eq!(rows.payload.as_ptr(), body[1..].as_ptr());
    assert_eq!(text(&rows), "{\"a\":1}\n{\"b\":2}\n{}");

    // A few rows do not keep a long body in memory.
    let body = Bytes::from(format!("{{\"a\":1}}\n{}", "nonsense\n".repeat(1_000)));
    let payload = read(&body, Form::Lines).payload;
    drop(
        body.try_into_mut()
            .expect("the payload does not refer to the body"),
    );
    assert_eq!(payload, "{\"a\":1}");
}

#[test]
fn a_blank_body_is_blank_in_each_form() {
    for body in ["", " ", "\r\n\t\n"] {
        assert!(detected(body).is_blank && lines(body).is_blank);
    }
}

#[test]
fn a_malformed_line_ends_at_its_newline() {
    let rows = lines("{\"a\":1}\n{\"a\":\n  {\"b\":2} {}\n[{\"c\":3}]\n\"{}\"\n{\"d\":4}\n");
    assert_eq!(text(&rows), "{\"a\":1}\n{\"d\":4}");
    assert_eq!((rows.accepted, rows.rejected, rows.unread_bytes), (2, 4, 0));
    assert_eq!(
        errors(&rows),
        [
            (2, 5, "malformed JSON: EOF while parsing a value"),
            (3, 11, "malformed JSON: trailing characters"),
            (4, 1, "a row is a JSON object, not an array"),
            (5, 1, "a row is a JSON object, not a string"),
        ]
    );
}

#[test]
fn a_malformed_element_makes_the_rest_unreadable_and_a_bad_row_does_not() {
    let rows = detected("[{\"a\":1},\n {\"a\":1,\"a\":2}, 7,\n {\"b\"},\n {\"c\":3}]");
    assert_eq!(text(&rows), "{\"a\":1}");
    assert_eq!((rows.accepted, rows.rejected, rows.unread_bytes), (1, 3, 16));
    assert_eq!(
        errors(&rows),
        [
            (2, 2, "the key \"a\" occurs twice"),
            (2, 17, "a row is a JSON object, not a number"),
            (
                3,
                6,
                "malformed JSON: expected `:`; the rest of the body is not read"
            ),
        ]
    );
}

#[test]
fn an_array_that_does_not_end_well_says_where() {
    for (body, accepted, at, reason) in [
        (
            "[{}",
            1,
            (1, 4),
            "the array has no end; the rest of the body is not read",
        ),
        (
            "[{},\n]",
            1,
            (2, 1),
            "expected a JSON object; the rest of the body is not read",
        ),
        (
            "[{} {}]",
            1,
            (1, 5),
            "expected `,` or `]` after an element of the array; the rest of the body is not read",
        ),
        (
            "[{}]\n[{}]",
            1,
            (2, 1),
            "expected nothing after the array; the rest of the body is not read",
        ),
        (
            "[",
            0,
            (1, 2),
            "expected a JSON object; the rest of the body is not read",
        ),
        (
            "[{\"a\":\"x",
            0,
            (1, 8),
            "malformed JSON: EOF while parsing a string; the rest of the body is not read",
        ),
    ] {
        let rows = detected(body);
        assert_eq!((rows.accepted, rows.rejected), (accepted, 1), "{body}");
        assert_eq!(errors(&rows), [(at.0, at.1, reason)], "{body}");
    }
}

/// Otherwise a part of a broken object would become a row.
#[test]
fn no_line_of_a_broken_object_that_spans_lines_is_a_row() {
    let rows = detected("{\n \"a\":\n {\"b\": 1}\n oops\n}\n{\"c\":1}");
    assert_eq!((rows.accepted, rows.rejected), (0, 1), "a part is no row");
    assert_eq!(errors(&rows)[0].0, 4);
    let rows = detected("{\n}{}");
    assert_eq!((text(&rows), rows.rejected), ("{\n}", 1));
    // An object after lines may span lines too: `jq` prints an empty one on one line.
    let rows = detected("{}\n{\n \"a\": [\n {}\n ]\n}\n{\n \"b\": [\n {}\n oops\n}\n{}");
    assert_eq!(text(&rows), "{}\n{\n \"a\": [\n {}\n ]\n}");
    assert_eq!((rows.accepted, rows.rejected, errors(&rows)[0].0), (2, 1, 10));
    // A malformed line that ends is no such object, and one without a closing quote may be.
    let rows = detected("{\"a\" 1}\n{}\n{\"a\":\"}\n{}");
    assert_eq!((text(&rows), rows.rejected, rows.unread_bytes), ("{}", 2, 10));
}

#[test]
fn each_limit_of_a_row_is_exact() {
    let deep = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert_eq!(lines(&deep(DEPTH_MAX)).accepted, 1);
    assert!(serde_json::from_str::<Value>(&deep(DEPTH_MAX)).is_ok());
    assert_eq!(
        errors(&lines(&deep(DEPTH_MAX + 1))),
        [(1, 6 + DEPTH_MAX as u64 - 1, "nested deeper than 127 levels")]
    );
    let strings = format!("{{\"a\":\"{}\\\"[\"}}", "[".repeat(500));
    assert_eq!(lines(&strings).accepted, 1);

    let long = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8));
    assert_eq!(lines(&long(ROW_BYTES_MAX)).accepted, 1);
    for body in [
        long(ROW_BYTES_MAX + 1),
        format!("[{},{{}}]", long(ROW_BYTES_MAX + 1)),
    ] {
        let reason = "the row has 1048577 bytes, the limit is 1048576";
        assert_eq!(errors(&detected(&body))[0].2, reason);
    }

    let keys = |count: usize| {
        let keys: Vec<String> = (0..count).map(|n| format!("\"k{n}\":{n}")).collect();
        format!("{{{}}}", keys.join(","))
    };
    assert_eq!(lines(&keys(KEYS_MAX)).accepted, 1);
    assert_eq!(
        errors(&lines(&keys(KEYS_MAX + 1))),
        [(1, 1, "more than 4096 keys")]
    );
}

#[test]
fn a_key_occurs_once_however_it_is_written_and_at_the_top_only() {
    let many: String = (0..50).map(|n| format!("\"k{n}\":0,")).collect();
    for (body, twice) in [
        ("{\"a\":1,\"\\u0061\":2}".to_owned(), true),
        (format!("{{{many}\"k49\":1}}"), true),
        (format!("{{{many}\"k3\":1}}"), true),
        ("{\"a\":{\"b\":1,\"b\":2},\"b\":3}".to_owned(), false),
        ("{\"a\":1,\"A\":2}".to_owned(), false),
    ] {
        assert_eq!(lines(&body).rejected == 1, twice, "{body}");
    }
}

#[test]
fn bytes_that_are_no_text_are_rejected_with_their_row() {
    let body = Bytes::from_static(b"{\"a\":\"\xff\"}\n{\"b\":1}\n");
    let rows = read(&body, Form::Lines);
    assert_eq!((rows.accepted, rows.rejected), (1, 1));
    assert_eq!(errors(&rows), [(1, 7, "not UTF-8")]);
}

#[test]
fn errors_are_counted_beyond_those_that_are_described() {
    let rows = lines(&"nonsense\n".repeat(1_000));
    assert_eq!((rows.rejected, rows.errors.len()), (1_000, ERRORS_MAX));
    assert_eq!(rows.errors[19].line, 20);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        "[\\[\\]{}\",\\\\:\n ]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(".{0,6}", value(), 0..5).prop_map(|map| json!(map))
}

/// Whitespace between tokens, with or without newlines.
fn spaced(pretty: bool, row: &Value) -> String {
    if pretty {
        serde_json::to_string_pretty(row).unwrap()
    } else {
        row.to_string()
    }
}

proptest! {
    /// Lines, an array in any layout, and objects one after another give the same rows.
    #[test]
    fn every_form_gives_the_same_rows(
        rows in prop::collection::vec((object(), any::<bool>()), 1..6),
        gaps in prop::collection::vec("[ \t\r\n]{0,3}", 8),
    ) {
        let compact: Vec<String> = rows.iter().map(|(row, _)| row.to_string()).collect();
        let expected = compact.join("\n");
        let mut lines_body = String::new();
        let mut array = format!("{}[", gaps[0]);
        for (n, row) in compact.iter().enumerate() {
            let line_gap = gaps[n + 1].replace('\n', " ");
            lines_body += &format!("{line_gap}{row}{}\n", gaps[n]);
            let comma = if n == 0 { "" } else { "," };
            array += &format!("{comma}{}{row}{}", gaps[n], gaps[n + 1]);
        }
        array += "]\n";
        for (body, form) in [(&lines_body, Form::Lines), (&lines_body, Form::Any), (&array, Form::Any)] {
            let read = read(&Bytes::copy_from_slice(body.as_bytes()), form);
            prop_assert_eq!(text(&read), &expected);
            prop_assert_eq!((read.accepted, read.rejected), (rows.len() as u64, 0));
        }
        // Objects of several lines: the same values, with their own whitespace.
        let laid_out: Vec<String> = rows.iter().map(|(row, pretty)| spaced(*pretty, row)).collect();
        let array = format!("[{}]", laid_out.join(" ,\n"));
        let read = detected(&array);
        prop_assert_eq!(text(&read), laid_out.join("\n"));
        let (first, _) = &rows[0];
        let sequence = format!("{}\n{}", "{\n}", laid_out.join("\n"));
        let read = detected(&sequence);
        prop_assert_eq!(text(&read), &sequence);
        let values: Vec<Value> = serde_json::Deserializer::from_slice(&read.payload)
            .into_iter::<Value>()
            .collect::<Result<_, _>>()
            .unwrap();
        prop_assert_eq!(values.len() as u64, read.accepted);
        let again: Value = serde_json::from_str(&first.to_string()).unwrap();
        prop_assert_eq!(&values[1], &again);
    }

    /// A row is accepted on a line if and only if serde_json reads it as an object (with each key once, which it does not
    /// check), and no input panics.
    #[test]
    fn what_is_accepted_is_what_serde_json_reads(line in "[\\[\\]{}\",\\\\:a1 e.tru\\-]{0,24}") {
        let rows = lines(&line);
        let is_object = matches!(serde_json::from_str::<Value>(&line), Ok(Value::Object(_)));
        let repeats = rows.errors.iter().any(|error| error.reason.contains("occurs twice"));
        prop_assert_eq!(rows.accepted == 1, is_object && !repeats);
    }

    #[test]
    fn every_input_is_read_to_its_end_or_says_how_much_is_left(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let body = Bytes::from(body);
        for form in [Form::Lines, Form::Any] {
            let rows = read(&body, form);
            prop_assert!(rows.payload.len() <= body.len() && rows.unread_bytes <= body.len());
            let found = serde_json::Deserializer::from_slice(&rows.payload).into_iter::<serde::de::IgnoredAny>();
            prop_assert_eq!(found.filter(Result::is_ok).count() as u64, rows.accepted);
        }
    }
}
