"""Traces and metrics on the whole way, beside logs, as telemetrygen sends them."""

from harness.process import eventually
from harness.services import forward_to, telemetrygen

METRICS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def _rows(site, table: str) -> int:
    return int(site.clickhouse.scalar(f"SELECT count() FROM {site.database}.{table}"))


def _traces_without_a_time(site) -> int:
    return int(
        site.clickhouse.scalar(
            f"SELECT uniqExact(TraceId) FROM {site.database}.otel_traces WHERE TraceId NOT IN"
            f" (SELECT TraceId FROM {site.database}.otel_traces_trace_id_ts)"
        )
    )


def test_telemetrygen_sends_every_signal(site):
    gateway, consumer = site.gateway(), site.consumer()
    collector = site.collector("otlp_grpc", forward_to(gateway.address))
    expected = {"otel_logs": 0, "otel_traces": 0, **{f"otel_metrics_{kind}": 0 for kind in METRICS}}
    for run, address in (("direct", gateway.address), ("forwarded", collector.address)):

        def generate(of: str, *flags: object, run=run, address=address) -> None:
            name = "-".join(("telemetrygen", run, of, *(str(flag) for flag in flags[-1:])))
            telemetrygen(site.directory, address, *flags, signal=of, name=name)

        generate("logs", "--logs", 500)
        expected["otel_logs"] += 500
        generate("traces", "--child-spans", 3, "--span-links", 2, "--traces", 250)
        expected["otel_traces"] += 250 * (1 + 3)
        for kind, table in (
            ("Gauge", "gauge"),
            ("Sum", "sum"),
            ("Histogram", "histogram"),
            ("ExponentialHistogram", "exponential_histogram"),
        ):
            generate("metrics", "--metrics", 200, "--metric-type", kind)
            expected[f"otel_metrics_{table}"] += 200

    def arrived() -> bool:
        for process in (gateway, consumer, collector):
            process.must_run()
        return all(_rows(site, table) >= rows for table, rows in expected.items())

    eventually("what was generated", arrived, timeout=120)
    for process in (collector, gateway, consumer):
        assert process.terminate() == 0
    assert {table: _rows(site, table) for table in expected} == expected
    assert _traces_without_a_time(site) == 0
    links = f"SELECT max(length(Links.SpanId)) FROM {site.database}.otel_traces"
    assert site.clickhouse.scalar(links) == "2"
