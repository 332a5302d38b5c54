"""docs/json.md documents every field of the commands' `--json` output, under each command."""

import re

import pytest

from harness.corpus import record, request
from harness.otlp import export
from harness.process import eventually
from harness.services import REPOSITORY

PAGE = (REPOSITORY / "docs" / "json.md").read_text()
# The content of these belongs to OTLP, the settings, the price table or the user.
OPEN = {
    "record",
    "records",
    "policy",
    "planned",
    "load",
    "settings",
    "request_latency",
    "price",
    "errors",
}


def _documented(part: str) -> set[str]:
    [text] = re.findall(rf"(?ms)^## {part}\n(.*?)(?=^## |\Z)", PAGE)
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def _fields(value) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_fields, value))
    if not isinstance(value, dict):
        return set()
    inner = [_fields(of) for name, of in value.items() if name not in OPEN]
    return set(value).union(*inner)


@pytest.fixture(scope="module")
def used(module_site):
    """A buffer with pages, a consumer that skipped something, and a dead letter."""
    site = module_site
    gateway = site.gateway("--linger", "20ms", "--tail-max", 2)
    consumer = site.consumer("--gc-interval", "0s", "--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    table = f"{site.database}.otel_logs"
    site.clickhouse.query(f"ALTER TABLE {table} ADD CONSTRAINT tidy CHECK Body != 'bad'")
    for body in ("one", "bad", "two", "three", "four"):
        export(gateway.address, request(record(body, body=body)).SerializeToString())
    site.millpond("consumer", "wait", "e2e")
    assert consumer.terminate() == 0
    export(gateway.address, request(record("left out")).SerializeToString())
    assert gateway.terminate() == 0
    [shard] = site.answer("status")["shards"]
    last = shard["next_sequence"] - 1
    skipped = ("--stream", "otlp.logs", "--sequence", last, "--reason", "a test")
    site.millpond("consumer", "skip", "e2e", *skipped)
    return site


def _letter(site) -> str:
    [letter] = site.answer("dead-letters", "list")["letters"]
    return letter["letter"]


COMMANDS = {
    "status": ("status",),
    "tail": ("tail", "--no-follow", "--from", "earliest"),
    "consumer list": ("consumer", "list"),
    "doctor": ("doctor",),
    "gc": ("gc", "--dry-run"),
    "manifest": ("manifest", "dump"),
    "dead-letters": ("dead-letters", "list"),
    "cost": ("cost",),
}


@pytest.mark.parametrize("part", COMMANDS)
def test_the_printed_fields_of_a_buffer_are_documented(used, part):
    fields = _fields(used.answer(*COMMANDS[part]))
    assert len(fields) > 3
    assert fields <= _documented(part)


def test_the_rest_is_documented_too(used):
    site = used
    letter = _letter(site)
    clickhouse = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    shard = site.answer("manifest", "dump")["shards"][0]
    segment = f"{site.buffer.url}/shards/0000/segments/{shard['entries'][0]['segment']}"
    endpoint = ("--s3-endpoint", site.buffer.endpoint)
    cost = ("cost", "--throughput", "1MB/s", "--json")
    replay = ("dead-letters", "replay", *clickhouse, letter, "--json")
    repair = ("consumer", "repair", "e2e", "--from", "earliest", "--to", "latest")
    for part, answer in (
        ("manifest", site.answer("manifest", "check")),
        ("buffer shards", site.answer("buffer", "shards", "1")),
        ("dead-letters", site.answer("dead-letters", "show", letter)),
        ("dead-letters", site.parsed(site.millpond(*replay, code=1))),
        (
            "segment dump",
            site.parsed(site.command("segment", "dump", segment, *endpoint, "--json")),
        ),
        ("tables create", site.parsed(site.command("tables", "create", *clickhouse, "--json"))),
        ("doctor", site.answer("doctor", "--rows", *clickhouse)),
        ("consumer repair", site.answer(*repair, *clickhouse)),
        ("cost", site.parsed(site.command(*cost))),
        ("cost", site.parsed(site.command(*cost, "--sweep", "linger=0s,1s"))),
        ("load", site.parsed(site.command("load", "--records", 0, "--json"))),
    ):
        fields = _fields(answer)
        assert len(fields) > 2
        assert fields <= _documented(part)
