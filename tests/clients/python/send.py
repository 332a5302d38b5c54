"""Sends the telemetry that test_sdks.py expects with OpenTelemetry's Python SDK, and prints the ids
of its spans as JSON.

    send.py grpc|http/protobuf SERVICE TIME_UNIX_NANO

The SDK's own OTEL_EXPORTER_OTLP_… variables set the destination and compression.
"""

import importlib
import json
import sys

from opentelemetry import trace as trace_api
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

MS = 1_000_000

protocol, service, time = sys.argv[1], sys.argv[2], int(sys.argv[3])
package = "opentelemetry.exporter.otlp.proto." + protocol.split("/")[0]
resource = Resource.create({"service.name": service, "host.name": "host-1"})


def exporter(module: str, name: str):
    return getattr(importlib.import_module(f"{package}.{module}"), name)()


def send_traces() -> tuple[trace_api.SpanContext, trace_api.SpanContext]:
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter("trace_exporter", "OTLPSpanExporter")))
    tracer = provider.get_tracer("shop", "1.2.3")
    parent = tracer.start_span("GET /orders", kind=SpanKind.SERVER, start_time=time)
    child = tracer.start_span(
        "SELECT",
        context=trace_api.set_span_in_context(parent),
        kind=SpanKind.CLIENT,
        attributes={"db.rows": 17, "db.cached": False, "db.tables": ["orders", "lines"]},
        links=[Link(parent.get_span_context(), {"why": "retry"})],
        start_time=time + 10 * MS,
    )
    child.add_event("cache.miss", {"key": "order-17"}, timestamp=time + 11 * MS)
    child.set_status(Status(StatusCode.ERROR, "the table is gone"))
    child.end(time + 30 * MS)
    parent.end(time + 50 * MS)
    provider.shutdown()
    return parent.get_span_context(), child.get_span_context()


def send_logs(parent: trace_api.SpanContext) -> None:
    provider = LoggerProvider(resource=resource)
    logs = exporter("_log_exporter", "OTLPLogExporter")
    provider.add_log_record_processor(BatchLogRecordProcessor(logs))
    logger = provider.get_logger("shop", "1.2.3")
    logger.emit(
        LogRecord(
            timestamp=time,
            context=trace_api.set_span_in_context(trace_api.NonRecordingSpan(parent)),
            severity_text="WARN",
            severity_number=SeverityNumber.WARN,
            body="order placed: größer 😀",
            attributes={"order": 17, "paid": True, "price": 9.5, "items": ["a", "b"]},
            event_name="order.placed",
        )
    )
    logger.emit(LogRecord(timestamp=time + MS, body={"order": 18, "paid": False}))
    provider.shutdown()


def send_metrics() -> None:
    reader = PeriodicExportingMetricReader(exporter("metric_exporter", "OTLPMetricExporter"))
    exponential = View(instrument_name="size", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], resource=resource, views=[exponential])
    meter = provider.get_meter("shop", "1.2.3")
    orders = meter.create_counter("orders", "{order}", "Orders placed")
    orders.add(3, {"kind": "web"})
    orders.add(4, {"kind": "web"})
    meter.create_up_down_counter("in_flight").add(-2)
    meter.create_gauge("temperature", "Cel").set(21.5)
    latency = meter.create_histogram("latency", "ms", explicit_bucket_boundaries_advisory=[5, 10])
    size = meter.create_histogram("size", "By")
    for value in (1, 7, 50):
        latency.record(value)
        size.record(value)
    provider.shutdown()


parent, child = send_traces()
send_logs(parent)
send_metrics()
print(
    json.dumps(
        {
            "trace": f"{parent.trace_id:032x}",
            "flags": int(parent.trace_flags),
            "parent": f"{parent.span_id:016x}",
            "child": f"{child.span_id:016x}",
        }
    )
)
