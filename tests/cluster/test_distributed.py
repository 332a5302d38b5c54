"""Distributed tables: two shards, and a table that writes to both replicas of a shard itself. The
servers queue INSERTs into Distributed tables by default; the sink's settings make them wait."""

from __future__ import annotations

import random
import signal

import pytest

from cluster.pipeline import TABLE
from cluster.servers import REPLICATED, Cluster
from harness.process import eventually

RECORDS = 10_000
QUEUED = "<distributed_foreground_insert>0</distributed_foreground_insert>"
# Enough records that each shard gets some.
BODIES = [f"record {number}" for number in range(20)]


@pytest.fixture(scope="module")
def shards(new_cluster) -> Cluster:
    return new_cluster(shards=(1, 1), profile=QUEUED)


@pytest.fixture(scope="module")
def doubling(new_cluster) -> Cluster:
    return new_cluster(shards=(2,), profile=QUEUED)


def _break_in_turn(pipeline, load, process) -> None:
    """Kills the process while rows come in, and freezes it a little later."""
    dice = random.Random(7)
    pipeline.rows_come_in(dice.randrange(100, 1000), RECORDS)
    process.kill()
    process.start()
    process.until_ready()
    pipeline.rows_come_in(dice.randrange(100, 1000), RECORDS)
    process.send(signal.SIGSTOP)
    # The buffer keeps taking the load meanwhile.
    behind = len(load.acknowledged())
    eventually(
        "more records, or all", lambda: len(load.acknowledged()) > behind or behind == RECORDS
    )
    process.send(signal.SIGCONT)
    process.until_ready()


@pytest.mark.parametrize("engine", ["MergeTree", REPLICATED], ids=["plain", "replicated"])
@pytest.mark.parametrize("victim", ["writer", "shard", "consumer"])
def test_shards_have_every_record_once_when_something_dies(shards, new_pipeline, victim, engine):
    pipeline = new_pipeline(shards, engine=engine, distributed="main")
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    load = pipeline.loaded(gateway, RECORDS)
    _break_in_turn(
        pipeline,
        load,
        {"writer": shards.nodes[0], "shard": shards.nodes[1], "consumer": consumer}[victim],
    )
    assert load.wait(180) == 0
    pipeline.settled(load, consumer)
    counts = [pipeline.rows_of(node) for node in shards.nodes]
    assert min(counts) > 0, f"one shard has everything: {counts}"


@pytest.mark.parametrize("engine", ["MergeTree", REPLICATED], ids=["plain", "replicated"])
@pytest.mark.parametrize("url", [{}, {"distributed_foreground_insert": 0}], ids=["profile", "url"])
def test_279_a_shard_is_down_while_a_chunk_is_written(shards, new_pipeline, engine, url):
    """The server that takes the INSERT queues nothing, whatever a profile or the URL says. The
    chunk fails, and the consumer waits for the shard."""
    pipeline = new_pipeline(shards, engine=engine, distributed="main")
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume(**url)
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    shards.nodes[1].kill()
    pipeline.send(gateway, *BODIES)
    eventually("Code: 279", lambda: "Code: 279." in consumer.messages(), timeout=120)
    of = f"database = '{pipeline.database}'"
    queued = f"SELECT sum(data_files) FROM system.distribution_queue WHERE {of}"
    assert shards.nodes[0].scalar(queued) == "0"
    shards.nodes[1].start()
    shards.nodes[1].until_ready()
    pipeline.until_bodies(["before", *BODIES])
    consumer.terminate()
    pipeline.until_bodies(["before", *BODIES], shards.nodes[1])


def test_a_table_that_doubles_writes_again_to_a_replica_that_refused(doubling, new_pipeline):
    """One replica has the chunk and the other lacks it: the rows do not count as written."""
    pipeline = new_pipeline(doubling, engine="MergeTree", distributed="doubling")
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    local = f"{pipeline.local}.{TABLE}"
    full = doubling.nodes[1]
    full.query(f"ALTER TABLE {local} MODIFY SETTING parts_to_throw_insert = 1")
    pipeline.send(gateway, *BODIES)
    eventually("Code: 252", lambda: "Code: 252." in consumer.messages())
    # Some attempts end before the other replica has the rows.
    rows = 1 + len(BODIES)
    eventually("one replica has them", lambda: pipeline.rows_of(doubling.nodes[0]) == rows)
    assert pipeline.rows_of(full) == 1
    # A successor does not accept the rows of one replica for both.
    consumer.kill()
    full.query(f"ALTER TABLE {local} RESET SETTING parts_to_throw_insert")
    successor = pipeline.consume(name="successor")
    pipeline.send(gateway, "after")
    wanted = sorted(["before", *BODIES, "after"])
    pipeline.until_everywhere(wanted)
    successor.terminate()
    pipeline.until_everywhere(wanted)


@pytest.mark.parametrize("victim", ["writer", "other", "consumer"])
def test_a_table_that_doubles_has_every_record_on_both_replicas(doubling, new_pipeline, victim):
    pipeline = new_pipeline(doubling, engine="MergeTree", distributed="doubling")
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    load = pipeline.loaded(gateway, RECORDS)
    _break_in_turn(
        pipeline,
        load,
        {"writer": doubling.nodes[0], "other": doubling.nodes[1], "consumer": consumer}[victim],
    )
    assert load.wait(180) == 0
    local = f"{pipeline.local}.{TABLE}"
    for node in doubling.nodes:
        pipeline.wait_for(load, node, local)
    consumer.terminate()
    pipeline.assert_once(load, *doubling.nodes, table=local)
