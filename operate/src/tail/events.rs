//! Splits a message of events into its rows. It changes no row, and loses no byte that is no row.

use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::Content;

/// Gives each row of a message. Other producers may write bytes that are not JSON: from there on, the rest of the message
/// is one payload.
pub(super) fn rows(message: &[u8], mut give: impl FnMut(Content)) {
    let mut values = Deserializer::from_slice(message).into_iter::<IgnoredAny>();
    loop {
        let start = values.byte_offset();
        let Some(value) = values.next() else {
            return;
        };
        let row = value
            .ok()
            .and_then(|_| std::str::from_utf8(&message[start..values.byte_offset()]).ok());
        let Some(row) = row else {
            let rest = message[start..].trim_ascii();
            return give(Content::Payload(rest.escape_ascii().to_string()));
        };
        give(Content::Row(row.trim_ascii().to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as they are, payloads after `!`.
    fn split(message: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        rows(message, |content| match content {
            Content::Row(row) => found.push(row),
            Content::Payload(payload) => found.push(format!("!{payload}")),
            other => panic!("{other:?}"),
        });
        found
    }

    #[test]
    fn a_message_is_its_rows_and_whatever_else_it_is_one_payload() {
        for (message, expected) in [
            (
                &b"{\"a\": 1.50}\n{\n \"b\": []\n}\n"[..],
                &["{\"a\": 1.50}", "{\n \"b\": []\n}"][..],
            ),
            (b"{} {}{}", &["{}", "{}", "{}"]),
            (b"", &[]),
            (b"{}\nno JSON\x00\n{}", &["{}", "!no JSON\\x00\\n{}"]),
            (b"{\"a\":\"\xff\"}\n{}", &["!{\\\"a\\\":\\\"\\xff\\\"}\\n{}"]),
        ] {
            assert_eq!(split(message), expected);
        }
    }
}
