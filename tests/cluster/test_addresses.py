"""One consumer with the addresses of several replicas: every acknowledged record is there once,
whichever replica dies or lags."""

from __future__ import annotations

import random
import signal

import pytest

from cluster.pipeline import Pipeline
from cluster.servers import Cluster, Node
from harness.process import eventually
from harness.services import Consumer, Load

RECORDS = 20_000
FAILOVERS = "millpond_clickhouse_failovers_total"


@pytest.fixture(scope="module")
def trio(new_cluster) -> Cluster:
    return new_cluster(shards=(3,))


def _moved(consumer: Consumer, before: float) -> None:
    eventually("another address", lambda: consumer.metric(FAILOVERS) > before, timeout=120)


def _stop(node: Node, how: str) -> None:
    if how == "kill":
        node.kill()
    else:
        node.send(signal.SIGSTOP)


def _go_on(node: Node, how: str) -> None:
    if how == "kill":
        node.start()
    else:
        node.send(signal.SIGCONT)
    node.until_ready()


def _settled(pipeline: Pipeline, loads: list[Load], consumer: Consumer) -> None:
    for load in loads:
        pipeline.wait_for(load, pipeline.cluster.nodes[0])
    pipeline.settled(loads[-1], consumer)
    for load in loads[:-1]:
        pipeline.assert_once(load, *pipeline.cluster.nodes)


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_the_next_replica_takes_the_place_of_one_that_dies(trio, new_pipeline, how):
    pipeline = new_pipeline(trio)
    pipeline.share_uuid()
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume_at(*trio.nodes)
    dice = random.Random(11)
    loads = []
    for victim in trio.nodes:
        load = pipeline.loaded(gateway, RECORDS, name=f"load-{victim.name}")
        loads.append(load)
        pipeline.rows_come_in(dice.randrange(100, 1500), RECORDS * len(loads))
        before = consumer.metric(FAILOVERS)
        _stop(victim, how)
        _moved(consumer, before)
        _go_on(victim, how)
        assert load.wait(180) == 0
    _settled(pipeline, loads, consumer)


def test_the_answer_of_a_lagging_replica_is_not_certain(trio, new_pipeline):
    """The first replica dies with rows that the second one has not fetched and cannot fetch. The
    consumer must not repeat an attempt that may have landed on the second replica's word."""
    pipeline = new_pipeline(trio)
    pipeline.share_uuid()
    # The table forgets tokens at once, so only the question protects from duplicates.
    setting = "replicated_deduplication_window = 0"
    trio.everywhere(f"ALTER TABLE {pipeline.table} MODIFY SETTING {setting}")
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume_at(*trio.nodes)
    load = pipeline.loaded(gateway, RECORDS)
    first, lagging, _ = trio.nodes
    pipeline.rows_come_in(500, RECORDS)
    lagging.query(f"SYSTEM STOP FETCHES {pipeline.table}")
    pipeline.rows_come_in(1_000, RECORDS)
    before = consumer.metric(FAILOVERS)
    first.kill()
    _moved(consumer, before)
    first.start()
    first.until_ready()
    lagging.query(f"SYSTEM START FETCHES {pipeline.table}")
    assert load.wait(180) == 0
    pipeline.settled(load, consumer)


def test_equal_tables_of_two_keepers_are_refused(new_cluster, new_pipeline):
    """The same path and the same statement, in two clusters that know nothing of each other. This
    engine lacks system.zookeeper, which would tell the Keepers apart."""
    one, other = new_cluster(shards=(1,)), new_cluster(shards=(1,))
    pipeline = new_pipeline(one)
    pipeline.make_table(other.nodes[0])
    pipeline.clickhouse_url = f"{one.nodes[0].url},{other.nodes[0].url}"
    pipeline.gateway()
    consumer = pipeline.consumer_of(*pipeline.flags())
    consumer.start()
    eventually("the consumer ends", lambda: not consumer.running())
    assert "cannot be shown to be one table" in consumer.messages()
    for url in (one.nodes[0].url, other.nodes[0].url):
        assert url in consumer.messages()


def test_shards_are_not_replicas(new_cluster, new_pipeline):
    shards = new_cluster(shards=(1, 1))
    pipeline = new_pipeline(shards)
    pipeline.clickhouse_url = ",".join(node.url for node in shards.nodes)
    pipeline.gateway()
    consumer = pipeline.consumer_of(*pipeline.flags())
    consumer.start()
    eventually("the consumer ends", lambda: not consumer.running())
    assert "is not one table: its paths in Keeper are" in consumer.messages()


def test_doctor_looks_at_every_replica(trio, new_pipeline):
    pipeline = new_pipeline(trio)
    pipeline.share_uuid()
    pipeline.gateway()
    urls = [node.url for node in trio.nodes]
    flags = [flag for url in urls for flag in ("--clickhouse", url)]
    place = ("--database", pipeline.database, "--signals", "logs")
    found = pipeline.millpond("doctor", *place, *flags).stdout()
    assert all(f"answers at {url}" in found for url in urls), found
    trio.nodes[1].kill()
    found = pipeline.millpond("doctor", *place, *flags).stdout()
    assert [f"answers at {url}" in found for url in urls] == [True, False, True], found
    [line] = [line for line in found.splitlines() if urls[1] in line]
    assert line.split()[0] == "warning", found
