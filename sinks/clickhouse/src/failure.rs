//! Classifies failed requests by what to do with their rows: retry, fix the table, or give up.

use crate::client::Error;
use crate::rights;
use millpond_consumer::SinkError;

/// Exceptions that somebody must fix before anything can be written: the table, the database, our privileges, or the
/// server's version or configuration.
const SCHEMA: [(u32, &str); 28] = [
    (8, "THERE_IS_NO_COLUMN"),
    (10, "NOT_FOUND_COLUMN_IN_BLOCK"),
    (16, "NO_SUCH_COLUMN_IN_TABLE"),
    (36, "BAD_ARGUMENTS"),
    (44, "ILLEGAL_COLUMN"),
    (47, "UNKNOWN_IDENTIFIER"),
    (48, "NOT_IMPLEMENTED"),
    (50, "UNKNOWN_TYPE"),
    (53, "TYPE_MISMATCH"),
    (60, "UNKNOWN_TABLE"),
    (62, "SYNTAX_ERROR"),
    (70, "CANNOT_CONVERT_TYPE"),
    (80, "INCORRECT_QUERY"),
    (81, "UNKNOWN_DATABASE"),
    (115, "UNKNOWN_SETTING"),
    (139, "NO_ELEMENTS_IN_CONFIG"),
    (164, "READONLY"),
    (192, "UNKNOWN_USER"),
    (193, "WRONG_PASSWORD"),
    (REPLICA_ALREADY_EXISTS, "REPLICA_ALREADY_EXISTS"),
    (291, "DATABASE_ACCESS_DENIED"),
    (342, "METADATA_MISMATCH"),
    (344, "SUPPORT_IS_DISABLED"),
    (432, "UNKNOWN_CODEC"),
    (452, "SETTING_CONSTRAINT_VIOLATION"),
    (497, "ACCESS_DENIED"),
    (516, "AUTHENTICATION_FAILED"),
    (701, "CLUSTER_DOESNT_EXIST"),
];

/// Creating a replicated table fails with this when its path in Keeper already has a replica of this name.
const REPLICA_ALREADY_EXISTS: u32 = 253;

/// The causes of [`REPLICA_ALREADY_EXISTS`]: ClickHouse's own message names only the path.
const SAME_REPLICA: &str = "another server has the same {replica} macro, or a dropped table left its replica in Keeper \
                            (SYSTEM DROP REPLICA removes it)";

/// Exceptions about the rows themselves, which will recur: constraints, arrays of one `Nested` column, and expressions of
/// `MATERIALIZED` and `DEFAULT` columns. They occur before any row is written. The list excludes exceptions that a truncated or corrupted body can
/// also cause (33 CANNOT_READ_ALL_DATA, 40 CHECKSUM_DOESNT_MATCH, 271 CANNOT_DECOMPRESS).
const REFUSED: [(u32, &str); 24] = [
    (6, "CANNOT_PARSE_TEXT"),
    (25, "CANNOT_PARSE_ESCAPE_SEQUENCE"),
    (26, "CANNOT_PARSE_QUOTED_STRING"),
    (27, "CANNOT_PARSE_INPUT_ASSERTION_FAILED"),
    (38, "CANNOT_PARSE_DATE"),
    (41, "CANNOT_PARSE_DATETIME"),
    (69, "ARGUMENT_OUT_OF_BOUND"),
    (72, "CANNOT_PARSE_NUMBER"),
    (117, "INCORRECT_DATA"),
    (128, "TOO_LARGE_ARRAY_SIZE"),
    (130, "CANNOT_READ_ARRAY_FROM_TEXT"),
    (131, "TOO_LARGE_STRING_SIZE"),
    (153, "ILLEGAL_DIVISION"),
    (190, "SIZES_OF_ARRAYS_DONT_MATCH"),
    (321, "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE"),
    (349, "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
    (376, "CANNOT_PARSE_UUID"),
    (395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
    (407, "DECIMAL_OVERFLOW"),
    (467, "CANNOT_PARSE_BOOL"),
    (469, "VIOLATED_CONSTRAINT"),
    (675, "CANNOT_PARSE_IPV4"),
    (676, "CANNOT_PARSE_IPV6"),
    (691, "UNKNOWN_ELEMENT_OF_ENUM"),
];

/// A lost connection causes it, and also a function that reads a number from a text without one, as `toUInt16` of an
/// absent attribute does.
const ATTEMPT_TO_READ_AFTER_EOF: u32 = 32;

/// Precedes the function in the text of the latter.
const IN_FUNCTION: &str = ": while executing 'FUNCTION ";

/// The beginnings of conversions. They read nothing but their arguments, unlike `dictGet`.
const CONVERSIONS: [&str; 3] = ["CAST(", "_CAST(", "to"];

/// The text of an exception from a materialized view. By then the table has the rows.
const VIEW: &str = "while pushing to view";

/// Classifies an error by ClickHouse's code. `what` names the request in the error's text.
///
/// Everything else is transient, whether known as such or not: a retry under the same token is harmless, giving up
/// would lose rows. Known transient errors: 159 TIMEOUT_EXCEEDED, 202 TOO_MANY_SIMULTANEOUS_QUERIES, 209 and 210
/// network, 236 ABORTED, 241 MEMORY_LIMIT_EXCEEDED, 242 TABLE_IS_READ_ONLY, 243 NOT_ENOUGH_SPACE, 252 TOO_MANY_PARTS,
/// 279 ALL_CONNECTION_TRIES_FAILED, 285 TOO_FEW_LIVE_REPLICAS, 319 UNKNOWN_STATUS_OF_INSERT, 394 QUERY_WAS_CANCELLED,
/// 425 SYSTEM_ERROR, 745 SERVER_OVERLOADED, 999 KEEPER_EXCEPTION, connections, timeouts, proxies.
pub(crate) fn classify(what: &str, error: &Error) -> SinkError {
    let mut message = format!("{what}: {}", shown(error));
    if is_exception(error, REPLICA_ALREADY_EXISTS) {
        message = format!("{what}: {SAME_REPLICA}: {}", shown(error));
    }
    if let Error::Exception { code, text } = error
        && let Some(advice) = rights::advice(*code, text)
    {
        message = format!("{what}: {advice}: {}", shown(error));
    }
    let among = |codes: &[(u32, &str)], code| codes.iter().any(|(known, _)| *known == code);
    match error {
        Error::Exception { code, .. } if among(&SCHEMA, *code) => SinkError::Schema(message),
        Error::Exception { code, .. } if among(&REFUSED, *code) => SinkError::Refused(message),
        Error::Exception { .. } if is_too_short(error) => SinkError::Refused(message),
        Error::Settings(_) => SinkError::Schema(message),
        _ => SinkError::Transient(message),
    }
}

/// Reports whether a conversion found a value too short. A lost connection's exception has no data in its text, so no
/// record can imitate this.
fn is_too_short(error: &Error) -> bool {
    let Error::Exception {
        code: ATTEMPT_TO_READ_AFTER_EOF,
        text,
    } = error
    else {
        return false;
    };
    let function = text.split_once(IN_FUNCTION);
    function.is_some_and(|(_, function)| CONVERSIONS.iter().any(|name| function.starts_with(name)))
}

/// Exceptions of a server that another replica may not have: it stops, is full or overloaded, or has lost Keeper.
const AWAY: [(u32, &str); 7] = [
    (225, "NO_ZOOKEEPER"),
    (236, "ABORTED"),
    (242, "TABLE_IS_READ_ONLY"),
    (243, "NOT_ENOUGH_SPACE"),
    (319, "UNKNOWN_STATUS_OF_INSERT"),
    (745, "SERVER_OVERLOADED"),
    (999, "KEEPER_EXCEPTION"),
];

/// Reports whether the failure is the server's, so that another replica may do better.
pub(crate) fn is_away(error: &Error) -> bool {
    match error {
        Error::Network(_) | Error::NotHttp | Error::Timeout(_) => true,
        Error::Status { status, .. } => *status >= 500,
        Error::Exception { code, .. } => AWAY.iter().any(|(away, _)| away == code),
        Error::Settings(_) | Error::Answer(_) => false,
    }
}

/// Reports whether the server answered with this exception.
pub(crate) fn is_exception(error: &Error, wanted: u32) -> bool {
    matches!(error, Error::Exception { code, .. } if *code == wanted)
}

/// Reports whether the text says that a view behind the table refused the rows, not the table itself. The sink relies
/// on this only if it cannot look for the rows: some functions put a value into their message without quotes (`Cannot
/// parse uuid …: Cannot parse UUID from String`). The server appends the view at the end, so text before another
/// context is data.
pub(crate) fn names_a_view(error: &Error) -> bool {
    let Error::Exception { text, .. } = error else {
        return false;
    };
    let outside = outside_quotes(text);
    outside
        .rsplit_once(VIEW)
        .is_some_and(|(_, rest)| !rest.contains(": "))
}

/// An exception can quote a whole query.
pub(crate) fn shown(error: &Error) -> String {
    let text = error.to_string();
    match text.char_indices().nth(2000) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

/// Removes quoted text, which ClickHouse uses for names and data: `'…'`, `"…"` and `` `…` ``, where a backslash escapes
/// the next character. An unclosed quote hides the rest. An apostrophe after a letter (`doesn't`) is not a quote.
pub(crate) fn outside_quotes(text: &str) -> String {
    let mut outside = String::with_capacity(text.len());
    let mut quote = None;
    let mut before = ' ';
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match quote {
            Some(_) if character == '\\' => {
                characters.next();
            }
            Some(open) if character == open => {
                quote = None;
                outside.push(character);
            }
            Some(_) => {}
            None => {
                outside.push(character);
                let opens = matches!(character, '\'' | '"' | '`');
                if opens && !(character == '\'' && before.is_alphanumeric()) {
                    quote = Some(character);
                }
            }
        }
        before = character;
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::AnswerError;
    use std::time::Duration;

    fn kind(error: &Error) -> &'static str {
        match classify("inserting", error) {
            SinkError::Transient(_) => "transient",
            SinkError::Schema(_) => "schema",
            SinkError::Refused(_) => "refused",
        }
    }

    fn exception(code: u32) -> Error {
        Error::Exception {
            code,
            text: format!("Code: {code}. DB::Exception: Table t has 16 columns. (NAME) (version 26.7)"),
        }
    }

    #[test]
    fn passing_errors_are_transient() {
        for code in [
            32, 33, 40, 159, 202, 209, 210, 236, 241, 242, 243, 252, 271, 279, 285, 319, 394, 425, 745, 999,
            12_345,
        ] {
            assert_eq!(kind(&exception(code)), "transient", "{code}");
        }
        let proxy = Error::Status {
            status: 503,
            text: "<html>Code: 6. DB::Exception: bad gateway</html>".into(),
        };
        assert_eq!(kind(&proxy), "transient");
        assert_eq!(kind(&Error::Timeout(Duration::from_secs(1))), "transient");
        assert_eq!(kind(&Error::Network("connection refused".into())), "transient");
        assert_eq!(kind(&Error::Answer(AnswerError::TooLarge(1))), "transient");
    }

    #[test]
    fn an_absent_server_differs_from_one_that_refuses() {
        let status = |status| Error::Status {
            status,
            text: String::new(),
        };
        for (code, _) in AWAY {
            assert!(is_away(&exception(code)), "{code}");
            assert_eq!(kind(&exception(code)), "transient", "{code}");
        }
        for error in [
            Error::Network("connection refused".into()),
            Error::Timeout(Duration::from_secs(1)),
            status(502),
            status(503),
        ] {
            assert!(is_away(&error), "{error}");
        }
        for code in [60, 252, 285, 394, 469, 516] {
            assert!(!is_away(&exception(code)), "{code}");
        }
        assert!(!is_away(&status(404)));
        assert!(!is_away(&Error::Answer(AnswerError::TooLarge(1))));
    }

    #[test]
    fn errors_about_the_schema_are_schema_errors() {
        for (code, _) in SCHEMA {
            assert_eq!(kind(&exception(code)), "schema", "{code}");
        }
    }

    #[test]
    fn a_replica_that_exists_already_is_explained() {
        let error = classify("creating table t", &exception(REPLICA_ALREADY_EXISTS)).to_string();
        for part in [
            "creating table t: another server",
            "SYSTEM DROP REPLICA",
            "Code: 253.",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = classify("creating table t", &exception(342)).to_string();
        assert!(!error.contains("another server"), "{error}");
    }

    #[test]
    fn a_mistake_with_the_user_gets_its_remedy() {
        let error = classify("inserting", &exception(516)).to_string();
        for part in ["inserting: the user or the password is wrong", ": Code: 516."] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn rows_that_can_never_be_taken_are_refused() {
        for (code, _) in REFUSED {
            assert_eq!(kind(&exception(code)), "refused", "{code}");
        }
    }

    #[test]
    fn a_short_value_differs_from_a_lost_connection() {
        let read_after_eof = |text: &str| {
            kind(&Error::Exception {
                code: 32,
                text: format!(
                    "Code: 32. DB::Exception: Attempt to read after eof: {text}. (ATTEMPT_TO_READ_AFTER_EOF)"
                ),
            })
        };
        for conversion in [
            "Cannot parse UInt16 from String, because value is too short: while executing 'FUNCTION toUInt16(s : 1) -> toUInt16(s) UInt16 : 0'",
            "while executing 'FUNCTION CAST(s :: 1, 'Int128'_String : 2) -> CAST(s, 'Int128'_String) Int128 : 4'",
        ] {
            assert_eq!(read_after_eof(conversion), "refused", "{conversion}");
        }
        for lost in [
            "while executing 'FUNCTION dictGet('d'_String, 'a'_String, s : 1) -> dictGet('d', 'a', s) UInt8 : 0'",
            "while reading from socket (10.0.0.1:9000)",
        ] {
            assert_eq!(read_after_eof(lost), "transient", "{lost}");
        }
    }

    #[test]
    fn quoted_text_says_nothing_of_a_view() {
        let of_a_view = |text: &str| {
            names_a_view(&Error::Exception {
                code: 6,
                text: text.to_owned(),
            })
        };
        for view in [
            "Cannot parse string 'x' as Int64: while pushing to view t.mv. (CANNOT_PARSE_TEXT)",
            r"Cannot parse string 'it\'s' as Int64: while pushing to view t.mv",
            r"'a\\' while pushing to view t.mv",
            "x: while executing 'FUNCTION f(Body :: 2) -> f(Body)': while pushing to view t.a (1-2): while pushing to view t.b (3-4). (X) (version 26.7 (official build))",
            "the value doesn't fit: while pushing to view t.mv",
            "\"'\" while pushing to view `t`.`mv`",
        ] {
            assert!(of_a_view(view), "{view}");
        }
        for data in [
            "Cannot parse string 'while pushing to view' as Int32: syntax error at begin of string",
            r"Cannot parse string 'it\'s while pushing to view' as Int32",
            r"Cannot parse string '\\\' while pushing to view' as Int32",
            "expected ',' before: \"while pushing to view\"",
            "Column `while pushing to view` is violated",
            "Cannot parse uuid while pushing to view t.mv: Cannot parse UUID from String: while executing 'FUNCTION toUUID(Body :: 2)'. (X)",
            "Cannot parse string 'that nobody closes while pushing to view",
        ] {
            assert!(!of_a_view(data), "{data}");
        }
    }

    /// Quotes a string like ClickHouse's `quoteString`.
    fn quoted(data: &str, quote: char) -> String {
        let mut text = String::from(quote);
        for character in data.chars() {
            if character == quote || character == '\\' {
                text.push('\\');
            }
            text.push(character);
        }
        text.push(quote);
        text
    }

    proptest::proptest! {
        #[test]
        fn quoted_data_stays_within_its_quotes(data in r#"[a\\'"`]{0,12}"#, quote in "['\"`]", after in "[b:. ]{0,5}") {
            let quote = quote.chars().next().unwrap();
            let text = format!("{}{after}", quoted(&data, quote));
            proptest::prop_assert_eq!(outside_quotes(&text), format!("{quote}{quote}{after}"));
        }
    }

    #[test]
    fn the_message_says_what_was_asked_and_why_it_failed() {
        let error = classify("inserting chunk 3", &Error::Network("connection refused".into()));
        assert_eq!(
            error.to_string(),
            "inserting chunk 3: network error: connection refused"
        );
    }
}
