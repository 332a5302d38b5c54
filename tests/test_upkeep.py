"""A log that grows, is sealed, read across its pages and collected; and operators' changes to
consumers."""

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.process import eventually
from harness.services import ENDLESS, Buffer


def test_a_backlog_in_pages_is_read_once_though_the_consumer_is_killed(site):
    gateway = site.gateway("--tail-max", 3, "--linger", "20ms")
    load = site.load(gateway, "--concurrency", 4, records=20_000)
    load.run()
    assert gateway.metric("millpond_producer_pages_total") > 5
    [shard] = site.answer("manifest", "dump")["shards"]
    assert len(shard["pages"]) > 5
    assert len(shard["entries"]) == shard["next_sequence"]

    # Small batches, so that the consumer dies in the middle.
    flags = ("--batch-records", 500, "--gc-interval", "0s")
    first = site.consumer(*flags, name="consumer-one")
    eventually("some rows", lambda: rows_of(site.clickhouse, site.database) > 0)
    first.kill()
    second = site.consumer(*flags, name="consumer-two")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, second)
    assert second.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)

    # Everything is read, and a grace of zero covers everything.
    would = site.answer("gc", "--gc-grace", "0s", "--dry-run")
    assert would["trimmed_sequences"] == shard["next_sequence"]
    site.check_manifest()
    done = site.answer("gc", "--gc-grace", "0s")
    assert done == would
    assert (done["segments"], done["unread_sequences"]) == (shard["next_sequence"], 0)
    [shard] = site.answer("manifest", "dump")["shards"]
    assert (shard["first_sequence"], shard["pages"], shard["entries"]) == (
        shard["next_sequence"],
        [],
        [],
    )
    nothing = {name: type(count)() for name, count in done.items()}
    assert site.answer("gc", "--gc-grace", "0s") == nothing
    site.check_manifest()


def test_garbage_is_collected_under_load_and_crashes(site):
    flags = ("--tail-max", 4, "--linger", "50ms")
    gateway = site.gateway(*flags)
    # The grace is longer than an upload and its commit take on a busy machine.
    eager = ("--gc-interval", "100ms", "--gc-grace", "5s")
    consumer = site.consumer(*eager)
    # A request without an answer is not sent again: the killed gateway may have committed it.
    load = site.load(gateway, "--rate", 1_000, "--retry-for", "0s", records=ENDLESS)
    load.start()
    deleted = "millpond_gc_deleted_segments_total"
    for _ in range(3):
        eventually("segments to be deleted", lambda: consumer.metric(deleted) > 0)
        consumer.kill()
        gateway.kill()
        gateway.up()
        consumer.up()
    before = len(load.acknowledged())
    eventually("more records", lambda: len(load.acknowledged()) > max(before, 1_000))
    load.terminate()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    # Uncommitted leftovers of the killed gateway go too.
    site.check_manifest()
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
    assert gateway.terminate() == 0
    site.millpond("gc", "--gc-grace", "0s")
    [shard] = site.answer("manifest", "dump")["shards"]
    assert shard["first_sequence"] == shard["next_sequence"]


def test_retention_drops_what_nobody_read_and_says_so(site):
    gateway = site.gateway()
    site.load(gateway, records=1_000).run()
    consumer = site.consumer("--gc-interval", "0s", name="consumer-before")
    eventually("the consumer to own its cursor", consumer.owns)
    assert consumer.terminate() == 0
    site.load(gateway, records=1_000, name="load-unread").run()
    done = site.answer("gc", "--retention-max-age", "1ms", "--gc-grace", "0s")
    assert done["unread_sequences"] > 0
    load = site.load(gateway, records=1_000, name="load-after")
    load.run()
    # The consumer continues at the new beginning of the log.
    consumer = site.consumer("--gc-interval", "0s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert "were trimmed before this consumer had read them" in consumer.messages()
    assert consumer.terminate() == 0


def test_a_consumer_is_listed_reset_and_removed(site):
    gateway = site.gateway()
    load = site.load(gateway, records=5_000)
    load.run()
    # A lease longer than any delay of the machine.
    consumer = site.consumer("--gc-interval", "0s", "--lease", "60s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)

    refused = site.millpond("consumer", "reset", "e2e", "--to", "earliest", code=1)
    assert "owns the cursor of e2e" in refused.messages()
    assert "--force" in refused.messages()
    assert site.millpond("consumer", "remove", "e2e", code=1)
    assert consumer.terminate() == 0
    [listed] = site.answer("consumer", "list")["consumers"]
    assert (listed["consumer"], listed["ownership"]) == ("e2e", "released")
    [stream] = listed["streams"]
    assert (stream["stream"], stream["records_behind"]) == ("otlp.logs", 0)

    # Read again, into another table.
    unasked = site.millpond("consumer", "reset", "e2e", "--to", "earliest", code=1)
    assert "--yes" in unasked.messages()
    site.millpond("consumer", "reset", "e2e", "--to", "earliest", "--yes")
    [listed] = site.answer("consumer", "list")["consumers"]
    assert listed["streams"][0]["records_behind"] == 5_000
    other = f"{site.database}_again"
    flags = ("--gc-interval", "0s", "--insert-timeout", "2s")
    again = site.consumer(*flags, database=other, name="consumer-again")
    wait_for_all(load.acknowledged(), site.clickhouse, other, again)
    assert again.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, other)

    behind = 0
    for where, then_behind in (("2020-01-01T00:00:00Z", 5_000), ("latest", 0), ("0", 5_000)):
        reset = site.millpond("consumer", "reset", "e2e", "--to", where, "--yes")
        # The file has the messages of the earlier ones, too.
        said = reset.messages().rsplit("\n--- ", 1)[-1]
        passed_over = "passes over 5,000 records of otlp.logs that it has not acknowledged"
        assert (passed_over in said) == (then_behind < behind), said
        [listed] = site.answer("consumer", "list")["consumers"]
        assert listed["streams"][0]["records_behind"] == then_behind
        behind = then_behind
    past = site.millpond("consumer", "reset", "e2e", "--to", "99999", code=1)
    assert "is not in the log" in past.messages()
    unknown = site.millpond("consumer", "remove", "nobody", code=1)
    assert "no consumer nobody" in unknown.messages()
    site.millpond("consumer", "remove", "e2e")
    assert site.answer("consumer", "list")["consumers"] == []


def test_a_reset_by_force_fences_the_owner(site):
    gateway = site.gateway()
    load = site.load(gateway, records=2_000)
    load.run()
    consumer = site.consumer("--gc-interval", "0s")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    site.millpond("consumer", "reset", "e2e", "--to", "latest", "--force", "--yes")
    eventually("the owner to notice", lambda: consumer.fenced() == 1)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def test_an_unreadable_segment_is_named_and_can_be_skipped(site):
    # Not in MinIO, which would detect it itself.
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway("--linger", "20ms")
    load = site.load(gateway, "--concurrency", 1, records=1_000)
    load.run()
    [shard] = site.answer("manifest", "dump")["shards"]
    damaged = shard["entries"][2]
    file = folder / "shards/0000/segments" / damaged["segment"]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    first = site.consumer_of("--gc-interval", "0s", name="consumer-stopped")
    first.start()
    assert first.wait() == 1
    named = f"segment {damaged['segment']} (sequence 2)"
    assert named in first.messages()
    assert "millpond consumer skip" in first.messages()
    words = ("consumer", "skip", "e2e", "--stream", "otlp.logs", "--reason", "a bit flipped")
    site.millpond(*words, "--sequence", 2)
    again = site.millpond(*words, "--sequence", 2, code=1)
    assert "is skipped already" in again.messages()
    past = site.millpond(*words, "--sequence", 999, code=1)
    assert "has no otlp.logs" in past.messages()

    consumer = site.consumer("--gc-interval", "0s", "--insert-timeout", "2s")
    left = damaged["parts"][0]["records"]
    eventually("the others", lambda: rows_of(site.clickhouse, site.database) == 1_000 - left)
    assert consumer.terminate() == 0
    [listed] = site.answer("consumer", "list")["consumers"]
    assert [(s["sequence"], s["reason"]) for s in listed["skipped"]] == [(2, "a bit flipped")]
    assert listed["streams"][0]["records_behind"] == 0
