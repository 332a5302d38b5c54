"""Metrics in the operators' pages and in deploy/ match those of a run."""

import re

from harness.corpus import record, request
from harness.exactly_once import wait_for_all
from harness.otlp import export
from harness.process import eventually
from harness.services import REPOSITORY

# A histogram has further names.
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def _named() -> dict[str, set[str]]:
    """Metrics by the file that names them."""
    files = [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "deploy").rglob("*")]
    named = {}
    for file in files:
        if file.is_file() and file.suffix in {".md", ".yaml", ".tpl", ".json"}:
            names = re.findall(
                r"\bmillpond_(?:gateway|producer|consumer|gc|store)_[a-z_]+",
                file.read_text(),
            )
            # `MILLPOND_LOG=millpond_consumer=debug` names a crate, not a metric.
            named[str(file.relative_to(REPOSITORY))] = set(names)
    return named


def test_every_documented_metric_exists(site):
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs ADD CONSTRAINT tidy CHECK Body != 'bad'"
    )
    export(gateway.address, request(record("refused", body="bad")).SerializeToString())
    load = site.load(gateway, records=500)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    # A metric with labels exists from its first use on. The consumer counts rows after they are in
    # ClickHouse.
    eventually(
        "the consumer to have counted the records",
        lambda: consumer.metric("millpond_consumer_records_total") >= 500,
    )
    shown = {
        line.split("{")[0].split(" ")[0]
        for text in (gateway.metrics(), consumer.metrics())
        for line in text.splitlines()
        if not line.startswith("#")
    }
    there = shown | {_SUFFIX.sub("", name) for name in shown}
    named = _named()
    assert sum(len(names) for names in named.values()) > 25
    missing = {file: names - there for file, names in named.items() if names - there}
    assert not missing
