//! OTLP's messages as tables: each field's name, encoding and value type. This file has the shared messages; each
//! signal has its own file.
//!
//! Source: opentelemetry-proto 1.x (`opentelemetry/proto/{collector,logs,trace,metrics,common,resource}`).

pub(crate) mod enums;
pub(crate) mod logs;
pub(crate) mod metrics;
mod plain;
pub(crate) mod traces;

pub(crate) use enums::Enum;
pub(crate) use plain::Plain;

use crate::wire::{self, LEN, VARINT};

/// One message type. `fields[i]` is field number `i`; a missing field is unknown and skipped.
pub(crate) struct Message {
    pub(crate) fields: &'static [Field],
    /// Fields with numbers too large for a dense table.
    pub(crate) sparse: &'static [(u32, Field)],
    /// The usual form of this message, if it has one that is quick to check.
    pub(crate) plain: Option<Plain>,
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) repeated: bool,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Unknown,
    Varint(Varint),
    Fixed64(Fixed64),
    Fixed32,
    Bytes(Bytes),
    Message(&'static Message),
    /// A message that is one record.
    Record(&'static Message),
    /// `scope_logs` and its counterparts, and the field that it replaced in OTLP 0.15 (2022). As in the Collector, the
    /// old field counts only if the new one is absent.
    Scopes(&'static Message),
    OldScopes(&'static Message),
    /// A member of the oneof for a metric's data points: only the records of its last occurrence count.
    Data(&'static Message),
    /// Repeated numbers, packed into one field or one per field.
    Fixed64s(Fixed64),
    Varints(Varint),
}

/// The meaning of a varint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varint {
    Bool,
    Int32,
    Int64,
    /// Zigzag.
    Sint32,
    Uint32,
    Uint64,
    Enum(Enum),
}

/// The meaning of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fixed64 {
    Signed,
    Unsigned,
    Double,
}

/// The meaning of a length-delimited field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    String,
    Raw,
    /// A trace or span id, which OTLP/JSON writes in hexadecimal.
    Id,
}

const STRING: Kind = Kind::Bytes(Bytes::String);
const BYTES: Kind = Kind::Bytes(Bytes::Raw);
const ID: Kind = Kind::Bytes(Bytes::Id);
const BOOL: Kind = Kind::Varint(Varint::Bool);
const INT32: Kind = Kind::Varint(Varint::Int32);
const INT64: Kind = Kind::Varint(Varint::Int64);
const SINT32: Kind = Kind::Varint(Varint::Sint32);
const UINT32: Kind = Kind::Varint(Varint::Uint32);
const FIXED64: Kind = Kind::Fixed64(Fixed64::Unsigned);
const SFIXED64: Kind = Kind::Fixed64(Fixed64::Signed);
const DOUBLE: Kind = Kind::Fixed64(Fixed64::Double);

impl Kind {
    /// Returns true if a field of this kind may have this wire type.
    #[inline]
    pub(crate) fn takes(self, wire: u32) -> bool {
        match self {
            Kind::Unknown => true,
            Kind::Varint(_) => wire == VARINT,
            Kind::Fixed64(_) => wire == wire::FIXED64,
            Kind::Fixed32 => wire == wire::FIXED32,
            Kind::Fixed64s(_) => wire == LEN || wire == wire::FIXED64,
            Kind::Varints(_) => wire == LEN || wire == VARINT,
            Kind::Bytes(_)
            | Kind::Message(_)
            | Kind::Record(_)
            | Kind::Scopes(_)
            | Kind::OldScopes(_)
            | Kind::Data(_) => wire == LEN,
        }
    }

    /// The message type of a field of this kind.
    pub(crate) fn message(self) -> Option<&'static Message> {
        match self {
            Kind::Message(inner)
            | Kind::Record(inner)
            | Kind::Scopes(inner)
            | Kind::OldScopes(inner)
            | Kind::Data(inner) => Some(inner),
            Kind::Unknown
            | Kind::Varint(_)
            | Kind::Fixed64(_)
            | Kind::Fixed32
            | Kind::Bytes(_)
            | Kind::Fixed64s(_)
            | Kind::Varints(_) => None,
        }
    }
}

impl Message {
    #[inline]
    pub(crate) fn kind(&self, number: u32) -> Kind {
        match self.fields.get(number as usize) {
            Some(field) => field.kind,
            None if self.sparse.is_empty() => Kind::Unknown,
            None => self.field(number).map_or(Kind::Unknown, |field| field.kind),
        }
    }

    pub(crate) fn field(&self, number: u32) -> Option<&'static Field> {
        self.fields.get(number as usize).or_else(|| {
            self.sparse
                .iter()
                .find(|(sparse, _)| *sparse == number)
                .map(|(_, field)| field)
        })
    }
}

const fn one(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        repeated: false,
        kind,
    }
}

const fn many(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        repeated: true,
        kind,
    }
}

const NONE: Field = one("", Kind::Unknown);

static RESOURCE: Message = Message {
    fields: &[
        NONE,
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
        many("entity_refs", Kind::Message(&ENTITY_REF)),
    ],
    sparse: &[],
    plain: None,
};

static ENTITY_REF: Message = Message {
    fields: &[
        NONE,
        one("schema_url", STRING),
        one("type", STRING),
        many("id_keys", STRING),
        many("description_keys", STRING),
    ],
    sparse: &[],
    plain: None,
};

static SCOPE: Message = Message {
    fields: &[
        NONE,
        one("name", STRING),
        one("version", STRING),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
    ],
    sparse: &[],
    plain: None,
};

static KEY_VALUE: Message = Message {
    fields: &[
        NONE,
        one("key", STRING),
        one("value", Kind::Message(&ANY_VALUE)),
        one("key_strindex", INT32),
    ],
    sparse: &[],
    plain: Some(Plain::Pair),
};

static ANY_VALUE: Message = Message {
    fields: &[
        NONE,
        one("string_value", STRING),
        one("bool_value", BOOL),
        one("int_value", INT64),
        one("double_value", DOUBLE),
        one("array_value", Kind::Message(&ARRAY_VALUE)),
        one("kvlist_value", Kind::Message(&KEY_VALUE_LIST)),
        one("bytes_value", BYTES),
        one("string_value_strindex", INT32),
    ],
    sparse: &[],
    plain: Some(Plain::Value),
};

static ARRAY_VALUE: Message = Message {
    fields: &[NONE, many("values", Kind::Message(&ANY_VALUE))],
    sparse: &[],
    plain: None,
};

static KEY_VALUE_LIST: Message = Message {
    fields: &[NONE, many("values", Kind::Message(&KEY_VALUE))],
    sparse: &[],
    plain: None,
};
