#!/usr/bin/env python3
"""Shows whether memory grows: gateway, consumer and the Collector with Millpond's exporter, at
their defaults, take records for an hour.

One load generator sends logs to the gateway, another to the Collector, and clients send spans and
data points to the gateway. Both append to one shard of a buffer in MinIO. The anonymous memory of
each process is read every second: resident memory also has the pages of the program's file that it
has touched so far, which the system drops when it needs them. Prints its mean in each quarter of
the time after the first tenth, which fills caches and tables, and the peak of resident memory.
Exits with 1 if the mean of the last quarter is more than a tenth (and 8 MiB) above that of the
second, or if an acknowledged record is missing.

    make bench-endurance BENCH_FLAGS="--minutes 60 --rate 2000"
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.process import Process  # noqa: E402
from harness.senders import Senders, found  # noqa: E402
from harness.services import EmbeddedClickHouse, Minio  # noqa: E402
from harness.site import Site  # noqa: E402

EVERY_S = 1.0
# Enough for a garbage collector's rhythm and a table that grows by doubling.
GROWTH_MAX = 1.1
GROWTH_MIB = 8.0
# Acknowledged records that are not in ClickHouse after this time are missing.
PATIENCE_S = 300


def anonymous_mib(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


def quarters(samples: list[float]) -> list[float]:
    """The means of the quarters after the first tenth."""
    settled = samples[len(samples) // 10 :]
    bounds = [len(settled) * n // 4 for n in range(5)]
    parts = [settled[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    return [sum(part) / len(part) for part in parts]


def run(site: Site, seconds: float, rate: int) -> dict:
    # Defaults, except for what makes the test possible on one machine.
    gateway = site.gateway("--linger", "1s")
    collector = site.millpond_collector("otelcol", linger="1s")
    consumer = site.consumer("--lease", "15s")
    watched = {"gateway": gateway, "exporter": collector, "consumer": consumer}
    flags = ("--rate", rate, "--retry-for", "60s", "--duration", f"{seconds:.0f}s")
    loads = [
        site.load(target, *flags, records=1_000_000_000, name=f"load-{name}")
        for name, target in (("gateway", gateway), ("exporter", collector))
    ]
    for load in loads:
        load.start()
    samples: dict[str, list[float]] = {name: [] for name in watched}
    ends = time.monotonic() + seconds
    with Senders(gateway.address, pause=1.0) as senders:
        while time.monotonic() < ends:
            for name, process in watched.items():
                process.must_run()
                samples[name].append(anonymous_mib(process))
            time.sleep(EVERY_S)
        others = senders.stop()
    sent = [load.wait(PATIENCE_S) for load in loads]
    assert sent == [0, 0], f"the load generators ended with {sent}"
    acknowledged = sum(load.report()["records_acknowledged"] for load in loads)
    return {
        "seconds": seconds,
        "records_per_second": 2 * rate,
        "records": acknowledged,
        "missing": missing(site, acknowledged, others),
        "memory_mib": {
            name: {
                "quarters": quarters(samples[name]),
                "peak": process.peak_memory() / 2**20,
            }
            for name, process in watched.items()
        },
    }


def missing(site: Site, logs: int, others: list[str]) -> int:
    """The number of acknowledged records that do not arrive."""
    until = time.monotonic() + PATIENCE_S
    while True:
        rows = int(site.clickhouse.scalar(f"SELECT count() FROM {site.database}.otel_logs"))
        left = logs - rows + len(set(others) - found(site).keys())
        if left <= 0 or time.monotonic() > until:
            return left
        time.sleep(1)


def grows(memory: dict) -> bool:
    _, second, _, last = memory["quarters"]
    return last > second * GROWTH_MAX and last > second + GROWTH_MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2_000, help="log records a second, for each")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        store, clickhouse = Minio(directory), EmbeddedClickHouse(directory)
        site = Site(directory, store, clickhouse)
        try:
            site.add(store).up()
            site.add(clickhouse).up()
            measured = run(site, 60 * arguments.minutes, arguments.rate)
        finally:
            site.stop()
    records, seconds = measured["records"], measured["seconds"]
    print(f"{records} log records in {seconds:.0f} s, {measured['missing']} missing")
    for name, memory in measured["memory_mib"].items():
        means = ", ".join(f"{mean:.1f}" for mean in memory["quarters"])
        peak = f"peak with files {memory['peak']:.1f} MiB"
        print(f"{name}: {means} MiB on average in each quarter, {peak}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n")
    growing = [name for name, memory in measured["memory_mib"].items() if grows(memory)]
    if growing:
        print(f"memory grows: {', '.join(growing)}")
    return 1 if growing or measured["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
