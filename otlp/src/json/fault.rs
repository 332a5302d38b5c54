//! What can be wrong with a request in OTLP/JSON, and where.

/// A request that was not turned into protobuf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is not one.
    #[error(transparent)]
    Malformed(#[from] MalformedJson),
    /// Its protobuf takes more room than was given.
    #[error("its protobuf takes more room than was given")]
    MoreRoom,
}

/// Bytes that are not OTLP/JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed OTLP/JSON at byte {offset} ({field}): {reason}")]
pub struct MalformedJson {
    /// Where the fault is, in bytes from the start of the JSON.
    pub offset: usize,
    /// The path of the field that is at fault or was read last, such as `resourceLogs[3].scopeLogs[0]`.
    pub field: String,
    /// What is wrong.
    pub reason: JsonReason,
}

/// Why bytes are not OTLP/JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonReason {
    /// The bytes end too early.
    #[error("the JSON ends here, incomplete")]
    Truncated,
    /// Something else must be here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// An object or array opens within too many others.
    #[error(
        "nested too deeply: more than 100 messages, or values of a field that is not OTLP's, within one another"
    )]
    Depth,
    /// A string holds a control character.
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    /// A string holds an escape that JSON does not have.
    #[error("a string has an escape that JSON does not know")]
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
    /// Not a name of the enumeration's, all of which begin so.
    #[error("expected a number, or a name of the enumeration {0}…")]
    Name(&'static str),
    /// There is more after the request.
    #[error("there is more after the end of the request")]
    Trailing,
}

/// A fault, before the path to it is known.
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
