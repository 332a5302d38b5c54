-- Ingest latency from the tables: a view over Millpond's columns, with one row per minute of reception and source.
-- `_millpond_received_at` is when the gateway received the message, `_millpond_inserted_at` when the consumer sent the INSERT.
-- Remove the tables that you do not have. The database is the consumer's --database.
CREATE VIEW IF NOT EXISTS otel.millpond_ingest_latency AS
SELECT
    toStartOfMinute(received_at) AS minute,
    source,
    count() AS records,
    quantile(0.5)(seconds) AS p50_seconds,
    quantile(0.99)(seconds) AS p99_seconds,
    max(seconds) AS max_seconds
FROM
(
    SELECT _millpond_received_at AS received_at, _millpond_source AS source, toFloat64(_millpond_inserted_at - received_at) AS seconds FROM otel.otel_logs
    UNION ALL
    SELECT _millpond_received_at AS received_at, _millpond_source AS source, toFloat64(_millpond_inserted_at - received_at) AS seconds FROM otel.otel_traces
    UNION ALL
    SELECT _millpond_received_at AS received_at, _millpond_source AS source, toFloat64(_millpond_inserted_at - received_at) AS seconds
    FROM merge('otel', '^otel_metrics_')
)
GROUP BY minute, source;
