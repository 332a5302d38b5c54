"""Field fidelity: a corpus of odd records arrives in `otel_logs` exactly as the Collector's
clickhouseexporter would have written it, column by column; and the table is the exporter's table.

The same requests go (a) through a real Collector with the clickhouseexporter into one database, and
(b) through Millpond into another. Where Millpond deliberately differs, DIFFERENCES says why.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.corpus import corpus
from harness.otlp import answer
from harness.process import eventually
from harness.services import export_to_clickhouse

# Case name -> column -> why it differs from the exporter. A difference that is no longer one fails.
DIFFERENCES: dict[str, dict[str, str]] = {}

# Case name -> why Millpond answers otherwise than the Collector's receiver.
ANSWERS: dict[str, str] = {
    "trace id of 4 bytes": "OTLP: an id of another length is invalid, which means that there is"
    " none. The Collector refuses the whole request, with every record in it; we keep them, the id"
    " empty",
    "span id of 9 bytes": "as with the trace id",
    "fixed64 as varint": "both refuse it; INVALID_ARGUMENT says that a retry is useless, INTERNAL"
    " does not",
}

OWN_PREFIX = "_millpond_"


class Both:
    """The corpus in both databases."""

    def __init__(self, site) -> None:
        self.clickhouse = site.clickhouse
        self.reference = f"{site.database}_reference"
        self.millpond = f"{site.database}_millpond"
        self.clickhouse.query(f"CREATE DATABASE {self.reference}")
        exporter = export_to_clickhouse(site.clickhouse.url, self.reference)
        collector = site.collector("clickhouse", exporter)
        gateway = site.gateway("--linger", "20ms")
        self.requests = corpus()
        self.collector_answers = self._send(collector.address)
        self.gateway_answers = self._send(gateway.address)
        assert gateway.terminate() == 0
        consumer = site.consumer(database=self.millpond)
        expected = self._count(self.reference)
        eventually(
            f"{expected} rows in {self.millpond}",
            lambda: consumer.must_run() or self._count(self.millpond) >= expected,
        )
        assert consumer.terminate() == 0

    def _count(self, database: str) -> int:
        return int(self.clickhouse.scalar(f"SELECT count() FROM {database}.otel_logs"))

    def _send(self, address: str) -> dict[str, tuple[str, str]]:
        """Sends every request, some at a time, and returns the status of each."""
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda payload: answer(address, payload), self.requests.values())
            return dict(zip(self.requests, answers, strict=True))

    def columns(self, database: str) -> list[dict]:
        return self.clickhouse.rows(
            "SELECT name, type, default_kind, default_expression, compression_codec,"
            " is_in_partition_key, is_in_sorting_key, is_in_primary_key"
            f" FROM system.columns WHERE database = '{database}' AND table = 'otel_logs'"
            " ORDER BY position"
        )

    def rows(self, database: str, columns: list[str]) -> dict[str, list[dict]]:
        """Rows by case, those of one case in an order of their own content."""
        names = ", ".join(f"`{name}`" for name in columns)
        by_case: dict[str, list[dict]] = {}
        for row in self.clickhouse.rows(f"SELECT {names} FROM {database}.otel_logs"):
            by_case.setdefault(_case_of(row), []).append(row)
        for rows in by_case.values():
            rows.sort(key=lambda row: (row["Body"], row["Timestamp"], str(row)))
        return by_case


def _case_of(row: dict) -> str:
    for column in ("LogAttributes", "ScopeAttributes", "ResourceAttributes"):
        for key, value in row[column]:
            if key == "case":
                return value
    return ""


@pytest.fixture(scope="module")
def both(module_site) -> Both:
    return Both(module_site)


def test_the_tables_columns_are_the_exporters(both):
    reference = both.columns(both.reference)
    ours = both.columns(both.millpond)
    extra = [column["name"] for column in ours if column not in reference]
    assert reference == [column for column in ours if column["name"] not in extra]
    assert all(name.startswith(OWN_PREFIX) for name in extra), extra


def test_the_tables_keys_and_indexes_are_the_exporters(both):
    def shape(database: str) -> tuple[list, list]:
        where = f"WHERE database = '{database}' AND table = 'otel_logs'"
        table = both.clickhouse.rows(
            f"SELECT engine, partition_key, sorting_key, primary_key FROM system.tables {where}"
        )
        indexes = both.clickhouse.rows(
            "SELECT name, type, type_full, expr, granularity"
            f" FROM system.data_skipping_indices {where} ORDER BY name"
        )
        return table, [index for index in indexes if OWN_PREFIX not in index["expr"]]

    assert shape(both.millpond) == shape(both.reference)


def test_the_gateway_accepts_what_the_collector_accepts(both):
    differing = {
        name: (theirs, both.gateway_answers[name])
        for name, theirs in both.collector_answers.items()
        if theirs[0] != both.gateway_answers[name][0]
    }
    assert differing.keys() == ANSWERS.keys(), differing


def test_every_column_of_every_record_is_the_exporters(both):
    columns = [column["name"] for column in both.columns(both.reference)]
    reference = both.rows(both.reference, columns)
    ours = both.rows(both.millpond, columns)
    same_answer = [name for name in both.requests if name not in ANSWERS]
    problems, explained = [], set()
    assert len(reference) > 200, "the reference holds too few cases for this to show anything"
    for name in ["", *same_answer]:
        theirs, mine = reference.get(name, []), ours.get(name, [])
        if len(theirs) != len(mine):
            problems.append(f"{name}: {len(theirs)} rows by the exporter, {len(mine)} by Millpond")
            continue
        for their, my in zip(theirs, mine, strict=True):
            for column in columns:
                if their[column] == my[column]:
                    continue
                if column in DIFFERENCES.get(name, {}):
                    explained.add((name, column))
                    continue
                problems.append(
                    f"{name}: {column}\n    exporter {their[column]!r:.300}"
                    f"\n    millpond {my[column]!r:.300}"
                )
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:40])
    stale = {(name, column) for name, of in DIFFERENCES.items() for column in of} - explained
    assert not stale, f"no longer different: {stale}"
