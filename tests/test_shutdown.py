"""SIGTERM drains: accepted records are committed, written ones acknowledged, the cursor is
released, and the exit code is 0."""

import signal

import pytest

from harness.exactly_once import assert_exactly_once, ids, wait_for_all
from harness.process import eventually


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_gateway_commits_what_it_accepted_before_it_ends(site, signal_number):
    gateway, consumer = site.gateway(), site.consumer()
    load = site.load(gateway, "--rate", 5_000, "--retry-for", "0s", records=20_000)
    load.start()
    eventually("the first acknowledgements", load.acknowledged)
    gateway.send(signal_number)
    assert gateway.wait() == 0
    gateway.up()
    load.wait()
    acknowledged = load.acknowledged()
    assert acknowledged
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_a_consumer_acknowledges_and_releases_its_cursor(site):
    gateway = site.gateway()
    load = site.load(gateway, "--rate", 5_000, records=15_000)
    load.start()
    # With such a long lease the second consumer starts only if the first has released the cursor.
    for number in range(3):
        consumer = site.consumer(
            "--lease", "10m", "--instance", f"i{number}", name=f"consumer-{number}"
        )
        seen = len(ids(site.clickhouse, site.database))
        eventually(
            "more rows",
            lambda seen=seen: len(ids(site.clickhouse, site.database)) > seen or not load.running(),
        )
        if number < 2:
            assert consumer.terminate() == 0
    assert load.wait() == 0
    acknowledged = load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_a_consumer_whose_store_is_away_ends_all_the_same(own_site):
    """The next consumer repeats the unacknowledged batches; nobody waits forever."""
    site = own_site
    gateway = site.gateway()
    consumer = site.consumer("--drain-timeout", "1s", "--lease", "3s")
    load = site.load(gateway, "--rate", 1_000, records=1_000_000)
    load.start()
    eventually("the first rows", lambda: ids(site.clickhouse, site.database))
    load.kill()
    site.store.kill()
    eventually("it to wait for its store", lambda: not consumer.ready())
    consumer.terminate()
    site.store.up()
    consumer.up()
    site.millpond("consumer", "wait", "e2e")
    assert consumer.terminate() == 0
