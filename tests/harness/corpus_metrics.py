"""Odd OTLP metric requests, as in `corpus` for logs. The attribute `case` of the data point or the
resource identifies a case."""

from __future__ import annotations

import math
import struct

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .corpus import (
    INT64_MAX,
    INT64_MIN,
    MARK,
    TIME,
    VALUES,
    Corpus,
    any_value,
    attributes,
    invalid,
    length_of,
    value_of,
)

METRICS = Corpus()
case = METRICS.case

START = TIME - 60 * 10**9
DELTA, CUMULATIVE = 1, 2
DOUBLES = (0.0, -0.0, -1.5, 1 / 3, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308)


def common(name: str, **fields) -> dict:
    """The common fields of every kind of data point, for the case `name`."""
    extra = fields.pop("attributes", {})
    pairs = extra if isinstance(extra, list) else attributes(extra)
    fields.setdefault("time_unix_nano", TIME)
    fields.setdefault("start_time_unix_nano", START)
    return {"attributes": [*attributes({"case": name}), *pairs], **fields}


def number(name: str, value: float | None = 1, **fields) -> NumberDataPoint:
    if isinstance(value, int):
        fields["as_int"] = value
    elif value is not None:
        fields["as_double"] = value
    return NumberDataPoint(**common(name, **fields))


def gauge(*points: NumberDataPoint, metric: str = "gauge") -> Metric:
    return Metric(name=metric, gauge=Gauge(data_points=points))


def total(
    *points: NumberDataPoint, temporality: int = CUMULATIVE, monotonic: bool = True
) -> Metric:
    return Metric(
        name="sum",
        sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=monotonic),
    )


def histogram(*points: HistogramDataPoint, temporality: int = DELTA) -> Metric:
    return Metric(
        name="histogram",
        histogram=Histogram(data_points=points, aggregation_temporality=temporality),
    )


def exponential(*points: ExponentialHistogramDataPoint, temporality: int = DELTA) -> Metric:
    return Metric(
        name="exponential",
        exponential_histogram=ExponentialHistogram(
            data_points=points, aggregation_temporality=temporality
        ),
    )


def summary(*points: SummaryDataPoint) -> Metric:
    return Metric(name="summary", summary=Summary(data_points=points))


def request(*metrics: Metric, **options) -> ExportMetricsServiceRequest:
    """Metrics under one resource and one scope. Both may be given; None omits one."""
    resource = options.get("resource", Resource(attributes=attributes({"service.name": "odd"})))
    scope = options.get("scope", InstrumentationScope(name="corpus", version="1.2.3"))
    return ExportMetricsServiceRequest(
        resource_metrics=[
            ResourceMetrics(
                resource=resource,
                schema_url=options.get("resource_schema_url", ""),
                scope_metrics=[
                    ScopeMetrics(
                        scope=scope,
                        schema_url=options.get("scope_schema_url", ""),
                        metrics=metrics,
                    )
                ],
            )
        ]
    )


def one_of_each(name: str, **fields) -> list[Metric]:
    """A metric of every kind with one point that has these fields."""
    made = common(name, **fields)
    plain = {field: value for field, value in made.items() if field != "exemplars"}
    return [
        gauge(NumberDataPoint(as_int=1, **made)),
        total(NumberDataPoint(as_double=1.5, **made)),
        histogram(HistogramDataPoint(count=1, sum=1, bucket_counts=[1], **made)),
        exponential(ExponentialHistogramDataPoint(count=1, sum=1, **made)),
        summary(SummaryDataPoint(count=1, sum=1, **plain)),
    ]


def _register_values() -> None:
    for kind, value in VALUES.items():
        pairs = [KeyValue(key="value", value=value_of(value))]

        @case(f"attribute: {kind}")
        def _(name, pairs=pairs):
            exemplar = Exemplar(as_int=1, filtered_attributes=pairs)
            return request(*one_of_each(name, attributes=pairs, exemplars=[exemplar]))

        @case(f"resource and scope attribute: {kind}")
        def _(name, pairs=pairs):
            return request(
                *one_of_each(name),
                resource=Resource(attributes=pairs),
                scope=InstrumentationScope(name="s", attributes=pairs),
            )


_register_values()


@case("everything of a number")
def _(name):
    exemplars = [
        Exemplar(
            time_unix_nano=TIME - 5,
            as_double=0.25,
            span_id=b"\x01" * 8,
            trace_id=b"\x02" * 16,
            filtered_attributes=attributes({"b": 1, "a": "x"}),
        ),
        Exemplar(time_unix_nano=TIME, as_int=-7),
        Exemplar(),
    ]
    points = [number(name, 42, flags=1, exemplars=exemplars), number(name, 0.5, flags=2**32 - 1)]
    made = [gauge(*points), total(*points)]
    for metric in made:
        metric.description = "what it counts"
        metric.unit = "By"
        metric.metadata.extend(attributes({"meta": "data"}))
    return request(
        *made,
        resource=Resource(
            attributes=attributes({"service.name": "shop", "host.name": "a"}),
            dropped_attributes_count=2,
        ),
        scope=InstrumentationScope(
            name="scope",
            version="9.8.7",
            attributes=attributes({"s": "t"}),
            dropped_attributes_count=2**32 - 1,
        ),
        resource_schema_url="https://opentelemetry.io/schemas/1.30.0",
        scope_schema_url="https://opentelemetry.io/schemas/1.31.0",
    )


@case("numbers of every size")
def _(name):
    values = [0, 1, -1, 2**53 + 1, INT64_MIN, INT64_MAX, *DOUBLES, None]
    points = [number(name, value, attributes={"n": n}) for n, value in enumerate(values)]
    return request(gauge(*points), total(*points))


@case("temporalities and beyond")
def _(name):
    made = []
    for temporality in (0, 1, 2):
        for monotonic in (False, True):
            made.append(total(number(name), temporality=temporality, monotonic=monotonic))
        made.append(histogram(HistogramDataPoint(**common(name)), temporality=temporality))
        made.append(
            exponential(ExponentialHistogramDataPoint(**common(name)), temporality=temporality)
        )
    raw = request(*made).SerializeToString()
    # aggregation_temporality (field 2) as a varint: 3 and -1 are undefined.
    for varint in (b"\x03", b"\xff" * 9 + b"\x01"):
        data = Sum(data_points=[number(name)]).SerializeToString() + b"\x10" + varint
        raw += _around(b"\x0a\x06beyond" + b"\x3a" + length_of(len(data)) + data)
    return raw


@case("histograms")
def _(name):
    points = [
        HistogramDataPoint(
            count=10,
            sum=-3.25,
            min=-9.5,
            max=4.5,
            bucket_counts=[1, 2, 3, 4],
            explicit_bounds=[-1.5, 0, 2.5],
            flags=1,
            exemplars=[Exemplar(as_double=2.25, time_unix_nano=TIME, trace_id=b"\x03" * 16)],
            **common(name, attributes={"n": 0}),
        ),
        HistogramDataPoint(**common(name, attributes={"n": 1})),
        HistogramDataPoint(
            count=2**64 - 1, bucket_counts=[2**64 - 1], **common(name, attributes={"n": 2})
        ),
        HistogramDataPoint(
            sum=math.nan,
            min=-math.inf,
            max=math.inf,
            explicit_bounds=[*DOUBLES],
            bucket_counts=[0] * 500,
            **common(name, attributes={"n": 3}),
        ),
    ]
    return request(histogram(*points), histogram(points[0], temporality=CUMULATIVE))


@case("exponential histograms")
def _(name):
    def buckets(offset: int, *counts: int) -> ExponentialHistogramDataPoint.Buckets:
        return ExponentialHistogramDataPoint.Buckets(offset=offset, bucket_counts=counts)

    points = [
        ExponentialHistogramDataPoint(
            count=12,
            sum=1.5,
            min=-8,
            max=16,
            scale=-3,
            zero_count=2,
            zero_threshold=1e-9,
            positive=buckets(-5, 1, 0, 300, 2**64 - 1),
            negative=buckets(2**31 - 1, 4, 5),
            flags=1,
            exemplars=[Exemplar(as_int=3, time_unix_nano=1, span_id=b"\x09" * 8)],
            **common(name, attributes={"n": 0}),
        ),
        ExponentialHistogramDataPoint(**common(name, attributes={"n": 1})),
        ExponentialHistogramDataPoint(
            scale=2**31 - 1,
            negative=buckets(-(2**31)),
            positive=buckets(0, *range(160)),
            sum=math.inf,
            **common(name, attributes={"n": 2}),
        ),
    ]
    return request(exponential(*points), exponential(points[0], temporality=CUMULATIVE))


@case("summaries")
def _(name):
    def quantiles(*pairs: tuple[float, float]) -> list[SummaryDataPoint.ValueAtQuantile]:
        return [SummaryDataPoint.ValueAtQuantile(quantile=q, value=v) for q, v in pairs]

    points = [
        SummaryDataPoint(
            count=5,
            sum=10.5,
            quantile_values=quantiles((0, -1.5), (0.5, math.nan), (0.99, math.inf), (1, 1e300)),
            flags=1,
            **common(name, attributes={"n": 0}),
        ),
        SummaryDataPoint(**common(name, attributes={"n": 1})),
        SummaryDataPoint(
            sum=math.nan, quantile_values=quantiles((0, 0)), **common(name, attributes={"n": 2})
        ),
    ]
    return request(summary(*points))


@case("times at their limits")
def _(name):
    times = (
        0,
        1,
        999_999_999,
        10**9,
        (2**32 - 1) * 10**9,
        2**32 * 10**9,
        2**63 - 1,
        2**63,
        2**64 - 1,
    )
    exemplars = [Exemplar(time_unix_nano=time) for time in times]
    made = []
    for n, time in enumerate(times):
        made += one_of_each(
            name,
            time_unix_nano=time,
            start_time_unix_nano=times[-1 - n],
            attributes={"n": n},
            exemplars=exemplars,
        )
    return request(*made)


@case("empty names")
def _(name):
    made = one_of_each(name)
    for metric in made:
        metric.name = ""
    return request(*made, scope=InstrumentationScope())


@case("kinds mixed, many points")
def _(name):
    made = []
    for n in range(30):
        for metric in one_of_each(name, attributes={f"k{(n * 7) % 23}": n, "n": n}):
            metric.name += f" {n % 4}"
            made.append(metric)
    return request(*made)


@case("duplicate keys")
def _(name):
    pairs = [KeyValue(key="k", value=any_value(v)) for v in ("first", "second", 3)]
    return request(
        *one_of_each(name, attributes=pairs, exemplars=[Exemplar(filtered_attributes=pairs)]),
        resource=Resource(attributes=pairs),
        scope=InstrumentationScope(name="s", attributes=pairs),
    )


@case("service name: not a string")
def _(name):
    resource = Resource(attributes=attributes({"service.name": 42}))
    return request(*one_of_each(name), resource=resource)


@case("no resource, no scope")
def _(name):
    return request(*one_of_each(name), resource=None, scope=None)


@case("no metrics")
def _(_name):
    return ExportMetricsServiceRequest()


@case("metrics without points")
def _(_name):
    return request(gauge(), total(), histogram(), exponential(), summary())


@case("several resources and scopes, some empty")
def _(name):
    made = ExportMetricsServiceRequest()
    for n in range(3):
        resource = made.resource_metrics.add()
        resource.resource.attributes.extend(attributes({"service.name": f"service {n}"}))
        for letter in "ab":
            scope = resource.scope_metrics.add()
            scope.scope.name = f"{n}{letter}"
            if n != 1:
                scope.metrics.extend(one_of_each(name, attributes={"n": f"{n}{letter}"}))
    made.resource_metrics.add()
    return made


@case("invalid UTF-8")
def _(name):
    made = one_of_each(
        name,
        attributes={MARK: [MARK]},
        exemplars=[Exemplar(filtered_attributes=attributes({MARK: MARK}))],
    )
    for metric in made:
        metric.name, metric.description, metric.unit = MARK, MARK, MARK
    return invalid(
        request(
            *made,
            scope=InstrumentationScope(name=MARK, version=MARK),
            resource_schema_url=MARK,
            scope_schema_url=MARK,
        )
    )


@case("unknown fields")
def _(name):
    raws = [metric.SerializeToString() for metric in one_of_each(name)]
    return b"".join(_around(raw + b"\xb8\x3e\x05" + b"\xba\x3e\x03abc") for raw in raws)


@case("two kinds of data in one metric")
def _(name):
    first = gauge(number(name, 1)).SerializeToString()
    return _around(first + total(number(name, 2), number(name, 3)).SerializeToString())


@case("one kind of data twice")
def _(name):
    first = gauge(number(name, 1)).SerializeToString()
    return _around(first + gauge(number(name, 2), metric="again").SerializeToString())


@case("a value of two kinds")
def _(name):
    # as_int (field 6, sfixed64) after as_double (field 4), and vice versa.
    double = b"\x21" + struct.pack("<d", 2.5)
    integer = b"\x31" + struct.pack("<q", -3)
    raws = []
    for raw in (double + integer, integer + double):
        point = number(name, None).SerializeToString() + raw
        data = b"\x0a" + length_of(len(point)) + point
        raws.append(_around(b"\x2a" + length_of(len(data)) + data))
    return b"".join(raws)


@case("bucket counts in pieces")
def _(name):
    # bucket_counts (field 6, fixed64) unpacked, packed, unpacked; the same for an exponential
    # histogram (field 2 of field 8, varint).
    def packed(*counts: int) -> bytes:
        return b"\x32" + length_of(8 * len(counts)) + struct.pack(f"<{len(counts)}Q", *counts)

    def single(count: int) -> bytes:
        return b"\x31" + struct.pack("<Q", count)

    point = HistogramDataPoint(**common(name)).SerializeToString()
    point += single(1) + packed(2, 3) + single(4) + packed(5, 6) + single(7)
    data = b"\x0a" + length_of(len(point)) + point
    raw = _around(b"\x4a" + length_of(len(data)) + data)
    buckets = b"\x10\x01" + b"\x12\x02\x02\x03" + b"\x10\x04"
    point = ExponentialHistogramDataPoint(**common(name)).SerializeToString()
    point += 2 * (b"\x42" + length_of(len(buckets)) + buckets)
    data = b"\x0a" + length_of(len(point)) + point
    return raw + _around(b"\x52" + length_of(len(data)) + data)


@case("scopes in the field of before 2022")
def _(name):
    scope = ScopeMetrics(metrics=one_of_each(name)).SerializeToString()
    resource = b"\xc2\x3e" + length_of(len(scope)) + scope
    return b"\x0a" + length_of(len(resource)) + resource


def _around(raw_metric: bytes) -> bytes:
    """Wraps the bytes of one metric in a complete request."""
    for tag in (b"\x12", b"\x12", b"\x0a"):  # metrics, scope_metrics, resource_metrics
        raw_metric = tag + length_of(len(raw_metric)) + raw_metric
    return raw_metric


@case("a metric without data")
def _(name):
    return request(Metric(name="empty"), *one_of_each(name))


@case("exemplar with a trace id of 4 bytes")
def _(name):
    return request(gauge(number(name, exemplars=[Exemplar(trace_id=b"\x01\x02\x03\x04")])))


@case("bucket counts cut short")
def _(name):
    point = HistogramDataPoint(**common(name)).SerializeToString() + b"\x32\x07abcdefg"
    data = b"\x0a" + length_of(len(point)) + point
    return _around(b"\x4a" + length_of(len(data)) + data)
