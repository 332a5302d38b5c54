//! The messages of OTLP traces.

use super::{
    Enum, FIXED64, ID, KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, STRING, UINT32, Varint, many, one,
};

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_spans", Kind::Message(&RESOURCE_SPANS))],
    sparse: &[],
    plain: None,
};

static RESOURCE_SPANS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_spans", Kind::Scopes(&SCOPE_SPANS)),
        one("schema_url", STRING),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_spans", Kind::OldScopes(&SCOPE_SPANS)),
    )],
    plain: None,
};

static SCOPE_SPANS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("spans", Kind::Record(&SPAN)),
        one("schema_url", STRING),
    ],
    sparse: &[],
    plain: None,
};

static SPAN: Message = Message {
    fields: &[
        NONE,
        one("trace_id", ID),
        one("span_id", ID),
        one("trace_state", STRING),
        one("parent_span_id", ID),
        one("name", STRING),
        one("kind", Kind::Varint(Varint::Enum(Enum::SpanKind))),
        one("start_time_unix_nano", FIXED64),
        one("end_time_unix_nano", FIXED64),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
        many("events", Kind::Message(&EVENT)),
        one("dropped_events_count", UINT32),
        many("links", Kind::Message(&LINK)),
        one("dropped_links_count", UINT32),
        one("status", Kind::Message(&STATUS)),
        one("flags", Kind::Fixed32),
    ],
    sparse: &[],
    plain: None,
};

static EVENT: Message = Message {
    fields: &[
        NONE,
        one("time_unix_nano", FIXED64),
        one("name", STRING),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
    ],
    sparse: &[],
    plain: None,
};

static LINK: Message = Message {
    fields: &[
        NONE,
        one("trace_id", ID),
        one("span_id", ID),
        one("trace_state", STRING),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
        one("flags", Kind::Fixed32),
    ],
    sparse: &[],
    plain: None,
};

/// Field 1 was a status code with another meaning until OTLP 0.7 (2021); the Collector ignores it too.
static STATUS: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("message", STRING),
        one("code", Kind::Varint(Varint::Enum(Enum::StatusCode))),
    ],
    sparse: &[],
    plain: None,
};
