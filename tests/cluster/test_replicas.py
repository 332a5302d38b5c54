"""Two replicas of one shard: each has every acknowledged record once."""

from __future__ import annotations

import random
import signal
import time

import pytest

from cluster.balancer import Balancer
from cluster.servers import Cluster

RECORDS = 20_000


@pytest.fixture(scope="module")
def pair(new_cluster) -> Cluster:
    return new_cluster(shards=(2,))


@pytest.mark.parametrize("how", ["kill", "freeze"])
@pytest.mark.parametrize("victim", ["writer", "other", "keeper", "consumer"])
def test_nothing_is_lost_or_doubled_when_something_dies(pair, new_pipeline, victim, how):
    pipeline = new_pipeline(pair)
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume()
    load = pipeline.loaded(gateway, RECORDS)
    process = {
        "writer": pair.nodes[0],
        "other": pair.nodes[1],
        "keeper": pair.keeper,
        "consumer": consumer,
    }[victim]
    dice = random.Random(7)
    for _ in range(2):
        pipeline.rows_come_in(dice.randrange(100, 2000), RECORDS)
        if how == "kill":
            process.kill()
            process.start()
        else:
            process.send(signal.SIGSTOP)
            # Longer than the consumer's lease and than some of ClickHouse's timeouts.
            time.sleep(dice.uniform(2, 5))
            process.send(signal.SIGCONT)
        process.until_ready()
    assert load.wait(180) == 0
    pipeline.settled(load, consumer)


@pytest.mark.parametrize("window", [0, 1, 10_000])
def test_consumers_that_die_and_go_on_with_another_replica(pair, new_pipeline, window):
    """Works whatever tokens the table remembers, and whichever replica answers."""
    pipeline = new_pipeline(pair)
    setting = f"replicated_deduplication_window = {window}"
    pair.everywhere(f"ALTER TABLE {pipeline.table} MODIFY SETTING {setting}")
    gateway = pipeline.gateway("--linger", "20ms")
    load = pipeline.loaded(gateway, RECORDS)
    dice = random.Random(window)
    for turn in range(4):
        consumer = pipeline.consume(node=pair.nodes[turn % 2], name=f"consumer-{turn}")
        pipeline.rows_come_in(dice.randrange(100, 2000), RECORDS)
        consumer.kill()
    last = pipeline.consume(node=pair.nodes[1], name="last")
    assert load.wait(180) == 0
    pipeline.settled(load, last)


def test_a_load_balancer_sends_every_request_to_another_replica(pair, new_pipeline):
    """One replica pauses its fetches, so that it knows tokens but lacks rows."""
    pipeline = new_pipeline(pair)
    gateway = pipeline.gateway("--linger", "20ms")
    with Balancer([node.url for node in pair.nodes]) as balancer:
        pipeline.clickhouse_url = balancer.url
        flags = pipeline.flags()
        consumer = pipeline.consumer(*flags, name="consumer-0")
        load = pipeline.loaded(gateway, RECORDS)
        for turn in (1, 2):
            pipeline.rows_come_in(500, RECORDS)
            pair.nodes[1].query(f"SYSTEM STOP FETCHES {pipeline.table}")
            consumer.kill()
            consumer = pipeline.consumer(*flags, name=f"consumer-{turn}")
            time.sleep(2)
            pair.nodes[1].query(f"SYSTEM START FETCHES {pipeline.table}")
        assert load.wait(180) == 0
        pipeline.settled(load, consumer)


def test_a_table_that_is_dropped_and_made_again_takes_what_comes_then(pair, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    # Otherwise unacknowledged records would be sent to the new table too.
    pipeline.millpond("consumer", "wait", "e2e", "--timeout", "60s")
    pair.everywhere(f"DROP TABLE {pipeline.table} SYNC")
    for node in pair.nodes:
        pipeline.make_table(node)
    pipeline.send(gateway, "after")
    pipeline.until_bodies(["after"])
    consumer.terminate()
    for node in pair.nodes:
        pipeline.caught_up(node)
        assert list(pipeline.bodies(node).elements()) == ["after"]


def test_views_have_every_row_at_least_once(pair, new_pipeline):
    """The view without its own deduplication, and with it (the default)."""
    pipeline = new_pipeline(pair)
    for view in ("plain", "own"):
        engine = (
            f"ReplicatedMergeTree('/clickhouse/tables/{pipeline.database}/{view}', '{{replica}}')"
        )
        name = f"{pipeline.database}.{view}"
        pair.everywhere(f"CREATE TABLE {name} (Body String) ENGINE = {engine} ORDER BY Body")
        pair.everywhere(
            f"CREATE MATERIALIZED VIEW {name}_view TO {name} AS "
            f"SELECT LogAttributes['millpond.load.id'] AS Body FROM {pipeline.table}"
        )
    setting = {"deduplicate_blocks_in_dependent_materialized_views": 0}
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume(**setting)
    load = pipeline.loaded(gateway, 5_000)
    pipeline.rows_come_in(300, 5_000)
    consumer.kill()
    consumer = pipeline.consume(name="again")
    assert load.wait() == 0
    pipeline.settled(load, consumer)
    for view in ("plain", "own"):
        found = set(pair.nodes[0].lines(f"SELECT Body FROM {pipeline.database}.{view}"))
        assert not set(load.acknowledged()) - found


def test_three_replicas_and_takeovers_on_each_of_them(new_cluster, new_pipeline):
    """A replica dies while a consumer writes to it, and the next consumer writes to another one."""
    trio = new_cluster(shards=(3,))
    pipeline = new_pipeline(trio)
    gateway = pipeline.gateway("--linger", "20ms")
    load = pipeline.loaded(gateway, RECORDS)
    dice = random.Random(3)
    for turn, node in enumerate(trio.nodes):
        consumer = pipeline.consume(node=node, name=f"consumer-{turn}")
        pipeline.rows_come_in(dice.randrange(100, 1000), RECORDS)
        node.kill()
        consumer.kill()
        node.start()
        node.until_ready()
    last = pipeline.consume(node=trio.nodes[1], name="last")
    assert load.wait(180) == 0
    pipeline.settled(load, last)
