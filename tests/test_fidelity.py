"""Field fidelity: corpora of odd logs, traces and metrics arrive in ClickHouse exactly as the
Collector's clickhouseexporter would write them, column by column, in the exporter's tables.

The same requests go (a) through a real Collector with the clickhouseexporter into one database, and
(b) through Millpond into another. DIFFERENCES explains where Millpond deliberately differs.
"""

import pytest

from harness.both import Both
from harness.corpus import LOGS
from harness.corpus_metrics import METRICS
from harness.corpus_traces import TRACES

CORPORA = {"logs": LOGS.requests(), "traces": TRACES.requests(), "metrics": METRICS.requests()}

METRIC_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")

# Table -> its signal.
TABLES = {
    "otel_logs": "logs",
    "otel_traces": "traces",
    **{f"otel_metrics_{kind}": "metrics" for kind in METRIC_KINDS},
}

# The columns that may have the attribute `case`.
CASE_COLUMNS = (
    "LogAttributes",
    "SpanAttributes",
    "Attributes",
    "ScopeAttributes",
    "ResourceAttributes",
)

# Minimum number of cases in the reference for a meaningful comparison.
CASES_MIN = {"logs": 200, "traces": 150, "metrics": 90}

LOOKUP = "otel_traces_trace_id_ts"

# Table and case -> column -> the reason for a difference from the exporter. An obsolete entry fails
# the test.
DIFFERENCES: dict[tuple[str, str], dict[str, str]] = {}

_IDS = (
    "OTLP: an id of another length is invalid, which means that there is none. The Collector"
    " refuses the whole request, with every record in it; we keep them, the id empty"
)
_CODES = "both refuse it; INVALID_ARGUMENT says that a retry is useless, INTERNAL does not"

# Signal and case -> the reason why Millpond answers differently from the Collector's receiver.
ANSWERS: dict[tuple[str, str], str] = {
    ("logs", "trace id of 4 bytes"): _IDS,
    ("logs", "span id of 9 bytes"): _IDS,
    ("logs", "fixed64 as varint"): _CODES,
    ("traces", "trace id of 4 bytes"): _IDS,
    ("traces", "link with a span id of 9 bytes"): _IDS,
    ("traces", "fixed64 as varint"): _CODES,
    ("metrics", "exemplar with a trace id of 4 bytes"): _IDS,
    ("metrics", "bucket counts cut short"): _CODES,
    ("metrics", "a metric without data"): (
        "the exporter refuses the whole request, for ever, for one metric that has no data points;"
        " we keep the others"
    ),
}

OWN_PREFIX = "_millpond_"


class Corpora(Both):
    """The corpora in both databases."""

    def __init__(self, site) -> None:
        super().__init__(site, CORPORA, TABLES)

    def rows(self, database: str, table: str, columns: list[str]) -> dict[str, list[dict]]:
        """Rows by case; those of one case are ordered by their content."""
        names = ", ".join(f"`{name}`" for name in columns)
        by_case: dict[str, list[dict]] = {}
        for row in self.clickhouse.rows(f"SELECT {names} FROM {database}.{table}"):
            by_case.setdefault(_case_of(row), []).append(row)
        for rows in by_case.values():
            rows.sort(key=lambda row: (row.get("Body", ""), str(row)))
        return by_case


def _case_of(row: dict) -> str:
    for column in CASE_COLUMNS:
        for key, value in row.get(column, []):
            if key == "case":
                return value
    return ""


@pytest.fixture(scope="module")
def both(module_site) -> Corpora:
    return Corpora(module_site)


@pytest.mark.parametrize("table", [*TABLES, LOOKUP])
def test_the_tables_columns_are_the_exporters(both, table):
    reference = both.columns(both.reference, table)
    ours = both.columns(both.millpond, table)
    assert reference
    extra = [column["name"] for column in ours if column not in reference]
    assert reference == [column for column in ours if column["name"] not in extra]
    assert all(name.startswith(OWN_PREFIX) for name in extra), extra


@pytest.mark.parametrize("table", [*TABLES, LOOKUP])
def test_the_tables_keys_and_indexes_are_the_exporters(both, table):
    def shape(database: str) -> tuple[list, list]:
        where = f"WHERE database = '{database}' AND table = '{table}'"
        found = both.clickhouse.rows(
            f"SELECT engine, partition_key, sorting_key, primary_key FROM system.tables {where}"
        )
        indexes = both.clickhouse.rows(
            "SELECT name, type, type_full, expr, granularity"
            f" FROM system.data_skipping_indices {where} ORDER BY name"
        )
        return found, [index for index in indexes if OWN_PREFIX not in index["expr"]]

    assert shape(both.millpond) == shape(both.reference)


def test_the_view_of_the_traces_times_is_the_exporters(both):
    def view(database: str) -> str:
        where = f"WHERE database = '{database}' AND name = '{LOOKUP}_mv'"
        [found] = both.clickhouse.lines(f"SELECT create_table_query FROM system.tables {where}")
        return found.replace(database, "DATABASE")

    assert view(both.millpond) == view(both.reference)


def test_every_traces_time_is_the_exporters(both):
    """The exporter adds a row for each request, Millpond one for each chunk. Millpond has more
    traces: those in requests that the Collector refuses."""

    def times(database: str) -> dict[str, tuple[str, str]]:
        rows = both.clickhouse.rows(
            "SELECT TraceId, toString(min(Start)) AS start, toString(max(End)) AS end"
            f" FROM {database}.{LOOKUP} GROUP BY TraceId"
        )
        return {row["TraceId"]: (row["start"], row["end"]) for row in rows}

    reference, ours = times(both.reference), times(both.millpond)
    assert len(reference) > 100
    assert {trace: ours.get(trace) for trace in reference} == reference


def test_the_gateway_accepts_what_the_collector_accepts(both):
    differing = {
        name: (theirs, both.gateway_answers[name])
        for name, theirs in both.collector_answers.items()
        if theirs[0] != both.gateway_answers[name][0]
    }
    assert differing.keys() == ANSWERS.keys(), differing


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_every_record_is_the_exporters(both, table):
    signal = TABLES[table]
    columns = [column["name"] for column in both.columns(both.reference, table)]
    reference = both.rows(both.reference, table, columns)
    ours = both.rows(both.millpond, table, columns)
    same_answer = [name for name in CORPORA[signal] if (signal, name) not in ANSWERS]
    problems, explained = [], set()
    assert len(reference) > CASES_MIN[signal], "too few cases for a meaningful comparison"
    for name in ["", *same_answer]:
        theirs, mine = reference.get(name, []), ours.get(name, [])
        if len(theirs) != len(mine):
            problems.append(f"{name}: {len(theirs)} rows by the exporter, {len(mine)} by Millpond")
            continue
        for their, my in zip(theirs, mine, strict=True):
            for column in columns:
                if their[column] == my[column]:
                    continue
                if column in DIFFERENCES.get((table, name), {}):
                    explained.add((table, name, column))
                    continue
                problems.append(
                    f"{name}: {column}\n    exporter {their[column]!r:.300}"
                    f"\n    millpond {my[column]!r:.300}"
                )
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:40])
    expected = {
        (of, name, column)
        for (of, name), columns_of in DIFFERENCES.items()
        for column in columns_of
        if of == table
    }
    assert explained == expected, f"no longer different: {expected - explained}"
