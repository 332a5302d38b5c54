"""OpenTelemetry's own SDKs, as an application has them, export to a gateway: every signal arrives
in ClickHouse with every field. clients/python/send.py and clients/js/send.js send their telemetry,
the same in both."""

import json
import time

import pytest

from harness.process import eventually
from harness.services import send_with_sdk

MS = 1_000_000

# The Python SDK has no JSON exporter.
EXPORTERS = [
    ("python", "grpc"),
    ("python", "http/protobuf"),
    ("js", "grpc"),
    ("js", "http/protobuf"),
    ("js", "http/json"),
]

TABLES = {
    "otel_logs": 2,
    "otel_traces": 2,
    "otel_metrics_sum": 2,
    "otel_metrics_gauge": 1,
    "otel_metrics_histogram": 1,
    "otel_metrics_exponential_histogram": 1,
}

SDK_NAMES = {"python": "python", "js": "nodejs"}


class Way:
    """A gateway and a consumer for all tests of this file; each test has its own service name."""

    def __init__(self, site) -> None:
        self.site = site
        self.gateway, self.consumer = site.gateway(), site.consumer()

    def endpoint(self, protocol: str) -> str:
        gateway = self.gateway
        return "http://" + (gateway.address if protocol == "grpc" else gateway.http_address)

    def arrived(self, service: str) -> bool:
        self.gateway.must_run()
        self.consumer.must_run()
        of_service = f"WHERE ServiceName = '{service}'"
        return all(
            self.rows(f"SELECT count() AS rows FROM {table} {of_service}") == [{"rows": expected}]
            for table, expected in TABLES.items()
        )

    def rows(self, sql: str) -> list[dict]:
        body = self.site.clickhouse.query(
            f"{sql} FORMAT JSONEachRow",
            database=self.site.database,
            output_format_json_quote_64bit_integers=0,
        )
        return [json.loads(line) for line in body.splitlines()]


@pytest.fixture(scope="module")
def way(module_site) -> Way:
    return Way(module_site)


@pytest.mark.parametrize("settings", [{}, {"compression": "gzip"}], ids=["plain", "gzip"])
@pytest.mark.parametrize(("language", "protocol"), EXPORTERS)
def test_every_field_of_every_signal_arrives(way, language, protocol, settings):
    service = "-".join((language, *protocol.split("/"), *settings.values()))
    sent_at = time.time_ns()
    ids = send_with_sdk(
        way.site.directory,
        *(language, protocol, way.endpoint(protocol), service, sent_at),
        **settings,
    )
    eventually(f"the telemetry of {service}", lambda: way.arrived(service))
    logs_are_as_sent(way, service, sent_at, ids)
    spans_are_as_sent(way, service, sent_at, ids)
    metrics_are_as_sent(way, service)
    for table in TABLES:
        [found] = way.rows(
            "SELECT groupUniqArray((ScopeName, ScopeVersion, ResourceAttributes['host.name'],"
            f" ResourceAttributes['telemetry.sdk.language'])) AS origins FROM {table}"
            f" WHERE ServiceName = '{service}'"
        )
        assert found["origins"] == [["shop", "1.2.3", "host-1", SDK_NAMES[language]]], table


def logs_are_as_sent(way: Way, service: str, sent_at: int, ids: dict) -> None:
    placed, structured = way.rows(
        "SELECT toUnixTimestamp64Nano(Timestamp) AS time, TraceId, SpanId, TraceFlags,"
        " SeverityText, SeverityNumber, Body, LogAttributes, EventName FROM otel_logs"
        f" WHERE ServiceName = '{service}' ORDER BY Timestamp"
    )
    assert placed == {
        "time": sent_at,
        "TraceId": ids["trace"],
        "SpanId": ids["parent"],
        "TraceFlags": ids["flags"],
        "SeverityText": "WARN",
        "SeverityNumber": 13,
        "Body": "order placed: größer 😀",
        "LogAttributes": {"items": '["a","b"]', "order": "17", "paid": "true", "price": "9.5"},
        "EventName": "order.placed",
    }
    assert structured == {
        "time": sent_at + MS,
        "TraceId": "",
        "SpanId": "",
        "TraceFlags": 0,
        "SeverityText": "",
        "SeverityNumber": 0,
        "Body": '{"order":18,"paid":false}',
        "LogAttributes": {},
        "EventName": "",
    }


def spans_are_as_sent(way: Way, service: str, sent_at: int, ids: dict) -> None:
    parent, child = way.rows(
        "SELECT toUnixTimestamp64Nano(Timestamp) AS time, TraceId, SpanId, ParentSpanId, SpanName,"
        " SpanKind, SpanAttributes, Duration, StatusCode, StatusMessage,"
        " arrayMap(t -> toUnixTimestamp64Nano(t), Events.Timestamp) AS event_times, Events.Name,"
        " Events.Attributes, Links.TraceId, Links.SpanId, Links.Attributes FROM otel_traces"
        f" WHERE ServiceName = '{service}' ORDER BY Timestamp"
    )
    assert parent == {
        "time": sent_at,
        "TraceId": ids["trace"],
        "SpanId": ids["parent"],
        "ParentSpanId": "",
        "SpanName": "GET /orders",
        "SpanKind": "Server",
        "SpanAttributes": {},
        "Duration": 50 * MS,
        "StatusCode": "Unset",
        "StatusMessage": "",
        "event_times": [],
        "Events.Name": [],
        "Events.Attributes": [],
        "Links.TraceId": [],
        "Links.SpanId": [],
        "Links.Attributes": [],
    }
    assert child == {
        "time": sent_at + 10 * MS,
        "TraceId": ids["trace"],
        "SpanId": ids["child"],
        "ParentSpanId": ids["parent"],
        "SpanName": "SELECT",
        "SpanKind": "Client",
        "SpanAttributes": {
            "db.cached": "false",
            "db.rows": "17",
            "db.tables": '["orders","lines"]',
        },
        "Duration": 20 * MS,
        "StatusCode": "Error",
        "StatusMessage": "the table is gone",
        "event_times": [sent_at + 11 * MS],
        "Events.Name": ["cache.miss"],
        "Events.Attributes": [{"key": "order-17"}],
        "Links.TraceId": [ids["trace"]],
        "Links.SpanId": [ids["parent"]],
        "Links.Attributes": [{"why": "retry"}],
    }


def metrics_are_as_sent(way: Way, service: str) -> None:
    def points(table: str, *columns: str) -> list[dict]:
        return way.rows(
            f"SELECT {', '.join(('MetricName', 'MetricUnit', 'Attributes', *columns))}"
            f" FROM otel_metrics_{table} WHERE ServiceName = '{service}' ORDER BY MetricName"
        )

    assert points("sum", "MetricDescription", "Value", "AggregationTemporality", "IsMonotonic") == [
        {
            "MetricName": "in_flight",
            "MetricUnit": "",
            "Attributes": {},
            "MetricDescription": "",
            "Value": -2,
            "AggregationTemporality": 2,
            "IsMonotonic": False,
        },
        {
            "MetricName": "orders",
            "MetricUnit": "{order}",
            "Attributes": {"kind": "web"},
            "MetricDescription": "Orders placed",
            "Value": 7,
            "AggregationTemporality": 2,
            "IsMonotonic": True,
        },
    ]
    assert points("gauge", "Value") == [
        {"MetricName": "temperature", "MetricUnit": "Cel", "Attributes": {}, "Value": 21.5}
    ]
    counted = {"Attributes": {}, "Count": 3, "Sum": 58, "Min": 1, "Max": 50}
    assert points("histogram", "Count", "Sum", "Min", "Max", "BucketCounts", "ExplicitBounds") == [
        {
            "MetricName": "latency",
            "MetricUnit": "ms",
            **counted,
            "BucketCounts": [1, 1, 1],
            "ExplicitBounds": [5, 10],
        }
    ]
    assert points(
        "exponential_histogram",
        *("Count", "Sum", "Min", "Max", "ZeroCount"),
        "arraySum(PositiveBucketCounts) AS positive",
        "arraySum(NegativeBucketCounts) AS negative",
    ) == [
        {
            "MetricName": "size",
            "MetricUnit": "By",
            **counted,
            "ZeroCount": 0,
            "positive": 3,
            "negative": 0,
        }
    ]
