"""The tutorial works: runs every `sh` block of every chapter in order in one shell, and compares
the output with a following `text` block (`…`: anything)."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from harness.process import Process, eventually, free_port
from harness.services import BIN_DIR, REPOSITORY

CHAPTERS = (
    "README",
    "1-collector",
    "2-crash",
    "3-catch-up",
    "4-replay",
    "5-cost",
    "6-gateways",
    "7-orders",
)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    where: str
    commands: str
    says: str | None = None


def _steps(chapter: str) -> list[Step]:
    name = f"tutorial/{chapter}.md"
    steps: list[Step] = []
    for number, (kind, content) in enumerate(_BLOCK.findall((REPOSITORY / name).read_text())):
        if kind == "sh":
            steps.append(Step(f"{name}, block {number}", content))
        elif kind == "text":
            assert steps[-1].says is None, f"{name}, block {number}: what says this?"
            steps[-1].says = content
    return steps


def _as_pattern(expected: str) -> str:
    """A line with only `…` matches any number of lines; elsewhere `…` matches part of a line."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else r"[^\n]*".join(map(re.escape, line.split("…"))) + "\n"
        for line in expected.splitlines()
    ]
    return "".join(lines)


def _clone(directory: Path) -> Path:
    """A beginner's clone of the project, without leftovers of an earlier tutorial."""
    clone = directory / "millpond"
    clone.mkdir()
    for found in REPOSITORY.iterdir():
        if found.name not in (".git", "target", "tutorial"):
            (clone / found.name).symlink_to(found)
    left = shutil.ignore_patterns("data", "env")
    shutil.copytree(REPOSITORY / "tutorial", clone / "tutorial", ignore=left)
    return clone


def _script(steps: list[Step], logs: Path) -> str:
    # However the shell ends, none of its processes stays behind.
    lines = [
        "set -eu -o pipefail",
        "trap exit TERM",
        "trap 'kill $(jobs -p) 2>&- || true; wait' EXIT",
    ]
    for number, step in enumerate(steps):
        lines += [f"exec > {logs}/{number}.out 2> {logs}/{number}.err", step.commands]
    return "\n".join(lines)


def test_the_tutorial_does_what_it_says(site, tmp_path):
    clone = _clone(tmp_path)
    ports = iter([free_port() for _ in range(10)])
    environment = {
        "MILLPOND_BIN_DIR": str(BIN_DIR),
        "TUTORIAL_MINIO_PORT": str(next(ports)),
        "TUTORIAL_CLICKHOUSE_PORT": str(next(ports)),
        "TUTORIAL_COLLECTOR": f"127.0.0.1:{next(ports)}",
        "TUTORIAL_GATEWAY_2": f"127.0.0.1:{next(ports)}",
        "TUTORIAL_GATEWAY_3": f"127.0.0.1:{next(ports)}",
        "MILLPOND_LISTEN": f"127.0.0.1:{(gateway := next(ports))}",
        "MILLPOND_LOAD_ENDPOINT": f"127.0.0.1:{gateway}",
        "MILLPOND_LISTEN_HTTP": f"127.0.0.1:{next(ports)}",
        "MILLPOND_GATEWAY_ADMIN": f"127.0.0.1:{next(ports)}",
        "TUTORIAL_KAFKA": f"127.0.0.1:{next(ports)}",
        "MILLPOND_CONSUME_ADMIN": f"127.0.0.1:{next(ports)}",
    }
    servers = site.add(
        Process("tutorial", ["make", "-C", clone, "tutorial"], tmp_path, environment)
    )
    servers.start()
    try:
        _follow(site, clone, tmp_path, environment, servers)
    finally:
        # Includes the processes that it started.
        if servers.running():
            servers.terminate()


def _follow(site, clone: Path, tmp_path: Path, environment: dict, servers: Process) -> None:
    def started() -> bool:
        servers.must_run()
        return "source tutorial/env" in servers.stdout()

    eventually("the servers of the tutorial", started)

    steps = [step for chapter in CHAPTERS for step in _steps(chapter)]
    assert len(steps) > 15
    assert sum(step.says is not None for step in steps) > 8
    script = tmp_path / "script"
    script.write_text(_script(steps, tmp_path))
    # The tutorial assumes that its folder is the current one.
    shell = ["env", "-C", clone, "bash", script]
    follower = site.add(Process("follower", shell, tmp_path, environment))
    follower.start()
    try:
        code = follower.wait(1_500)
    finally:
        if follower.running():
            follower.terminate()
    for number, step in enumerate(steps):
        out, err = (tmp_path / f"{number}.{end}" for end in ("out", "err"))
        assert out.exists(), f"{step.where} was not reached"
        printed = out.read_text()
        reached_next = (tmp_path / f"{number + 1}.out").exists()
        if code != 0 and not reached_next:
            _fail(clone, f"{step.where} failed with {code}: {printed} {err.read_text()}")
        if step.says is not None and not re.fullmatch(_as_pattern(step.says), printed):
            _fail(clone, f"{step.where} printed: {printed} instead of: {step.says}")
    assert code == 0


def _fail(clone: Path, reason: str) -> NoReturn:
    """Fails, and shows how the logs of the tutorial's processes end."""
    for log in sorted((clone / "tutorial" / "data").glob("*.log")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-2_000:]}")
    pytest.fail(reason)
