"""Errors of replicated tables while ZooKeeper or another replica is unreachable, code by code: the
consumer waits, and the rows occur once (design/clickhouse-sink.md, "Errors")."""

from __future__ import annotations

import signal

import pytest

from cluster.keeper_proxy import KeeperProxy
from cluster.servers import REPLICATED, Cluster
from harness.process import eventually


@pytest.fixture(scope="module")
def proxy() -> KeeperProxy:
    return KeeperProxy()


@pytest.fixture(scope="module")
def pair(new_cluster, proxy) -> Cluster:
    retries = "<insert_keeper_max_retries>0</insert_keeper_max_retries>"
    profile = "<async_insert>1</async_insert>" + retries
    return new_cluster(shards=(2,), profile=profile, proxy=proxy)


def _waits_for(consumer, code: int) -> None:
    eventually(f"Code: {code}", lambda: f"Code: {code}." in consumer.messages(), timeout=120)


def _once(pipeline, consumer, *bodies: str) -> None:
    pipeline.until_bodies(list(bodies))
    consumer.terminate()
    for node in pipeline.cluster.nodes:
        pipeline.caught_up(node)
        pipeline.until_bodies(list(bodies), node)


def _fails_or_writes(pipeline, consumer, body: str) -> None:
    def done() -> bool:
        return "Code: 999." in consumer.messages() or body in pipeline.bodies(
            pipeline.cluster.nodes[0]
        )

    eventually("a fault or the row", done)


def test_319_the_answer_to_a_commit_is_lost(pair, proxy, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    proxy.arm()
    pipeline.send(gateway, "in doubt")
    assert proxy.fired.wait(60)
    _waits_for(consumer, 319)
    pipeline.send(gateway, "after")
    _once(pipeline, consumer, "before", "in doubt", "after")


def test_285_too_few_replicas_for_a_quorum(pair, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume(insert_quorum=2, insert_quorum_timeout=2000)
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    pair.nodes[1].kill()
    active = f"SELECT active_replicas FROM system.replicas WHERE database = '{pipeline.database}'"
    eventually("its session has ended", lambda: pair.nodes[0].scalar(active) == "1")
    pipeline.send(gateway, "during")
    _waits_for(consumer, 285)
    pair.nodes[1].start()
    pair.nodes[1].until_ready()
    _once(pipeline, consumer, "before", "during")


def test_242_a_replica_that_is_read_only(pair, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    pair.keeper.kill()
    pipeline.send(gateway, "during")
    _waits_for(consumer, 242)
    pair.keeper.start()
    pair.keeper.until_ready()
    _once(pipeline, consumer, "before", "during")


def test_999_a_keeper_that_does_not_answer(pair, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    pipeline.until_written(consumer, 1)
    pair.keeper.send(signal.SIGSTOP)
    pipeline.send(gateway, "during")
    _waits_for(consumer, 999)
    pair.keeper.send(signal.SIGCONT)
    _once(pipeline, consumer, "before", "during")


def test_999_faults_of_the_keeper_injected_by_clickhouse(pair, new_pipeline):
    """A seed fails every attempt at the same operation, before or after Keeper has applied it. Each
    consumer dies there, and leaves a chunk in doubt to the next one."""
    pipeline = new_pipeline(pair)
    gateway = pipeline.gateway("--linger", "20ms")
    bodies, failed = [], 0
    for seed in range(1, 7):
        bodies.append(f"seed {seed}")
        pipeline.send(gateway, bodies[-1])
        consumer = pipeline.consume_of(
            name=f"consumer-{seed}",
            insert_keeper_fault_injection_probability=0.2,
            insert_keeper_fault_injection_seed=seed,
        )
        # The consumer is not ready while its first INSERT fails.
        consumer.start()
        _fails_or_writes(pipeline, consumer, bodies[-1])
        consumer.kill()
        failed += "Code: 999." in consumer.messages()
    assert failed
    _once(pipeline, pipeline.consume(name="without-faults"), *bodies)


REFUSED_TABLES = {
    # Two servers with the same macro, or a table whose replica stayed in Keeper.
    253: REPLICATED.replace("{replica}", "r1"),
    # The server has no such macro.
    139: REPLICATED.replace("{shard}", "{nosuch}"),
    # The other replica's table has a different definition.
    342: REPLICATED,
}


@pytest.mark.parametrize("code", REFUSED_TABLES)
def test_a_table_that_cannot_be_made_ends_the_program(pair, new_pipeline, code):
    """Waiting would not help."""
    pipeline = new_pipeline(pair)
    node = pair.nodes[1]
    node.query(f"DROP TABLE {pipeline.table} SYNC")
    place = ("--clickhouse", node.url, "--database", pipeline.database)
    flags = ["--signals", "logs", "--engine", REFUSED_TABLES[code]]
    if code == 342:
        flags += ["--partition-by", "month"]
    created = pipeline.command("tables", "create", *place, *flags, code=1)
    # The consumer creates missing tables too, and ends with the same sentence.
    pipeline.gateway()
    pipeline.clickhouse_url = node.url
    consumer = pipeline.consumer_of(*flags)
    consumer.start()
    assert consumer.wait() == 1
    for ended in (created, consumer):
        assert f"Code: {code}." in ended.messages()
        assert ("SYSTEM DROP REPLICA" in ended.messages()) == (code == 253)
