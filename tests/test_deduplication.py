"""Repeated events: the first of each key is in the table, through crashes of the consumer."""

from harness.events import orders, post_orders
from harness.process import eventually


def _counts(site) -> list[str]:
    """Rows, keys, and the sum of the numbers."""
    [row] = site.clickhouse.lines(
        f"SELECT count(), uniqExact(event_id), sum(n) FROM {site.database}.orders"
    )
    return row.split("\t")


def _duplicates(site) -> int:
    [shard] = site.answer("status")["shards"]
    [consumer] = shard["consumers"]
    [stream] = consumer["streams"]
    return stream["unique"]["duplicates"]


def test_the_first_of_each_key_is_there_once_through_crashes(site):
    flags = [*orders(site), "--batch-records", 4_000, "--chunk-rows", 1_000]
    gateway = site.gateway()
    consumer = site.consumer(*flags)
    first, number = {}, 0
    for round_ in range(14):
        rows = []
        for place in range(10_000):
            # A tenth repeats a row of this or an earlier request.
            key = number - (place * 7_919) % (number + 1) if place % 10 == 3 else number
            rows.append({"event_id": f"e{key}", "n": number})
            first.setdefault(key, number)
            number += 1
        post_orders(gateway, rows)
        if round_ in (4, 9, 12):
            if round_ == 9:
                so_far = number - len(first)
                # A snapshot has the keys of these rows, and the cursor names it.
                eventually("the acknowledgement", lambda n=so_far: _duplicates(site) == n)
            consumer.kill()
            consumer = site.consumer(*flags, name=f"consumer-{round_}")
    # A repeated request, and rows without a key.
    post_orders(gateway, rows)
    post_orders(gateway, [{"event_id": None, "n": 0}, {"n": 0}] * 5)

    expected = [str(len(first) + 10), str(len(first) + 1), str(sum(first.values()))]
    eventually("all keys", lambda: consumer.must_run() or _counts(site) == expected, timeout=120)
    repeated = number + len(rows) - len(first)
    eventually("the count in the cursor", lambda: _duplicates(site) == repeated)
    assert consumer.terminate() == 0
    assert _counts(site) == expected

    # The last owner put its keys together from snapshots, not from the whole log.
    [restored] = [line for line in consumer.messages().splitlines() if "remembers the keys" in line]
    assert "read_from=0" not in restored, restored

    # No question takes the dropped rows for missing ones.
    to = ("--clickhouse", site.clickhouse.url, "--database", site.database, *flags[:2])
    doctor = site.parsed(site.millpond("doctor", "--rows", *to, "--json"))
    [compared] = doctor["rows"]
    assert (compared["missing"], compared["duplicate"], compared["unknown"]) == (0, 0, 0)
    refused = site.millpond("consumer", "repair", "e2e", *to, "--from", 0, "--to", 0, code=1)
    assert "drops repeated events" in refused.messages()
    assert _counts(site) == expected


def test_a_limit_of_keys_ends_the_consumer_and_a_higher_one_continues(site):
    flags = orders(site)
    gateway = site.gateway()
    limited = site.consumer(*flags, "--unique-memory", "1MiB", name="limited")
    rows = [{"event_id": f"e{n}", "n": n} for n in range(40_000)]
    for begin in range(0, len(rows), 10_000):
        post_orders(gateway, rows[begin : begin + 10_000])
    eventually("the end of the consumer", lambda: not limited.running(), timeout=60)
    assert limited.wait() == 1
    assert "more than the 26214 keys that 1048560 bytes hold" in limited.messages()
    consumer = site.consumer(*flags)
    post_orders(gateway, rows[:100])
    eventually("all keys", lambda: consumer.must_run() or _counts(site)[0] == "40000", timeout=60)
    eventually("the count in the cursor", lambda: _duplicates(site) == 100)
    assert consumer.terminate() == 0
    assert _counts(site)[:2] == ["40000", "40000"]


def test_a_buffer_with_several_shards_is_refused(site):
    flags = orders(site)
    gateway = site.gateway("--shards", 2)
    post_orders(gateway, [{"event_id": "a", "n": 1}])
    to = ("--clickhouse", site.clickhouse.url, "--database", site.database, *flags)
    ended = site.millpond("consume", *to, "--admin", "127.0.0.1:0", code=1)
    assert "the buffer has 2 shards" in ended.messages()
