"""Compares the acknowledged records with those in ClickHouse, as multisets of the unique
attribute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .process import Process, TimedOut, eventually
from .services import EmbeddedClickHouse, Millpond

LOAD_ID = "millpond.load.id"


def ids(clickhouse: EmbeddedClickHouse, database: str, runs: Sequence[str] = ()) -> Counter[str]:
    """The number of occurrences of each load id in the table, optionally of some runs; rows without
    an id count under the empty id."""
    of_runs = " OR ".join(f"startsWith(id, '{run}-')" for run in runs) or "true"
    sql = f"SELECT LogAttributes['{LOAD_ID}'] AS id FROM {database}.otel_logs WHERE {of_runs}"
    return Counter(clickhouse.lines(sql))


def assert_no_row_twice(clickhouse: EmbeddedClickHouse, database: str) -> None:
    """Asserts in ClickHouse that every load id occurs once, for tables too large to read."""
    sql = f"SELECT count() - uniqExact(LogAttributes['{LOAD_ID}']) FROM {database}.otel_logs"
    assert clickhouse.scalar(sql) == "0"


def rows_of(clickhouse: EmbeddedClickHouse, database: str) -> int:
    return int(clickhouse.scalar(f"SELECT count() FROM {database}.otel_logs"))


def wait_for_all(
    acknowledged: Iterable[str],
    clickhouse: EmbeddedClickHouse,
    database: str,
    *alive: Process,
    timeout: float = 120,
    runs: Sequence[str] = (),
) -> None:
    """Waits until every acknowledged record has arrived. Fails at once when ClickHouse or a process
    in `alive` ends."""
    wanted = set(acknowledged)

    def arrived() -> bool:
        for process in (clickhouse, *alive):
            process.must_run()
        missing = wanted - ids(clickhouse, database, runs).keys()
        if missing:
            raise AssertionError(f"{len(missing)} of {len(wanted)} missing")
        return True

    try:
        eventually(f"acknowledged records in {database}", arrived, timeout, interval=0.5)
    except TimedOut:
        for process in alive:
            if isinstance(process, Millpond):
                _show_counts(process)
        raise


def _show_counts(process: Millpond) -> None:
    """Prints the metrics of a process, which pytest shows with a failure."""
    counts = [line for line in process.metrics().splitlines() if not line.startswith("#")]
    shown = [line for line in counts if "_bucket{" not in line and not line.endswith(" 0")]
    print(f"--- {process.name}", *shown, sep="\n")


def assert_exactly_once(
    acknowledged: list[str],
    clickhouse: EmbeddedClickHouse,
    database: str,
    runs: Sequence[str] = (),
) -> None:
    """Asserts that every acknowledged record occurs once. Any other record (sent, committed, but
    its answer lost) may occur at most once. Call it after the consumer has ended, so that nothing
    can arrive later."""
    repeated = [name for name, count in Counter(acknowledged).items() if count > 1]
    assert not repeated, f"the load generator acknowledged twice: {repeated[:5]}"
    found = ids(clickhouse, database, runs)
    missing = [name for name in acknowledged if name not in found]
    doubled = {name: count for name, count in found.items() if count > 1}
    assert not missing, f"{len(missing)} acknowledged records are missing: {missing[:5]}"
    assert not doubled, f"{len(doubled)} records occur more than once: {list(doubled)[:5]}"
