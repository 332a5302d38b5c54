"""The Collector's exporter `millpond` (otel-exporter/), a producer in Go: ClickHouse has everything
that the Collector acknowledged exactly once, next to gateways on the same buffer and whatever is
killed."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from harness.exactly_once import assert_exactly_once, ids, rows_of, wait_for_all
from harness.process import eventually
from harness.services import REPOSITORY, MillpondCollector, telemetrygen


def _dice() -> random.Random:
    """A failure prints its seed; MILLPOND_TEST_SEED runs the same schedule again."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", random.randrange(2**32)))
    print(f"MILLPOND_TEST_SEED={seed}")
    return random.Random(seed)


def test_every_acknowledged_record_is_in_clickhouse_once(site):
    collector, consumer = site.millpond_collector(), site.consumer()
    load = site.load(collector, records=20_000)
    load.run()
    acknowledged = load.acknowledged()
    assert len(acknowledged) == 20_000
    wait_for_all(acknowledged, site.clickhouse, site.database, collector, consumer)
    assert collector.terminate() == 0
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    assert rows_of(site.clickhouse, site.database) == 20_000
    site.check_manifest()


def test_a_stopping_collector_commits_what_its_queue_has(site):
    """With a queue the Collector answers before the commit; a stop loses nothing of the queue."""
    collector = site.millpond_collector(
        sending_queue={"enabled": True, "num_consumers": 20}, linger="1s"
    )
    load = site.load(collector, records=3_000)
    load.run()
    assert collector.terminate() == 0
    consumer = site.consumer()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def test_producers_of_both_languages_share_a_buffer_whatever_is_killed(own_site):
    """A gateway (Rust) and a Collector (Go) commit to one manifest. Neither client retries, so
    unacknowledged records may occur, but never twice: OTLP requests have no identity."""
    site, dice = own_site, _dice()
    # Both seal full tails all the time.
    gateway = site.gateway("--tail-max", 20)
    collector = site.millpond_collector(tail_max=20)
    consumer = site.consumer()
    faults = [
        *[(gateway, signal.SIGKILL)] * 2,
        *[(collector, signal.SIGKILL)] * 3,
        (collector, signal.SIGTERM),
        *[(site.store, signal.SIGKILL)] * 2,
        (consumer, signal.SIGKILL),
    ]
    dice.shuffle(faults)
    flags = ("--rate", 1_000, "--retry-for", "0s")
    loads = [
        site.load(gateway, *flags, records=20_000, name="load-gateway"),
        site.load(collector, *flags, records=20_000, name="load-collector"),
    ]
    for load in loads:
        load.start()
        eventually("some records to be taken", load.acknowledged)
    for process, signal_number in faults:
        time.sleep(dice.uniform(0.1, 1.5))
        print(f"{process.name}: signal {signal_number}")
        process.send(signal_number)
        process.wait()
        if process is site.store:
            time.sleep(dice.uniform(0.1, 2.0))
        process.up()
    for load in loads:
        load.wait(180)
        print(f"{load.name}: {len(load.acknowledged())} of 20000 acknowledged")
    # Both recover from the faults.
    for producer in (gateway, collector):
        loads.append(site.load(producer, records=2_000, name=f"load-{producer.name}-after"))
        loads[-1].run()
        assert len(loads[-1].acknowledged()) == 2_000
    acknowledged = [name for load in loads for name in load.acknowledged()]
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, collector, consumer)
    assert gateway.terminate() == 0
    assert collector.terminate() == 0
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    site.check_manifest()


def test_a_persistent_queue_survives_the_kill_of_its_collector(own_site):
    """The next Collector commits what the queue has taken. A request that was committed but still
    in the queue at the kill is appended again: at most one per consumer of the queue."""
    site, kills, consumers, per_request = own_site, 2, 4, 100
    queue = site.directory / "queue"
    queue.mkdir()
    collector = site.millpond_collector(
        extensions={"file_storage": {"directory": str(queue)}},
        sending_queue={
            "enabled": True,
            "storage": "file_storage",
            "num_consumers": consumers,
            "queue_size": 100_000,
        },
        retry_on_failure={"enabled": True, "initial_interval": "100ms", "max_elapsed_time": "0s"},
    )
    consumer = site.consumer()
    flags = ("--rate", 2_000, "--retry-for", "0s", "--records-per-request", per_request)
    acknowledged = []
    for number in range(kills):
        load = site.load(collector, *flags, records=10_000, name=f"load-{number}")
        load.start()
        eventually("some records to be taken", load.acknowledged)
        collector.kill()
        collector.up()
        load.wait(120)
        acknowledged += load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, collector, consumer)
    assert collector.terminate() == 0
    assert consumer.terminate() == 0
    found = ids(site.clickhouse, site.database)
    doubled = sum(count - 1 for count in found.values())
    assert doubled <= kills * consumers * per_request, f"{doubled} records are duplicated"
    site.check_manifest()


def _kept_in(directory: Path) -> dict:
    """Settings of a Collector whose queue is in a directory."""
    directory.mkdir(exist_ok=True)
    return {
        "extensions": {"file_storage": {"directory": str(directory)}},
        "sending_queue": {"enabled": True, "storage": "file_storage"},
        "retry_on_failure": {"enabled": True, "max_elapsed_time": "0s"},
    }


def test_a_collector_starts_without_its_store_and_commits_when_it_is_there(own_site):
    site = own_site
    site.store.kill()
    # One answers from its queue, the other with the commit: neither loses a record.
    queued = site.millpond_collector("queued", sending_queue={"enabled": True})
    direct = site.millpond_collector("direct")
    # A request waits for its answer as long as it may be retried.
    patient = ("--retry-for", "300s")
    before = site.load(queued, *patient, records=2_000, name="load-queued")
    before.run()
    assert len(before.acknowledged()) == 2_000
    waiting = site.load(direct, *patient, records=2_000, name="load-direct")
    waiting.start()
    for collector in (queued, direct):
        eventually("the reason", lambda log=collector.messages: "is waiting for the store" in log())
        collector.must_run()
    site.store.up()
    assert waiting.wait(300) == 0
    assert waiting.report()["retries"] == 0
    assert len(waiting.acknowledged()) == 2_000
    consumer = site.consumer()
    acknowledged = before.acknowledged() + waiting.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, queued, direct, consumer)
    for process in (queued, direct, consumer):
        assert process.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    assert rows_of(site.clickhouse, site.database) == 4_000
    site.check_manifest()


@pytest.mark.parametrize(
    ("settings", "environment", "reason"),
    [
        ({"create_bucket": False}, {}, "there is no such bucket; create it, or set create_bucket"),
        ({}, {"AWS_SECRET_ACCESS_KEY": "another"}, "403 SignatureDoesNotMatch"),
    ],
    ids=["no bucket", "wrong credentials"],
)
@pytest.mark.parametrize("away", [True, False], ids=["store away at the start", "store there"])
def test_a_mistake_ends_the_collector_and_loses_nothing(
    own_site, settings, environment, reason, away
):
    """At the start if the store is reachable then, otherwise once it is."""
    site = own_site
    queue = _kept_in(site.directory / "queue")
    wrong = site.millpond_gc_of("wrong", **queue, **settings)
    wrong.environment.update(environment)
    acknowledged = []
    if away:
        site.store.kill()
        wrong.up()
        load = site.load(wrong, records=2_000)
        load.run()
        acknowledged = load.acknowledged()
        assert len(acknowledged) == 2_000
        wrong.must_run()
        site.store.up()
    else:
        wrong.start()
    assert wrong.wait() == 1
    assert reason in wrong.messages()
    # With the mistake fixed, it sends the content of its queue.
    repaired = site.millpond_collector("repaired", **queue)
    consumer = site.consumer()
    wait_for_all(acknowledged, site.clickhouse, site.database, repaired, consumer)
    assert repaired.terminate() == 0
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_the_configuration_of_the_readme_works(site, tmp_path):
    readme = (REPOSITORY / "otel-exporter" / "README.md").read_text()
    (configuration,) = re.findall(r"```yaml\n(receivers:.*?)```", readme, re.DOTALL)
    collector = site.add(MillpondCollector(tmp_path, "millpond", {}, name="readme"))
    # The reader's changes: the bucket, and here an endpoint, a port and creating the bucket.
    for written, here in {
        "s3://my-bucket/telemetry": f"{site.buffer.url}\n    create_bucket: true",
        "0.0.0.0:4317": collector.address,
        "/var/lib/otelcol": str(tmp_path),
    }.items():
        assert configuration.count(written) == 1, written
        configuration = configuration.replace(written, here)
    # The file ends in the section `service`. The Collector's own metrics would need another port.
    configuration += "  telemetry: { metrics: { level: none } }\n"
    (tmp_path / "readme.yaml").write_text(configuration)
    collector.environment["AWS_ENDPOINT_URL"] = site.buffer.endpoint
    collector.up()
    consumer = site.consumer()
    expected = {"otel_logs": 500, "otel_traces": 400, "otel_metrics_gauge": 200}
    for of, *flags in (
        ("logs", "--logs", 500),
        ("traces", "--traces", 100, "--child-spans", 3),
        ("metrics", "--metrics", 200, "--metric-type", "Gauge"),
    ):
        telemetrygen(
            site.directory, collector.address, *flags, signal=of, name=f"telemetrygen-{of}"
        )

    def found() -> dict[str, int]:
        count = f"SELECT count() FROM {site.database}."
        return {table: int(site.clickhouse.scalar(count + table)) for table in expected}

    eventually(
        "every record",
        lambda: all(found()[table] >= rows for table, rows in expected.items()),
        timeout=60,
    )
    assert collector.terminate() == 0
    assert consumer.terminate() == 0
    assert found() == expected
