"""A real Collector as an agent in front of a gateway, as on every node in production: restarted and
killed under load, with each of its exporters for a gateway and their compressions.

A record that the gateway acknowledged occurs once. A request that an agent keeps and sends again
may occur again as a whole: OTLP requests have no identity, so no receiver can tell.
"""

import os
import random
import signal
import time
from collections import Counter

import pytest

from harness.exactly_once import assert_exactly_once, ids, wait_for_all
from harness.process import eventually
from harness.services import forward_over_http_to, forward_to

PER_REQUEST = 100


def _dice() -> random.Random:
    """A failure prints its seed; MILLPOND_TEST_SEED runs the same schedule again."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", random.randrange(2**32)))
    print(f"MILLPOND_TEST_SEED={seed}")
    return random.Random(seed)


def _restart(process, signal_number: int) -> None:
    print(f"{process.name}: signal {signal_number}")
    process.send(signal_number)
    process.wait()
    process.up()


def _came_compressed(gateway) -> bool:
    wire = gateway.metric("millpond_gateway_received_bytes_total")
    return 0 < 2 * wire < gateway.metric("millpond_gateway_raw_bytes_total")


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
def test_an_agent_that_answers_with_the_gateways_answer_adds_nothing(
    own_site, exporter, compression
):
    """Without queue and retries the agent is a proxy: exactly once, whatever is killed."""
    site, dice = own_site, _dice()
    gateway, consumer = site.gateway(), site.consumer()
    direct = {"sending_queue": {"enabled": False}, "retry_on_failure": {"enabled": False}}
    settings = (
        {**forward_to(gateway.address), "compression": compression}
        if exporter == "otlp_grpc"
        else forward_over_http_to(gateway.http_address, "proto", compression)
    )
    agent = site.collector(exporter, {**settings, **direct}, name="agent")
    faults = [
        *[(agent, signal.SIGKILL)] * 3,
        *[(agent, signal.SIGTERM)] * 2,
        (gateway, signal.SIGKILL),
        (gateway, signal.SIGTERM),
    ]
    dice.shuffle(faults)
    load = site.load(agent, "--rate", 500, "--retry-for", "0s", records=1_000_000_000)
    load.start()
    for process, signal_number in faults:
        # Each fault hits an agent with records in flight.
        known = len(load.acknowledged())
        eventually("more to be acknowledged", lambda known=known: len(load.acknowledged()) > known)
        time.sleep(dice.uniform(0, 0.5))
        _restart(process, signal_number)
    known = len(load.acknowledged())
    eventually("the agent to continue", lambda: len(load.acknowledged()) > known)
    assert _came_compressed(gateway)
    load.terminate(120)
    acknowledged = load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, agent, gateway, consumer)
    for process in (agent, gateway, consumer):
        assert process.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    site.check_manifest()


def test_an_agent_with_its_queue_on_disk_loses_nothing(own_site):
    """The agent, or its successor, commits everything it has acknowledged. A request in flight when
    the agent or the gateway is killed may be duplicated: at most one per consumer of the queue."""
    site, dice, consumers = own_site, _dice(), 4
    gateway, consumer = site.gateway(), site.consumer()
    queue = site.directory / "queue"
    queue.mkdir()
    settings = forward_to(gateway.address)
    settings["sending_queue"] = {
        "enabled": True,
        "storage": "file_storage",
        "num_consumers": consumers,
        "queue_size": 100_000,
    }
    extensions = {"file_storage": {"directory": str(queue)}}
    agent = site.collector("otlp_grpc", settings, name="agent", extensions=extensions)
    faults = [
        *[(agent, signal.SIGKILL)] * 3,
        (agent, signal.SIGTERM),
        (gateway, signal.SIGKILL),
        (gateway, signal.SIGTERM),
    ]
    dice.shuffle(faults)
    flags = ("--rate", 1_000, "--retry-for", "0s", "--records-per-request", PER_REQUEST)
    load = site.load(agent, *flags, records=1_000_000_000)
    load.start()
    for process, signal_number in faults:
        known = len(load.acknowledged())
        eventually("more to be acknowledged", lambda known=known: len(load.acknowledged()) > known)
        time.sleep(dice.uniform(0, 0.5))
        _restart(process, signal_number)
    load.terminate(120)
    acknowledged = load.acknowledged()
    wait_for_all(acknowledged, site.clickhouse, site.database, agent, gateway, consumer)
    for process in (agent, gateway, consumer):
        assert process.terminate() == 0
    found = ids(site.clickhouse, site.database)
    assert not set(acknowledged) - found.keys()
    # For each request, the number of occurrences of each record.
    requests: dict[int, Counter[int]] = {}
    for name, count in found.items():
        requests.setdefault(int(name.rsplit("-", 1)[1]) // PER_REQUEST, Counter())[count] += 1
    torn = {number: counts for number, counts in requests.items() if len(counts) > 1}
    assert not torn, f"requests with records that occur more often than others: {torn}"
    again = sum(count - 1 for counts in requests.values() for count in counts)
    assert again <= len(faults) * consumers, f"{again} requests are duplicated"
    site.check_manifest()
