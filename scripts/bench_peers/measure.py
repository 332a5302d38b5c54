"""One run of a system: starts it, sends the load, waits for the last row, and takes CPU time,
memory and a checksum of the rows. It judges nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from usage import cpu_seconds, peak_memory

from bench_peers.systems import DATABASE, ClickHouse, System
from harness.process import Process, TimedOut, eventually
from harness.services import program

# Time without a new row after which rows count as lost.
STALLED_SECONDS = 120

# Time limits of the load and of ClickHouse's merges after it.
LOAD_SECONDS = 1_800
MERGES_SECONDS = 120

TABLE = f"{DATABASE}.otel_logs"


@dataclass
class Load:
    """The requests that every system gets, and how many of them warm it up."""

    requests: int
    warm_up: int
    records_per_request: int
    concurrency: int
    bodies: Path | None

    @property
    def records(self) -> int:
        return (self.requests - self.warm_up) * self.records_per_request


@dataclass
class Run:
    """CPU time in seconds, memory in MiB, by process."""

    system: str
    cpu: dict[str, float]
    clickhouse_cpu: float
    clickhouse_cpu_before_merges: float
    # Active parts when no merge ran any more, before they were merged into one per partition.
    parts: int
    sender_cpu: float
    seconds: float
    peak_memory: dict[str, float]
    clickhouse_peak_memory: float
    sent: dict
    rows: int
    checksum: str


def run(kind: type[System], ddl: str, load: Load, alter: bool = False) -> Run:
    """Runs a system once. `alter` changes a byte of one of its rows, for the test of the check."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-peers-") as name:
        directory = Path(name)
        clickhouse = ClickHouse(directory)
        system = kind(directory, clickhouse)
        try:
            clickhouse.up()
            clickhouse.query(f"CREATE DATABASE {DATABASE}")
            clickhouse.query(ddl)
            system.start()
            return _measure(system, clickhouse, load, columns(ddl, clickhouse), alter)
        except (AssertionError, OSError) as error:
            raise TimedOut(f"{system.title}: {error}\n{_tails(directory)}") from error
        finally:
            system.stop()
            clickhouse.kill()


def _measure(
    system: System, clickhouse: ClickHouse, load: Load, names: dict[str, str], alter: bool
) -> Run:
    # Caches, connections, Java's compiler: all systems start warm.
    send = Sender(system, load)
    send.run(0, load.warm_up)
    _arrived(system, clickhouse, load.warm_up * load.records_per_request)
    _merged(clickhouse)

    def used() -> dict[str, float]:
        return {name: cpu_seconds(process.pid) for name, process in system.processes.items()}

    before, clickhouse_before = used(), cpu_seconds(clickhouse.pid)
    children_before = _children_cpu_seconds()
    began = time.monotonic()
    sent = send.run(load.warm_up, load.requests - load.warm_up)
    sender_cpu = _children_cpu_seconds() - children_before
    # The sender prepares its requests before it sends the first one.
    preparation = time.monotonic() - began - sent["seconds"]
    _arrived(system, clickhouse, load.requests * load.records_per_request)
    seconds = time.monotonic() - began - preparation
    after, clickhouse_after = used(), cpu_seconds(clickhouse.pid)
    _merged(clickhouse)
    active = "active AND database = 'otel' AND table = 'otel_logs'"
    parts = int(clickhouse.scalar(f"SELECT count() FROM system.parts WHERE {active}"))
    # Systems that leave the merges of their parts for later pay for them, too.
    clickhouse.query(f"OPTIMIZE TABLE {TABLE} FINAL SETTINGS optimize_throw_if_noop = 0")
    merged = cpu_seconds(clickhouse.pid)
    memory = {name: peak_memory(process.pid) for name, process in system.processes.items()}
    if alter:
        _alter_a_row(clickhouse)
    rows, checksum = check(clickhouse, names)
    return Run(
        system=system.name,
        cpu={name: after[name] - before[name] for name in after},
        clickhouse_cpu=merged - clickhouse_before,
        clickhouse_cpu_before_merges=clickhouse_after - clickhouse_before,
        parts=parts,
        sender_cpu=sender_cpu,
        seconds=seconds,
        peak_memory=memory,
        clickhouse_peak_memory=peak_memory(clickhouse.pid),
        sent=sent,
        rows=rows,
        checksum=checksum,
    )


class Sender:
    """The load generator, one process per part of the load."""

    def __init__(self, system: System, load: Load) -> None:
        self.system, self.load = system, load

    def run(self, skip: int, take: int) -> dict:
        load = self.load
        flags: list[object] = ["--url", f"http://{self.system.address}/v1/logs"]
        flags += ["--requests", load.requests, "--skip", skip, "--take", take]
        flags += ["--records-per-request", load.records_per_request]
        flags += ["--concurrency", load.concurrency]
        if load.bodies is not None:
            flags += ["--bodies", load.bodies]
        process = Process(f"send-{skip}", [program("send"), *flags], self.system.directory)
        process.start()
        try:
            code = process.wait(LOAD_SECONDS)
        finally:
            process.kill()
        assert code == 0, f"the load generator ended with {code}: {process.messages()[-1500:]}"
        return json.loads(process.stdout())


def _arrived(system: System, clickhouse: ClickHouse, rows: int) -> None:
    """Waits for that many rows."""
    last, moved = -1, time.monotonic()
    while True:
        for process in (clickhouse, *system.processes.values()):
            process.must_run()
        now = int(clickhouse.scalar(f"SELECT count() FROM {TABLE}"))
        if now >= rows:
            return
        if now != last:
            last, moved = now, time.monotonic()
        elif time.monotonic() - moved > STALLED_SECONDS:
            raise TimedOut(f"{now:,} of {rows:,} rows, and no more for {STALLED_SECONDS} s")
        time.sleep(0.05)


def _merged(clickhouse: ClickHouse) -> None:
    """Waits until no merge has run for a second."""
    idle = 0

    def rests() -> bool:
        nonlocal idle
        merges = clickhouse.scalar("SELECT count() FROM system.merges")
        idle = idle + 1 if merges == "0" else 0
        return idle >= 4

    eventually("the end of ClickHouse's merges", rests, MERGES_SECONDS, 0.25)


def columns(ddl: str, clickhouse: ClickHouse) -> dict[str, str]:
    """The exporter's columns, materialized ones too, and their types."""
    clickhouse.query("CREATE DATABASE reference")
    clickhouse.query(ddl.replace(TABLE, "reference.otel_logs", 1))
    where = "database = 'reference' AND table = 'otel_logs'"
    found = clickhouse.rows(
        f"SELECT name, type FROM system.columns WHERE {where} ORDER BY position"
    )
    clickhouse.query("DROP DATABASE reference SYNC")
    return {column["name"]: column["type"] for column in found}


def check(clickhouse: ClickHouse, names: dict[str, str]) -> tuple[int, str]:
    """The number of rows and a checksum over the exporter's columns, whatever the rows' order."""
    # An OTLP map has no order.
    values = ", ".join(
        f"toString(mapSort(`{name}`))" if kind.startswith("Map(") else f"`{name}`"
        for name, kind in names.items()
    )
    (row,) = clickhouse.rows(
        f"SELECT count() AS rows, sum(cityHash64({values})) AS checksum FROM {TABLE}"
    )
    return int(row["rows"]), row["checksum"]


def _alter_a_row(clickhouse: ClickHouse) -> None:
    row = "TraceId = (SELECT max(TraceId) FROM otel.otel_logs)"
    clickhouse.query(
        f"ALTER TABLE {TABLE} UPDATE Body = concat(Body, '.') WHERE {row}"
        " SETTINGS mutations_sync = 1"
    )


def _children_cpu_seconds() -> float:
    """User and system time of this process's ended children."""
    times = os.times()
    return times.children_user + times.children_system


def _tails(directory: Path) -> str:
    """The ends of all logs."""
    texts = []
    for log in sorted(directory.glob("*.log")):
        texts.append(f"--- {log.name}\n{log.read_text(errors='replace')[-1_500:]}")
    return "\n".join(texts)
