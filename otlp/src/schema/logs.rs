//! The messages of OTLP logs.

use super::{ANY_VALUE, KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, many, one};

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_logs", Kind::Message(&RESOURCE_LOGS))],
    sparse: &[],
};

static RESOURCE_LOGS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_logs", Kind::Scopes(&SCOPE_LOGS)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_logs", Kind::OldScopes(&SCOPE_LOGS)),
    )],
};

static SCOPE_LOGS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("log_records", Kind::Record(&LOG_RECORD)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[],
};

static LOG_RECORD: Message = Message {
    fields: &[
        NONE,
        one("time_unix_nano", Kind::Fixed64),
        one("severity_number", Kind::Varint),
        one("severity_text", Kind::Bytes),
        NONE,
        one("body", Kind::Message(&ANY_VALUE)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", Kind::Varint),
        one("flags", Kind::Fixed32),
        one("trace_id", Kind::Bytes),
        one("span_id", Kind::Bytes),
        one("observed_time_unix_nano", Kind::Fixed64),
        one("event_name", Kind::Bytes),
    ],
    sparse: &[],
};
