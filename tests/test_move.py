"""Moving from the Collector's clickhouseexporter to Millpond, in the steps of
docs/migrate-from-clickhouseexporter.md: the same tables, no gap, no duplicate."""

import signal
import time
from collections import Counter

import pytest

from harness.corpus import record, request
from harness.otlp import export
from harness.process import eventually
from harness.senders import LogSender
from harness.services import export_to_clickhouse, forward_to


def _tables(site) -> tuple[object, ...]:
    return ("--clickhouse", site.clickhouse.url, "--database", site.database)


def _bodies(site) -> Counter[str]:
    return Counter(site.clickhouse.lines(f"SELECT Body FROM {site.database}.otel_logs"))


@pytest.fixture
def exporting(site):
    """A Collector whose clickhouseexporter has made its tables and filled one."""
    exporter = export_to_clickhouse(site.clickhouse.url, site.database)
    collector = site.collector("clickhouse", exporter)
    made = request(record("before", body="written before"))
    export(collector.address, made.SerializeToString())
    return collector


def test_the_exporters_tables_are_refused_with_a_short_summary_and_fit_once_migrated(
    site, exporting
):
    site.gateway().terminate()
    refused = site.millpond("consume", *_tables(site), code=1).messages()
    assert len(refused) < 2_500, refused
    assert "`otel_logs` lacks the columns _millpond_received_at, _millpond_inserted_at" in refused
    assert "millpond tables migrate" in refused
    assert "--columns none" in refused
    assert "ALTER TABLE" not in refused

    created = site.parsed(site.command("tables", "create", *_tables(site), "--json", code=1))
    assert not created["fit"]
    dry = site.command("tables", "migrate", *_tables(site), "--dry-run")
    again = site.command("tables", "migrate", *_tables(site), "--dry-run")
    assert dry.stdout() == again.stdout(), "a dry run changes nothing"
    for statement in dry.stdout().split(";\n"):
        if statement.strip():
            site.clickhouse.query(statement)
    fits = site.command("tables", "migrate", *_tables(site))
    assert "every table fits" in fits.stdout()
    created = site.parsed(site.command("tables", "create", *_tables(site), "--json"))
    assert created["fit"]
    assert [table["window"] for table in created["tables"]] == [None] * len(created["tables"])


def test_migrate_changes_what_a_dry_run_prints(site, exporting):
    dry = site.parsed(site.command("tables", "migrate", *_tables(site), "--dry-run", "--json"))
    assert (dry["complete"], dry["ran"]) == (True, False)
    # One ALTER for the columns of a table, and one for its window.
    logs = next(t for t in dry["tables"] if t["what"].endswith("`otel_logs`"))
    assert [statement.count("ADD COLUMN") for statement in logs["statements"]] == [5, 0]
    assert "MODIFY SETTING non_replicated_deduplication_window" in logs["statements"][1]
    done = site.parsed(site.command("tables", "migrate", *_tables(site), "--json"))
    assert (done["complete"], done["ran"], done["left"]) == (True, True, [])
    assert done["tables"] == dry["tables"]
    site.gateway().terminate()
    consumer = site.consumer()
    eventually("the consumer to own its cursor", consumer.owns)
    assert "deduplication_window" not in consumer.messages(), "migrate and consume agree"
    assert consumer.terminate() == 0


def test_moving_leaves_no_gap_and_no_duplicate(site, exporting):
    site.command("tables", "migrate", *_tables(site))
    # The exporter goes on inserting into the changed tables while somebody sends.
    sender = LogSender(exporting.address)
    sender.start()
    eventually("some records by the old path", lambda: len(sender.accepted) > 20)

    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--ack-interval", "50ms")
    exporting.rewire("exporters", otlp_grpc=forward_to(gateway.address))
    assert exporting.terminate() == 0
    before = len(sender.accepted)
    exporting.up()
    eventually("some records by the new path", lambda: len(sender.accepted) > before + 20)
    sender.stop()
    # When the Collector stops, it delivers what its queue holds.
    assert exporting.terminate() == 0

    def arrived() -> bool:
        consumer.must_run()
        return set(sender.accepted) <= set(_bodies(site))

    eventually("every accepted record", arrived)
    assert consumer.terminate() == 0
    rows = _bodies(site)
    assert rows.pop("written before") == 1
    assert set(rows) <= {*sender.accepted, *sender.doubtful}
    assert {body: count for body, count in rows.items() if count != 1} == {}
    ours = f"SELECT countIf(_millpond_source != '') FROM {site.database}.otel_logs"
    assert int(site.clickhouse.scalar(ours)) > 20


def test_a_commit_that_outlasts_an_exporters_default_timeout_is_there_once(own_site):
    site = own_site
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--ack-interval", "50ms", "--lease", "60s")
    collector = site.collector("otlp_grpc", forward_to(gateway.address))
    sender = LogSender(collector.address)
    sender.start()
    eventually("some records", lambda: len(sender.accepted) > 20)
    site.store.send(signal.SIGSTOP)
    eventually(
        "a request to wait for its commit",
        lambda: gateway.metric("millpond_gateway_requests_in_flight") > 0,
    )
    # The exporter's queue accepts records meanwhile.
    with sender.paused():
        # The default is 5 s. With that, the exporter repeats the request, and both are committed.
        time.sleep(6)
    site.store.send(signal.SIGCONT)
    sender.stop()
    assert collector.terminate() == 0
    eventually("every accepted record", lambda: set(sender.accepted) <= set(_bodies(site)))
    assert consumer.terminate() == 0
    assert {body: count for body, count in _bodies(site).items() if count != 1} == {}
