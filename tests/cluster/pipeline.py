"""Gateway, buffer and consumer of one test, and tables on every node of a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

from cluster.servers import REPLICATED, Cluster, Node
from harness.corpus import record, request
from harness.exactly_once import LOAD_ID
from harness.otlp import export
from harness.process import eventually
from harness.services import Consumer, Load, Minio
from harness.site import Site

TABLE = "otel_logs"

# Small batches and early acknowledgements: many INSERTs are in flight when something breaks.
CONSUMER = (
    *("--signals", "logs", "--ack-interval", "50ms", "--gc-interval", "0s"),
    *("--insert-timeout", "10s"),
)


class Pipeline(Site):
    """A site whose ClickHouse is a cluster. Every node has the table, with this engine. With
    `distributed`, every node has a Distributed table over the cluster of this name, and a table
    with this engine behind it."""

    def __init__(
        self,
        directory: Path,
        store: Minio,
        cluster: Cluster,
        engine: str = REPLICATED,
        distributed: str | None = None,
    ) -> None:
        super().__init__(directory, store, cluster.nodes[0])
        self.cluster, self.distributed = cluster, distributed
        # The database of the tables that store the rows.
        self.local = f"{self.database}_local" if distributed else self.database
        for node in cluster.nodes:
            # A failure shows a node's output like that of the shared ClickHouse.
            self._seen.setdefault(node, len(node.messages()))
            self.make_table(node, engine)
            if distributed:
                self._make_distributed(node)

    def make_table(self, node: Node, engine: str = REPLICATED) -> None:
        place = ("--clickhouse", node.url, "--database", self.local)
        self.command("tables", "create", *place, "--signals", "logs", "--engine", engine)

    def share_uuid(self) -> None:
        """Makes the replicas of all nodes but the first again, with the first one's UUID, as ON
        CLUSTER does. This engine lacks system.zookeeper, so only the UUID shows one table."""
        first, *others = self.cluster.nodes
        shown = "show_table_uuid_in_table_create_query_if_not_nil = 1"
        lines = first.query(f"SHOW CREATE TABLE {self.table} FORMAT TSVRaw SETTINGS {shown}")
        for node in others:
            node.query(f"DROP TABLE {self.table} SYNC")
            node.query(lines.decode())

    def _make_distributed(self, node: Node) -> None:
        node.query(f"CREATE DATABASE {self.database}")
        key = f"cityHash64(Body, LogAttributes['{LOAD_ID}'])"
        engine = f"Distributed('{self.distributed}', '{self.local}', '{TABLE}', {key})"
        node.query(f"CREATE TABLE {self.table} AS {self.local}.{TABLE} ENGINE = {engine}")

    @property
    def table(self) -> str:
        return f"{self.database}.{TABLE}"

    def flags(self, *flags: object) -> tuple[object, ...]:
        # `--cluster` would send KILL QUERY ON CLUSTER, which this engine lacks.
        where = ("--no-create",) if self.distributed else ("--cluster", "main")
        return (*CONSUMER, *where, *flags)

    def consume_of(
        self, *flags: object, node: Node | None = None, name: str = "consumer", **settings: object
    ) -> Consumer:
        """A consumer, not started, that writes to the node (default: the first one). Settings
        become parameters of every request."""
        url = (node or self.cluster.nodes[0]).url
        self.clickhouse_url = f"{url}/?{urlencode(settings)}" if settings else url
        return self.consumer_of(*self.flags(*flags), name=name)

    def consume_at(self, *nodes: Node, name: str = "consumer") -> Consumer:
        """A running consumer with the addresses of these nodes, in this order."""
        self.clickhouse_url = ",".join(node.url for node in nodes)
        return self.consumer(*self.flags(), name=name)

    def consume(self, *flags: object, **options: object) -> Consumer:
        return self.consume_of(*flags, **options).up()

    def send(self, gateway, *bodies: str) -> None:
        """Sends one request, which becomes one segment with these records."""
        made = request(*(record(body, body=body) for body in bodies))
        export(gateway.address, made.SerializeToString())

    def loaded(self, gateway, records: int = 20_000, name: str = "load") -> Load:
        """A running load."""
        flags = ("--records-per-request", 50, "--concurrency", 4)
        load = self.load(gateway, *flags, records=records, name=name)
        load.start()
        return load

    def bodies(self, node: Node, table: str | None = None) -> Counter[str]:
        return Counter(node.lines(f"SELECT Body FROM {table or self.table}"))

    def until_bodies(self, wanted: list[str], node: Node | None = None) -> None:
        """Waits until the table has exactly these bodies."""
        node = node or self.cluster.nodes[0]
        eventually(
            f"{wanted} on {node.name}",
            lambda: sorted(self.bodies(node).elements()) == sorted(wanted),
        )

    def until_everywhere(self, wanted: list[str]) -> None:
        """Waits until every node has exactly these bodies."""
        table = f"{self.local}.{TABLE}"
        for node in self.cluster.nodes:
            eventually(
                f"{wanted} on {node.name}",
                lambda node=node: sorted(self.bodies(node, table).elements()) == wanted,
            )

    def until_written(self, consumer: Consumer, records: int) -> None:
        """Waits until the consumer knows that this many records are in the table. Then none of them
        is in flight, and the next failure affects the next chunk."""
        written = "millpond_consumer_records_total"
        eventually(f"{records} written", lambda: consumer.metric(written) >= records)

    def caught_up(self, node: Node) -> None:
        eventually(f"{node.name} has caught up", lambda: self._sync(node) or True)

    def _sync(self, node: Node) -> None:
        node.query(f"SYSTEM SYNC REPLICA {self.table} LIGHTWEIGHT")

    def count(self, node: Node | None = None) -> int:
        """The number of rows in the table, once the node can answer."""
        node = node or self.cluster.nodes[0]
        sql = f"SELECT count() FROM {self.table}"

        def count() -> int:
            self.cluster.revive()
            return int(node.scalar(sql)) + 1

        return eventually("a count", count, timeout=120) - 1

    def rows_of(self, node: Node) -> int:
        """The number of rows on the node itself."""
        return int(node.scalar(f"SELECT count() FROM {self.local}.{TABLE}"))

    def rows_come_in(self, more: int, most: int) -> None:
        """Waits until this many rows have been added, or all that can come."""
        before = self.count()

        def there() -> bool:
            self.cluster.revive()
            return self.count() >= min(before + more, most)

        eventually("rows", there)

    def settled(self, load: Load, *consumers: Consumer) -> None:
        """Waits until everything has arrived, ends the consumers so that nothing can come later,
        and compares each node with the acknowledged records."""
        self.wait_for(load, self.cluster.nodes[0])
        for consumer in consumers:
            consumer.terminate()
        if not self.distributed:
            for node in self.cluster.nodes:
                self.caught_up(node)
        self.assert_once(load, *self.cluster.nodes)

    def wait_for(self, load: Load, node: Node, table: str | None = None) -> None:
        """Waits until the node has every acknowledged record."""
        wanted = set(load.acknowledged())
        sql = f"SELECT LogAttributes['{LOAD_ID}'] FROM {table or self.table}"

        def there() -> bool:
            self.cluster.revive()
            return not wanted - set(node.lines(sql))

        eventually("every acknowledged record", there, timeout=180, interval=0.5)

    def assert_once(self, load: Load, *nodes: Node, table: str | None = None) -> None:
        """Asserts that every acknowledged record occurs once, and no identity twice. Call it after
        the consumer has ended."""
        for node in nodes:
            name = table or self.table
            found = Counter(node.lines(f"SELECT LogAttributes['{LOAD_ID}'] FROM {name}"))
            missing = [one for one in load.acknowledged() if one not in found]
            doubled = {one: count for one, count in found.items() if count > 1}
            assert not missing, f"{len(missing)} missing on {node.name}: {missing[:5]}"
            assert not doubled, f"{len(doubled)} doubled on {node.name}: {list(doubled)[:5]}"
            identities = "_millpond_source, _millpond_sequence, _millpond_record"
            twice = node.scalar(f"SELECT count() - uniqExact({identities}) FROM {name}")
            assert twice == "0", f"{twice} identities twice on {node.name}"
