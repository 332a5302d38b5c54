//! OTLP's messages as tables: what each field is called and how it is encoded. Here what all signals share; each has its
//! own messages in a file of its own.
//!
//! Facts of opentelemetry-proto 1.x (`opentelemetry/proto/{collector,logs,trace,metrics,common,resource}`).

pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod traces;

use crate::wire::{FIXED32, FIXED64, LEN, VARINT};

/// One message type. `fields[i]` is field number `i`; what is not there is unknown and skipped.
pub(crate) struct Message {
    pub(crate) fields: &'static [Field],
    /// Fields with numbers too large for a dense table.
    pub(crate) sparse: &'static [(u32, Field)],
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) repeated: bool,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Unknown,
    Varint,
    Fixed64,
    Fixed32,
    /// A string or bytes.
    Bytes,
    Message(&'static Message),
    /// A message that is one record.
    Record(&'static Message),
    /// `scope_logs` and its like, and the field that it replaced in OTLP 0.15 (2022). As in the Collector, the
    /// old one counts only where the new one is absent.
    Scopes(&'static Message),
    OldScopes(&'static Message),
    /// A member of the oneof that holds a metric's data points: only the records of the last one given count.
    Data(&'static Message),
    /// Repeated numbers, packed into one field or one a field.
    Fixed64s,
    Varints,
}

impl Kind {
    /// Whether a field of this kind may come with this wire type.
    #[inline]
    pub(crate) fn takes(self, wire: u32) -> bool {
        match self {
            Kind::Unknown => true,
            Kind::Varint => wire == VARINT,
            Kind::Fixed64 => wire == FIXED64,
            Kind::Fixed32 => wire == FIXED32,
            Kind::Fixed64s => wire == LEN || wire == FIXED64,
            Kind::Varints => wire == LEN || wire == VARINT,
            Kind::Bytes
            | Kind::Message(_)
            | Kind::Record(_)
            | Kind::Scopes(_)
            | Kind::OldScopes(_)
            | Kind::Data(_) => wire == LEN,
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
        one("dropped_attributes_count", Kind::Varint),
        many("entity_refs", Kind::Message(&ENTITY_REF)),
    ],
    sparse: &[],
};

static ENTITY_REF: Message = Message {
    fields: &[
        NONE,
        one("schema_url", Kind::Bytes),
        one("type", Kind::Bytes),
        many("id_keys", Kind::Bytes),
        many("description_keys", Kind::Bytes),
    ],
    sparse: &[],
};

static SCOPE: Message = Message {
    fields: &[
        NONE,
        one("name", Kind::Bytes),
        one("version", Kind::Bytes),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", Kind::Varint),
    ],
    sparse: &[],
};

static KEY_VALUE: Message = Message {
    fields: &[
        NONE,
        one("key", Kind::Bytes),
        one("value", Kind::Message(&ANY_VALUE)),
        one("key_strindex", Kind::Varint),
    ],
    sparse: &[],
};

static ANY_VALUE: Message = Message {
    fields: &[
        NONE,
        one("string_value", Kind::Bytes),
        one("bool_value", Kind::Varint),
        one("int_value", Kind::Varint),
        one("double_value", Kind::Fixed64),
        one("array_value", Kind::Message(&ARRAY_VALUE)),
        one("kvlist_value", Kind::Message(&KEY_VALUE_LIST)),
        one("bytes_value", Kind::Bytes),
        one("string_value_strindex", Kind::Varint),
    ],
    sparse: &[],
};

static ARRAY_VALUE: Message = Message {
    fields: &[NONE, many("values", Kind::Message(&ANY_VALUE))],
    sparse: &[],
};

static KEY_VALUE_LIST: Message = Message {
    fields: &[NONE, many("values", Kind::Message(&KEY_VALUE))],
    sparse: &[],
};
