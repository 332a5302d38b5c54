"""Tables of events on a cluster: every acknowledged event is there once, whatever dies."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter

import pytest

from cluster.servers import REPLICATED
from harness.events import OWN_COLUMNS
from harness.otlp_http import post
from harness.process import eventually

NDJSON = "application/x-ndjson"
TABLES = """
[[table]]
stream = "events.orders"
table = "orders"
"""


class Orders(threading.Thread):
    """Sends events, twenty in a request, until it is told to stop."""

    def __init__(self, gateway) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.failed: list[object] = []
        self._gateway, self._stopping = gateway, threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            first = len(self.acknowledged)
            ids = [f"order-{number}" for number in range(first, first + 20)]
            rows = "\n".join(json.dumps({"id": order, "amount": len(order)}) for order in ids)
            status, _, answer = post(
                self._gateway.http_address, "/v1/streams/events.orders", rows, NDJSON
            )
            if status != 200:
                self.failed.append(answer)
                return
            self.acknowledged += ids

    def finish(self) -> list[str]:
        self._stopping.set()
        self.join()
        assert not self.failed
        return self.acknowledged


def _make_tables(pipeline) -> None:
    """A replicated table on every node; with shards, a Distributed table before it."""
    columns = f"id String, amount UInt64, {OWN_COLUMNS}"
    pipeline.cluster.everywhere(
        f"CREATE TABLE {pipeline.local}.orders ({columns}) ENGINE = {REPLICATED} ORDER BY id"
    )
    if pipeline.distributed:
        engine = (
            f"Distributed('{pipeline.distributed}', '{pipeline.local}', orders, cityHash64(id))"
        )
        pipeline.cluster.everywhere(
            f"CREATE TABLE {pipeline.database}.orders AS {pipeline.local}.orders ENGINE = {engine}"
        )


def _stored(pipeline, node) -> Counter[str]:
    return Counter(node.lines(f"SELECT id FROM {pipeline.database}.orders"))


def _break(process, how: str) -> None:
    if how == "kill":
        process.kill()
        process.start()
    else:
        process.send(signal.SIGSTOP)
        time.sleep(3)
        process.send(signal.SIGCONT)
    process.until_ready()


@pytest.mark.parametrize("shards", [(2,), (1, 1)], ids=["replicas", "distributed"])
def test_every_event_is_there_once_whatever_dies(new_cluster, new_pipeline, shards):
    cluster = new_cluster(shards=shards)
    pipeline = new_pipeline(cluster, distributed=None if shards == (2,) else "main")
    _make_tables(pipeline)
    file = pipeline.directory / "event-tables.toml"
    file.write_text(TABLES)
    gateway = pipeline.gateway("--linger", "20ms")
    orders = Orders(gateway)
    orders.start()
    eventually("orders", lambda: orders.acknowledged)
    consumer = pipeline.consume("--event-tables", file)
    first, second = cluster.nodes

    def come_in() -> None:
        """Waits for rows of events that were sent after the last fault."""
        wanted = set(orders.acknowledged[-20:])

        def there() -> bool:
            cluster.revive()
            return not wanted - _stored(pipeline, first).keys()

        eventually("further rows", there, timeout=120)

    for process, how in (
        (first, "kill"),
        (consumer, "kill"),
        (second, "freeze"),
        (cluster.keeper, "kill"),
        (consumer, "freeze"),
        (second, "kill"),
    ):
        come_in()
        _break(process, how)
    come_in()
    acknowledged = set(orders.finish())
    come_in()
    eventually(
        "every acknowledged event",
        lambda: cluster.revive() or acknowledged <= _stored(pipeline, first).keys(),
        timeout=120,
    )
    consumer.terminate()
    for node in cluster.nodes:
        if not pipeline.distributed:
            node.query(f"SYSTEM SYNC REPLICA {pipeline.local}.orders LIGHTWEIGHT")
        found = _stored(pipeline, node)
        assert found.keys() == acknowledged
        doubled = [order for order, times in found.items() if times > 1]
        assert not doubled, f"{len(doubled)} doubled on {node.name}: {doubled[:5]}"
