"""Odd OTLP trace requests, as in `corpus` for logs. The attribute `case` of the span or the
resource identifies a case."""

from __future__ import annotations

from hashlib import sha256

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from .corpus import MARK, TIME, VALUES, Corpus, any_value, attributes, invalid, length_of, value_of

TRACES = Corpus()
case = TRACES.case


def span(of: str, /, *, time: int = TIME, duration: int = 1_500_000, **fields) -> Span:
    """A typical span of the case `of`, with the case's deviations in the fields."""
    extra = fields.pop("attributes", {})
    pairs = extra if isinstance(extra, list) else attributes(extra)
    fields.setdefault("name", f"span of {of}")
    fields.setdefault("trace_id", sha256(of.encode()).digest()[:16])
    fields.setdefault("span_id", bytes(range(1, 9)))
    fields.setdefault("end_time_unix_nano", time + duration)
    return Span(
        start_time_unix_nano=time,
        attributes=[*attributes({"case": of}), *pairs],
        **fields,
    )


def request(*spans: Span, **options) -> ExportTraceServiceRequest:
    """Spans under one resource and one scope. Both may be given; None omits one."""
    resource = options.get("resource", Resource(attributes=attributes({"service.name": "odd"})))
    scope = options.get("scope", InstrumentationScope(name="corpus", version="1.2.3"))
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=resource,
                schema_url=options.get("resource_schema_url", ""),
                scope_spans=[
                    ScopeSpans(
                        scope=scope, schema_url=options.get("scope_schema_url", ""), spans=spans
                    )
                ],
            )
        ]
    )


def _register_values() -> None:
    for kind, value in VALUES.items():
        pairs = [KeyValue(key="value", value=value_of(value))]

        @case(f"attribute: {kind}")
        def _(name, pairs=pairs):
            return request(span(name, attributes=pairs))

        @case(f"resource attribute: {kind}")
        def _(name, pairs=pairs):
            return request(span(name), resource=Resource(attributes=pairs))

        @case(f"event and link attribute: {kind}")
        def _(name, pairs=pairs):
            return request(
                span(
                    name,
                    events=[Span.Event(name="e", time_unix_nano=TIME, attributes=pairs)],
                    links=[Span.Link(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, attributes=pairs)],
                )
            )


_register_values()


@case("everything")
def _(name):
    return request(
        span(
            name,
            trace_state="vendor=value,other=1",
            parent_span_id=b"\xfe" * 8,
            kind=Span.SPAN_KIND_SERVER,
            flags=0x101,
            dropped_attributes_count=1,
            dropped_events_count=2,
            dropped_links_count=3,
            attributes={"http.status": 200, "ok": True},
            status=Status(code=Status.STATUS_CODE_ERROR, message="it broke"),
            events=[
                Span.Event(name="first", time_unix_nano=TIME + 1, dropped_attributes_count=4),
                Span.Event(
                    name="exception",
                    time_unix_nano=TIME + 2,
                    attributes=attributes({"z": 1, "exception.type": "E"}),
                ),
            ],
            links=[
                Span.Link(
                    trace_id=b"\xaa" * 16,
                    span_id=b"\xbb" * 8,
                    trace_state="a=b",
                    attributes=attributes({"why": "batch"}),
                    dropped_attributes_count=5,
                    flags=1,
                ),
                Span.Link(trace_id=b"\xcc" * 16, span_id=b"\xdd" * 8),
            ],
        ),
        resource=Resource(
            attributes=attributes({"service.name": "shop", "host.name": "a"}),
            dropped_attributes_count=2,
        ),
        scope=InstrumentationScope(
            name="scope", version="9.8.7", attributes=attributes({"s": "t"})
        ),
        resource_schema_url="https://opentelemetry.io/schemas/1.30.0",
        scope_schema_url="https://opentelemetry.io/schemas/1.31.0",
    )


@case("kinds and beyond")
def _(name):
    # Field 6 as a varint: 6, 300 and -1 are not in SpanKind.
    known = [span(name, name=f"kind {n}", kind=n).SerializeToString() for n in range(6)]
    beyond = [
        span(name, name=f"kind {varint!r}").SerializeToString() + b"\x30" + varint
        for varint in (b"\x06", b"\xac\x02", b"\xff" * 9 + b"\x01")
    ]
    return b"".join(_around(raw) for raw in [*known, *beyond])


@case("status codes and beyond")
def _(name):
    # Field 15 holds field 3, the code; field 1 was a code with another meaning until 2021.
    raws = []
    for status in (b"", b"\x18\x00", b"\x18\x01", b"\x18\x02", b"\x18\x03", b"\x08\x02"):
        raw = span(name, name=f"status {status!r}").SerializeToString()
        raws.append(raw + b"\x7a" + length_of(len(status)) + status)
    return b"".join(_around(raw) for raw in raws)


@case("no times at all")
def _(name):
    return request(span(name, time=0, duration=0))


@case("an end before the start")
def _(name):
    return request(span(name, duration=-1), span(name, duration=-TIME))


@case("a duration of centuries")
def _(name):
    return request(span(name, time=1, end_time_unix_nano=2**64 - 1))


@case("start times at their limits")
def _(name):
    times = (1, 999_999_999, 2**32 * 10**9, 2**63 - 1, 2**63, 2**64 - 1)
    return request(*(span(name, time=t, end_time_unix_nano=t, name=str(t)) for t in times))


@case("days far apart in one request")
def _(name):
    day = 86_400 * 10**9
    return request(*(span(name, time=TIME + n * 40 * day, name=str(n)) for n in range(9)))


@case("ids of zeros")
def _(name):
    return request(
        span(
            name,
            trace_id=bytes(16),
            span_id=bytes(8),
            parent_span_id=bytes(8),
            links=[Span.Link(trace_id=bytes(16), span_id=bytes(8)), Span.Link()],
        )
    )


@case("no ids")
def _(name):
    return request(span(name, trace_id=b"", span_id=b""))


@case("a trace in several spans")
def _(name):
    trace = b"\x77" * 16
    return request(
        *(span(name, trace_id=trace, name=str(n), time=TIME + n * 10**9) for n in range(5))
    )


@case("empty names")
def _(name):
    return request(
        span(name, name="", events=[Span.Event(), Span.Event(name="")], status=Status(message="")),
        scope=InstrumentationScope(),
    )


@case("many events of many shapes")
def _(name):
    events = [
        Span.Event(
            name=f"event {n % 7}",
            time_unix_nano=TIME + n,
            attributes=attributes({f"k{(n * 37 + k) % 101}": k for k in range(n % 5)}),
        )
        for n in range(100)
    ]
    return request(span(name, events=events), span(name, name="and one without"))


@case("duplicate keys")
def _(name):
    pairs = [KeyValue(key="k", value=any_value(v)) for v in ("first", "second", 3)]
    return request(
        span(name, attributes=pairs, events=[Span.Event(name="e", attributes=pairs)]),
        resource=Resource(attributes=pairs),
    )


@case("empty key")
def _(name):
    return request(span(name, attributes={"": "no name"}))


@case("service name: not a string")
def _(name):
    return request(span(name), resource=Resource(attributes=attributes({"service.name": 42})))


@case("no resource, no scope")
def _(name):
    return request(span(name), resource=None, scope=None)


@case("an attribute of 100 KB")
def _(name):
    return request(span(name, attributes={"long": "ü" * 50_000}))


@case("several resources and scopes, some empty")
def _(name):
    made = ExportTraceServiceRequest()
    for number in range(3):
        resource = made.resource_spans.add()
        resource.resource.attributes.extend(attributes({"service.name": f"service {number}"}))
        for letter in "ab":
            scope = resource.scope_spans.add()
            scope.scope.name = f"{number}{letter}"
            if number != 1:
                scope.spans.extend(span(name, name=f"{number}{letter}{n}") for n in range(2))
    made.resource_spans.add()
    return made


@case("no spans")
def _(_name):
    return ExportTraceServiceRequest()


@case("an empty span")
def _(_name):
    return request(Span(), resource=None, scope=None)


@case("invalid UTF-8")
def _(name):
    return invalid(
        request(
            span(
                name,
                name=MARK,
                trace_state=MARK,
                attributes={MARK: MARK},
                status=Status(message=MARK),
                events=[Span.Event(name=MARK, attributes=attributes({MARK: [MARK]}))],
                links=[Span.Link(trace_state=MARK)],
            ),
            scope=InstrumentationScope(name=MARK, version=MARK),
        )
    )


@case("unknown fields")
def _(name):
    raw = span(name).SerializeToString() + b"\xb8\x3e\x05" + b"\xba\x3e\x03abc"
    return _around(raw) + b"\xb8\x3e\x05"


@case("status given twice")
def _(name):
    raw = span(name, status=Status(message="first", code=2)).SerializeToString()
    return _around(raw + Span(status=Status(message="second")).SerializeToString())


@case("scopes in the field of before 2022")
def _(name):
    scope = ScopeSpans(spans=[span(name)]).SerializeToString()
    resource = b"\xc2\x3e" + length_of(len(scope)) + scope
    return b"\x0a" + length_of(len(resource)) + resource


def _around(raw_span: bytes) -> bytes:
    """Wraps the bytes of one span in a complete request."""
    for tag in (b"\x12", b"\x12", b"\x0a"):  # spans, scope_spans, resource_spans
        raw_span = tag + length_of(len(raw_span)) + raw_span
    return raw_span


@case("trace id of 4 bytes")
def _(name):
    return request(span(name, trace_id=b"\x01\x02\x03\x04"))


@case("link with a span id of 9 bytes")
def _(name):
    return request(span(name, links=[Span.Link(span_id=b"123456789")]))


@case("fixed64 as varint")
def _(name):
    # start_time_unix_nano (field 7) with wire type 0 instead of 1.
    return _around(span(name, time=0).SerializeToString() + b"\x38\x07")
