"""Medians of the runs, as a table and as JSON. Systems whose rows differ get no figures."""

from __future__ import annotations

import datetime
import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench_peers.measure import Load, Run
from bench_peers.systems import SYSTEMS
from harness.services import REPOSITORY

Figure = Callable[[Run], float]


def differences(runs: list[Run], load: Load) -> str | None:
    """The rows and checksums of all runs, unless each has the rows that were sent."""
    expected = load.requests * load.records_per_request
    if {(run.rows, run.checksum) for run in runs} == {(expected, runs[0].checksum)}:
        return None
    lines = [f"NO FIGURES: the rows differ. {expected:,} records were sent to each system."]
    lines += [f"  {run.system:20} {run.rows:>12,} rows, checksum {run.checksum}" for run in runs]
    return "\n".join(lines)


def results(runs: list[Run], load: Load, left_out: dict[str, str], bodies: str) -> dict:
    millions = load.records / 1e6
    systems = {}
    for name in dict.fromkeys(run.system for run in runs):
        own = [run for run in runs if run.system == name]
        systems[name] = _summary(name, own, millions, load.records)
    if "millpond" in systems:
        for name, system in systems.items():
            system["ratio_to_millpond"] = _ratios(runs, name)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "load": {
            "records": load.records,
            "warm_up_records": load.warm_up * load.records_per_request,
            "records_per_request": load.records_per_request,
            "requests_in_flight": load.concurrency,
            "raw_bytes_per_record": round(runs[0].sent["raw_bytes"] / load.records, 1),
            "bodies": bodies,
            "repeats": sum(run.system == runs[0].system for run in runs),
        },
        "rows": runs[0].rows,
        "checksum": runs[0].checksum,
        "left_out": left_out,
        "systems": systems,
    }


def _summary(name: str, runs: list[Run], millions: float, records: int) -> dict:
    def spread(figure: Figure) -> dict:
        return _spread([figure(run) for run in runs])

    return {
        "title": SYSTEMS[name].title,
        "cpu_seconds_per_million_records": {
            "by_process": {
                process: spread(lambda run, process=process: run.cpu[process] / millions)
                for process in runs[0].cpu
            },
            "system": spread(lambda run: sum(run.cpu.values()) / millions),
            "clickhouse": spread(lambda run: run.clickhouse_cpu / millions),
            "clickhouse_before_merges": spread(
                lambda run: run.clickhouse_cpu_before_merges / millions
            ),
            "total": spread(lambda run: _total(run) / millions),
            "load_generator": spread(lambda run: run.sender_cpu / millions),
        },
        "parts": spread(lambda run: run.parts),
        "records_per_second": spread(lambda run: records / run.seconds),
        "seconds": spread(lambda run: run.seconds),
        "answer_ms": {
            "p50": spread(lambda run: run.sent["p50_ms"]),
            "p99": spread(lambda run: run.sent["p99_ms"]),
        },
        "retries": spread(lambda run: run.sent["retries"]),
        "peak_memory_mib": {
            **{
                process: spread(lambda run, process=process: run.peak_memory[process])
                for process in runs[0].peak_memory
            },
            "clickhouse": spread(lambda run: run.clickhouse_peak_memory),
        },
    }


def _total(run: Run) -> float:
    return sum(run.cpu.values()) + run.clickhouse_cpu


def _ratios(runs: list[Run], name: str) -> dict:
    """CPU time relative to Millpond's in the same repeat."""
    pairs = list(
        zip(
            [run for run in runs if run.system == name],
            [run for run in runs if run.system == "millpond"],
            strict=True,
        )
    )
    return {
        "system": _spread([sum(run.cpu.values()) / sum(ours.cpu.values()) for run, ours in pairs]),
        "total": _spread([_total(run) / _total(ours) for run, ours in pairs]),
        "records_per_second": _spread([ours.seconds / run.seconds for run, ours in pairs]),
    }


def _spread(values: list[float]) -> dict:
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in figures.items()}


def _commit() -> str:
    def git(*words: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "HEAD") or "unknown") + ("-dirty" if dirty else "")


def _machine() -> dict:
    cpu = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu[0] if cpu else "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "load_average": round(os.getloadavg()[2], 1),
    }


def table(found: dict) -> str:
    """A Markdown table of the medians."""
    head = "CPU-s per million records, median (smallest..largest)"
    lines = [
        f"| {head} | by process | system | ClickHouse, last row |"
        " one part (from) | total, one part | × Millpond | records/s | peak memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for system in found["systems"].values():
        cpu = system["cpu_seconds_per_million_records"]
        processes = {name: figure["median"] for name, figure in cpu["by_process"].items()}
        ratio = system.get("ratio_to_millpond")
        rate = system["records_per_second"]
        memory = {
            process: figure["median"]
            for process, figure in system["peak_memory_mib"].items()
            if process != "clickhouse"
        }
        lines.append(
            f"| {system['title']} "
            f"| {', '.join(f'{name} {value:.2f}' for name, value in processes.items())} "
            f"| {_text(cpu['system'])} | {_text(cpu['clickhouse_before_merges'])} "
            f"| {_text(cpu['clickhouse'])} ({system['parts']['median']:.0f}) "
            f"| {_text(cpu['total'])} "
            f"| {_text(ratio['total']) if ratio else '–'} "
            f"| {rate['median']:,.0f} ({rate['min']:,.0f}..{rate['max']:,.0f}) "
            f"| {', '.join(f'{process} {peak:.0f}' for process, peak in memory.items())} |"
        )
    lines += [f"left out: {name}: {reason}" for name, reason in found["left_out"].items()]
    return "\n".join(lines)


def _text(figure: dict) -> str:
    return f"{figure['median']:.2f} ({figure['min']:.2f}..{figure['max']:.2f})"
