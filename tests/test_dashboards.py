"""Tools for these tables work unchanged: queries in the form of HyperDX (ClickStack), Grafana's
ClickHouse plugin in its OpenTelemetry mode, and the clickhouseexporter's documentation. They run on
tables filled by Millpond and on tables filled by the exporter with the same telemetry. The answers
must be the same.

Jaeger's ClickHouse storage is not among them: it has its own schema (`spans`, …), which its own
collector fills.
"""

import pytest

from harness import shop
from harness.both import Both

TABLES = (
    "otel_logs",
    "otel_traces",
    "otel_metrics_gauge",
    "otel_metrics_sum",
    "otel_metrics_histogram",
    "otel_metrics_summary",
)

# The middle half, in the forms that the tools use.
FROM_MS = shop.START // 10**6 + 600_000
TO_MS = shop.END // 10**6 - 600_000
IN_MS = f"fromUnixTimestamp64Milli({FROM_MS}) AND {{}} <= fromUnixTimestamp64Milli({TO_MS})"
DURING = "Timestamp >= " + IN_MS.format("Timestamp")
POINTS_DURING = "TimeUnix >= " + IN_MS.format("TimeUnix")

TRACE = shop.trace_id(22).hex()

# Maps the tool and its view to the query, with a placeholder for the database.
QUERIES = {
    "hyperdx: search": """
        SELECT Timestamp, ServiceName, SeverityText, Body, TraceId, SpanId, LogAttributes
        FROM {db}.otel_logs
        WHERE {during} AND (lower(Body) LIKE lower('%FAILED%'))
        ORDER BY Timestamp DESC, Body LIMIT 200 OFFSET 0""",
    "hyperdx: search for a word": """
        SELECT Timestamp, Body FROM {db}.otel_logs
        WHERE {during} AND hasToken(lower(Body), lower('declined'))
        ORDER BY toStartOfFiveMinutes(Timestamp) DESC, Timestamp DESC LIMIT 200""",
    "hyperdx: events over time by severity": """
        SELECT count(), SeverityText,
            toStartOfInterval(toDateTime(Timestamp), INTERVAL 2 minute) AS `__hdx_time_bucket`
        FROM {db}.otel_logs WHERE {during}
        GROUP BY SeverityText, `__hdx_time_bucket` ORDER BY `__hdx_time_bucket`, SeverityText""",
    "hyperdx: keys and values of filters": """
        SELECT key, count() AS rows, arraySort(groupUniqArray(20)(LogAttributes[key])) AS known
        FROM (SELECT LogAttributes, arrayJoin(mapKeys(LogAttributes)) AS key
            FROM {db}.otel_logs WHERE {during} AND LogAttributes['user.id'] IN ('user-1', 'user-4'))
        GROUP BY key ORDER BY key""",
    "hyperdx: resource attributes that are columns": """
        SELECT `__otel_materialized_k8s.pod.name` AS pod, count() FROM {db}.otel_logs
        WHERE `__otel_materialized_k8s.namespace.name` = 'shop'
            AND `__otel_materialized_deployment.environment.name` = 'production'
        GROUP BY pod ORDER BY pod""",
    "hyperdx: one event whole": """
        SELECT Timestamp, TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, ServiceName,
            Body, ResourceSchemaUrl, ResourceAttributes, ScopeSchemaUrl, ScopeName, ScopeVersion,
            ScopeAttributes, LogAttributes, EventName
        FROM {db}.otel_logs WHERE TraceId = '{trace}' ORDER BY Timestamp""",
    "hyperdx: latency and errors of a service": """
        SELECT toStartOfInterval(toDateTime(Timestamp), INTERVAL 5 minute) AS bucket, SpanName,
            quantileExact(0.5)(Duration) / 1e6 AS p50, quantileExact(0.95)(Duration) / 1e6 AS p95,
            count() AS spans, countIf(StatusCode = 'Error') / count() AS error_rate
        FROM {db}.otel_traces
        WHERE {during} AND ServiceName = 'checkout' AND SpanKind IN ('Server', 'SPAN_KIND_SERVER')
        GROUP BY bucket, SpanName ORDER BY bucket, SpanName""",
    "hyperdx: service map": """
        SELECT client.ServiceName AS caller, server.ServiceName AS callee, server.StatusCode,
            count() AS calls
        FROM {db}.otel_traces AS client
        INNER JOIN {db}.otel_traces AS server
            ON client.TraceId = server.TraceId AND client.SpanId = server.ParentSpanId
        WHERE client.SpanKind = 'Client' AND server.SpanKind = 'Server'
        GROUP BY ALL ORDER BY ALL""",
    "hyperdx: a gauge": """
        SELECT quantileExact(0.95)(toFloat64OrNull(toString(Value))) AS value,
            ResourceAttributes['k8s.pod.name'] AS pod,
            toStartOfInterval(toDateTime(TimeUnix), INTERVAL 5 minute) AS bucket
        FROM {db}.otel_metrics_gauge
        WHERE {points_during} AND MetricName = 'process.cpu.utilization'
        GROUP BY pod, bucket ORDER BY bucket, pod""",
    "hyperdx: rate of a counter": """
        WITH points AS (
            SELECT *,
                cityHash64(mapConcat(ScopeAttributes, ResourceAttributes, Attributes)) AS series,
                lagInFrame(toNullable(Value)) OVER (PARTITION BY series ORDER BY TimeUnix
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS previous,
                multiIf(AggregationTemporality = 1, Value, isNull(previous), 0,
                    Value < previous, Value, Value - previous) AS rate
            FROM {db}.otel_metrics_sum
            WHERE MetricName IN ('http.server.requests', 'orders.placed'))
        SELECT MetricName, Attributes['status'] AS status, IsMonotonic, sum(rate),
            toStartOfInterval(TimeUnix, INTERVAL 5 minute) AS bucket
        FROM points WHERE {points_during} GROUP BY ALL ORDER BY bucket, MetricName, status""",
    "hyperdx: quantile of a histogram": """
        WITH points AS (
            SELECT TimeUnix, ExplicitBounds, BucketCounts,
                cityHash64(mapConcat(ScopeAttributes, ResourceAttributes, Attributes)) AS series,
                any(BucketCounts) OVER (PARTITION BY series ORDER BY TimeUnix
                    ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS previous,
                arrayMap((now, before) -> if(now < before, now, toUInt64(now - before)),
                    BucketCounts, arrayResize(previous, length(BucketCounts))) AS rates
            FROM {db}.otel_metrics_histogram
            WHERE MetricName = 'http.server.duration' AND AggregationTemporality = 2)
        SELECT toStartOfInterval(TimeUnix, INTERVAL 5 minute) AS bucket,
            sumForEach(rates) AS counts,
            arrayFirstIndex(x -> x >= 0.95 * arraySum(counts), arrayCumSum(counts)) AS place,
            any(ExplicitBounds)[least(place, length(any(ExplicitBounds)))] AS p95
        FROM points WHERE {points_during} GROUP BY bucket ORDER BY bucket""",
    "grafana: logs": """
        SELECT Timestamp AS "timestamp", Body AS "body", SeverityText AS "level",
            LogAttributes AS "labels", TraceId AS "traceID"
        FROM "{db}"."otel_logs"
        WHERE ( timestamp >= fromUnixTimestamp64Milli({from_ms})
            AND timestamp <= fromUnixTimestamp64Milli({to_ms}) ) AND ( level = 'WARN' )
        ORDER BY timestamp DESC, body LIMIT 1000""",
    "grafana: volume of logs": """
        SELECT toStartOfInterval(Timestamp, INTERVAL 60 SECOND) AS time,
            countIf(SeverityNumber BETWEEN 17 AND 20) AS error,
            countIf(SeverityNumber BETWEEN 13 AND 16) AS warn,
            countIf(SeverityNumber BETWEEN 9 AND 12) AS info,
            countIf(SeverityNumber BETWEEN 5 AND 8) AS debug
        FROM "{db}"."otel_logs" WHERE {during} GROUP BY time ORDER BY time""",
    "grafana: traces": """
        SELECT "TraceId" AS traceID, "ServiceName" AS serviceName, "SpanName" AS operationName,
            "Timestamp" AS startTime, multiply("Duration", 0.000001) AS duration
        FROM "{db}"."otel_traces"
        WHERE {during} AND ParentSpanId = '' AND Duration > 0
            AND SpanAttributes['http.request.method'] = 'GET'
        ORDER BY Timestamp DESC LIMIT 1000""",
    "grafana: one trace, by the table of times": """
        WITH '{trace}' AS trace_id,
            (SELECT min(Start) FROM "{db}"."otel_traces_trace_id_ts" WHERE TraceId = trace_id)
                AS trace_start,
            (SELECT max(End) + 1 FROM "{db}"."otel_traces_trace_id_ts" WHERE TraceId = trace_id)
                AS trace_end
        SELECT "TraceId" AS traceID, "SpanId" AS spanID, "ParentSpanId" AS parentSpanID,
            "ServiceName" AS serviceName, "SpanName" AS operationName,
            multiply(toUnixTimestamp64Nano("Timestamp"), 0.000001) AS startTime,
            multiply("Duration", 0.000001) AS duration,
            arrayMap(key -> map('key', key, 'value', "SpanAttributes"[key]),
                mapKeys("SpanAttributes")) AS tags,
            arrayMap(key -> map('key', key, 'value', "ResourceAttributes"[key]),
                mapKeys("ResourceAttributes")) AS serviceTags,
            if("StatusCode" IN ('Error', 'STATUS_CODE_ERROR'), 2, 0) AS statusCode,
            arrayMap((name, timestamp, attributes) -> tuple(name,
                toString(toUnixTimestamp64Milli(timestamp)),
                arrayMap(key -> map('key', key, 'value', attributes[key]), mapKeys(attributes))
                )::Tuple(name String, timestamp String, fields Array(Map(String, String))),
                "Events".Name, "Events".Timestamp, "Events".Attributes) AS logs,
            arrayMap((traceID, spanID, attributes) -> tuple(traceID, spanID, mapKeys(attributes)),
                "Links".TraceId, "Links".SpanId, "Links".Attributes) AS references,
            "SpanKind" AS kind, "StatusMessage" AS statusMessage,
            "ScopeName" AS instrumentationLibraryName, "TraceState" AS traceState
        FROM "{db}"."otel_traces"
        WHERE traceID = trace_id AND "Timestamp" >= trace_start AND "Timestamp" <= trace_end
        ORDER BY startTime LIMIT 1000""",
    "grafana: services and operations": """
        SELECT ServiceName, arraySort(groupUniqArray(SpanKind)) AS kinds,
            arraySort(groupUniqArray(SpanName)) AS operations
        FROM "{db}"."otel_traces" GROUP BY ServiceName ORDER BY ServiceName""",
    "exporter: spans with an attribute": """
        SELECT Timestamp, TraceId, SpanName, Duration, toString(SpanAttributes),
            toString(ResourceAttributes), toString(Events.Name), toString(Links.TraceId)
        FROM {db}.otel_traces
        WHERE ServiceName = 'frontend' AND SpanAttributes['peer.service'] = 'checkout' AND {during}
        ORDER BY Timestamp LIMIT 100""",
    "exporter: failed spans and their exceptions": """
        SELECT Timestamp, StatusMessage, Events.Name, Events.Attributes[1]['exception.message']
        FROM {db}.otel_traces WHERE StatusCode = 'Error' AND Duration > 1000
        ORDER BY Timestamp""",
    "exporter: logs with fields in JSON": """
        SELECT Timestamp, Body FROM {db}.otel_logs
        WHERE JSONExtractFloat(Body, 'bytes') > 1000
            AND toStartOfFiveMinutes(Timestamp)
                >= toStartOfFiveMinutes(toDateTime(intDiv({from_ms}, 1000)))
        ORDER BY (toStartOfFiveMinutes(Timestamp), Timestamp) DESC LIMIT 20""",
    "exporter: a summary's quantiles": """
        SELECT TimeUnix, MetricName, Attributes, Count, Sum, ValueAtQuantiles.Quantile,
            ValueAtQuantiles.Value
        FROM {db}.otel_metrics_summary WHERE MetricName = 'gc.pause' AND {points_during}
        ORDER BY TimeUnix, ResourceAttributes['k8s.pod.name']""",
}


@pytest.fixture(scope="module")
def both(module_site) -> Both:
    both = Both(module_site, shop.requests(), TABLES)
    answers = {*both.collector_answers.values(), *both.gateway_answers.values()}
    assert answers == {("OK", "")}
    return both


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_the_exporters_tables(both, name):
    def rows(database: str) -> list[dict]:
        sql = QUERIES[name].format(
            db=database,
            during=DURING,
            points_during=POINTS_DURING,
            trace=TRACE,
            from_ms=FROM_MS,
            to_ms=TO_MS,
        )
        return both.clickhouse.rows(sql)

    expected = rows(both.reference)
    assert expected, "nothing to compare"
    assert rows(both.millpond) == expected
