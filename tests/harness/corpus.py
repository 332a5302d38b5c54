"""Odd OTLP log requests, each with a name, as bytes: the corpus of the field fidelity tests, and
the tools for the other signals' corpora.

The attribute `case` of the resource, the scope or the record, or else the body, identifies the case
of every record; at most one record in total has none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

# 2026-03-04T05:06:07.123456789Z: every digit of DateTime64(9) counts.
TIME = 1_772_600_767_123_456_789

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def any_value(value: object) -> AnyValue:
    """Converts a Python value to an AnyValue; an AnyValue stays unchanged, None becomes empty."""
    match value:
        case None:
            return AnyValue()
        case AnyValue():
            return value
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    raise TypeError(f"no AnyValue for {value!r}")


def attributes(values: dict) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def record(name: str, *, time: int = TIME, **fields) -> LogRecord:
    """A typical record of the case `name`, with the case's deviations in `fields`."""
    extra = fields.pop("attributes", {})
    pairs = extra if isinstance(extra, list) else attributes(extra)
    body = fields.pop("body", f"body of {name}")
    made = LogRecord(
        time_unix_nano=time,
        attributes=[*attributes({"case": name}), *pairs],
        **fields,
    )
    if body is not None:
        made.body.CopyFrom(any_value(body))
    return made


def request(*records: LogRecord, **options) -> ExportLogsServiceRequest:
    """Records under one resource and one scope. Both may be given; None omits one."""
    resource = options.get("resource", Resource(attributes=attributes({"service.name": "odd"})))
    scope = options.get("scope", InstrumentationScope(name="corpus", version="1.2.3"))
    return ExportLogsServiceRequest(
        resource_logs=[
            ResourceLogs(
                resource=resource,
                schema_url=options.get("resource_schema_url", ""),
                scope_logs=[
                    ScopeLogs(
                        scope=scope,
                        schema_url=options.get("scope_schema_url", ""),
                        log_records=records,
                    )
                ],
            )
        ]
    )


# Every kind of AnyValue, with typical problems of each.
VALUES: dict[str, object] = {
    "none": None,
    "empty string": "",
    "text": "hällo wörld \u2603 \U0001f600",
    "controls": "tab\t newline\n return\r null\x00 escape\x1b delete\x7f",
    "quotes": "'single' \"double\" `back` \\backslash\\ \\n",
    "html": "<a href='x'>&amp; </script>",
    "separators": "line\u2028 paragraph\u2029 bom\ufeff",
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "int64 min": INT64_MIN,
    "int64 max": INT64_MAX,
    "beyond double": 2**53 + 1,
    "double zero": 0.0,
    "double minus zero": -0.0,
    "double one": 1.0,
    "double third": 1 / 3,
    "double tenth": 0.1,
    "double large": 1e21,
    "double just below large": 999_999_999_999_999_900_000.0,
    "double million": 1e6,
    "double small": 1e-6,
    "double smaller": 9.999e-7,
    "double smallest": 5e-324,
    "double largest": 1.7976931348623157e308,
    "double exponent of one digit": 1.5e-9,
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "bytes": b"\x00\x01\xfe\xff",
    "bytes empty": b"",
    "bytes of text": b"plain",
    "array empty": [],
    "array": [1, "two", 3.5, True, None, b"six", [7, [8]], {"nine": 9}],
    "array of doubles": [1.0, 1e21, 1e-7, -0.0, 100000.0, 123456789.125],
    "array with nan": [1.0, math.nan],
    "map empty": {},
    "map": {"b": 1, "a": {"z": [True, {"deep": None}], "y": b"\xff"}, "c": "<&>"},
    "map of infinity": {"fine": 1, "not": math.inf},
    "map of extremes": {"min": INT64_MIN, "max": INT64_MAX, "beyond": 2**53 + 1},
    "map of text": {"\u2028": "\u2029", "\x00": "\x1f", '"': "\\"},
    "map of duplicates": KeyValueList(
        values=[KeyValue(key="k", value=any_value(v)) for v in (1, 2, "three")]
    ),
}


def value_of(value: object) -> AnyValue:
    if isinstance(value, KeyValueList):
        return AnyValue(kvlist_value=value)
    return any_value(value)


def _nested(depth: int) -> AnyValue:
    value = any_value("bottom")
    for level in range(depth):
        value = any_value([value] if level % 2 else {"in": value})
    return value


class Corpus:
    """Cases of one signal, each a name and the bytes of its request."""

    def __init__(self) -> None:
        self._cases: dict[str, Callable[[str], bytes]] = {}

    def case(self, name: str):
        """Registers a function from the case's name to its request, as a message or bytes."""

        def register(make):
            assert name not in self._cases, name
            self._cases[name] = make
            return make

        return register

    def requests(self) -> dict[str, bytes]:
        """Name to request bytes, in a fixed order."""
        made = ((name, make(name)) for name, make in self._cases.items())
        return {n: m if isinstance(m, bytes) else m.SerializeToString() for n, m in made}


LOGS = Corpus()
case = LOGS.case


def _register_values() -> None:
    for kind, value in VALUES.items():
        made = value_of(value)
        pairs = attributes({"value": made})

        @case(f"body: {kind}")
        def _(name, made=made):
            return request(record(name, body=made))

        @case(f"attribute: {kind}")
        def _(name, pairs=pairs):
            return request(record(name, attributes=pairs))

        @case(f"resource attribute: {kind}")
        def _(name, pairs=pairs):
            return request(record(name), resource=Resource(attributes=pairs))

        @case(f"scope attribute: {kind}")
        def _(name, pairs=pairs):
            return request(record(name), scope=InstrumentationScope(name="s", attributes=pairs))


_register_values()


@case("everything")
def _(name):
    return request(
        record(
            name,
            observed_time_unix_nano=TIME + 5,
            severity_number=17,
            severity_text="ERROR",
            trace_id=bytes(range(16)),
            span_id=bytes(range(8)),
            flags=0x01,
            event_name="user.signup",
            dropped_attributes_count=3,
            attributes={"http.status": 200, "ok": True},
        ),
        resource=Resource(
            attributes=attributes({"service.name": "shop", "host.name": "a"}),
            dropped_attributes_count=2,
        ),
        scope=InstrumentationScope(
            name="scope",
            version="9.8.7",
            attributes=attributes({"s": "t"}),
            dropped_attributes_count=1,
        ),
        resource_schema_url="https://opentelemetry.io/schemas/1.30.0",
        scope_schema_url="https://opentelemetry.io/schemas/1.31.0",
    )


@case("no body")
def _(name):
    return request(record(name, body=None))


@case("nested twenty deep")
def _(name):
    return request(record(name, body=_nested(20), attributes={"deep": _nested(20)}))


@case("body of 100 KB")
def _(name):
    return request(record(name, body="0123456789abcdef" * 6_400))


@case("attribute of 100 KB")
def _(name):
    return request(record(name, attributes={"long": "ü" * 50_000}))


@case("no timestamps at all")
def _(name):
    return request(record(name, time=0))


@case("observed timestamp only")
def _(name):
    return request(record(name, time=0, observed_time_unix_nano=TIME))


@case("first nanosecond of 1970")
def _(name):
    return request(record(name, time=1))


@case("timestamp before the full second")
def _(name):
    return request(record(name, time=1_772_600_767_999_999_999))


@case("timestamps far apart in one request")
def _(name):
    hour = 3_600_000_000_000
    return request(*(record(name, time=TIME + n * 30 * 24 * hour, body=str(n)) for n in range(12)))


@case("timestamp in 2200")
def _(name):
    return request(record(name, time=7_258_118_400_000_000_001))


@case("severity: every number and beyond")
def _(name):
    return request(
        *(record(name, severity_number=n, body=f"severity {n}") for n in range(25)),
    )


@case("severity text without number")
def _(name):
    return request(record(name, severity_text="Verbose"))


@case("flags above one byte")
def _(name):
    return request(
        *(record(name, flags=f, body=str(f)) for f in (0, 1, 255, 256, 0x101, 2**32 - 1))
    )


@case("trace id without span id")
def _(name):
    return request(record(name, trace_id=b"\xab" * 16))


@case("ids of zeros")
def _(name):
    return request(record(name, trace_id=bytes(16), span_id=bytes(8)))


@case("duplicate keys")
def _(name):
    pairs = [KeyValue(key="k", value=any_value(v)) for v in ("first", "second", 3)]
    return request(
        record(name, attributes=pairs),
        resource=Resource(attributes=pairs),
        scope=InstrumentationScope(name="s", attributes=pairs),
    )


@case("empty key")
def _(name):
    return request(
        record(name, attributes={"": "no name"}),
        resource=Resource(attributes=attributes({"": "no name"})),
    )


@case("many attributes, unordered")
def _(name):
    return request(record(name, attributes={f"k{(n * 37) % 101:03}": n for n in range(101)}))


@case("service name: not a string")
def _(name):
    return request(record(name), resource=Resource(attributes=attributes({"service.name": 42})))


@case("service name: twice")
def _(name):
    pairs = [KeyValue(key="service.name", value=any_value(v)) for v in ("one", "two")]
    return request(record(name), resource=Resource(attributes=pairs))


@case("service name: empty")
def _(name):
    return request(record(name), resource=Resource(attributes=attributes({"service.name": ""})))


@case("no resource")
def _(name):
    return request(record(name), resource=None)


@case("no scope")
def _(name):
    return request(record(name), scope=None)


@case("a key without a value")
def _(name):
    return request(record(name, attributes=[KeyValue(key="alone")]))


@case("several resources and scopes, some empty")
def _(name):
    made = ExportLogsServiceRequest()
    for number in range(3):
        resource = made.resource_logs.add()
        resource.resource.attributes.extend(attributes({"service.name": f"service {number}"}))
        for letter in "ab":
            scope = resource.scope_logs.add()
            scope.scope.name = f"{number}{letter}"
            if number != 1:
                scope.log_records.extend(
                    record(name, body=f"{number}{letter}{n}", time=TIME + n) for n in range(2)
                )
    made.resource_logs.add()
    return made


@case("no records")
def _(_name):
    return ExportLogsServiceRequest()


@case("an empty record")
def _(_name):
    return request(LogRecord(), resource=None, scope=None)


# Python's protobuf rejects invalid UTF-8, so it replaces valid text of the same length after
# serialising.
_PLACEHOLDER = b"REPLACE-ME-WITH-SOMETHING"
_INVALID = b"\xff\xfe\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 cut \xe2\x82 ends"
assert len(_PLACEHOLDER) == len(_INVALID) == 25


def invalid(made: Message) -> bytes:
    """The request's bytes with every MARK replaced by invalid UTF-8."""
    raw = made.SerializeToString()
    assert _PLACEHOLDER in raw
    return raw.replace(_PLACEHOLDER, _INVALID)


MARK = _PLACEHOLDER.decode()


@case("invalid UTF-8: body")
def _(name):
    return invalid(request(record(name, body=MARK)))


@case("invalid UTF-8: attribute")
def _(name):
    return invalid(request(record(name, attributes={"k": MARK})))


@case("invalid UTF-8: key")
def _(name):
    return invalid(request(record(name, attributes={MARK: "v"})))


@case("invalid UTF-8: nested")
def _(name):
    return invalid(request(record(name, body={"k": [MARK]}, attributes={"m": {MARK: MARK}})))


@case("invalid UTF-8: other text fields")
def _(name):
    return invalid(
        request(
            record(name, severity_text=MARK, event_name=MARK),
            resource=Resource(attributes=attributes({"service.name": MARK})),
            scope=InstrumentationScope(name=MARK, version=MARK),
            resource_schema_url=MARK,
            scope_schema_url=MARK,
        )
    )


# Protobuf parsers may meet input that no serialiser produces.


@case("unknown fields")
def _(name):
    # Field 999, a varint and a length-delimited one, at the end of the request.
    return request(record(name)).SerializeToString() + b"\xb8\x3e\x05" + b"\xba\x3e\x03abc"


@case("body given twice")
def _(name):
    raw = record(name, body="first").SerializeToString()
    raw += LogRecord(body=any_value("second")).SerializeToString()
    return _around(raw)


@case("timestamp given twice")
def _(name):
    raw = record(name).SerializeToString()
    return _around(raw + LogRecord(time_unix_nano=TIME + 1).SerializeToString())


@case("one body of two kinds")
def _(name):
    both = any_value("text").SerializeToString() + any_value(7).SerializeToString()
    raw = record(name, body=None).SerializeToString() + b"\x2a" + length_of(len(both)) + both
    return _around(raw)


@case("resource given twice")
def _(name):
    first = ResourceLogs(resource=Resource(attributes=attributes({"service.name": "first"})))
    second = ResourceLogs(resource=Resource(attributes=attributes({"more": "second"})))
    records = ResourceLogs(scope_logs=[ScopeLogs(log_records=[record(name)])])
    raw = b"".join(part.SerializeToString() for part in (first, second, records))
    return b"\x0a" + length_of(len(raw)) + raw


@case("severity beyond the enumeration")
def _(name):
    # Field 2 (severity_number) as a varint: 25, 300 and -1 are not in SeverityNumber.
    records = []
    for number, varint in (("25", b"\x19"), ("300", b"\xac\x02"), ("-1", b"\xff" * 9 + b"\x01")):
        records.append(record(name, body=number).SerializeToString() + b"\x10" + varint)
    return b"".join(_around(raw) for raw in records)


def length_of(number: int) -> bytes:
    """A varint."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _around(raw_record: bytes) -> bytes:
    """Wraps the bytes of one record in a complete request."""
    for tag in (b"\x12", b"\x12", b"\x0a"):  # log_records, scope_logs, resource_logs
        raw_record = tag + length_of(len(raw_record)) + raw_record
    return raw_record


# Requests that a receiver may refuse or accept, but must treat like the reference.


@case("trace id of 4 bytes")
def _(name):
    return request(record(name, trace_id=b"\x01\x02\x03\x04"))


@case("span id of 9 bytes")
def _(name):
    return request(record(name, span_id=b"123456789"))


@case("fixed64 as varint")
def _(name):
    # time_unix_nano (field 1) with wire type 0 instead of 1.
    return _around(record(name, time=0).SerializeToString() + b"\x08\x07")
