"""`millpond status`: the content of a buffer and the progress of its consumers, from the bucket
alone."""

import json

from harness.corpus import record, request
from harness.exactly_once import wait_for_all
from harness.otlp import export
from harness.process import eventually
from harness.services import Buffer


def _status(site) -> tuple[dict, list[dict]]:
    """The one shard, and its consumers."""
    [shard] = site.answer("status")["shards"]
    return shard, shard["consumers"]


def _consumer(site) -> dict:
    [consumer] = _status(site)[1]
    return consumer


def test_status_shows_the_log_and_the_backlog(site):
    gateway = site.gateway("--linger", "20ms", "--tail-max", 4)
    site.load(gateway, "--concurrency", 2, records=2_000).run()
    shard, consumers = _status(site)
    assert consumers == []
    [stream] = shard["streams"]
    assert (stream["stream"], stream["records"]) == ("otlp.logs", 2_000)
    assert 0 < stream["stored_bytes"] < stream["raw_bytes"]
    assert shard["segments"] == shard["next_sequence"] - shard["first_sequence"] > 4
    assert shard["stored_bytes"] > stream["stored_bytes"]
    assert shard["pages"] > 0
    text = site.millpond("status").stdout()
    assert "2,000" in text
    assert "no consumer has read this shard" in text

    flags = ("--gc-interval", "0s", "--ack-interval", "50ms", "--lease", "60s")
    consumer = site.consumer(*flags)
    eventually("everything to be acknowledged", lambda: _behind(site) == [0])
    found = _consumer(site)
    assert (found["consumer"], found["state"], found["waiting_for"]) == ("e2e", "running", [])
    assert found["lease_seconds"] > 0
    [position] = found["streams"]
    assert (position["lag_seconds"], position["lag_stored_bytes"]) == (0, 0)
    assert position["next"] == shard["next_sequence"]

    assert consumer.terminate() == 0
    site.load(gateway, "--concurrency", 1, records=500, name="load-behind").run()
    found = _consumer(site)
    [position] = found["streams"]
    assert (found["state"], found["owner"], position["lag_records"]) == ("stopped", None, 500)
    assert position["lag_seconds"] > 0
    assert "consumer e2e: stopped" in site.millpond("status").stdout()


def _behind(site) -> list[int]:
    consumers = _status(site)[1]
    return [stream["lag_records"] for consumer in consumers for stream in consumer["streams"]]


def test_the_bucket_shows_the_waits_of_a_consumer(own_site):
    site = own_site
    gateway = site.gateway()
    consumer = site.consumer("--lease", "3s", "--gc-interval", "0s")
    load = site.load(gateway, records=100)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    site.clickhouse.kill()
    site.load(gateway, records=100, name="load-waiting").run()

    def waits() -> list[str]:
        consumer.must_run()
        return _consumer(site)["waiting_for"]

    eventually(
        "the outage to be recorded", lambda: any("writing to the sink" in why for why in waits())
    )
    assert "waits for: " in site.millpond("status").stdout()
    site.clickhouse.up()
    eventually("the outage to be cleared", lambda: waits() == [] and _behind(site) == [0])
    assert consumer.terminate() == 0


def test_a_consumer_that_ended_says_why_and_leaves_no_lease(site):
    gateway = site.gateway()
    first = site.consumer("--dead-letters-max", 0, "--lease", "600s", name="consumer-first")
    eventually("the consumer to own its cursor", first.owns)
    table = f"{site.database}.otel_logs"
    site.clickhouse.query(f"ALTER TABLE {table} ADD CONSTRAINT tidy CHECK Body != 'bad'")
    export(gateway.address, request(record("refused", body="bad")).SerializeToString())
    assert first.wait() == 1
    found = _consumer(site)
    [why] = found["waiting_for"]
    assert why.startswith("it ended: ")
    assert "tidy" in why
    assert (found["state"], found["owner"]) == ("abandoned", None)
    text = site.millpond("status").stdout()
    assert f"    ended: {why.removeprefix('it ended: ')}" in text
    assert "waits for" not in text

    site.clickhouse.query(f"ALTER TABLE {table} DROP CONSTRAINT tidy")
    second = site.consumer("--lease", "600s", "--ack-interval", "50ms", name="consumer-second")
    eventually("its successor to continue", lambda: _behind(site) == [0])
    assert _consumer(site)["waiting_for"] == []
    assert second.terminate() == 0
    assert site.clickhouse.scalar(f"SELECT count() FROM {table}") == "1"


def test_watching_gives_rates(site):
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--ack-interval", "50ms", "--gc-interval", "0s")
    site.load(gateway, records=100).run()
    eventually("everything to be acknowledged", lambda: _behind(site) == [0])
    watching = site.begun("status", *site.buffer.flags, "--watch", "100ms", "--json")

    def rates() -> list[float | None]:
        watching.must_run()
        # The last line may be incomplete.
        looks = [json.loads(line) for line in watching.stdout().split("\n")[:-1]]
        consumers = [look["shards"][0]["consumers"][0] for look in looks]
        return [consumer["streams"][0]["records_per_second"] for consumer in consumers]

    eventually("a second look", lambda: len(rates()) > 1)
    assert rates()[:2] == [None, 0]
    site.load(gateway, records=1_000, name="load-watched").run()
    eventually("the rate to be seen", lambda: any(rate > 0 for rate in rates()[1:]))
    assert consumer.terminate() == 0


def test_a_cursor_that_cannot_be_read_hides_no_other(site):
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway("--linger", "20ms")
    site.load(gateway, records=100).run()
    for name in ("broken", "whole"):
        consumer = site.consumer(
            "--gc-interval", "0s", consumer=name, name=name, database=f"{site.database}_{name}"
        )
        site.millpond("consumer", "wait", name)
        assert consumer.terminate() == 0
    cursor = folder / "shards/0000/consumers/broken/cursor"
    cursor.write_bytes(b"nothing of ours")

    status = site.parsed(site.millpond("status", "--json", code=1))
    [shard] = status["shards"]
    assert [consumer["consumer"] for consumer in shard["consumers"]] == ["whole"]
    [why] = status["unreadable"]
    assert "consumers/broken/cursor" in why
    assert "consumer remove --force" in why
    text = site.millpond("status", code=1).stdout()
    assert f"cannot be read: {why}" in text
    assert "consumer whole: stopped" in text

    (folder / "shards/0000/manifest").write_bytes(b"nothing of ours")
    status = site.parsed(site.millpond("status", "--json", code=1))
    assert status["shards"] == []
    assert [why.split(":")[0] for why in status["unreadable"]] == ["shards/0000/manifest"]


def test_a_watched_status_shows_the_end_of_an_outage(own_site):
    site = own_site
    gateway = site.gateway()
    site.load(gateway, records=100).run()
    watching = site.begun("status", *site.buffer.flags, "--watch", "100ms", "--json")

    def looks() -> int:
        watching.must_run()
        return watching.stdout().count("\n")

    eventually("a look", looks)
    site.store.kill()
    # The first request may have been under way, and fail in another way.
    refused = "Connection refused (os error 111); trying again"
    eventually("the outage to be logged", lambda: refused in watching.messages())
    before = looks()
    site.store.up()
    eventually("it to look again", lambda: looks() > before)
    assert "the store answers again" in watching.messages()


def test_a_watch_that_never_pauses_is_refused(site):
    assert "without a pause" in site.millpond("status", "--watch", "0s", code=2).messages()
