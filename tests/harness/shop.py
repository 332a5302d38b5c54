"""Telemetry of a small shop, as its SDKs would send it, for testing dashboards. Every value depends
only on the number of its order."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
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
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from .corpus import any_value, attributes

# 2026-03-04T05:00:00Z: the first order; one every 20 seconds for 40 minutes.
START = 1_772_600_400 * 10**9
SECOND = 10**9
ORDERS = 120
END = START + 20 * ORDERS * SECOND

SCOPE = InstrumentationScope(name="shop.instrumentation", version="1.4.0")
DELTA, CUMULATIVE = 1, 2
BOUNDS = [5, 10, 25, 50, 100, 250]


def _resource(service: str, pod: int = 0) -> Resource:
    return Resource(
        attributes=attributes(
            {
                "service.name": service,
                "deployment.environment.name": "production",
                "k8s.namespace.name": "shop",
                "k8s.pod.name": f"{service}-{pod}",
            }
        )
    )


def _at(order: int) -> int:
    return START + 20 * order * SECOND


def trace_id(order: int) -> bytes:
    return sha256(f"order {order}".encode()).digest()[:16]


def _span_id(order: int, number: int) -> bytes:
    return ((order + 1) * 10 + number).to_bytes(8, "big")


def _failed(order: int) -> bool:
    return order % 11 == 0


def _spans(order: int) -> ExportTraceServiceRequest:
    """A page of the frontend, its call, and the checkout's answer."""
    took = (5 + order * 7 % 90) * 1_000_000

    def span(number: int, name: str, kind: int, parent: int | None, **fields) -> Span:
        return Span(
            trace_id=trace_id(order),
            span_id=_span_id(order, number),
            parent_span_id=b"" if parent is None else _span_id(order, parent),
            name=name,
            kind=kind,
            start_time_unix_nano=_at(order) + number * 1_000_000,
            end_time_unix_nano=_at(order) + took - number * 1_000_000,
            **fields,
        )

    status = Status()
    events = []
    if _failed(order):
        status = Status(code=Status.STATUS_CODE_ERROR, message="card declined")
        event = attributes({"exception.type": "CardDeclined", "exception.message": f"no {order}"})
        time = _at(order) + 3_000_000
        events = [Span.Event(name="exception", time_unix_nano=time, attributes=event)]
    link = Span.Link(trace_id=trace_id(order - 1), span_id=_span_id(order - 1, 0))
    page = span(
        0,
        f"GET /cart/{order % 3}",
        Span.SPAN_KIND_SERVER,
        None,
        attributes=attributes(
            {"http.request.method": "GET", "http.response.status_code": 500 * _failed(order) or 200}
        ),
        links=[link] if order % 5 == 0 else [],
    )
    call = span(
        1,
        "POST /checkout",
        Span.SPAN_KIND_CLIENT,
        0,
        attributes=attributes({"peer.service": "checkout"}),
    )
    answer = span(
        2,
        "POST /checkout",
        Span.SPAN_KIND_SERVER,
        1,
        status=status,
        events=events,
        attributes=attributes({"order.items": order % 7, "user.id": f"user-{order % 9}"}),
    )
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=_resource(service, order % 2),
                scope_spans=[ScopeSpans(scope=SCOPE, spans=spans)],
            )
            for service, spans in (("frontend", [page, call]), ("checkout", [answer]))
        ]
    )


_SEVERITIES = (("INFO", 9), ("DEBUG", 5), ("WARN", 13))


def _logs(order: int) -> ExportLogsServiceRequest:
    text, number = ("ERROR", 17) if _failed(order) else _SEVERITIES[order % 3]

    def record(at: int, span: int, body: object, **fields) -> LogRecord:
        return LogRecord(
            time_unix_nano=_at(order) + at,
            trace_id=trace_id(order),
            span_id=_span_id(order, span),
            flags=1,
            severity_text=text,
            severity_number=number,
            body=any_value(body),
            attributes=attributes({"order": order, "user.id": f"user-{order % 9}"}),
            **fields,
        )

    message = "payment failed: card declined" if _failed(order) else f"order {order} was placed"
    checkout = [
        record(2_500_000, 2, message, event_name="order"),
        record(2_600_000, 2, {"items": order % 7, "bytes": order * 100}),
    ]
    return ExportLogsServiceRequest(
        resource_logs=[
            ResourceLogs(
                resource=_resource(service, order % 2),
                scope_logs=[ScopeLogs(scope=SCOPE, log_records=records)],
            )
            for service, records in (
                ("frontend", [record(10_000, 0, "request received")]),
                ("checkout", checkout),
            )
        ]
    )


def _metrics(minute: int) -> ExportMetricsServiceRequest:
    """The metrics that the two pods of the checkout report once a minute."""
    time = START + minute * 60 * SECOND

    def usual(**labels) -> dict:
        return {
            "time_unix_nano": time,
            "start_time_unix_nano": START,
            "attributes": attributes(labels),
        }

    def of_pod(pod: int) -> list[Metric]:
        # The second pod restarts after 15 minutes: its counters start again.
        up = minute - 15 if pod and minute >= 15 else minute
        requests = [
            NumberDataPoint(as_int=up * (10 + status % 7), **usual(status=str(status)))
            for status in (200, 500)
        ]
        placed = [NumberDataPoint(as_int=minute % 4, **usual())]
        counts = [up * (bucket + 1) for bucket in range(len(BOUNDS) + 1)]
        durations = HistogramDataPoint(
            count=sum(counts),
            sum=up * 100.0,
            bucket_counts=counts,
            explicit_bounds=BOUNDS,
            **usual(route="/checkout"),
        )
        quantile = SummaryDataPoint.ValueAtQuantile
        pauses = SummaryDataPoint(
            count=up,
            sum=up * 2.0,
            quantile_values=[quantile(quantile=q, value=q * up) for q in (0.5, 0.99)],
            **usual(),
        )
        return [
            Metric(
                name="process.cpu.utilization",
                unit="1",
                gauge=Gauge(
                    data_points=[NumberDataPoint(as_double=(minute % 10 + pod) / 16, **usual())]
                ),
            ),
            Metric(
                name="http.server.requests",
                sum=Sum(
                    data_points=requests, aggregation_temporality=CUMULATIVE, is_monotonic=True
                ),
            ),
            Metric(
                name="orders.placed",
                sum=Sum(data_points=placed, aggregation_temporality=DELTA, is_monotonic=True),
            ),
            Metric(
                name="http.server.duration",
                unit="ms",
                histogram=Histogram(data_points=[durations], aggregation_temporality=CUMULATIVE),
            ),
            Metric(name="gc.pause", summary=Summary(data_points=[pauses])),
        ]

    return ExportMetricsServiceRequest(
        resource_metrics=[
            ResourceMetrics(
                resource=_resource("checkout", pod),
                scope_metrics=[ScopeMetrics(scope=SCOPE, metrics=of_pod(pod))],
            )
            for pod in (0, 1)
        ]
    )


def requests() -> dict[str, dict[str, bytes]]:
    """All requests, by signal and name."""

    def named(made: Iterator) -> dict[str, bytes]:
        return {str(n): request.SerializeToString() for n, request in enumerate(made)}

    return {
        "logs": named(_logs(order) for order in range(ORDERS)),
        "traces": named(_spans(order) for order in range(ORDERS)),
        "metrics": named(_metrics(minute) for minute in range(40)),
    }
