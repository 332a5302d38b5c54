//! The messages of OTLP logs.

use super::{
    ANY_VALUE, Enum, FIXED64, ID, KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, STRING, UINT32, Varint,
    many, one,
};

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_logs", Kind::Message(&RESOURCE_LOGS))],
    sparse: &[],
    plain: None,
};

static RESOURCE_LOGS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_logs", Kind::Scopes(&SCOPE_LOGS)),
        one("schema_url", STRING),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_logs", Kind::OldScopes(&SCOPE_LOGS)),
    )],
    plain: None,
};

static SCOPE_LOGS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("log_records", Kind::Record(&LOG_RECORD)),
        one("schema_url", STRING),
    ],
    sparse: &[],
    plain: None,
};

static LOG_RECORD: Message = Message {
    fields: &[
        NONE,
        one("time_unix_nano", FIXED64),
        one(
            "severity_number",
            Kind::Varint(Varint::Enum(Enum::SeverityNumber)),
        ),
        one("severity_text", STRING),
        NONE,
        one("body", Kind::Message(&ANY_VALUE)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("dropped_attributes_count", UINT32),
        one("flags", Kind::Fixed32),
        one("trace_id", ID),
        one("span_id", ID),
        one("observed_time_unix_nano", FIXED64),
        one("event_name", STRING),
    ],
    sparse: &[],
    plain: None,
};
