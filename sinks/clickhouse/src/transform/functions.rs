//! The functions that a program may call. Each function of VRL is here by name: those whose result depends on anything but their
//! arguments are refused, and so are those whose result has no limit. A function of a later version of VRL fails a test.

use std::fmt;
use vrl::compiler::function::{ArgumentList, Compiled, Example, FunctionCompileContext};
use vrl::compiler::state::TypeState;
use vrl::compiler::value::kind;
use vrl::compiler::{Expression, Function, Parameter};
use vrl::diagnostic::{DiagnosticMessage, Label};
use vrl::value::{Kind, Value};

/// The result depends on the arguments alone.
const ALLOWED: &[&str] = &[
    "abs",
    "append",
    "array",
    "assert",
    "assert_eq",
    "basename",
    "bool",
    "camelcase",
    "ceil",
    "chunks",
    "community_id",
    "compact",
    "contains",
    "contains_all",
    "crc",
    "decode_base16",
    "decode_base64",
    "decode_charset",
    "decode_mime_q",
    "decode_percent",
    "decode_punycode",
    "decrypt",
    "decrypt_ip",
    "del",
    "dirname",
    "downcase",
    "encode_base16",
    "encode_base64",
    "encode_charset",
    "encode_csv",
    "encode_gzip",
    "encode_json",
    "encode_key_value",
    "encode_logfmt",
    "encode_lz4",
    "encode_percent",
    "encode_punycode",
    "encode_snappy",
    "encode_zlib",
    "encode_zstd",
    "encrypt",
    "encrypt_ip",
    "ends_with",
    "exists",
    "filter",
    "find",
    "flatten",
    "float",
    "floor",
    "for_each",
    "format_int",
    "format_number",
    "from_entries",
    "from_unix_timestamp",
    "get",
    "haversine",
    "hmac",
    "includes",
    "int",
    "ip_aton",
    "ip_cidr_contains",
    "ip_ntoa",
    "ip_ntop",
    "ip_pton",
    "ip_subnet",
    "ip_to_ipv6",
    "ipv6_to_ipv4",
    "is_array",
    "is_boolean",
    "is_empty",
    "is_float",
    "is_integer",
    "is_ipv4",
    "is_ipv6",
    "is_json",
    "is_null",
    "is_nullish",
    "is_object",
    "is_regex",
    "is_string",
    "is_timestamp",
    "join",
    "kebabcase",
    "keys",
    "length",
    "map_keys",
    "map_values",
    "match",
    "match_any",
    "match_array",
    "match_datadog_query",
    "md5",
    "merge",
    "mod",
    "object",
    "object_from_array",
    "parse_apache_log",
    "parse_aws_alb_log",
    "parse_aws_cloudwatch_log_subscription_message",
    "parse_aws_vpc_flow_log",
    "parse_bytes",
    "parse_cbor",
    "parse_common_log",
    "parse_csv",
    "parse_duration",
    "parse_float",
    "parse_glog",
    "parse_grok",
    "parse_int",
    "parse_key_value",
    "parse_logfmt",
    "parse_nginx_log",
    "parse_query_string",
    "parse_regex",
    "parse_regex_all",
    "parse_tokens",
    "parse_url",
    "parse_user_agent",
    "pascalcase",
    "pop",
    "push",
    "redact",
    "remove",
    "replace",
    "replace_with",
    "round",
    "screamingsnakecase",
    "seahash",
    "sha1",
    "sha2",
    "sha3",
    "sieve",
    "slice",
    "snakecase",
    "split",
    "split_path",
    "starts_with",
    "string",
    "strip_ansi_escape_codes",
    "strip_whitespace",
    "strlen",
    "tag_types_externally",
    "tally_value",
    "timestamp",
    "to_bool",
    "to_entries",
    "to_float",
    "to_int",
    "to_regex",
    "to_string",
    "to_syslog_facility",
    "to_syslog_facility_code",
    "to_syslog_level",
    "to_syslog_severity",
    "to_unix_timestamp",
    "truncate",
    "type_def",
    "unique",
    "upcase",
    "uuid_from_friendly_id",
    "values",
    "xxhash",
    "zip",
];

const CLOCK: &str = "it gives another result at another time: use %received_at, the time of reception";
const YEAR: &str = "it takes the year from the clock: use parse_regex and parse_timestamp";
const CHANCE: &str =
    "it gives another result each time: compute the value from the event, for instance with sha2";
const MACHINE: &str = "it gives another result on another machine";
const NETWORK: &str = "it asks the network, which may answer differently each time";
const FILES: &str = "it reads a file, which may change";
const OUTPUT: &str = "it writes to the log for each event";
const DEEP: &str = "a deeply nested value in an event ends the process: use parse_json or parse_regex";
const UNBOUNDED: &str = "a few bytes of an event could need any amount of memory";

/// The reasons against functions, also against those that this build does not have.
const REFUSED: &[(&str, &str)] = &[
    ("now", CLOCK),
    ("parse_klog", YEAR),
    ("parse_linux_authorization", YEAR),
    ("parse_syslog", YEAR),
    // The offset of a zone's name is that of today.
    (
        "parse_groks",
        "it takes the offset of a time zone from the clock: use parse_grok",
    ),
    ("random_bool", CHANCE),
    ("random_bytes", CHANCE),
    ("random_float", CHANCE),
    ("random_int", CHANCE),
    ("uuid_v4", CHANCE),
    ("uuid_v7", CHANCE),
    ("get_env_var", MACHINE),
    ("get_hostname", MACHINE),
    ("get_timezone_name", MACHINE),
    ("dns_lookup", NETWORK),
    ("http_request", NETWORK),
    ("reverse_dns", NETWORK),
    (
        "tally",
        "two values that are not UTF-8 become one key, and chance decides which one counts: use tally_value",
    ),
    ("encode_proto", FILES),
    ("parse_etld", FILES),
    ("parse_proto", FILES),
    ("validate_json_schema", FILES),
    ("log", OUTPUT),
    ("parse_ruby_hash", DEEP),
    ("parse_xml", DEEP),
    (
        "unflatten",
        "a key with many dots in an event ends the process: write the keys into the program",
    ),
    (
        "unnest",
        "each item becomes a copy of the whole event, up to any amount of memory",
    ),
    ("parse_influxdb", UNBOUNDED),
    ("parse_yaml", UNBOUNDED),
    ("decode_gzip", UNBOUNDED),
    ("decode_lz4", UNBOUNDED),
    ("decode_snappy", UNBOUNDED),
    ("decode_zlib", UNBOUNDED),
    ("decode_zstd", UNBOUNDED),
];

/// Functions that are allowed with some values of an argument only.
const LIMITED: &[(&str, Limit)] = &[
    ("format_timestamp", ZONE),
    ("parse_timestamp", ZONE),
    (
        "parse_cef",
        Limit {
            argument: "translate_custom_fields",
            allows: |given, state| given.resolve_constant(state) == Some(Value::Boolean(false)),
            // It goes through a hash map, so that either of two fields with one label may stay.
            reason: "chance decides between two fields with the same label: leave it out",
        },
    ),
    (
        "parse_json",
        Limit {
            argument: "max_depth",
            allows: |_, _| false,
            // It reads the members in the order of a hash map.
            reason: "chance decides which fault of the text the error names: leave it out",
        },
    ),
    (
        "set",
        Limit {
            argument: "path",
            allows: has_no_large_index,
            reason: "an index from an event could need any amount of memory: use string!(…) for a key, or a number below 10000",
        },
    ),
    (
        "shannon_entropy",
        Limit {
            argument: "segmentation",
            allows: |given, state| given.resolve_constant(state) == Some(Value::from("byte")),
            // A sum in random order has another last digit.
            reason: "the last digit differs each time unless it is \"byte\"",
        },
    ),
];

const ZONE: Limit = Limit {
    argument: "timezone",
    allows: |given, state| {
        let zone = given.resolve_constant(state);
        let zone = zone.as_ref().and_then(Value::as_str);
        zone.is_some_and(|zone| !zone.is_empty() && zone != "local")
    },
    reason: "it must be the name of a zone, such as \"Europe/Berlin\": another machine has another local zone",
};

/// The items of an array that a path can make longer.
const INDEX_MAX: i64 = 10_000;

/// The segments of a path are strings, or numbers that the program states.
fn has_no_large_index(path: &dyn Expression, state: &TypeState) -> bool {
    if let Some(Value::Array(segments)) = path.resolve_constant(state) {
        let index = |segment: &Value| segment.as_integer();
        return segments
            .iter()
            .filter_map(index)
            .all(|index| index.abs() < INDEX_MAX);
    }
    let type_def = path.type_def(state);
    type_def.kind().as_array().is_some_and(|segments| {
        let mut known = segments.known().values();
        known.all(Kind::is_bytes) && !segments.unknown_kind().contains_integer()
    })
}

/// A rule for an argument.
struct Limit {
    argument: &'static str,
    allows: fn(&dyn Expression, &TypeState) -> bool,
    reason: &'static str,
}

/// All functions for the compiler.
pub(super) fn all() -> Vec<Box<dyn Function>> {
    let mut all: Vec<Box<dyn Function>> = Vec::new();
    for function in vrl::stdlib::all() {
        let name = function.identifier();
        let limit = LIMITED.iter().find(|(limited, _)| *limited == name);
        if ALLOWED.contains(&name) {
            all.push(function);
        } else if let Some((_, limit)) = limit {
            all.push(Box::new(Guarded { function, limit }));
        }
    }
    for &(name, reason) in REFUSED {
        all.push(Box::new(Refused { name, reason }));
    }
    all
}

/// A refused function: the program does not compile, and the message has the reason.
#[derive(Debug)]
struct Refused {
    name: &'static str,
    reason: &'static str,
}

/// The names of all parameters, so that the reason comes before any complaint about an argument.
const PARAMETERS: &[Parameter] = &[
    Parameter::optional("value", kind::ANY, ""),
    Parameter::optional("name", kind::ANY, ""),
    Parameter::optional("timestamp", kind::ANY, ""),
    Parameter::optional("length", kind::ANY, ""),
    Parameter::optional("min", kind::ANY, ""),
    Parameter::optional("max", kind::ANY, ""),
    Parameter::optional("level", kind::ANY, ""),
    Parameter::optional("rate_limit_secs", kind::ANY, ""),
    Parameter::optional("patterns", kind::ANY, ""),
    Parameter::optional("aliases", kind::ANY, ""),
    Parameter::optional("alias_sources", kind::ANY, ""),
    Parameter::optional("qtype", kind::ANY, ""),
    Parameter::optional("qclass", kind::ANY, ""),
    Parameter::optional("options", kind::ANY, ""),
    Parameter::optional("timeout", kind::ANY, ""),
    Parameter::optional("url", kind::ANY, ""),
    Parameter::optional("method", kind::ANY, ""),
    Parameter::optional("headers", kind::ANY, ""),
    Parameter::optional("body", kind::ANY, ""),
    Parameter::optional("http_proxy", kind::ANY, ""),
    Parameter::optional("https_proxy", kind::ANY, ""),
    Parameter::optional("redact_headers", kind::ANY, ""),
    Parameter::optional("desc_file", kind::ANY, ""),
    Parameter::optional("message_type", kind::ANY, ""),
    Parameter::optional("allow_lossy_string_coercion", kind::ANY, ""),
    Parameter::optional("use_json_names", kind::ANY, ""),
    Parameter::optional("plus_parts", kind::ANY, ""),
    Parameter::optional("psl", kind::ANY, ""),
    Parameter::optional("schema_definition", kind::ANY, ""),
    Parameter::optional("ignore_unknown_formats", kind::ANY, ""),
    Parameter::optional("prepended_size", kind::ANY, ""),
    Parameter::optional("buf_size", kind::ANY, ""),
];

impl Function for Refused {
    fn identifier(&self) -> &'static str {
        self.name
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        ""
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn compile(&self, _: &TypeState, ctx: &mut FunctionCompileContext, _: ArgumentList) -> Compiled {
        Err(Box::new(Refusal {
            message: format!("{} is not available in transforms: {}", self.name, self.reason),
            label: Label::primary("this call", ctx.span()),
        }))
    }
}

/// A function with a limit.
#[derive(Debug)]
struct Guarded {
    function: Box<dyn Function>,
    limit: &'static Limit,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument)
    }
}

impl Function for Guarded {
    fn identifier(&self) -> &'static str {
        self.function.identifier()
    }

    fn usage(&self) -> &'static str {
        self.function.usage()
    }

    fn category(&self) -> &'static str {
        self.function.category()
    }

    fn return_kind(&self) -> u16 {
        self.function.return_kind()
    }

    fn examples(&self) -> &'static [Example] {
        self.function.examples()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.function.parameters()
    }

    fn pure(&self) -> bool {
        self.function.pure()
    }

    fn compile(
        &self,
        state: &TypeState,
        ctx: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let Limit {
            argument,
            allows,
            reason,
        } = self.limit;
        if let Some(given) = arguments.optional(argument)
            && !allows(&*given, state)
        {
            let name = self.identifier();
            return Err(Box::new(Refusal {
                message: format!(
                    "the argument {argument} of {name} is not available in transforms: {reason}"
                ),
                label: Label::primary("this call", ctx.span()),
            }));
        }
        self.function.compile(state, ctx, arguments)
    }
}

/// A part of a program that does not compile although VRL would take it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) label: Label,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl DiagnosticMessage for Refusal {
    fn code(&self) -> usize {
        0
    }

    fn labels(&self) -> Vec<Label> {
        vec![self.label.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::Transform;
    use std::collections::BTreeSet;

    #[test]
    fn every_function_is_classified_once() {
        let refused = REFUSED.iter().map(|(name, _)| *name);
        let limited = LIMITED.iter().map(|(name, _)| *name);
        let names: Vec<&str> = ALLOWED.iter().copied().chain(refused).chain(limited).collect();
        let classified: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(classified.len(), names.len(), "a function is there twice");
        let there: BTreeSet<&str> = vrl::stdlib::all()
            .iter()
            .map(|function| function.identifier())
            .collect();
        let unknown: Vec<_> = there.difference(&classified).collect();
        assert!(
            unknown.is_empty(),
            "decide whether these depend on anything but their arguments: {unknown:?}"
        );
        let gone = classified.difference(&there);
        // This build leaves out the functions of the machine and the network.
        let gone: Vec<_> = gone
            .filter(|name| !REFUSED.iter().any(|(refused, _)| refused == *name))
            .collect();
        assert!(gone.is_empty(), "VRL has no function {gone:?}");
    }

    /// A function that VRL itself marks as not deterministic is not among the allowed ones.
    #[test]
    fn no_allowed_function_has_examples_with_changing_results() {
        for function in vrl::stdlib::all() {
            let changes = function.examples().iter().any(|example| !example.deterministic);
            let name = function.identifier();
            assert!(!(changes && ALLOWED.contains(&name)), "{name}");
        }
    }

    #[test]
    fn a_refused_function_is_named_with_its_line_and_the_reason() {
        for (name, reason) in REFUSED {
            for call in [format!("{name}()"), format!("{name}!()"), format!("{name}(.x)")] {
                let source = format!(".a = 1\n.b = {call}\n");
                let error = Transform::new("t", &source).expect_err("a refused function compiles");
                assert!(
                    error.contains(&format!("{name} is not available in transforms: {reason}")),
                    "{error}"
                );
                assert!(error.contains("┌─ t:2:6"), "{error}");
            }
        }
        for call in [
            "http_request!(\"http://a\", method: \"get\", headers: {})",
            "random_int(min: 0, max: 3)",
            "uuid_v7(t'2020-01-01T00:00:00Z')",
            "get_env_var!(\"HOME\")",
            "decode_zstd!(.a)",
            "log(\"x\", level: \"info\", rate_limit_secs: 1)",
        ] {
            let error = Transform::new("t", &format!(".a = {call}")).unwrap_err();
            assert!(error.contains("is not available in transforms"), "{error}");
        }
    }

    #[test]
    fn arguments_that_bring_in_the_machine_or_chance_are_refused() {
        for (call, is_allowed) in [
            ("format_timestamp!(.a, \"%F\")", true),
            ("format_timestamp!(.a, \"%F\", timezone: \"Europe/Berlin\")", true),
            ("format_timestamp!(.a, \"%F\", timezone: \"local\")", false),
            ("format_timestamp!(.a, \"%F\", timezone: \"\")", false),
            ("format_timestamp!(.a, \"%F\", timezone: string!(.zone))", false),
            ("parse_timestamp!(.a, \"%F\", timezone: \"local\")", false),
            ("parse_timestamp!(.a, \"%F\")", true),
            ("parse_cef!(.a)", true),
            ("parse_cef!(.a, translate_custom_fields: false)", true),
            ("parse_cef!(.a, translate_custom_fields: true)", false),
            ("set!({}, [\"a\", string!(.a), 7], 1)", false),
            ("set!({}, [\"a\", string!(.a)], 1)", true),
            ("set!({}, [\"a\", 7], 1)", true),
            ("set!({}, [\"a\", 9000000000], 1)", false),
            ("set!({}, [.a], 1)", false),
            ("set!({}, array!(.a), 1)", false),
            ("shannon_entropy!(.a)", true),
            ("shannon_entropy!(.a, segmentation: \"byte\")", true),
            ("shannon_entropy!(.a, segmentation: \"grapheme\")", false),
        ] {
            let compiled = Transform::new("t", &format!(".b = {call}"));
            assert_eq!(compiled.is_ok(), is_allowed, "{call}: {compiled:?}");
            if let Err(error) = compiled {
                assert!(error.contains("is not available in transforms"), "{error}");
            }
        }
    }
}
