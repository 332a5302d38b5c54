"""The tools that measure and search, in a short form: they work on a clean clone."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from harness.services import BIN_DIR, REPOSITORY, tool


def run(*command, cwd=None, env=None, codes=(0,)):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in codes, done.stdout
    return done.stdout


def test_bench(tmp_path):
    run(BIN_DIR / "bench", "--short", "--results", tmp_path)
    [file] = tmp_path.iterdir()
    results = json.loads(file.read_text())
    assert (len(results["cost"]), len(results["latency"])) == (4, 2)
    assert results["memory"]
    assert results["floors"] == [], "a short run judges nothing"


def test_bench_levels(tmp_path):
    run(BIN_DIR / "bench", "--only", "levels", "--short", "--results", tmp_path)
    [file] = tmp_path.iterdir()
    levels = json.loads(file.read_text())["levels"]
    kinds = [(level["clients"], level["share"]) for level in levels]
    assert kinds == [
        (clients, share) for clients in ("open", "closed") for share in (0.1, 0.5, 0.9)
    ]
    for level in levels:
        assert 0 < level["row_p50_ms"] <= level["row_p99_ms"]
        assert [stage["name"] for stage in level["stages"]][0] == "segment open"
        assert min(stage["mean_ms"] for stage in level["stages"]) > 0


def test_bench_gateways(tmp_path):
    run(BIN_DIR / "bench", "--only", "gateways", "--short", "--results", tmp_path)
    [file] = tmp_path.iterdir()
    results = json.loads(file.read_text())
    kinds = [(found["gateways"], found["linger"], found["load"]) for found in results["gateways"]]
    assert kinds == [(4, linger, load) for linger in ("1s", "250ms") for load in ("light", "full")]
    for found in results["gateways"]:
        assert found["records_per_second"] > 0
        assert found["attempts_per_commit"] >= 1
        assert found["gateway"]["put"] > 0


def test_bench_backlog(tmp_path):
    run(BIN_DIR / "bench", "--only", "backlog", "--short", "--results", tmp_path)
    [file] = tmp_path.iterdir()
    results = json.loads(file.read_text())
    kinds = [(found["size"], found["writers"]) for found in results["backlog"]]
    assert kinds == [(size, writers) for writers in (1, 2, 4) for size in ("small", "full")]
    for found in results["backlog"]:
        assert found["records"] == 10_000
        assert found["segments"] >= 100 or found["size"] == "full"
        assert found["parts"] > 0


def test_bench_telemetry(tmp_path):
    run(BIN_DIR / "bench", "--only", "telemetry", "--short", "--results", tmp_path)
    [file] = tmp_path.iterdir()
    results = json.loads(file.read_text())
    nothing, *pushing = results["telemetry"]
    assert nothing["points"]["max"] == 0
    assert min(found["points"]["min"] for found in pushing) > 0
    assert pushing[-1]["spans"]["min"] > 0


def test_bench_endurance(tmp_path):
    results = tmp_path / "results.json"
    script = REPOSITORY / "scripts/bench-endurance.py"
    flags = ("--minutes", 0.2, "--rate", 500, "--json", results)
    # So short a run may end with 1: caches still fill.
    output = run(sys.executable, script, *flags, codes=(0, 1))
    found = json.loads(results.read_text())
    assert found["missing"] == 0, output
    assert found["records"] > 1_000
    for memory in found["memory_mib"].values():
        assert len(memory["quarters"]) == 4
        assert 1 < max(memory["quarters"]) <= memory["peak"]


@pytest.mark.parametrize("twice", [(), ("--twice",)])
def test_bench_unique(twice):
    script = REPOSITORY / "scripts/bench-unique.py"
    size = ("--records", 20_000, "--rows-per-request", 1_000, "--repeats", 1)
    output = run(sys.executable, script, *size, *twice, env={"MILLPOND_BIN_DIR": str(BIN_DIR)})
    first, second = ("in_order", "mixed") if twice else ("plain", "unique")
    assert f"\n{first}_0 " in output, output
    assert f"\n{second}_0 " in output
    assert "\n  consumer and ClickHouse " in output


def test_bench_unique_refuses_too_few_records():
    script = REPOSITORY / "scripts/bench-unique.py"
    output = run(sys.executable, script, "--records", 10, codes=(2,))
    assert "--records is 10: give 500,000 or a multiple" in output
    output = run(sys.executable, script, "--rows-per-request", 0, codes=(2,))
    assert "--rows-per-request are at least 1" in output


def test_bench_growth():
    output = run(BIN_DIR / "growth", "--short").splitlines()
    lines = [json.loads(line) for line in output if line.startswith("{")]
    assert [line["backlog_segments"] for line in lines] == [0, 1_000]
    for line in lines:
        assert line["commit_bytes_written"] < line["contended_bytes_written"]


def test_bench_micro(tmp_path):
    # A comparison with itself.
    flags = ["--short", "--only", "zstd,logs-validate,block-encode,metrics-insert,plan"]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run(BIN_DIR / "micro", *flags, "--report", first)
    output = run(BIN_DIR / "micro", *flags, "--report", second, "--base", first)
    pieces = json.loads(first.read_text())["pieces"]
    assert [*pieces] == ["block-encode", "logs-validate", "metrics-insert", "plan", "zstd"]
    for name, figure in pieces.items():
        assert figure["nanoseconds"] > 0
        assert (figure["instructions"] is None) == (shutil.which("valgrind") is None)
        assert f"\n{name} " in output, "a line of the table"


def test_bench_exporter(tmp_path):
    program = tmp_path / "bench-exporter"
    run("go", "build", "-o", program, ".", cwd=REPOSITORY / "otel-exporter/internal/bench")
    (tmp_path / "bodies.log").write_text("".join(f"line {n} of a log\n" for n in range(1000)))
    only = "millpond, zstd level 1"
    flags = ["-records", "2000", "-repeats", "1", "-only", only, "-bodies", tmp_path]
    output = run(program, *flags, env={"MILLPOND_MINIO": tool("MILLPOND_MINIO")})
    assert f"{only}, run 1:" in output


def test_the_simulation():
    run(BIN_DIR / "millpond-simulation", "run", "--seeds", "0..20")
    run(BIN_DIR / "millpond-simulation", "model", "forgotten", "--ticks", "1")
