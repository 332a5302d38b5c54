"""What replicated tables answer when ZooKeeper or another replica is away, code by code: the
consumer waits and the rows are there once (design/clickhouse-sink.md, "Errors")."""

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


def test_319_the_answer_to_a_commit_is_lost(pair, proxy, new_pipeline):
    pipeline = new_pipeline(pair)
    gateway, consumer = pipeline.gateway("--linger", "20ms"), pipeline.consume()
    pipeline.send(gateway, "before")
    pipeline.until_bodies(["before"])
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
    pipeline.until_bodies(["before"])
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
    pipeline.until_bodies(["before"])
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
    pipeline.until_bodies(["before"])
    pair.keeper.send(signal.SIGSTOP)
    pipeline.send(gateway, "during")
    _waits_for(consumer, 999)
    pair.keeper.send(signal.SIGCONT)
    _once(pipeline, consumer, "before", "during")


@pytest.mark.parametrize("seed", [1, 2])
def test_999_faults_of_the_keeper_injected_by_clickhouse(pair, new_pipeline, seed):
    pipeline = new_pipeline(pair)
    gateway = pipeline.gateway("--linger", "20ms")
    faults = {
        "insert_keeper_fault_injection_probability": 0.2,
        "insert_keeper_fault_injection_seed": seed,
    }
    consumer = pipeline.consume(**faults)
    load = pipeline.loaded(gateway, 5_000)
    assert load.wait(180) == 0
    pipeline.settled(load, consumer)
    assert "Code: 999." in consumer.messages()


def test_253_a_replica_of_this_name_exists_already(pair, new_pipeline):
    """Somebody gave two servers the same macros: nothing gets better by waiting."""
    pipeline = new_pipeline(pair)
    same = REPLICATED.replace("{replica}", "r1")
    pair.nodes[1].query(f"DROP TABLE {pipeline.table} SYNC")
    place = ("--clickhouse", pair.nodes[1].url, "--database", pipeline.database)
    flags = ("--signals", "logs", "--engine", same)
    created = pipeline.command("tables", "create", *place, *flags, code=1)
    assert "Code: 253." in created.messages()
    # The consumer makes missing tables too, and ends with the same sentence.
    pipeline.clickhouse_url = pair.nodes[1].url
    consumer = pipeline.consumer_of(*flags)
    consumer.start()
    assert consumer.wait() == 1
    assert "Code: 253." in consumer.messages()
