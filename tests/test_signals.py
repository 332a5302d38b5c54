"""Traces and metrics end to end, next to logs: sent by telemetrygen, and by senders that record
acknowledgements while the test kills everything behind them."""

import os
import random
import signal
import time

from harness.process import eventually
from harness.senders import METRICS, Senders, found, rows_with_ids
from harness.services import forward_to, telemetrygen


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

    eventually("the generated records", arrived, timeout=120)
    for process in (collector, gateway, consumer):
        assert process.terminate() == 0
    assert {table: _rows(site, table) for table in expected} == expected
    assert _traces_without_a_time(site) == 0
    links = f"SELECT max(length(Links.SpanId)) FROM {site.database}.otel_traces"
    assert site.clickhouse.scalar(links) == "2"


def _origins(site, name: str) -> list[dict]:
    """The batches and chunks of the rows with this id."""
    rows = rows_with_ids(site, "_millpond_sequence", "_millpond_record", "_millpond_received_at")
    return site.clickhouse.rows(f"SELECT * FROM ({rows}) WHERE id = '{name}'")


def test_acknowledged_spans_and_points_survive_every_kill(own_site):
    """As in `test_faults` for logs; a batch of metrics goes into five tables, and a view of the
    spans' table into a sixth."""
    site = own_site
    seed = int(os.environ.get("MILLPOND_TEST_SEED", random.randrange(2**32)))
    print(f"MILLPOND_TEST_SEED={seed}")
    dice = random.Random(seed)
    gateway, consumer = site.gateway(), site.consumer()
    faults = [
        *[(gateway, signal.SIGKILL)] * 2,
        *[(consumer, signal.SIGKILL)] * 4,
        (site.store, signal.SIGKILL),
        *[(site.clickhouse, signal.SIGKILL)] * 3,
    ]
    dice.shuffle(faults)
    with Senders(gateway.address) as senders:
        for process, signal_number in faults:
            time.sleep(dice.uniform(0.2, 2.0))
            process.send(signal_number)
            process.wait()
            process.up()
        acknowledged = senders.stop()
    print(f"{len(acknowledged)} acknowledged")
    assert len(acknowledged) >= 10 * Senders.RECORDS, "too few for a meaningful test"

    def arrived() -> bool:
        gateway.must_run()
        consumer.must_run()
        return not set(acknowledged) - found(site).keys()

    eventually("acknowledged spans and points", arrived, timeout=180, interval=1)
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    doubled = {name: count for name, count in found(site).items() if count > 1}
    assert not doubled, (
        f"{len(doubled)} are there more than once,"
        f" {len(doubled.keys() & set(acknowledged))} of them"
        f" acknowledged; one came in {_origins(site, min(doubled))}"
    )
    assert not set(acknowledged) - found(site).keys()
    assert _traces_without_a_time(site) == 0
    site.check_manifest()
