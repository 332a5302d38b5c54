"""More than one consumer: two processes on one cursor (one is fenced and becomes a standby), and
consumers with different names (each gets everything)."""

import signal

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.process import eventually

# A lease that no stall of the machine outlasts.
LONG = ("--lease", "60s")


def _more_rows(site, load) -> None:
    """Waits until rows arrive, unless the load ends first."""
    seen = rows_of(site.clickhouse, site.database)
    eventually(
        "more rows",
        lambda: rows_of(site.clickhouse, site.database) > seen or not load.running(),
    )


def _finish(site, load, *consumers) -> None:
    assert load.wait() == 0
    acknowledged = load.acknowledged()
    assert len(acknowledged) == 12_000
    wait_for_all(acknowledged, site.clickhouse, site.database, *consumers)
    for consumer in consumers:
        assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_a_takeover_fences_the_living_owner_which_stands_by(site):
    gateway = site.gateway()
    first = site.consumer("--instance", "one", *LONG, name="consumer-one")
    load = site.load(gateway, "--rate", 2_000, records=12_000)
    load.start()
    _more_rows(site, load)
    second = site.consumer("--instance", "two", "--take-over", *LONG, name="consumer-two")
    eventually("the second to own the cursor", second.owns)
    eventually("the first to notice that it is fenced", lambda: first.fenced() == 1)
    eventually("the first to give it up", lambda: not first.owns())
    assert "fenced: two owns the cursor" in first.messages()
    assert second.owns()
    _more_rows(site, load)

    # The standby takes over when the owner leaves.
    assert second.terminate() == 0
    eventually("the first to own the cursor again", first.owns)
    _finish(site, load, first)


def test_an_owner_that_slept_past_its_lease_is_fenced_when_it_wakes(site):
    gateway = site.gateway()
    first = site.consumer("--instance", "one", name="consumer-one")
    load = site.load(gateway, "--rate", 2_000, records=12_000)
    load.start()
    _more_rows(site, load)
    first.send(signal.SIGSTOP)
    second = site.consumer("--instance", "two", *LONG, name="consumer-two")
    eventually("the second to own the cursor", second.owns)
    first.send(signal.SIGCONT)
    eventually("the first to notice that it is fenced", lambda: first.fenced() == 1)
    assert second.owns()
    _finish(site, load, second, first)


def test_a_second_consumer_of_the_same_name_stands_by_while_the_first_lives(site):
    gateway = site.gateway()
    first = site.consumer("--instance", "one", *LONG, name="consumer-one")
    eventually("the first to own the cursor", first.owns)
    second = site.consumer("--instance", "two", name="consumer-two")
    load = site.load(gateway, "--rate", 4_000, records=12_000)
    load.start()
    assert load.wait() == 0
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, first, second)
    eventually("the second to know its shards", second.knows_its_shards)
    assert first.owns()
    assert first.fenced() == 0
    assert not second.owns()
    assert [consumer.terminate() for consumer in (second, first)] == [0, 0]
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def _planned_ahead(site) -> int:
    """The number of batches that the cursor plans for sequences that are not committed."""
    [shard] = site.answer("manifest", "dump")["shards"]
    streams = [stream for consumer in shard["consumers"] for stream in consumer["streams"]]
    plans = [plan for stream in streams for plan in stream["planned"]]
    return sum(plan["low"] >= shard["next_sequence"] for plan in plans)


def test_a_stop_after_a_crash_is_clean_and_the_next_start_replays_nothing(site):
    # Segments that arrive one at a time are planned before they are committed.
    gateway = site.gateway("--linger", "1s")
    first = site.consumer("--instance", "one", name="consumer-one")
    load = site.load(gateway, "--rate", 1_000, records=5_000)
    load.run()
    eventually("plans ahead of the log", lambda: _planned_ahead(site) > 0)
    first.kill()
    second = site.consumer("--instance", "two", name="consumer-two")
    eventually("the second to own the cursor", second.owns)
    site.millpond("consumer", "wait", "e2e")
    assert second.terminate() == 0
    planned = _planned_ahead(site)
    assert planned > 0
    assert f"clean=true planned_ahead={planned}" in second.messages()
    [listed] = site.answer("consumer", "list")["consumers"]
    assert listed["ownership"].startswith("released, and its settings stay")

    # The next segments have been planned by the first, and arrive while nobody consumes.
    more = site.load(gateway, "--rate", 1_000, records=2_000, name="more")
    more.run()
    third = site.consumer("--instance", "three", name="consumer-three")
    eventually("the third to own the cursor", third.owns)
    assert "in_doubt=false" in third.messages()
    acknowledged = load.acknowledged() + more.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, third)
    assert third.metric("millpond_consumer_replayed_batches_total") == 0
    assert third.terminate() == 0
    assert "clean=true" in third.messages()
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_consumers_with_different_names_each_get_everything(site):
    gateway = site.gateway()
    databases = [f"{site.database}_a", f"{site.database}_b"]
    consumers = [
        site.consumer(database=database, consumer=f"name-{n}", name=f"consumer-{n}")
        for n, database in enumerate(databases)
    ]
    load = site.load(gateway, records=10_000)
    load.run()
    acknowledged = load.acknowledged()
    for consumer, database in zip(consumers, databases, strict=True):
        wait_for_all(acknowledged, site.clickhouse, database, consumer)
        assert consumer.terminate() == 0
        assert_exactly_once(acknowledged, site.clickhouse, database)


def _stops(consumer) -> str:
    """The log of a consumer that exits by itself."""
    consumer.start()
    assert consumer.wait() == 1
    return consumer.messages()


def test_a_second_name_for_the_same_tables_does_not_double_them(site):
    gateway = site.gateway()
    load = site.load(gateway, records=5_000)
    load.run()
    first = site.consumer(name="consumer-first")
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, first)
    output = _stops(site.consumer_of(consumer="typo", name="consumer-typo"))
    assert (
        f"consumer typo would write to table {site.database}.otel_logs, and consumer e2e of this "
        "buffer writes there already"
    ) in output
    assert output.count("would write to table") == 1
    assert [c["consumer"] for c in site.answer("consumer", "list")["consumers"]] == ["e2e"]
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)

    shares = site.consumer("--share-tables", "--streams", "acme.*", consumer="acme", name="acme")
    eventually("it to own its cursor", shares.owns)
    assert first.terminate() == 0
    first = site.consumer(name="consumer-first-again")
    eventually("it to own its cursor", first.owns)
    [shard] = site.answer("status")["shards"]
    shared = {c["consumer"]: c["shares_tables_with"] for c in shard["consumers"]}
    assert shared == {"acme": ["e2e"], "e2e": ["acme"]}
    assert "writes to the same tables as: acme" in site.millpond("status").stdout()
    assert "as --share-tables allows" in site.millpond("doctor").stdout()
    assert [consumer.terminate() for consumer in (shares, first)] == [0, 0]
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def test_a_first_start_begins_where_it_is_told_to(site):
    gateway = site.gateway()
    site.load(gateway, records=1_000, name="load-before").run()
    consumer = site.consumer("--from", "latest")
    eventually("its start", lambda: "0 records lie ahead" in consumer.messages())
    load = site.load(gateway, records=500)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
    again = site.consumer("--from", "1h", name="consumer-again")
    eventually("its start", lambda: "lie ahead" in again.messages())
    assert "where a first start begins is ignored" in again.messages()
    assert again.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
    whole = site.consumer(
        "--from", "1h", consumer="whole", database=f"{site.database}_all", name="consumer-whole"
    )
    eventually("its start", lambda: "lie ahead" in whole.messages())
    assert "begins at sequence 0: 1500 records lie ahead" in whole.messages()
    assert whole.terminate() == 0


def test_a_script_can_wait_for_a_consumer(site):
    gateway = site.gateway("--linger", "20ms")
    site.load(gateway, records=5_000).run()
    waiting_for = ("consumer", "wait", "e2e", "--timeout", "100ms")
    output = site.millpond(*waiting_for, code=1).messages()
    assert "consumer e2e has never run" in output
    assert "millpond consumer list" in output

    waiting = site.begun("consumer", "wait", "e2e", *site.buffer.flags)
    # A typo would wait forever.
    eventually("the log line", lambda: "has never run: waiting for it" in waiting.messages())
    consumer = site.consumer("--ack-interval", "50ms")
    assert waiting.wait() == 0
    assert waiting.stdout() == (
        "e2e has read everything committed: the buffer still keeps 5000 of these records\n"
    )
    rows = site.clickhouse.scalar(f"SELECT count() FROM {site.database}.otel_logs")
    assert rows == "5000"
    # Records must be in the buffer at the start of the wait to count.
    assert consumer.terminate() == 0
    site.millpond("consumer", "wait", "e2e")
    site.load(gateway, records=1_000, name="load-behind").run()
    assert "behind by 1,000 records of 6,000" in site.millpond(*waiting_for, code=1).messages()


def test_processes_divide_the_shards_and_take_those_of_one_that_is_killed(site):
    # Each gateway writes to one shard.
    gateways = [site.gateway("--shards", "4", name=f"gateway-{i}") for i in range(3)]
    settings = ("--lease", "10s")
    first = site.consumer(*settings, "--instance", "one", name="consumer-one")

    def owned(consumer) -> float:
        return consumer.metric("millpond_consumer_shards_owned")

    eventually("the first to own all shards", lambda: owned(first) == 4)
    loads = [
        site.load(gateway, "--rate", 700, records=4_000, name=f"load-{i}")
        for i, gateway in enumerate(gateways)
    ]
    for load in loads:
        load.start()
    second = site.consumer(*settings, "--instance", "two", name="consumer-two")
    eventually("each to own half", lambda: (owned(first), owned(second)) == (2, 2))
    eventually("the gift", lambda: "gives the shard to two" in first.messages())
    members = "millpond_consumer_members"
    eventually("both to be members", lambda: second.metric(members) == 2)
    second.kill()
    eventually("the first to own all shards again", lambda: owned(first) == 4)
    third = site.consumer(*settings, "--instance", "three", name="consumer-three")
    eventually("the third to own half", lambda: (owned(first), owned(third)) == (2, 2))
    assert first.terminate() == 0
    eventually("the third to own all shards", lambda: owned(third) == 4)
    acknowledged = []
    for load in loads:
        assert load.wait() == 0
        acknowledged += load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, third)
    assert third.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
