"""A buffer on a full disk: requests wait or are refused, no acknowledged record is lost, and
everything continues once there is space."""

import pytest

from harness.disk import SmallDisk
from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.process import eventually
from harness.services import Buffer

REASON = "no tmpfs can be mounted here: it takes root or user namespaces"


def test_gateways_and_consumers_wait_for_space_on_a_full_disk(site):
    disk = site.add(SmallDisk(site.directory, 64))
    if not disk.possible:
        pytest.skip(REASON)
    disk.up()
    site.buffer = Buffer((disk.path / "buffer").as_uri())
    gateway = site.gateway_of("--max-wait", "1s")
    consumer = site.consumer_of("--gc-interval", "0s")
    for process in (gateway, consumer):
        process.within(disk.inside)
        process.up()
    load = site.load(gateway, "--rate", 1_000, "--retry-for", "0s", records=1_000_000_000)
    load.start()
    for round_number in range(3):
        seen = len(load.acknowledged())
        eventually("more acknowledgements", lambda seen=seen: len(load.acknowledged()) > seen)
        disk.fill()
        eventually("the gateway to say that it waits", lambda: not gateway.ready())
        gateway.must_run()
        # In one round the processes are killed, in the others they recover by themselves.
        if round_number == 1:
            consumer.kill()
            gateway.kill()
        disk.free()
        for process in (gateway, consumer):
            if process.running():
                process.until_ready()
            else:
                process.up()
    load.terminate()
    acknowledged = load.acknowledged()
    assert "No space left on device" in gateway.messages()
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer)
    assert [gateway.terminate(), consumer.terminate()] == [0, 0]
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
