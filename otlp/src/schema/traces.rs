//! The messages of OTLP traces.

use super::{KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, many, one};

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_spans", Kind::Message(&RESOURCE_SPANS))],
    sparse: &[],
};

static RESOURCE_SPANS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_spans", Kind::Scopes(&SCOPE_SPANS)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_spans", Kind::OldScopes(&SCOPE_SPANS)),
    )],
};

static SCOPE_SPANS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("spans", Kind::Record(&SPAN)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[],
};

static SPAN: Message = Message {
    fields: &[
        NONE,
        one("trace_id", Kind::Bytes),
        one("span_id", Kind::Bytes),
        one("trace_state", Kind::Bytes),
        one("parent_span_id", Kind::Bytes),
        one("name", Kind::Bytes),
        one("kind", Kind::Varint),
        one("start_time_unix_nano", Kind::Fixed64),
        one("end_time_unix_nano", Kind::Fixed64),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", Kind::Varint),
        many("events", Kind::Message(&EVENT)),
        one("dropped_events_count", Kind::Varint),
        many("links", Kind::Message(&LINK)),
        one("dropped_links_count", Kind::Varint),
        one("status", Kind::Message(&STATUS)),
        one("flags", Kind::Fixed32),
    ],
    sparse: &[],
};

static EVENT: Message = Message {
    fields: &[
        NONE,
        one("time_unix_nano", Kind::Fixed64),
        one("name", Kind::Bytes),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", Kind::Varint),
    ],
    sparse: &[],
};

static LINK: Message = Message {
    fields: &[
        NONE,
        one("trace_id", Kind::Bytes),
        one("span_id", Kind::Bytes),
        one("trace_state", Kind::Bytes),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", Kind::Varint),
        one("flags", Kind::Fixed32),
    ],
    sparse: &[],
};

/// Field 1 was a code of another meaning until OTLP 0.7 (2021); the Collector ignores it too.
static STATUS: Message = Message {
    fields: &[NONE, NONE, one("message", Kind::Bytes), one("code", Kind::Varint)],
    sparse: &[],
};
