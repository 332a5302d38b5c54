"""Kills everything that can be killed, at random points, while records flow. Millpond's promise: an
acknowledged record is in ClickHouse exactly once.

The load generator sends each request once and never retries. A gateway that is killed between the
commit and the answer leaves a committed request without an answer, and a retry would append it
again. OTLP requests have no identity, so no receiver can tell. So an unacknowledged record may or
may not arrive, but never twice.
"""

import itertools
import os
import random
import time

import pytest

from harness.exactly_once import assert_exactly_once, assert_no_row_twice, wait_for_all
from harness.faults import Faults
from harness.network import Link, Toxiproxy
from harness.process import eventually
from harness.senders import Senders, found
from harness.services import Buffer, Millpond, Minio, Versitygw, free_port

# Longer than the consumer waits for an answer of ClickHouse, which a connection whose end gets lost
# would hold up for that long.
UNANSWERED = 480


def _seed() -> int:
    """A failure prints it; MILLPOND_TEST_SEED runs the same schedule again."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", random.randrange(2**32)))
    print(f"MILLPOND_TEST_SEED={seed}")
    return seed


@pytest.mark.parametrize("own_site", [Minio, Versitygw], indirect=True)
def test_acknowledged_records_survive_every_fault(own_site):
    """Two gateways and two consumers of one name, with constant garbage collection, while the
    network fails and processes die. Logs, spans and data points go into tables whose deduplication
    windows change from round to round. On MinIO the gateways commit for each other and for two
    Collectors, of which one may lead as well, and the network to two of them fails, too. Runs one
    round of faults, or as many as fit into SOAK_MINUTES.
    """
    site = own_site
    dice = random.Random(_seed())
    proxy = site.add(Toxiproxy(site.directory)).up()
    store, clickhouse = (
        proxy.link("store", site.store.port),
        proxy.link("clickhouse", site.clickhouse.port),
    )
    site.buffer = Buffer(site.buffer.url, store.url)
    site.clickhouse_url = clickhouse.url
    shares = isinstance(site.store, Minio)
    peers, to_leaders = _peers(proxy) if shares else ([(), ()], [])
    gateways = [
        site.gateway("--tail-max", 32, *flags, name=f"gateway-{n}")
        for n, flags in zip("ab", peers, strict=True)
    ]
    producers = [*gateways]
    if shares:
        leads, link = _leading_collector(proxy)
        to_leaders.append(link)
        for name, settings in (("otelcol-c", {"enabled": True}), ("otelcol-d", leads)):
            producers.append(site.millpond_collector(name, peers=settings, tail_max=32))
    # Grace and lease long enough for progress on a slow machine: otherwise gateways would upload
    # again and again, and consumers would take the cursor from one another.
    flags = ("--gc-interval", "1s", "--gc-grace", "60s", "--lease", "15s")
    consumers = [site.consumer(*flags, "--instance", n, name=f"consumer-{n}") for n in "ab"]
    faults = Faults(
        dice,
        [*producers, *consumers],
        [site.store, site.clickhouse],
        [store, clickhouse, *to_leaders],
    )

    compared, others = 0, []
    deadline = time.monotonic() + 60 * float(os.environ.get("SOAK_MINUTES", 0))
    for number in itertools.count():
        loads = [
            site.load(
                producer,
                *("--rate", 300, "--retry-for", "0s", "--run", f"{number}{producer.name[-1]}"),
                records=1_000_000_000,
                name=f"load-{number}-{producer.name}",
            )
            for producer in producers
        ]
        for load in loads:
            load.start()
        with Senders(gateways[number % 2].address, pause=0.5, run=f"{number}-") as senders:
            if number > 0:
                _change_windows(site, WINDOWS[number % len(WINDOWS)])
            for _ in range(faults.steps_in_a_round):
                faults.step()
            others += senders.stop()
        # When a load ends, every request has an answer or an error.
        for load in loads:
            load.terminate(180)
        faults.until_all_are_ready()
        acknowledged = [name for load in loads for name in load.acknowledged()]
        assert len(acknowledged) > 1_000, "too few acknowledged records for a meaningful test"
        runs = [f"{number}{producer.name[-1]}" for producer in producers]
        wait_for_all(
            acknowledged, site.clickhouse, site.database, *consumers, timeout=UNANSWERED, runs=runs
        )
        _wait_for_others(site, others, consumers)
        compared += len(acknowledged)
        if shares:
            committed = "millpond_producer_commits_for_others_total"
            print(f"commits for others: {[producer.metric(committed) for producer in producers]}")
        print(
            f"{faults.counts.total()} faults, {faults.crashes} crashes, {compared} records compared"
        )
        if time.monotonic() >= deadline:
            break
        assert_exactly_once(acknowledged, site.clickhouse, site.database, runs=runs)

    ended = [process.terminate() for process in (*producers, *consumers)]
    assert ended == [0] * len(ended)
    # Nothing can arrive anymore: check the last round, and that no row of any round occurs twice.
    assert_exactly_once(acknowledged, site.clickhouse, site.database, runs=runs)
    assert_no_row_twice(site.clickhouse, site.database)
    there = found(site)
    assert not set(others) - there.keys()
    doubled = {name: count for name, count in there.items() if count > 1}
    assert not doubled, f"{len(doubled)} spans and points occur more than once: {min(doubled)}"
    print(f"{len(others)} spans and points compared")
    site.check_manifest()


def _peers(proxy: Toxiproxy) -> tuple[list[tuple[str, ...]], list[Link]]:
    """The flags of two gateways that commit for each other, and the link to the first one."""
    ports = [free_port(), free_port()]
    link = proxy.link("gateway-a", ports[0])
    listens = [("--peer-listen", f"127.0.0.1:{port}") for port in ports]
    advertised = ("--advertise", link.url.removeprefix("http://"))
    return [(*listens[0], *advertised), listens[1]], [link]


def _leading_collector(proxy: Toxiproxy) -> tuple[dict, Link]:
    """The settings `peers` of a Collector that may lead, and the link to it."""
    port = free_port()
    link = proxy.link("otelcol-d", port)
    advertise = link.url.removeprefix("http://")
    return {"enabled": True, "listen": f"127.0.0.1:{port}", "advertise": advertise}, link


# Number of tokens that the tables remember in each round: the default, few, and none.
WINDOWS = [10_000, 64, 0]


def _change_windows(site, window: int) -> None:
    tables = site.clickhouse.lines(
        f"SELECT name FROM system.tables WHERE database = '{site.database}'"
        " AND engine LIKE '%MergeTree'"
    )
    for table in tables:
        setting = f"non_replicated_deduplication_window = {window}"
        site.clickhouse.query(f"ALTER TABLE {site.database}.{table} MODIFY SETTING {setting}")
    print(f"the tables remember {window} tokens")


def _wait_for_others(site, acknowledged: list[str], consumers: list[Millpond]) -> None:
    def arrived() -> bool:
        for process in (site.clickhouse, *consumers):
            process.must_run()
        return not set(acknowledged) - found(site).keys()

    eventually("acknowledged spans and points", arrived, timeout=180, interval=1)


def test_an_unreported_insert_is_there_once(own_site):
    """The store and ClickHouse execute requests, but their answers are cut off."""
    site = own_site
    proxy = site.add(Toxiproxy(site.directory)).up()
    store, clickhouse = (
        proxy.link("store", site.store.port),
        proxy.link("clickhouse", site.clickhouse.port),
    )
    site.buffer = Buffer(site.buffer.url, store.url)
    site.clickhouse_url = clickhouse.url
    gateway = site.gateway()
    consumer = site.consumer()
    load = site.load(gateway, "--rate", 1_000, "--retry-for", "0s", records=1_000_000_000)
    load.start()

    def until_counted(link: Link, process: Millpond, metric: str) -> None:
        """Cuts answers off until the process has counted one more lost answer."""
        before = process.metric(metric)
        # The first answers on a connection pass and a later one does not: an upload's or a
        # commit's.
        bytes_heard = itertools.cycle(range(100, 2_000, 150))

        def counted() -> bool:
            load.must_run()
            link.cut_answers(next(bytes_heard))
            time.sleep(0.3)
            link.restore()
            return process.metric(metric) > before

        eventually(f"{metric} of {process.name}", counted, interval=0.2)

    for _ in range(3):
        until_counted(store, gateway, "millpond_producer_commits_found_total")
        until_counted(clickhouse, consumer, "millpond_consumer_write_retries_total")
    load.terminate()
    acknowledged = load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer)
    assert [gateway.terminate(), consumer.terminate()] == [0, 0]
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    site.check_manifest()


def test_an_outage_of_the_store_delays_requests_and_loses_none(own_site):
    """An outage of the store holds requests back; accepted ones are committed afterwards."""
    site = own_site
    gateway, consumer = site.gateway(), site.consumer()
    site.store.kill()
    load = site.load(gateway, "--retry-for", "120s", records=2_000)
    load.start()
    consumer.must_run()
    gateway.must_run()
    assert load.acknowledged() == []
    site.store.up()
    assert load.wait(120) == 0
    assert len(load.acknowledged()) == 2_000
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)


def test_the_start_waits_for_an_unreachable_store(own_site):
    site = own_site
    site.gateway(name="gateway-before").terminate()
    site.store.kill()
    gateway, consumer = site.gateway_of(), site.consumer_of()
    for process in (gateway, consumer):
        process.start()
        eventually("the wait to be reported", lambda p=process: "trying again" in p.messages())
        assert not process.ready()
    site.store.up()
    gateway.until_ready()
    load = site.load(gateway, records=2_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)


def test_the_start_waits_for_an_unreachable_clickhouse(own_site):
    site = own_site
    gateway = site.gateway()
    site.clickhouse.kill()
    consumer = site.consumer_of()
    consumer.start()
    load = site.load(gateway, records=2_000)
    load.run()
    eventually("the consumer's admin port", consumer.alive)
    assert not consumer.ready(), "the consumer says that it is ready without ClickHouse"
    consumer.must_run()
    site.clickhouse.up()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
