"""The systems of `make bench-peers`: their processes and settings, from OTLP/HTTP to the table.

Each setting that the peer's documentation leaves open is the one that costs the peer less. Servers
are those of the tests' harness, on free loopback ports.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness import kafka as kafka_settings
from harness.clickhouse import query
from harness.kafka import Kafka
from harness.process import Process, eventually
from harness.services import (
    CREDENTIALS,
    Buffer,
    Collector,
    Consumer,
    EmbeddedClickHouse,
    Gateway,
    Minio,
    Service,
    free_port,
    http_get,
    program,
    tool,
)

DATABASE = "otel"

# The longest wait of a record for others, in every system.
LINGER = "1s"

# Rows of an INSERT of the clickhouseexporter. Its README says at least 5,000; more cost less CPU.
ROWS_PER_INSERT = 100_000


class ClickHouse(EmbeddedClickHouse):
    """The embedded ClickHouse with the native protocol, which the clickhouseexporter prefers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.tcp = f"tcp://127.0.0.1:{free_port()}"
        self.argv += ["--tcp-port", self.tcp.rsplit(":", 1)[1]]


# How to get the programs that `make bench-peers` does not always have.
_REMEDIES = {
    "MILLPOND_KAFKA": ": scripts/tools.sh kafka needs Java 17 and Maven",
    "OPENDATA_PEER": ": bench/peers/opendata did not build",
}


class System:
    """A way from OTLP to the table. `start` fills in its processes, by name, and its address."""

    name: str
    title: str
    # Environment variables that name its programs; without one of them it is left out.
    needs: tuple[str, ...] = ()

    def __init__(self, directory: Path, clickhouse: ClickHouse) -> None:
        self.directory = directory
        self.clickhouse = clickhouse
        self.processes: dict[str, Process] = {}
        # The OTLP/HTTP address, known once the system runs.
        self.address = ""

    def start(self) -> None:
        raise NotImplementedError

    def run(self, name: str, service: Service) -> None:
        # Before its start, so that a failing process is stopped and its log shown.
        self.processes[name] = service
        service.up()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()

    @classmethod
    def missing(cls) -> str | None:
        """Why this system cannot run here."""
        for variable in cls.needs:
            if not os.environ.get(variable):
                return f"{variable} is not set{_REMEDIES.get(variable, '')}"
        return None


class Millpond(System):
    name = "millpond"
    title = "Millpond, the exporter's table"
    needs = ("MILLPOND_MINIO",)
    columns = "none"

    def start(self) -> None:
        _migrate(self.directory, self.clickhouse, self.columns)
        minio = Minio(self.directory)
        self.run("MinIO", minio)
        buffer = Buffer("s3://bench/peers", minio.endpoint)
        gateway = Gateway(self.directory, buffer, "--linger", LINGER)
        self.run("gateway", gateway)
        flags = ("--columns", self.columns, "--signals", "logs", "--lease", "30s")
        consumer = Consumer(
            self.directory, buffer, self.clickhouse.url, *flags, database=DATABASE, consumer="bench"
        )
        self.run("consumer", consumer)
        self.address = gateway.http_address


class MillpondColumns(Millpond):
    name = "millpond-columns"
    title = "Millpond, with its columns (the default)"
    columns = "all"


def _migrate(directory: Path, clickhouse: ClickHouse, columns: str) -> None:
    """Adds to the exporter's table what a consumer with these columns needs."""
    flags = ("--clickhouse", clickhouse.url, "--database", DATABASE, "--columns", columns)
    words = ("tables", "migrate", *flags, "--signals", "logs")
    migrate = Process("migrate", [program("millpond"), *words], directory)
    migrate.start()
    code = migrate.wait()
    assert code == 0, (
        f"millpond tables migrate ended with {code}: {migrate.stdout()}{migrate.messages()}"
    )


def _to_clickhouse(clickhouse: ClickHouse) -> dict:
    """The clickhouseexporter: a queue in memory, batched as its README recommends."""
    return {
        "endpoint": clickhouse.tcp,
        "database": DATABASE,
        "create_schema": False,
        # ClickHouse need not gather rows: the batches are large.
        "async_insert": False,
        "timeout": "120s",
        "sending_queue": {
            "enabled": True,
            "block_on_overflow": True,
            # With the defaults, 10 and 1,000, the Collector took 4.5 GiB and no less CPU.
            "num_consumers": 2,
            "queue_size": 200,
            "batch": {
                "sizer": "items",
                "min_size": ROWS_PER_INSERT,
                "flush_timeout": LINGER,
            },
        },
    }


class ClickHouseExporter(System):
    name = "clickhouseexporter"
    title = "Collector → clickhouseexporter"
    needs = ("MILLPOND_COLLECTOR",)

    def start(self) -> None:
        collector = Collector(self.directory, "clickhouse", _to_clickhouse(self.clickhouse))
        self.run("Collector", collector)
        self.address = collector.http_address


class Broker(Kafka):
    """A Kafka broker with the flags of Kafka's own start script."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        flags = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
        more = ("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")
        self.argv = ["java", *flags, *more, *self.argv[self.argv.index("-cp") :]]


class KafkaBetweenCollectors(System):
    name = "kafka"
    title = "Collector → Kafka → Collector"
    needs = ("MILLPOND_COLLECTOR", "MILLPOND_KAFKA")

    def start(self) -> None:
        broker = Broker(self.directory)
        self.run("Kafka", broker.format())
        to_kafka = kafka_settings.write_to(broker)
        # Of the codecs, snappy costs the exporter least (design/performance.md). A request of the
        # load is a message.
        to_kafka["producer"]["compression"] = "snappy"
        del to_kafka["sending_queue"]["batch"]
        sending = Collector(self.directory, "kafka", to_kafka, name="sending")
        to_clickhouse = _to_clickhouse(self.clickhouse)
        reading = Collector(self.directory, "clickhouse", to_clickhouse, name="reading")
        reading.rewire("receivers", kafka=kafka_settings.read_from(broker, "bench"))
        self.run("sending Collector", sending)
        self.run("reading Collector", reading)
        self.address = sending.http_address


class OpenData(System):
    """OpenData Buffer's library with the front end and the sink of bench/peers/opendata."""

    name = "opendata"
    title = "OpenData Buffer 0.3.0 (core), plain ends"
    needs = ("MILLPOND_MINIO", "OPENDATA_PEER")

    def start(self) -> None:
        minio = Minio(self.directory)
        # A directory of MinIO's is a bucket; the peer creates none.
        (self.directory / "minio-data" / "bench").mkdir()
        self.run("MinIO", minio)
        self.address = f"127.0.0.1:{free_port()}"
        self.run("front end", _OpenDataPeer(self, minio, "front", self.address, "bench"))
        self.run("sink", _OpenDataPeer(self, minio, "sink", self.clickhouse.url, DATABASE, "bench"))


class _OpenDataPeer(Service):
    def __init__(self, system: OpenData, minio: Minio, role: str, *arguments: object) -> None:
        self.role, self.system = role, system
        super().__init__(
            role,
            [tool("OPENDATA_PEER"), role, *arguments],
            system.directory,
            {**CREDENTIALS, "AWS_ENDPOINT": minio.endpoint, "AWS_ALLOW_HTTP": "true"},
        )

    def ready(self) -> bool:
        if self.role == "sink":
            return "ready" in self.stdout()
        return http_get(f"http://{self.system.address}/readyz")[0] == 200


SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (Millpond, MillpondColumns, ClickHouseExporter, KafkaBetweenCollectors, OpenData)
}


def exporters_table(directory: Path) -> str:
    """The DDL of `otel_logs` that the clickhouseexporter writes itself."""
    clickhouse = ClickHouse(directory)
    settings = {**_to_clickhouse(clickhouse), "create_schema": True}
    collector = Collector(directory, "clickhouse", settings)
    try:
        clickhouse.up()
        collector.up()
        where = f"database = '{DATABASE}' AND name = 'otel_logs'"
        sql = f"SELECT create_table_query FROM system.tables WHERE {where} FORMAT TSVRaw"
        return eventually(
            "the exporter's table", lambda: query(clickhouse.url, sql).decode().strip()
        )
    finally:
        collector.kill()
        clickhouse.kill()
