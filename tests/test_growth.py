"""A buffer that grows under load: gateways that have not noticed, and that move, a gateway and an
exporter in new shards, consumers that run, are away, or begin at the end of the log."""

from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.otlp_http import post
from harness.process import eventually, free_port


def _sequences(site) -> list[int]:
    """The length of each shard's log."""
    return [shard["next_sequence"] for shard in site.answer("manifest", "dump")["shards"]]


def test_a_buffer_grows_under_load_and_each_record_arrives_once(site):
    gateway = site.gateway("--linger", "50ms")
    consumer = site.consumer("--from", "latest")
    eventually("the consumer to own its cursor", consumer.owns)
    load = site.load(gateway, "--rate", 500, records=10_000)
    load.start()
    grown = site.answer("buffer", "shards", "3")
    assert grown == {"before": 1, "shards": 3, "cursors_begun": 2}
    assert site.answer("buffer", "shards", "3")["cursors_begun"] == 0
    shrunk = site.millpond("buffer", "shards", "2", code=1)
    assert "has 3 shards and cannot shrink to 2" in shrunk.messages()

    # Nobody in these shards has noticed the growth yet but their producers.
    second = site.gateway("--linger", "50ms", "--shard", 1, name="gateway-second")
    exporter = site.millpond_gc_of(shard=2, linger="50ms")
    exporter.up()
    loads = [
        load,
        site.load(second, "--rate", 500, records=2_000, name="load-second"),
        site.load(exporter, "--rate", 500, records=2_000, name="load-exporter"),
    ]
    for other in loads[1:]:
        other.start()
    assert [each.wait() for each in loads] == [0, 0, 0]
    acknowledged = [record for each in loads for record in each.acknowledged()]
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer)
    assert all(length > 0 for length in _sequences(site))
    assert consumer.metric("millpond_consumer_shards") == 3
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def _order(gateway, number: int) -> bool:
    """Sends a numbered request. Returns whether the log had it already."""
    headers = {"Millpond-Producer": "shop-7", "Millpond-Number": str(number)}
    body = f'{{"order": {number}}}'
    address, path = gateway.http_address, "/v1/streams/events.order"
    status, answered, text = post(address, path, body, headers=headers)
    assert status == 200, text
    return answered.get("millpond-repeated") == "true"


def _shard(gateway) -> int:
    return int(gateway.metric("millpond_producer_shard"))


def test_gateways_follow_a_growth_and_know_the_numbers_from_before(site):
    gateways = [
        site.gateway("--peer-listen", f"127.0.0.1:{free_port()}", name=f"gateway-{number}")
        for number in range(3)
    ]
    consumer = site.consumer()
    assert [_order(gateway, 1) for gateway in gateways] == [False, True, True]
    loads = [
        site.load(gateway, "--rate", 200, records=16_000, name=f"load-{number}")
        for number, gateway in enumerate(gateways)
    ]
    for load in loads:
        load.start()
    # With so many shards, hardly any gateway stays where it is.
    assert site.answer("buffer", "shards", "30")["shards"] == 30
    for gateway in gateways:
        eventually("the growth in the log", lambda of=gateway: "has grown" in of.messages(), 120)
    eventually("a gateway to move", lambda: any(_shard(gateway) for gateway in gateways))
    assert [_order(gateway, 1) for gateway in gateways] == [True, True, True]
    assert [_order(gateway, 2) for gateway in reversed(gateways)] == [False, True, True]
    assert [load.wait(180) for load in loads] == [0, 0, 0]
    for number, gateway in enumerate(gateways):
        loads.append(site.load(gateway, records=500, name=f"after-{number}"))
        loads[-1].run()
        assert _sequences(site)[_shard(gateway)] > 0
    # A late gateway has never seen the buffer with one shard.
    late = site.gateway("--shard", 29, name="gateway-late")
    assert [_order(late, 2), _order(late, 3), _order(gateways[0], 3)] == [True, False, True]
    everything = ("--no-follow", "--from", "earliest", "--stream", "events.order")
    orders = site.millpond("tail", *everything).stdout().splitlines()
    assert sorted(orders) == [f'{{"order": {number}}}' for number in (1, 2, 3)]
    acknowledged = [record for load in loads for record in load.acknowledged()]
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer)
    assert [gateway.terminate() for gateway in (*gateways, late)] == [0, 0, 0, 0]
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    site.check_manifest()
