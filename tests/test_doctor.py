"""`millpond doctor`: a healthy buffer has no findings; each problem is named with its remedy."""

from harness.exactly_once import wait_for_all
from harness.services import Buffer


def _findings(site, *flags: object, code: int = 0) -> dict[str, list[str]]:
    """The doctor's findings, by severity."""
    found: dict[str, list[str]] = {"ok": [], "warning": [], "error": []}
    process = site.millpond("doctor", *flags, "--json", code=code)
    for finding in site.parsed(process)["findings"]:
        assert finding["severity"] == "ok" or finding["todo"], finding
        found[finding["severity"]].append(finding["what"])
    return found


def test_a_healthy_buffer_has_no_findings(site):
    gateway = site.gateway("--tail-max", 4, "--linger", "20ms")
    load = site.load(gateway, "--concurrency", 2, records=2_000)
    load.run()
    consumer = site.consumer("--lease", "60s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    # Until the cursor has the acknowledgement too.
    site.millpond("consumer", "wait", "e2e")
    table = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    found = _findings(site, *table)
    assert (found["warning"], found["error"]) == ([], [])
    expected_of_all = (
        "keeps its preconditions",
        "clock",
        "are all there",
        "0 s behind",
        "the tables in",
    )
    for expected in expected_of_all:
        assert any(expected in what for what in found["ok"]), expected


def test_faults_are_named(site):
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    folder.mkdir()
    assert "there is no buffer" in _findings(site, code=1)["error"][0]

    gateway = site.gateway("--linger", "20ms")
    load = site.load(gateway, "--concurrency", 1, records=1_000)
    load.run()
    assert "no consumer has ever read it" in _findings(site)["warning"][0]

    consumer = site.consumer("--gc-interval", "0s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    load = site.load(gateway, "--concurrency", 1, records=1_000, name="load-behind")
    load.run()
    assert "not running" in _findings(site)["warning"][0]

    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs "
        "MODIFY SETTING non_replicated_deduplication_window = 2"
    )
    table = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    assert any("window" in what for what in _findings(site, *table)["warning"])
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_logs DROP COLUMN SpanId")
    assert any("SpanId" in what for what in _findings(site, *table, code=1)["error"])

    [shard] = site.answer("manifest", "dump")["shards"]
    missing = folder / "shards/0000/segments" / shard["entries"][0]["segment"]
    missing.unlink()
    [what] = _findings(site, "--read-only", code=1)["error"]
    assert "sequence 0" in what
    assert missing.name in what


def test_a_consumer_that_is_removed_from_one_shard_alone_is_named(site):
    gateway = site.gateway("--shards", 2, "--shard", 1, "--linger", "20ms")
    load = site.load(gateway, "--concurrency", 1, records=1_000)
    load.run()
    consumer = site.consumer("--gc-interval", "0s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    alone = "consumer e2e is removed from this shard alone"
    assert not any(alone in what for what in _findings(site)["warning"])

    site.millpond("consumer", "remove", "e2e", "--shard", 1)
    assert any(f"shard 0001: {alone}" in what for what in _findings(site)["warning"])

    site.millpond("consumer", "remove", "e2e")
    assert not any(alone in what for what in _findings(site)["warning"])
