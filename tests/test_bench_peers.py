"""`make bench-peers` in a short form: the same rows from every system, and no figures otherwise."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.process import eventually
from harness.services import BIN_DIR, REPOSITORY

SHORT = ("--records", "2000", "--warm-up", "1000", "--records-per-request", "100")


def start(tmp_path: Path, *flags: object) -> subprocess.Popen:
    """Starts the benchmark without the peer that the tests do not build."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    environment = {
        **os.environ,
        "MILLPOND_BIN_DIR": str(BIN_DIR),
        "PYTHONPATH": str(REPOSITORY / "tests"),
        "TMPDIR": str(directory),
    }
    environment.pop("OPENDATA_PEER", None)
    words = [*SHORT, "--concurrency", "8", "--repeats", "1", "--results", tmp_path / "results"]
    return subprocess.Popen(
        [sys.executable, REPOSITORY / "scripts/bench-peers.py", *map(str, (*words, *flags))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(tmp_path: Path, benchmark: subprocess.Popen) -> str:
    """The output of a benchmark that has left neither processes nor files."""
    output, _ = benchmark.communicate(timeout=600)
    directory = tmp_path / "temporary"
    assert list(directory.iterdir()) == [], output
    assert commands_with(str(directory)) == [], output
    return output


def commands_with(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def test_every_system_writes_the_same_rows(tmp_path):
    systems = ["millpond", "millpond-columns", "clickhouseexporter"]
    if os.environ.get("MILLPOND_KAFKA"):
        systems.append("kafka")
    benchmark = start(tmp_path, "--only", ",".join([*systems, "opendata"]))
    output = ended(tmp_path, benchmark)
    assert benchmark.returncode == 0, output
    [file] = (tmp_path / "results").glob("*.json")
    found = json.loads(file.read_text())
    chart = (tmp_path / "results/peers.svg").read_text()
    titles = [system["title"] for system in found["systems"].values()]
    assert [title for title in titles if f">{title}<" not in chart] == []
    assert [*found["systems"]] == systems
    assert found["rows"] == 3_000
    assert [*found["left_out"]] == ["opendata"]
    for system in found["systems"].values():
        assert f"| {system['title']} |" in output
        assert system["records_per_second"]["median"] > 0
        assert system["retries"]["median"] == 0
    assert found["systems"]["millpond"]["ratio_to_millpond"]["total"]["median"] == 1


def test_a_different_row_gives_no_figures(tmp_path):
    changed = ("--alter", "clickhouseexporter")
    benchmark = start(tmp_path, "--only", "millpond,clickhouseexporter", *changed)
    output = ended(tmp_path, benchmark)
    assert benchmark.returncode == 1, output
    assert "NO FIGURES: the rows differ" in output
    # The number of rows is right: only the checksum tells.
    assert output.count("3,000 rows, checksum") == 2
    assert "CPU-s" not in output
    assert not (tmp_path / "results").exists()


def test_an_interrupted_benchmark_leaves_nothing_behind(tmp_path):
    # It cannot end by itself before the signal.
    benchmark = start(tmp_path, "--only", "millpond", "--records", 10_000_000)
    logs = tmp_path / "temporary"
    eventually("a consumer to run", lambda: [*logs.glob("*/consumer.log")])
    benchmark.send_signal(signal.SIGTERM)
    output = ended(tmp_path, benchmark)
    assert benchmark.returncode == 1, output
    assert "interrupted; no results written" in output


def test_a_flag_that_makes_no_sense_is_refused_before_anything_runs(tmp_path):
    benchmark = start(tmp_path, "--only", "millpond,postgres")
    output = ended(tmp_path, benchmark)
    assert benchmark.returncode == 2, output
    assert "no system is called postgres; there are millpond, " in output
