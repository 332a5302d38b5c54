//! Errors in a request in OTLP/JSON and their positions.

/// Why a request was not converted to protobuf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The JSON is malformed.
    #[error(transparent)]
    Malformed(#[from] MalformedJson),
    /// The protobuf needs more room than given.
    #[error("its protobuf needs more room than given")]
    MoreRoom,
}

/// Bytes that are not OTLP/JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed OTLP/JSON at byte {offset} ({field}): {reason}")]
pub struct MalformedJson {
    /// Offset of the fault in bytes from the start of the JSON.
    pub offset: usize,
    /// The path of the field with the fault, or of the last field read, such as `resourceLogs[3].scopeLogs[0]`.
    pub field: String,
    /// The kind of fault.
    pub reason: JsonReason,
}

/// Why bytes are not OTLP/JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonReason {
    /// The bytes end too early.
    #[error("the JSON ends here, incomplete")]
    Truncated,
    /// Something else is expected here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// An object or array is nested too deeply.
    #[error(
        "nested too deeply: more than 100 messages, or values of a field unknown to OTLP, inside each other"
    )]
    Depth,
    /// A string holds a control character.
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    /// A string contains an escape that JSON does not define.
    #[error("a string has an escape that JSON does not define")]
    Escape,
    /// A number outside the range of its field.
    #[error("the number is out of the range of {0}")]
    Range(&'static str),
    /// An id that is not hexadecimal.
    #[error("expected an id in hexadecimal, two digits a byte (OTLP/JSON has no base64 here)")]
    Id,
    /// Bytes that are not base64.
    #[error("expected base64")]
    Base64,
    /// Not a name of the enumeration; all its names have this prefix.
    #[error("expected a number, or a name of the enumeration {0}…")]
    Name(&'static str),
    /// The request is followed by more text.
    #[error("there is more text after the end of the request")]
    Trailing,
}

/// A fault without its path, which is added later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Malformed { offset: usize, reason: JsonReason },
    MoreRoom,
}

impl Fault {
    pub(super) fn at(offset: usize, reason: JsonReason) -> Fault {
        Fault::Malformed { offset, reason }
    }
}
