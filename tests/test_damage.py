"""A bit flips on the disk: a checksum detects it, an error names it, and only what depends on it
stops. Over `file://`, since a real store would detect it itself."""

import shutil
from pathlib import Path

import pytest

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.otlp import export
from harness.process import eventually
from harness.services import Buffer
from test_bad_input import GOOD

RECORDS = 2_000


def _flip(file: Path, at: float = 0.5) -> None:
    """Flips a bit at this position of the file, given as a fraction."""
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 4
    file.write_bytes(data)


@pytest.fixture(scope="module")
def written(module_site):
    """A buffer with pages that one consumer has read: its folder, log and acknowledged records."""
    site = module_site
    folder = site.directory / "written"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway("--linger", "20ms", "--tail-max", 3)
    load = site.load(gateway, "--concurrency", 1, records=RECORDS)
    load.run()
    consumer = site.consumer("--gc-interval", "0s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert [consumer.terminate(), gateway.terminate()] == [0, 0]
    [shard] = site.answer("manifest", "dump")["shards"]
    return folder, shard, load.acknowledged()


@pytest.fixture
def damaged(site, written):
    """A copy of that buffer, to be damaged."""
    folder, shard, acknowledged = written
    copy = site.directory / "buffer"
    shutil.copytree(folder, copy)
    site.buffer = Buffer(copy.as_uri())
    return copy, shard, acknowledged


def _stops(site, *words: str, **options: str) -> str:
    """Asserts that a new consumer fails with these words."""
    consumer = site.consumer_of("--gc-interval", "0s", **options)
    consumer.start()
    assert consumer.wait() == 1
    for word in words:
        assert word in consumer.messages()
    # Once, not once per layer.
    assert consumer.messages().splitlines()[-1].count("CRC32C") <= 1
    return consumer.messages()


def _accepts(site) -> None:
    """Asserts that a gateway takes requests and commits them."""
    gateway = site.gateway("--linger", "20ms", "--tail-max", 3)
    export(gateway.address, GOOD)
    assert gateway.terminate() == 0


def _doctor(site, *words: str) -> None:
    found = site.parsed(site.millpond("doctor", "--read-only", "--json", code=1))["findings"]
    errors = [f"{finding['what']} {finding['todo']}" for finding in found]
    assert any(all(word in error for word in words) for error in errors), errors


def test_the_buffer_object(site, damaged):
    folder, _, _ = damaged
    _flip(folder / "buffer", 1)
    named = ("buffer: buffer object is damaged", "CRC32C", "restore it")
    _stops(site, *named, consumer="other")
    addresses = [(flag, "127.0.0.1:0") for flag in ("--listen", "--listen-http", "--admin")]
    gateway = site.millpond("gateway", *(part for flag in addresses for part in flag), code=1)
    for word in named:
        assert word in gateway.messages()
    _doctor(site, "buffer object is damaged")
    for command in ("list", "remove"):
        words = ("e2e",) if command == "remove" else ()
        assert "is damaged" in site.millpond("consumer", command, *words, code=1).messages()


def test_the_manifest(site, damaged):
    folder, _, _ = damaged
    _flip(folder / "shards/0000/manifest")
    named = ("shards/0000/manifest: manifest is damaged", "CRC32C", "restore it")
    _stops(site, *named, consumer="other")
    _stops(site, *named, name="consumer-again")
    _doctor(site, "shards/0000/manifest: manifest is damaged")
    assert "is damaged" in site.millpond("gc", code=1).messages()


def test_a_page_stops_who_has_not_read_it_and_nobody_else(site, damaged):
    folder, shard, acknowledged = damaged
    page = shard["pages"][1]
    [file] = (folder / "shards/0000/pages").glob(f"*{page['page']}")
    _flip(file)
    named = (f"shards/0000/pages/{file.name}: page is damaged", "CRC32C", "millpond consumer reset")
    _stops(site, *named, consumer="other")
    _doctor(site, f"{file.name}: page is damaged")
    # Nothing is deleted based on an unreadable log.
    before = sorted(folder.rglob("*"))
    site.millpond("gc", "--gc-grace", "0s", code=1)
    assert sorted(folder.rglob("*")) == before

    # Gateways need no pages, nor does a consumer that has passed this one.
    _accepts(site)
    # The other one has only what lies before the page in the table that both were to write to.
    earlier = sum(
        p["records"] for e in shard["entries"] if e["sequence"] < page["first"] for p in e["parts"]
    )
    reader = site.consumer("--gc-interval", "0s", "--share-tables", name="reader")
    eventually("the new record", lambda: rows_of(site.clickhouse, site.database) == earlier + 1)
    assert reader.terminate() == 0

    # Without a backup: continue after it. The consumer that has ended may still hold its lease.
    behind = page["last"] + 1
    reset = site.millpond("consumer", "reset", "other", "--to", behind, "--force", "--yes")
    assert "may pass over records that it has not acknowledged" in reset.messages()
    other = f"{site.database}_other"
    flags = ("--gc-interval", "0s", "--insert-timeout", "2s")
    consumer = site.consumer(*flags, database=other, consumer="other")
    kept = sum(
        p["records"] for e in shard["entries"] if e["sequence"] >= behind for p in e["parts"]
    )
    eventually("the records behind it", lambda: rows_of(site.clickhouse, other) == kept + 1)
    assert consumer.terminate() == 0


def test_a_cursor_stops_its_consumer_and_no_other(site, damaged):
    folder, _, acknowledged = damaged
    _flip(folder / "shards/0000/consumers/e2e/cursor")
    named = (
        "consumers/e2e/cursor: cursor is damaged",
        "CRC32C",
        "millpond consumer remove --force",
    )
    _stops(site, *named)
    _doctor(site, "consumers/e2e/cursor: cursor is damaged")
    # It is unknown what this consumer still needs, so nothing is deleted.
    assert "is damaged" in site.millpond("gc", "--gc-grace", "0s", code=1).messages()

    _accepts(site)
    other = site.consumer("--gc-interval", "0s", consumer="other", name="other")
    wait_for_all(acknowledged, site.clickhouse, site.database, other)
    assert other.terminate() == 0

    site.millpond("consumer", "remove", "e2e", code=1)
    site.millpond("consumer", "remove", "e2e", "--force")
    again = f"{site.database}_again"
    flags = ("--gc-interval", "0s", "--insert-timeout", "2s")
    consumer = site.consumer(*flags, database=again, name="consumer-again")
    wait_for_all(acknowledged, site.clickhouse, again, consumer)
    assert consumer.terminate() == 0
    site.check_manifest()


def test_a_block_of_a_segment_is_named_with_its_place(site, damaged):
    folder, shard, _ = damaged
    entry = shard["entries"][4]
    file = folder / "shards/0000/segments" / entry["segment"]
    _flip(file)
    offset = entry["parts"][0]["offset"]
    _stops(
        site,
        f"segment {entry['segment']} (sequence 4): segment at offset {offset}, block 0, checksum",
        "millpond consumer skip",
        consumer="other",
    )
    _accepts(site)
    dumped = site.command("segment", "dump", file, code=1)
    assert f"segment at offset {offset}, block 0, checksum" in dumped.messages()


@pytest.mark.parametrize(
    ("at", "says"),
    [(0.0, "the magic bytes"), (-30, "index checksum"), (-1, "the magic bytes")],
    ids=["header", "index", "footer"],
)
def test_damage_to_the_frame_of_a_segment_stops_nobody(site, damaged, at, says):
    """A consumer reads the blocks, whose positions are in the manifest."""
    folder, shard, acknowledged = damaged
    file = folder / "shards/0000/segments" / shard["entries"][4]["segment"]
    size = file.stat().st_size
    _flip(file, at if at >= 0 else 1 + at / size)
    assert says in site.command("segment", "dump", file, code=1).messages()
    consumer = site.consumer("--gc-interval", "0s", consumer="other")
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
