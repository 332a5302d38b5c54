"""Sends the same OTLP through the Collector's clickhouseexporter and through Millpond, to compare
the results in ClickHouse."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from .otlp import answer
from .process import eventually
from .services import export_to_clickhouse


class Both:
    """The same requests, by signal and name, in two databases: one filled by a Collector with the
    clickhouseexporter, and one filled by Millpond."""

    def __init__(self, site, requests: dict[str, dict[str, bytes]], tables: Iterable[str]) -> None:
        self._requests = requests
        self.clickhouse = site.clickhouse
        self.reference = f"{site.database}_reference"
        self.millpond = f"{site.database}_millpond"
        self.clickhouse.query(f"CREATE DATABASE {self.reference}")
        exporter = export_to_clickhouse(site.clickhouse.url, self.reference)
        collector = site.collector("clickhouse", exporter)
        gateway = site.gateway("--linger", "20ms")
        self.collector_answers = self._send(collector.address)
        self.gateway_answers = self._send(gateway.address)
        assert gateway.terminate() == 0
        consumer = site.consumer(database=self.millpond)
        for table in tables:
            expected = self._count(self.reference, table)
            eventually(
                f"{expected} rows in {self.millpond}.{table}",
                lambda table=table, expected=expected: (
                    consumer.must_run() or self._count(self.millpond, table) >= expected
                ),
            )
        assert consumer.terminate() == 0

    def _count(self, database: str, table: str) -> int:
        return int(self.clickhouse.scalar(f"SELECT count() FROM {database}.{table}"))

    def _send(self, address: str) -> dict[tuple[str, str], tuple[str, str]]:
        """Sends every request, several at a time, and returns the status of each."""
        cases = [
            ((signal, name), payload)
            for signal, requests in self._requests.items()
            for name, payload in requests.items()
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda case: answer(address, case[1], case[0][0]), cases)
            return dict(zip((case for case, _ in cases), answers, strict=True))

    def columns(self, database: str, table: str) -> list[dict]:
        return self.clickhouse.rows(
            "SELECT name, type, default_kind, default_expression, compression_codec,"
            " is_in_partition_key, is_in_sorting_key, is_in_primary_key"
            f" FROM system.columns WHERE database = '{database}' AND table = '{table}'"
            " ORDER BY position"
        )
