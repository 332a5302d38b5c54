"""The metrics of a consumer that cannot make progress, and the process that reports them."""

from harness.exactly_once import wait_for_all
from harness.process import eventually

BACKLOG = ("records", "bytes", "seconds")


def _backlog(consumer) -> dict[str, float]:
    return {of: consumer.metric(f"millpond_consumer_backlog_{of}") for of in BACKLOG}


def _queued(consumer, stage: str) -> float:
    wanted = f'millpond_consumer_queue{{stage="{stage}"}} '
    lines = consumer.metrics().splitlines()
    return sum(float(line.split(" ")[-1]) for line in lines if line.startswith(wanted))


def test_the_owner_shows_what_it_has_before_it(own_site):
    site = own_site
    gateway = site.gateway("--linger", "20ms")
    # The lease outlasts every stall: the standby must not become the owner.
    flags = ("--ack-interval", "50ms", "--lease", "60s")
    owner = site.consumer(*flags, name="consumer-owner")
    eventually("the consumer to own its cursor", owner.owns)
    standby = site.consumer(name="consumer-standby")
    load = site.load(gateway, records=1_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, owner)
    eventually("an empty backlog", lambda: set(_backlog(owner).values()) == {0})

    site.clickhouse.kill()
    behind = site.load(gateway, records=3_000, name="load-behind")
    behind.run()
    eventually("the whole backlog to be shown", lambda: _backlog(owner)["records"] == 3_000)
    assert _backlog(owner)["bytes"] > 0
    before = _backlog(owner)["seconds"]
    eventually("its age to grow", lambda: _backlog(owner)["seconds"] > before)
    eventually("a chunk to wait for the sink", lambda: _queued(owner, "write") > 0)

    assert "millpond_consumer_backlog_records{" not in standby.metrics()
    site.clickhouse.up()
    eventually("an empty backlog again", lambda: set(_backlog(owner).values()) == {0})
    eventually("nothing to wait", lambda: _queued(owner, "write") == 0)
    for stage in ("fetch", "decode", "write", "cursor_commit"):
        assert owner.metric(f"millpond_consumer_{stage}_seconds_count") > 0, stage
    assert [consumer.terminate() for consumer in (owner, standby)] == [0, 0]
