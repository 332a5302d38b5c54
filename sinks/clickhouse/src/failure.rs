//! What a failed request means for the rows in it: come back, mend the table, or give up.

use clickhouse::error::Error;
use millpond_consumer::SinkError;

/// Exceptions that somebody must mend before anything can be written: the table, the database, our rights, or the
/// server's version.
const SCHEMA: [(u32, &str); 24] = [
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
    (164, "READONLY"),
    (192, "UNKNOWN_USER"),
    (193, "WRONG_PASSWORD"),
    (291, "DATABASE_ACCESS_DENIED"),
    (344, "SUPPORT_IS_DISABLED"),
    (432, "UNKNOWN_CODEC"),
    (452, "SETTING_CONSTRAINT_VIOLATION"),
    (497, "ACCESS_DENIED"),
    (516, "AUTHENTICATION_FAILED"),
];

/// Exceptions about the rows themselves, which will be the same the next time: constraints, and what a table computes of a row
/// (`MATERIALIZED` and `DEFAULT` columns). They come before any of the rows is written. Not those that a body cut or changed
/// on its way gives too (33 CANNOT_READ_ALL_DATA, 40 CHECKSUM_DOESNT_MATCH, 271 CANNOT_DECOMPRESS).
const REFUSED: [(u32, &str); 17] = [
    (6, "CANNOT_PARSE_TEXT"),
    (38, "CANNOT_PARSE_DATE"),
    (41, "CANNOT_PARSE_DATETIME"),
    (69, "ARGUMENT_OUT_OF_BOUND"),
    (72, "CANNOT_PARSE_NUMBER"),
    (117, "INCORRECT_DATA"),
    (128, "TOO_LARGE_ARRAY_SIZE"),
    (131, "TOO_LARGE_STRING_SIZE"),
    (153, "ILLEGAL_DIVISION"),
    (321, "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE"),
    (349, "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
    (376, "CANNOT_PARSE_UUID"),
    (395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
    (407, "DECIMAL_OVERFLOW"),
    (469, "VIOLATED_CONSTRAINT"),
    (675, "CANNOT_PARSE_IPV4"),
    (676, "CANNOT_PARSE_IPV6"),
];

/// What an exception says that came from a materialized view. The table has the rows by then.
const VIEW: &str = "while pushing to view";

/// Classifies an error, with `what` was asked of the server in front of it.
///
/// Everything else is transient, whether it is known to be (159 TIMEOUT_EXCEEDED, 202
/// TOO_MANY_SIMULTANEOUS_QUERIES, 209 and 210 network, 236 ABORTED, 241 MEMORY_LIMIT_EXCEEDED, 242
/// TABLE_IS_READ_ONLY, 243 NOT_ENOUGH_SPACE, 252 TOO_MANY_PARTS, 285 TOO_FEW_LIVE_REPLICAS, 319
/// UNKNOWN_STATUS_OF_INSERT, 394 QUERY_WAS_CANCELLED, 425 SYSTEM_ERROR, 745 SERVER_OVERLOADED, 999
/// KEEPER_EXCEPTION, connections, timeouts, proxies) or not: trying again under the same token does no harm,
/// giving up would lose rows.
pub(crate) fn classify(what: &str, error: &Error) -> SinkError {
    let text = with_causes(error);
    let message = format!("{what}: {text}");
    let code = exception_code(&text);
    let among = |codes: &[(u32, &str)]| codes.iter().any(|(known, _)| Some(*known) == code);
    match error {
        Error::BadResponse(_) if among(&SCHEMA) => SinkError::Schema(message),
        Error::BadResponse(_) if among(&REFUSED) && text.contains(VIEW) => SinkError::Schema(message),
        Error::BadResponse(_) if among(&REFUSED) => SinkError::Refused(message),
        // The URL, or a header made of user and password.
        Error::InvalidParams(_) | Error::Unsupported(_) => SinkError::Schema(message),
        _ => SinkError::Transient(message),
    }
}

/// Reports whether the server answered with this exception.
pub(crate) fn is_exception(error: &Error, code: u32) -> bool {
    matches!(error, Error::BadResponse(_)) && exception_code(&with_causes(error)) == Some(code)
}

/// The crate's errors hide what happened behind `source`.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    // An exception can quote a whole query.
    match text.char_indices().nth(2000) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

/// The number in ClickHouse's `Code: 60. DB::Exception: …`.
fn exception_code(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Code: ")?;
    rest.split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: &Error) -> &'static str {
        match classify("inserting", error) {
            SinkError::Transient(_) => "transient",
            SinkError::Schema(_) => "schema",
            SinkError::Refused(_) => "refused",
        }
    }

    fn exception(code: u32) -> Error {
        Error::BadResponse(format!(
            "Code: {code}. DB::Exception: Table t has 16 columns. (NAME) (version 26.7)"
        ))
    }

    #[test]
    fn what_can_pass_is_tried_again() {
        for code in [33, 40, 159, 202, 210, 241, 242, 252, 285, 319, 394, 999, 12_345] {
            assert_eq!(kind(&exception(code)), "transient", "{code}");
        }
        assert_eq!(
            kind(&Error::BadResponse("503 Service Unavailable".into())),
            "transient"
        );
        assert_eq!(
            kind(&Error::BadResponse("<html>bad gateway</html>".into())),
            "transient"
        );
        assert_eq!(kind(&Error::TimedOut), "transient");
        assert_eq!(kind(&Error::Network("connection refused".into())), "transient");
    }

    #[test]
    fn a_table_that_does_not_fit_is_said_so() {
        for (code, _) in SCHEMA {
            assert_eq!(kind(&exception(code)), "schema", "{code}");
        }
    }

    #[test]
    fn rows_that_can_never_be_taken_are_refused() {
        for (code, _) in REFUSED {
            assert_eq!(kind(&exception(code)), "refused", "{code}");
        }
    }

    #[test]
    fn a_view_behind_the_table_refuses_no_rows_of_it() {
        let error = Error::BadResponse(
            "Code: 6. DB::Exception: Cannot parse string 'x' as Int64: while pushing to view t.mv. (CANNOT_PARSE_TEXT) (version 26.7)"
                .into(),
        );
        assert_eq!(kind(&error), "schema");
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
