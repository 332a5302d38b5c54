"""A buffer that grows under load: gateways that have not noticed, a gateway and an exporter in new
shards, consumers that run, are away, or begin at the end of the log."""

from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.process import eventually


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
