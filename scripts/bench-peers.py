#!/usr/bin/env python3
"""Measures Millpond and its peers from OTLP/HTTP to ClickHouse: `make bench-peers`.

Every system gets the same bytes and writes the same table, that of the Collector's
clickhouseexporter. The systems take turns, and a figure is the median of the repeats. Unless the
rows of all runs are equal, there are no figures and the exit status is 1. Writes the table to
standard output, and JSON and the README's chart to bench/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench_peers import chart, measure, report
from bench_peers.systems import SYSTEMS, exporters_table

from harness.clickhouse import QueryError
from harness.services import REPOSITORY


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Millpond and its peers")
    parser.add_argument("--records", type=int, default=1_000_000, help="records of each run")
    parser.add_argument("--warm-up", type=int, default=100_000, help="records before those")
    parser.add_argument("--records-per-request", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=256, help="requests in flight")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", default=",".join(SYSTEMS), help="systems, separated by commas [default: all]"
    )
    parser.add_argument(
        "--bodies",
        type=Path,
        default=os.environ.get("MILLPOND_LOGHUB") or None,
        help="folder of *.log files whose lines become log bodies [default: MILLPOND_LOGHUB]",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=REPOSITORY / "bench" / "results",
        help="folder of the output",
    )
    parser.add_argument(
        "--alter", choices=[*SYSTEMS], help="change a row of this system: the run must then fail"
    )
    chosen = parser.parse_args()
    each = chosen.records_per_request
    if min(chosen.records, chosen.warm_up) < each or chosen.repeats < 1 or chosen.concurrency < 1:
        parser.error("--records and --warm-up take at least a request, the others at least 1")
    chosen.only = chosen.only.split(",")
    unknown = [name for name in chosen.only if name not in SYSTEMS]
    if unknown:
        names = ", ".join(SYSTEMS)
        parser.error(f"--only: no system is called {', '.join(unknown)}; there are {names}")
    return chosen


def run(chosen: argparse.Namespace) -> int:
    each = chosen.records_per_request
    warm_up = chosen.warm_up // each
    load = measure.Load(
        warm_up + chosen.records // each, warm_up, each, chosen.concurrency, chosen.bodies
    )
    left_out = {name: SYSTEMS[name].missing() for name in chosen.only}
    left_out = {name: reason for name, reason in left_out.items() if reason}
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    names = [name for name in chosen.only if name not in left_out]
    if not names:
        sys.exit("no system is left to measure")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-peers-") as directory:
        ddl = exporters_table(Path(directory))
    runs = []
    for repeat in range(1, chosen.repeats + 1):
        for name in names:
            runs.append(measure.run(SYSTEMS[name], ddl, load, alter=name == chosen.alter))
            say(f"{name}, {repeat} of {chosen.repeats}: done")
    wrong = report.differences(runs, load)
    if wrong:
        print(wrong, file=sys.stderr)
        return 1
    bodies = "generated text" if chosen.bodies is None else "lines of real logs"
    found = report.results(runs, load, left_out, bodies)
    print(report.table(found))
    chosen.results.mkdir(parents=True, exist_ok=True)
    file = chosen.results / f"peers-{datetime.date.today()}.json"
    file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    picture = chosen.results / "peers.svg"
    picture.write_text(chart.svg(found))
    say(f"written to {file} and {picture}")
    return 0


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    # A signal ends the run like Ctrl-C: every process is stopped on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("interrupted; no results written"))
    try:
        return run(flags())
    except KeyboardInterrupt:
        sys.exit("interrupted; no results written")
    except (AssertionError, OSError, QueryError) as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
