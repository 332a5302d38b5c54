"""The dashboard and the alerting rules, evaluated by Prometheus' own engine."""

from __future__ import annotations

import json
import re
import subprocess

from .services import REPOSITORY, tool

GRAFANA = REPOSITORY / "deploy" / "grafana"


def dashboard_queries() -> list[str]:
    """The queries of all panels."""
    panels = json.loads((GRAFANA / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    # As Grafana expands them.
    return [query.replace("$__rate_interval", "1m").replace("$job", ".*") for query in queries]


def ask(targets: dict[str, str], queries: list[str]) -> list[dict]:
    """The results of the queries, followed by those of the rules' expressions."""
    flags = [word for job, at in targets.items() for word in ("-target", f"{job}={at}")]
    asked = subprocess.run(
        [tool("MILLPOND_PROMETHEUS"), *flags, "-rules", GRAFANA / "alerts.yaml"],
        input="\n".join(queries),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    return [json.loads(line) for line in asked.stdout.splitlines()]


def firing(targets: dict[str, str]) -> set[str]:
    """The alerts whose expressions find something."""
    return {answer["alert"] for answer in ask(targets, []) if answer["series"]}


def names_in(query: str) -> set[str]:
    """The metrics that a query needs."""
    return set(re.findall(r"millpond_\w+", query))


def known(*processes) -> set[str]:
    """The names of the processes' metrics, as in the samples."""
    lines = [line for process in processes for line in process.metrics().splitlines()]
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
