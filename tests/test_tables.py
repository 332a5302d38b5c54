"""`millpond tables` and unusual tables: DDL that an operator prints, edits and runs, or that
the command runs; each row arrives once, whatever happens."""

import json
import re
import signal
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.process import eventually
from harness.services import export_to_clickhouse

TABLES = [
    "otel_logs",
    "otel_metrics_exponential_histogram",
    "otel_metrics_gauge",
    "otel_metrics_histogram",
    "otel_metrics_sum",
    "otel_metrics_summary",
    "otel_traces",
    "otel_traces_trace_id_ts",
    "otel_traces_trace_id_ts_mv",
]


def _print(site, *flags: object) -> str:
    return site.command("tables", "print", "--database", site.database, *flags).stdout()


def _statements(script: str) -> list[str]:
    found = [sql.strip() for sql in script.split(";\n")]
    return [sql for sql in found if sql]


def _run(site, script: str) -> None:
    """Runs a script like `clickhouse client --multiquery`."""
    for sql in _statements(script):
        site.clickhouse.query(sql)


def _tables(site) -> list[str]:
    where = f"WHERE database = '{site.database}' ORDER BY name"
    return site.clickhouse.lines(f"SELECT name FROM system.tables {where}")


def _create(site, *flags: object, code: int = 0) -> dict[str, dict]:
    """The report of `tables create` for each object."""
    where = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    process = site.command("tables", "create", *where, *flags, "--json", code=code)
    answer = json.loads(process.stdout())
    assert answer["fit"] == (code == 0)
    return {table["what"].replace(f"`{site.database}`.", ""): table for table in answer["tables"]}


def _load(site, gateway, records: int = 2_000):
    load = site.load(gateway, "--concurrency", 2, records=records)
    load.run()
    return load


def test_the_printed_tables_suit_a_consumer(site):
    script = _print(site)
    assert _statements(script)[0].endswith(f"CREATE DATABASE IF NOT EXISTS `{site.database}`")
    _run(site, script)
    assert _tables(site) == TABLES
    gateway = site.gateway("--linger", "20ms")
    load = _load(site, gateway)
    consumer = site.consumer("--no-create")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
    # A second run changes nothing.
    _run(site, script)
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def test_only_the_tables_of_what_is_asked_for_are_printed(site):
    assert len(_statements(_print(site, "--signals", "logs"))) == 2
    assert len(_statements(_print(site, "--signals", "traces"))) == 4
    assert len(_statements(_print(site, "--signals", "metrics,logs"))) == 7


def test_the_consumers_settings_are_those_of_its_tables(site):
    """The consumer's file suffices to print its tables."""
    settings = site.directory / "millpond.toml"
    settings.write_text(
        f'[consume]\ndatabase = "{site.database}"\nsignals = "logs"\nlogs_table = "events"\n'
        'engine = "ReplicatedMergeTree"\ncluster = "main"\npartition_by = "toMonday({time})"\n'
        'ttl = "48h"\nlogs_ttl = "72h"\n'
    )
    script = site.command("tables", "print", "--config", settings).stdout()
    for line in (
        f"CREATE DATABASE IF NOT EXISTS `{site.database}` ON CLUSTER `main`",
        f"CREATE TABLE IF NOT EXISTS `{site.database}`.`events` ON CLUSTER `main` (",
        "ENGINE = ReplicatedMergeTree",
        "PARTITION BY toMonday(Timestamp)",
        "TTL toDateTime(Timestamp) + toIntervalDay(3)",
    ):
        assert line in script


def test_missing_tables_are_created_and_misfits_reported(site):
    made = _create(site)
    assert {name: table["state"] for name, table in made.items()} == {
        f"database `{site.database}`": "created",
        **{f"table `{name}`": "created" for name in TABLES[:-1]},
        f"view `{TABLES[-1]}`": "created",
    }
    assert _tables(site) == TABLES
    again = _create(site, "--partition-by", "hour")
    assert {table["state"] for table in again.values()} == {"fits"}

    site.clickhouse.query(f"DROP TABLE {site.database}.otel_metrics_sum")
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_logs DROP COLUMN SpanId")
    answer = _create(site, code=1)
    assert answer["table `otel_metrics_sum`"]["state"] == "created"
    assert answer["table `otel_traces`"]["state"] == "fits"
    unfit = answer["table `otel_logs`"]
    assert unfit["state"] == "unfit"
    [fault] = unfit["faults"]
    assert "no column SpanId" in fault["what"]
    site.clickhouse.query(fault["remedy"])
    assert {table["state"] for table in _create(site).values()} == {"fits"}


def test_doctor_names_what_the_tables_lack(site):
    site.gateway().terminate()
    where = ("--clickhouse", site.clickhouse.url, "--database", site.database)

    def findings(code: int) -> list[dict]:
        process = site.millpond("doctor", *where, "--read-only", "--json", code=code)
        return site.parsed(process)["findings"]

    missing = [found["what"] for found in findings(1) if found["severity"] == "error"]
    assert f"there is no table `{site.database}`.`otel_logs`" in missing
    _create(site)
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_logs DROP COLUMN SpanId")
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_traces DROP COLUMN TraceState")
    found = [found for found in findings(1) if found["severity"] == "error"]
    assert [("SpanId" in f["what"], "TraceState" in f["what"]) for f in found] == [
        (True, False),
        (False, True),
    ]
    for fault in found:
        site.clickhouse.query(fault["todo"])
    assert not [found for found in findings(0) if found["severity"] == "error"]
    site.clickhouse.query(f"DROP VIEW {site.database}.otel_traces_trace_id_ts_mv")
    [warning] = [f["what"] for f in findings(0) if "trace_id_ts_mv" in f["what"]]
    assert "which lookups of a trace's time need" in warning


# A plausible edit of the printed DDL for logs: a column computed from the time, which is the
# partition and sorting key; more columns, with defaults and without; and another window.
def _edited(script: str, partition_by: str) -> str:
    head, tail = script.split("\n)\nENGINE")
    more = [
        "`TimestampTime` DateTime DEFAULT toDateTime(Timestamp)",
        "`Tenant` LowCardinality(String) DEFAULT ResourceAttributes['service.name']",
        "`Words` UInt32 MATERIALIZED length(splitByWhitespace(Body))",
        "`Note` String",
    ]
    tail = re.sub(r"PARTITION BY .*", f"PARTITION BY {partition_by}", tail)
    tail = re.sub(r"ORDER BY .*", "ORDER BY (Tenant, TimestampTime, Timestamp)", tail)
    return ",\n    ".join([head, *more]) + "\n)\nENGINE" + tail


@pytest.mark.parametrize(
    "partition_by", ["toDate(TimestampTime)", "toStartOfMinute(TimestampTime)", "tuple()"]
)
def test_a_custom_table_gets_every_record_once_through_kills(own_site, partition_by):
    site = own_site
    _run(site, _edited(_print(site, "--signals", "logs"), partition_by))
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--no-create", "--signals", "logs", "--batch-records", 2_000)
    load = site.load(gateway, "--concurrency", 4, records=20_000)
    load.start()
    for victim, rows in ((consumer, 1), (site.clickhouse, 5_000), (consumer, 10_000)):
        # Kill it at any moment of its work.
        eventually(
            f"{rows} rows",
            lambda rows=rows: rows_of(site.clickhouse, site.database) >= rows,
            interval=0.01,
        )
        victim.send(signal.SIGKILL)
        victim.wait()
        victim.up()
    assert load.wait(120) == 0
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
    odd = (
        f"SELECT countIf(TimestampTime != toDateTime(Timestamp) OR Note != '' OR Words = 0"
        f" OR Tenant != ResourceAttributes['service.name']) FROM {site.database}.otel_logs"
    )
    assert site.clickhouse.scalar(odd) == "0"


def test_a_partition_by_the_time_of_insertion_is_refused(site):
    script = _print(site, "--signals", "logs").replace(
        "PARTITION BY toDate(Timestamp)", "PARTITION BY toDate(_millpond_inserted_at)"
    )
    _run(site, script)
    fault = _create(site, "--signals", "logs", code=1)["table `otel_logs`"]["faults"][0]
    assert "depend on _millpond_inserted_at" in fault["what"]
    site.gateway().terminate()
    consumer = site.consumer_of("--no-create", "--signals", "logs")
    consumer.start()
    assert consumer.wait() == 1
    assert fault["what"] in consumer.messages()


@pytest.mark.parametrize(
    ("flag", "value", "answer"),
    [
        ("--engine", "ReplacingMergeTree", "another engine yourself"),
        ("--engine", "ReplicatedMergeTree('/all', '{replica}')", "use {table} or {uuid}"),
        ("--partition-by", "week", "toMonday({time})"),
        ("--indexes", "many", "use exporter, bloom, text or none"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(site, flag, value, answer):
    assert answer in site.command("tables", "print", flag, value, code=2).messages()


class Recorder:
    """A ClickHouse server with a cluster, as far as DDL goes: records each statement that begins
    with CREATE, and forwards everything else."""

    def __init__(self, url: str) -> None:
        recorder = self
        self.statements: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if body.lstrip().startswith(b"CREATE"):
                    recorder.statements.append(body.decode())
                    self._answer(200, {}, b"")
                    return
                request = urllib.request.Request(url + self.path, data=body)
                for name, value in self.headers.items():
                    if name.lower() not in ("host", "content-length", "connection"):
                        request.add_header(name, value)
                with urllib.request.urlopen(request) as answer:
                    self._answer(answer.status, dict(answer.headers), answer.read())

            do_GET = do_POST

            def _answer(self, status: int, headers: dict, body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _shape(site, sql: str) -> tuple[str, dict[str, str]]:
    """The object that a statement creates, without columns and settings, formatted by the engine's
    own parser."""
    quoted = sql.replace("\\", "\\\\").replace("'", "\\'")
    [row] = site.clickhouse.rows(f"SELECT formatQuery('{quoted}') AS sql")
    text = row["sql"]
    head = " ".join(text.split("\n(")[0].split())
    clauses = re.findall(r"^(ENGINE =|PARTITION BY|ORDER BY|TTL) ?(.*)$", text, flags=re.MULTILINE)
    return head, dict(clauses)


@pytest.mark.parametrize(
    ("engine", "parameters"),
    [
        ("MergeTree", ""),
        ("ReplicatedMergeTree", ""),
        ("ReplicatedMergeTree", "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"),
    ],
)
def test_on_a_cluster_the_ddl_is_the_exporters(site, engine, parameters):
    """The embedded engine has no clusters: compares the statements that both would send to one."""
    recorder = Recorder(site.clickhouse.url)
    site.collector(
        "clickhouse",
        {
            **export_to_clickhouse(recorder.url, site.database),
            "cluster_name": "{cluster}",
            "table_engine": {"name": engine, "params": parameters},
            "ttl": "72h",
        },
    )
    recorder.stop()
    theirs = dict(_shape(site, sql) for sql in recorder.statements)
    script = _print(
        site,
        *("--engine", f"{engine}({parameters})", "--cluster", "{cluster}", "--ttl", "72h"),
    )
    ours = dict(_shape(site, sql) for sql in _statements(script))
    assert len(theirs) == 1 + len(TABLES)
    for clauses in theirs.values():
        if "ENGINE =" in clauses:
            # The same engine; only the exporter writes empty brackets.
            clauses["ENGINE ="] = clauses["ENGINE ="].removesuffix("()")
    assert ours == theirs
