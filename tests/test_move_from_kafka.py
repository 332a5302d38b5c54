"""Moving from Kafka between two Collectors to Millpond, in the steps of docs/migrate-from-kafka.md:
both paths in parallel, the cut-over, the drained topic; no gap, no duplicate."""

import time
from collections import Counter

import pytest

from harness.kafka import Kafka, needs_kafka, read_from, write_to
from harness.process import PATIENCE, eventually
from harness.senders import LogSender
from harness.services import Buffer, Collector, export_to_clickhouse, forward_to

pytestmark = needs_kafka

# The receiver's default group.
GROUP = "otel-collector"

# For what takes seconds on an idle machine: Kafka's tools, 35 ALTERs, queues that run empty.
LONG = 4 * PATIENCE

# No consumer dies here, so none needs a lease that a busy machine cannot keep.
UNHURRIED = ("--ack-interval", "50ms", "--lease", "60s")


@pytest.fixture
def kafka(site) -> Kafka:
    return site.add(Kafka(site.directory).format()).up()


@pytest.fixture
def reading(site, kafka):
    """The old path's second Collector: from the topic to ClickHouse. It commits an offset once
    ClickHouse has the rows, so a lag of 0 says that they are in the tables."""
    exporter = export_to_clickhouse(site.clickhouse.url, site.database)
    exporter["timeout"] = "300s"
    collector = site.add(Collector(site.directory, "clickhouse", exporter, name="reading"))
    collector.rewire("receivers", kafka=read_from(kafka, GROUP))
    return collector.up()


@pytest.fixture
def sending(site, kafka, reading):
    """The old path's first Collector: from OTLP to the topic."""
    return site.collector("kafka", write_to(kafka), name="sending")


@pytest.fixture
def sender(sending):
    sender = LogSender(sending.address)
    sender.start()
    yield sender
    sender.stop()


def _forward_to(gateway) -> dict:
    """The page's settings of the senders' exporter."""
    queue = {"enabled": True, "num_consumers": 50, "block_on_overflow": True}
    return {**forward_to(gateway.address), "sending_queue": queue}


def _bodies(site, database: str, where: str = "1") -> Counter[str]:
    return Counter(site.clickhouse.lines(f"SELECT Body FROM {database}.otel_logs WHERE {where}"))


def _await_more(sender) -> None:
    """Waits until the sender has sent a number of further records."""
    enough = len(sender.accepted) + 20
    eventually("further records to be accepted", lambda: len(sender.accepted) > enough)


def _migrate(site) -> None:
    tables = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    assert site.begun("tables", "migrate", *tables).wait(LONG) == 0


def _restart_with(collector, **exporters) -> None:
    collector.rewire("exporters", **exporters)
    assert collector.terminate(LONG) == 0
    collector.up()


def _drained(kafka) -> None:
    eventually("the topic to be drained", lambda: kafka.lag(GROUP) == 0, LONG, 1)


def _await_rows(site, sender) -> None:
    eventually(
        "every accepted record",
        lambda: set(sender.accepted) <= set(_bodies(site, site.database)),
        LONG,
    )


def _expect_each_once(site, sender) -> None:
    """Asserts that the table has every accepted record once, and at most once each doubtful one."""
    _await_rows(site, sender)
    rows = _bodies(site, site.database)
    assert set(rows) <= {*sender.accepted, *sender.doubtful}
    assert {body: count for body, count in rows.items() if count != 1} == {}


def _rows_of_millpond(site) -> int:
    ours = f"SELECT countIf(_millpond_source != '') FROM {site.database}.otel_logs"
    return int(site.clickhouse.scalar(ours))


def _compare(site, sender, trial: str) -> None:
    """Compares both databases over a span that has ended, as the page does."""
    since = time.time_ns()
    _await_more(sender)
    until = time.time_ns()
    # The sender sends in order, so every record of the span is answered now.
    _await_more(sender)
    sent = {body for body, sent_at in sender.accepted.copy().items() if since <= sent_at < until}
    assert len(sent) > 10
    span = " AND ".join(
        f"Timestamp {compared} fromUnixTimestamp64Nano({instant})"
        for compared, instant in ((">=", since), ("<", until))
    )
    for database in (site.database, trial):
        eventually(
            f"the span's records in {database}",
            lambda database=database: sent <= set(_bodies(site, database, span)),
            LONG,
        )
    assert _bodies(site, site.database, span) == _bodies(site, trial, span) == Counter(sent)


def test_moving_leaves_no_gap_and_no_duplicate(site, kafka, reading, sending, sender):
    eventually("rows by the old path", lambda: _bodies(site, site.database), LONG)
    _migrate(site)

    # Both paths in parallel, with a buffer and a database for the trial.
    production = site.buffer
    trial = f"{site.database}_trial"
    site.buffer = Buffer(f"{production.url}-trial", production.endpoint)
    tried = [site.gateway("--linger", "20ms", name="trial-gateway")]
    tried.append(site.consumer(*UNHURRIED, database=trial, name="trial-consumer"))
    both = {"otlp_grpc/millpond": _forward_to(tried[0])}
    _restart_with(sending, kafka=write_to(kafka), **both)
    _compare(site, sender, trial)

    # The topic has a backlog when its writer goes over.
    with sender.paused():
        # A reader that stops during an INSERT reads its message again. The rows say that the
        # sender's Collector has nothing left to write to the topic.
        _await_rows(site, sender)
        _drained(kafka)
        assert reading.terminate() == 0
    _await_more(sender)
    site.buffer = production
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer(*UNHURRIED)
    _restart_with(sending, otlp_grpc=_forward_to(gateway))
    assert kafka.lag(GROUP) > 0
    _await_more(sender)
    eventually("new records by the new path", lambda: _rows_of_millpond(site) > 10, LONG)

    # The old consumers drain the topic into the same tables.
    reading.up()
    _drained(kafka)
    assert reading.terminate() == 0
    for process in tried:
        assert process.terminate() == 0
    kafka.kill()
    _await_more(sender)
    sender.stop()
    assert sending.terminate() == 0
    _expect_each_once(site, sender)
    consumer.must_run()
    assert site.begun("consumer", "wait", "e2e", *site.buffer.flags).wait(LONG) == 0


def test_going_back_leaves_no_gap_and_no_duplicate(site, kafka, reading, sending, sender):
    eventually("rows by the old path", lambda: _bodies(site, site.database), LONG)
    _migrate(site)
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer(*UNHURRIED)
    _restart_with(sending, otlp_grpc=_forward_to(gateway))
    _drained(kafka)
    assert reading.terminate() == 0
    _await_more(sender)

    # The old consumers come first, then the senders.
    reading.up()
    _restart_with(sending, kafka=write_to(kafka))
    _await_more(sender)
    assert gateway.terminate() == 0
    assert site.begun("consumer", "wait", "e2e", *site.buffer.flags).wait(LONG) == 0
    assert consumer.terminate() == 0
    sender.stop()
    assert sending.terminate() == 0
    _drained(kafka)
    _expect_each_once(site, sender)
    assert _rows_of_millpond(site) > 10


def test_clickhouses_kafka_engine_stops_for_good_and_continues(own_site):
    """The page's statements for a reader that is a view on a table of ClickHouse's Kafka engine."""
    site = own_site
    kafka = site.add(Kafka(site.directory).format()).up()
    for statement in (
        "CREATE DATABASE otel",
        "CREATE TABLE otel.otel_logs (Body String) ENGINE = MergeTree ORDER BY ()",
        f"CREATE TABLE otel.queue (message String) ENGINE = Kafka('{kafka.address}', 'otlp_logs', "
        f"'{GROUP}', 'RawBLOB') SETTINGS kafka_flush_interval_ms = 500",
        "CREATE MATERIALIZED VIEW otel.logs_consumer TO otel.otel_logs AS "
        "SELECT arrayJoin(extractAll(message, 'record [0-9]+')) AS Body FROM otel.queue",
    ):
        site.clickhouse.query(statement)
    site.database = "otel"
    topic = {"topic": "otlp_logs", "encoding": "otlp_json"}
    sending = site.collector("kafka", {**write_to(kafka), "logs": topic}, name="sending")
    sender = LogSender(sending.address)
    sender.start()
    _await_more(sender)
    with sender.paused():
        _await_rows(site, sender)
        _drained(kafka)
        site.clickhouse.query("DETACH TABLE otel.logs_consumer PERMANENTLY")
    assert site.clickhouse.terminate() == 0
    site.clickhouse.up()
    views = "SELECT count() FROM system.tables WHERE name = 'logs_consumer'"
    assert site.clickhouse.scalar(views) == "0"
    _await_more(sender)
    eventually("a backlog", lambda: kafka.lag(GROUP) > 0, LONG, 1)
    site.clickhouse.query("ATTACH TABLE otel.logs_consumer")
    sender.stop()
    assert sending.terminate(LONG) == 0
    _drained(kafka)
    _expect_each_once(site, sender)
