//! What programs make of events.

use super::*;

/// 2026-11-27T02:03:04.000005Z.
const AT_US: i64 = 1_795_744_984_000_005;

fn compiled(source: &str) -> Transform {
    let (transform, warnings) = Transform::new("t.vrl", source).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, None);
    transform
}

fn row(source: &str, event: &str) -> String {
    let transform = compiled(source);
    match transform.runs().run(event, AT_US) {
        Made::Row(row) => row.to_owned(),
        other => panic!("{event}: {other:?}"),
    }
}

fn failure(source: &str, event: &str) -> String {
    let transform = compiled(source);
    match transform.runs().run(event, AT_US) {
        Made::Failed(reason) => reason,
        other => panic!("{event}: {other:?}"),
    }
}

/// Cursors keep hashes from one release to the next.
#[test]
fn a_program_is_known_by_its_text_and_its_limit() {
    let hash = compiled(".a = 1").hash();
    let other_name = Transform::new("other.vrl", ".a = 1").unwrap().0;
    assert_eq!(other_name.hash(), hash);
    assert_ne!(compiled(".a = 2").hash(), hash);
    assert_ne!(compiled(".a = 1").with_event_bytes_max(100).hash(), hash);
    let same = compiled(".a = 1").with_event_bytes_max(262_144);
    assert_eq!(same.hash(), hash);
    assert_eq!(
        hash.to_string(),
        "1309620107976fbdb5f4dd7eb0769749ffd7a3302957fea268f9cfdfaa847651"
    );
}

#[test]
fn programs_rename_compute_and_remove() {
    for (source, event, expected) in [
        ("", r#"{ "a" : [1.0] }"#, r#"{"a":[1.0]}"#),
        (".b = del(.a)", r#"{"a":"x","c":1}"#, r#"{"c":1,"b":"x"}"#),
        (".n = (int(.n) ?? 0) + 1", r#"{"n":41}"#, r#"{"n":42}"#),
        ("del(.a.b)", r#"{"a":{"b":1,"c":[2]}}"#, r#"{"a":{"c":[2]}}"#),
        (".a.b = true", "{}", r#"{"a":{"b":true}}"#),
        (
            ".at = %received_at",
            "{}",
            r#"{"at":"2026-11-27T02:03:04.000005Z"}"#,
        ),
        (
            ".day = format_timestamp!(%received_at, \"%F\")",
            "{}",
            r#"{"day":"2026-11-27"}"#,
        ),
        (
            ".at = parse_timestamp!(.at, \"%F %T\")",
            r#"{"at":"2026-01-02 03:04:05"}"#,
            r#"{"at":"2026-01-02T03:04:05Z"}"#,
        ),
        (". = {\"a\": .b}", r#"{"b":[ 1, 2 ],"c":3}"#, r#"{"a":[1,2]}"#),
        (
            ". = map_keys(.) -> |key| { upcase(key) }",
            r#"{"a":1.50}"#,
            r#"{"A":1.5}"#,
        ),
        (
            ".x = .a; .x = del(.x)",
            r#"{"a":"\u0001\"\\"}"#,
            r#"{"a":"\u0001\"\\","x":"\u0001\"\\"}"#,
        ),
        ("return .a", r#"{"a":1}"#, r#"{"a":1}"#),
    ] {
        assert_eq!(row(source, event), expected, "{source}");
    }
}

#[test]
fn a_member_that_the_program_leaves_keeps_its_text() {
    let event = concat!(
        r#"{"u": 18446744073709551615, "d": 1234567890123456789.10, "e": 1.5E+3, "s": "\u00e9\/", "o": { "b":1.0, "a" :[ -0 ]},"#,
        r#" "half": "\ud800", "a": 1, "a": 2.50}"#
    );
    // The program names no member, some of them, or the event as a whole.
    let untouched = r#""u":18446744073709551615,"d":1234567890123456789.10,"e":1.5E+3,"s":"\u00e9\/","o":{ "b":1.0, "a" :[ -0 ]},"half":"\ud800","a":1,"a":2.50"#;
    assert_eq!(row(".new = 1", event), format!("{{{untouched},\"new\":1}}"));
    let read = "if exists(.u) && exists(.d) && exists(.e) && exists(.s) && exists(.o.b) && exists(.half) && exists(.a) { .new = 1 }";
    let touched = r#"{"a":2.50,"d":1234567890123456789.10,"e":1.5E+3,"half":"\ud800","new":1,"o":{ "b":1.0, "a" :[ -0 ]},"s":"é/","u":18446744073709551615}"#;
    assert_eq!(row(read, event), touched, "a number has other digits");
    assert_eq!(
        row("x = encode_json(.)\nif x != \"\" { .new = 1 }", event),
        touched
    );
    assert_eq!(row("for_each(.) -> |_, _| { .new = 1 }", event), touched);
}

#[test]
fn the_rest_of_a_changed_value_keeps_its_text() {
    let event = r#"{"a":{ "b": 1.50, "c": [18446744073709551615, { "d":1, "b":2.0 }, 3] },"x":1}"#;
    for (source, expected) in [
        (
            ".a.new = 1",
            r#"{"x":1,"a":{"b":1.50,"c":[18446744073709551615, { "d":1, "b":2.0 }, 3],"new":1}}"#,
        ),
        (
            ".a.c[2] = 4",
            r#"{"x":1,"a":{"b":1.50,"c":[18446744073709551615,{ "d":1, "b":2.0 },4]}}"#,
        ),
        (
            ".a.c[1].d = true",
            r#"{"x":1,"a":{"b":1.50,"c":[18446744073709551615,{"b":2.0,"d":true},3]}}"#,
        ),
        ("del(.a.c)", r#"{"x":1,"a":{"b":1.50}}"#),
        (
            ".a = [.a]",
            r#"{"x":1,"a":[{"b":1.5,"c":["18446744073709551615",{"b":2.0,"d":1},3]}]}"#,
        ),
    ] {
        assert_eq!(row(source, event), expected, "{source}");
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(128), "]".repeat(128));
    assert!(failure(".a[1].b.c = .a", &deep).contains("more than 128 deep"));
}

#[test]
fn numbers_that_move_keep_their_value() {
    for (number, moved) in [
        ("18446744073709551615", r#""18446744073709551615""#),
        (
            "-170141183460469231731687303715884105728",
            r#""-170141183460469231731687303715884105728""#,
        ),
        ("1234567890123456789.10", r#""1234567890123456789.10""#),
        ("9223372036854775807", "9223372036854775807"),
        ("0.1", "0.1"),
        ("1.10", "1.1"),
        ("0.30000000000000004", "0.30000000000000004"),
    ] {
        let event = format!("{{\"a\":{number}}}");
        assert_eq!(row(".b = del(.a)", &event), format!("{{\"b\":{moved}}}"));
        let nested = format!("{{\"a\":[{number}]}}");
        assert_eq!(row(".b = del(.a)", &nested), format!("{{\"b\":[{moved}]}}"));
    }
    // A computed one has as many digits as it needs.
    assert_eq!(
        row(".a = float!(.a) * 3", "{\"a\":0.1}"),
        r#"{"a":0.30000000000000004}"#
    );
    assert_eq!(row(".a = to_float!(.a)", "{\"a\":\"inf\"}"), r#"{"a":"inf"}"#);
}

#[test]
fn abort_drops_an_event_and_nothing_else_does() {
    let transform = compiled("if .level == \"debug\" { abort }\nif .level == \"x\" { abort \"a message\" }");
    let mut runs = transform.runs();
    for (event, expected) in [
        (r#"{"level":"debug"}"#, Made::Dropped),
        (r#"{"level":"info"}"#, Made::Row(r#"{"level":"info"}"#)),
        (r#"{"level":"x"}"#, Made::Dropped),
    ] {
        assert_eq!(runs.run(event, AT_US), expected);
    }
    for (source, found) in [
        (". = null", "null"),
        (". = [1]", "array"),
        (". = \"x\"", "string"),
    ] {
        let reason = failure(source, "{}");
        assert!(
            reason.contains(found) && reason.contains("not an object"),
            "{reason}"
        );
    }
}

#[test]
fn a_failure_names_the_program_the_line_and_the_reason() {
    for (source, event, words) in [
        (
            ".x = 1\n.b = to_int!(.a)",
            r#"{"a":"x"}"#,
            "t.vrl: to_int at line 2, column 6: ",
        ),
        ("assert!(.a == 1, \"a is not 1\")", "{}", "a is not 1"),
        (
            ".b = 1 / int!(.a) ?? 7\n.c = parse_json!(.a)",
            r#"{"a":0}"#,
            "t.vrl: parse_json at line 2",
        ),
        ("", "7", "t.vrl: $: the event is not an object"),
        (
            ".b = decode_base64!(.a)",
            r#"{"a":"/w=="}"#,
            "$.b: the string is not UTF-8",
        ),
        (
            ".b.c = [1, decode_base64!(.a)]",
            r#"{"a":"/w=="}"#,
            "$.b.c[1]: the string is not UTF-8",
        ),
    ] {
        let reason = failure(source, event);
        assert!(reason.contains(words), "{reason}");
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(failure(".b = .a", &deep).contains("$.a: objects and arrays lie more than 128 deep"));
    // A program that does not name the member passes it on.
    assert_eq!(row("", &deep), deep);
}

#[test]
fn a_panic_is_a_failure_and_the_next_event_a_row() {
    let transform = compiled(".b = to_float!(.a) * 0.0");
    let mut runs = transform.runs();
    let Made::Failed(reason) = runs.run(r#"{"a":"inf"}"#, AT_US) else {
        panic!("a product that is no number")
    };
    assert!(reason.starts_with("t.vrl: a function panicked: "), "{reason}");
    assert!(!is_running());
    assert_eq!(runs.run(r#"{"a":2}"#, AT_US), Made::Row(r#"{"a":2,"b":0.0}"#));
}

#[test]
fn a_row_has_a_greatest_length() {
    let doubled = format!("x = string!(.a)\n{}.b = x", "x = x + x\n".repeat(12));
    let reason = failure(&doubled, &format!("{{\"a\":\"{}\"}}", "x".repeat(32 << 10)));
    assert!(reason.contains("the row has more than 64 MiB"), "{reason}");
}

#[test]
fn compilers_messages_have_lines() {
    let error = Transform::new("t", ".a = 1\n.b = to_int(.c)\n").unwrap_err();
    assert!(
        error.contains("unhandled fallible assignment") && error.contains("┌─ t:2:"),
        "{error}"
    );
    let error = Transform::new("t", ".a = (\n").unwrap_err();
    assert!(error.contains("syntax error"), "{error}");
    let error = Transform::new("t", ".a = nowhere()").unwrap_err();
    assert!(error.contains("undefined function"), "{error}");
    let (_, warnings) = Transform::new("t", "x = 1\n.a = 2").unwrap();
    assert!(warnings.unwrap().contains("unused variable"));
}

#[test]
fn fuzzing_runs_its_programs() {
    for event in [
        "{}",
        "7",
        r#"{"a":[1.50,{"b":"\ud800"}],"a":18446744073709551615}"#,
    ] {
        assert_eq!(check(event), 3);
    }
}

#[test]
fn a_large_event_is_not_parsed() {
    let event = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes));
    row(".b = length!(.a)", &event(200_000));
    for (source, bytes) in [(".b = length!(.a)", 262_144), (".b = flatten(.)", 32_768)] {
        let reason = failure(source, &event(bytes));
        let words = format!("the program runs over at most {bytes} (max_event_bytes)");
        assert!(reason.contains(&words), "{reason}");
    }
    let transform = compiled(".b = length!(.a)").with_event_bytes_max(1 << 20);
    assert!(matches!(
        transform.runs().run(&event(300_000), AT_US),
        Made::Row(_)
    ));
}

#[test]
fn a_reason_does_not_quote_a_whole_event() {
    let reason = failure(
        ".b = to_int!(.a)",
        &format!("{{\"a\":\"{}\"}}", "é".repeat(50_000)),
    );
    assert!(
        reason.len() < 2_100 && reason.ends_with('…'),
        "{} bytes",
        reason.len()
    );
}

/// The compiler does not see that a closure changes a variable.
#[test]
fn an_argument_that_a_closure_may_have_changed_is_refused() {
    let source = "z = \"UTC\"\nfor_each([1]) -> |_, _| { z = \"local\" }\n.a = format_timestamp!(%received_at, \"%z\", timezone: z)";
    let error = Transform::new("t.vrl", source).expect_err("the zone is that of the machine");
    assert!(
        error.contains("the argument timezone of format_timestamp must be the name of a zone"),
        "{error}"
    );
}
