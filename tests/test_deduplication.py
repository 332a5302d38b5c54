"""Repeated events: the first of each key is in the table, through crashes of the consumer."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException

from harness.events import NDJSON, orders, post_orders
from harness.otlp_http import post
from harness.process import eventually
from harness.services import Buffer, Gateway


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


def test_after_a_lost_cursor_no_command_takes_dropped_rows_for_missing_ones(site):
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    flags = orders(site)
    gateway = site.gateway()
    rows = [{"event_id": f"e{n % 60}", "n": n} for n in range(100)]
    post_orders(gateway, rows)
    consumer = site.consumer(*flags)
    eventually("all keys", lambda: consumer.must_run() or _counts(site)[0] == "60")
    assert consumer.terminate() == 0

    (folder / "shards/0000/consumers/e2e/cursor").write_bytes(b"damaged")
    site.millpond("consumer", "remove", "e2e", "--force")
    site.clickhouse.query(f"TRUNCATE TABLE {site.database}.orders")
    # Without the key, the next cursor alone says nothing of repeated events.
    again = site.consumer(*flags[:2], "--insert-timeout", "2s", name="again")
    eventually("all rows", lambda: again.must_run() or _counts(site)[0] == "100")
    assert again.terminate() == 0

    to = ("--clickhouse", site.clickhouse.url, "--database", site.database, *flags[:2])
    site.clickhouse.query(f"DELETE FROM {site.database}.orders WHERE n >= 60")
    told = site.millpond("doctor", "--rows", *to, "--json")
    [compared] = site.parsed(told)["rows"]
    assert (compared["deduplicated_from"], compared["deduplicated_below"]) == (None, 1)
    assert (compared["rows"], compared["missing"]) == (60, 0)
    told = site.millpond("doctor", "--rows", *to).stdout()
    assert "below sequence 1 may have been dropped (--unique) under a cursor that is gone" in told
    refused = site.millpond("consumer", "repair", "e2e", *to, "--from", 0, "--to", 0, code=1)
    assert "repeated events" in refused.messages()


def _unique_refusal(site, flags: list[object]) -> str:
    """The refusal of a consumer that cannot drop repeated events of this buffer."""
    to = ("--clickhouse", site.clickhouse.url, "--database", site.database, *flags)
    ended = site.millpond("consume", *to, "--admin", "127.0.0.1:0", code=1)
    return ended.messages()


def test_several_shards_need_a_route_which_a_consumer_names(site):
    flags = orders(site)
    gateway = site.gateway("--shards", 2, "--shard", 1)
    refused = _unique_refusal(site, flags)
    assert "the buffer has 2 shards" in refused
    # The refusal has the command to run.
    file = site.directory / "unique.toml"
    assert f"`millpond buffer route --unique {file} --buffer {site.buffer.url}`" in refused
    route = ("buffer", "route", "--unique", file)
    declared = site.millpond(*route).stdout()
    assert "events.order: rows go to shards 0 to 1 by event_id\n" in declared, declared
    assert "gateways notice within about a minute" in declared
    again = site.answer(*route)
    order = {"stream": "events.order", "key": ["event_id"], "shards": 2, "is_new": False}
    assert again == {"routed": [order]}
    assert "by event_id, as before" in site.millpond(*route).stdout()
    line = "events.order: rows go to shards 0 to 1 by event_id\n"
    assert line in site.millpond("buffer", "route").stdout()
    assert line in site.millpond("status").stdout()
    assert site.answer("status")["routes"] == [
        {"stream": "events.order", "key": ["event_id"], "shards": 2}
    ]

    # The gateway has not noticed: all rows are in its shard, and the consumer counts those that
    # belong elsewhere.
    rows = [{"event_id": f"e{n}", "n": n} for n in range(200)]
    post_orders(gateway, rows)
    consumer = site.consumer(*flags)
    eventually("all rows", lambda: consumer.must_run() or _counts(site)[0] == "200")
    misrouted = consumer.metric("millpond_consumer_unique_misrouted_total")
    assert 50 < misrouted < 150
    warned = [
        line for line in consumer.messages().splitlines() if "not in the shard of their key" in line
    ]
    assert len(warned) == 1, warned
    assert consumer.terminate() == 0

    other = file.read_text().replace('"event_id"', '"n"')
    file.write_text(other)
    by_another_key = site.millpond(*route, code=1).messages()
    assert "stream events.order is routed by event_id over 2 shards" in by_another_key
    assert "`millpond buffer unroute events.order`" in by_another_key
    assert "gateways route its rows by event_id, not by n" in _unique_refusal(site, flags)
    topics = ("--brokers", "127.0.0.1:1", "--topics", "events.order")
    bridge = site.millpond("bridge", "kafka", *topics, "--admin", "127.0.0.1:0", code=1)
    assert "routes the rows of stream events.order to 2 shards by event_id" in bridge.messages()
    assert site.answer("buffer", "unroute", "events.order") == {"ended": ["events.order"]}
    assert "was not routed" in site.millpond("buffer", "unroute", "events.order").stdout()
    file.write_text(other.replace("events.order", "otlp.logs"))
    assert "holds OTLP" in site.millpond(*route, code=1).messages()


def test_a_buffer_does_not_grow_past_a_consumer_without_a_route(site):
    flags = orders(site)
    gateway = site.gateway()
    post_orders(gateway, [{"event_id": "a", "n": 1}])
    consumer = site.consumer(*flags)
    eventually("the row", lambda: _counts(site)[0] == "1")
    refused = site.millpond("buffer", "shards", 3, code=1).messages()
    assert "consumer e2e drops repeated events of stream events.order by event_id" in refused
    assert "millpond buffer route --unique FILE" in refused
    site.millpond("buffer", "route", *flags[2:])
    assert site.answer("buffer", "shards", 3)["shards"] == 3
    # Rows stay in shard 0, also those of a gateway that has never seen the buffer with one shard.
    late = site.gateway("--shard", 2, name="gateway-late")
    post_orders(late, [{"event_id": "a", "n": 1}, {"event_id": "b", "n": 2}])
    expected = ["2", "2", "3"]
    eventually("both rows", lambda: consumer.must_run() or _counts(site) == expected)
    eventually("the growth", lambda: consumer.metric("millpond_consumer_shards") == 3, timeout=120)
    assert consumer.metric("millpond_consumer_unique_misrouted_total") == 0
    assert consumer.terminate() == 0
    assert _counts(site) == expected


class _Requests:
    """Requests that are each sent to all gateways, until each has answered."""

    def __init__(self, gateways: list[Gateway], seed: int) -> None:
        self.gateways = gateways
        self.random = random.Random(seed)
        self.rows: dict[str, int] = {}
        self.keyless: list[int] = []
        self.bodies: list[tuple[str, str]] = []
        number = 0
        for request in range(90):
            rows = []
            for _ in range(120):
                number += 1
                if number % 40 == 7:
                    # The number of the request alone shows that it is repeated.
                    self.keyless.append(number)
                    rows.append({"n": number})
                    continue
                # A fifth repeats an event of this or an earlier request.
                repeated = self.random.random() < 0.2 and self.rows
                key = self.random.choice(list(self.rows)) if repeated else f"e{number}"
                rows.append({"event_id": key, "n": self.rows.setdefault(key, number)})
            body = "\n".join(json.dumps(row) for row in rows)
            self.bodies.append((f"request-{request}", body))

    def send(self) -> None:
        """Sends everything once to each gateway, in parallel and in another order each time."""
        jobs = [(place, body) for place in range(len(self.gateways)) for body in self.bodies]
        self.random.shuffle(jobs)
        with ThreadPoolExecutor(12) as pool:
            for sent in [pool.submit(self._one, *job) for job in jobs]:
                sent.result()

    def _one(self, place: int, request: tuple[str, str]) -> None:
        key, body = request
        deadline = time.monotonic() + 120
        while True:
            try:
                # The gateway at this place may have been replaced.
                address = self.gateways[place].http_address
                headers = {"Idempotency-Key": key}
                path = "/v1/streams/events.order"
                status, _, answer = post(address, path, body, NDJSON, headers, timeout=20)
                if status == 200:
                    return
                failure = f"{status} {answer!r}"
                assert status in (429, 503), failure
            except (OSError, HTTPException) as error:
                failure = repr(error)
            assert time.monotonic() < deadline, failure
            time.sleep(0.2)

    def expected(self) -> list[str]:
        rows = len(self.rows) + len(self.keyless)
        # Rows without a key have an empty one in the table.
        return [str(rows), str(len(self.rows) + 1), str(sum(self.rows.values(), sum(self.keyless)))]


def test_requests_repeated_at_all_gateways_are_written_once_through_crashes_and_growth(site):
    flags = [*orders(site), "--batch-records", 2_000, "--chunk-rows", 500]
    first = site.gateway("--shards", 3, name="gateway-0")
    site.millpond("buffer", "route", *flags[2:4])
    gateways = [first, site.gateway(name="gateway-1")]
    noticed = "the streams whose rows are routed by key have changed"
    eventually("the first to notice", lambda: noticed in first.messages(), timeout=120)
    consumers = [site.consumer(*flags, name=f"consumer-{number}") for number in range(2)]
    requests = _Requests(gateways, seed=11)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(requests.send)
        _rows_beyond(site, 500)
        gateways[1].kill()
        gateways[1] = site.gateway(name="gateway-2")
        _rows_beyond(site, 2_000)
        # The other process takes the shards of this one over, with their keys.
        consumers[0].kill()
        assert site.answer("buffer", "shards", 5)["shards"] == 5
        gateways[0].kill()
        gateways[0] = site.gateway("--shard", 4, name="gateway-3")
        consumers[0] = site.consumer(*flags, name="consumer-2")
        sending.result(timeout=300)
    # All of them again, after the growth.
    requests.send()
    expected = requests.expected()
    eventually("all rows", lambda: _counts(site) == expected, timeout=120)
    for consumer in consumers:
        shards = partial(consumer.metric, "millpond_consumer_shards")
        eventually("the growth", lambda shards=shards: shards() == 5, timeout=120)
        # One that owned no shard with rows of the stream has no such metric.
        name = "millpond_consumer_unique_misrouted_total"
        assert f"{name}{{" not in consumer.metrics() or consumer.metric(name) == 0
        assert consumer.terminate() == 0
    assert _counts(site) == expected
    assert [gateway.terminate() for gateway in gateways] == [0, 0]
    site.check_manifest()


def _rows_beyond(site, rows: int) -> None:
    eventually(f"{rows} rows", lambda: int(_counts(site)[0]) > rows, timeout=120)
