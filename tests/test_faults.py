"""Everything that can be killed is killed, at random points, while records flow. What Millpond
promises: an acknowledged record is in ClickHouse exactly once.

The load generator sends each request once and never retries: a gateway that is killed between the
commit and the answer leaves a committed request that its client knows nothing of, and a client that
sends it again makes a second append. OTLP requests have no identity, so no receiver can tell. So
an unacknowledged record may be there or not, but never twice.
"""

import os
import random
import signal
import time

from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.process import eventually


def _seed() -> int:
    """Printed with a failure; MILLPOND_TEST_SEED runs the same schedule again."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", random.randrange(2**32)))
    print(f"MILLPOND_TEST_SEED={seed}")
    return seed


def test_acknowledged_records_survive_every_kill(own_site):
    site = own_site
    dice = random.Random(_seed())
    gateway, consumer = site.gateway(), site.consumer()

    faults = [
        *[(gateway, signal.SIGKILL)] * 5,
        *[(consumer, signal.SIGKILL)] * 5,
        (consumer, signal.SIGTERM),
        *[(site.minio, signal.SIGKILL), (site.minio, signal.SIGTERM)],
        *[(site.clickhouse, signal.SIGKILL)] * 2,
        (site.clickhouse, signal.SIGTERM),
    ]
    dice.shuffle(faults)
    load = site.load(gateway, "--rate", 2_000, "--retry-for", "0s", records=80_000)
    load.start()
    for process, signal_number in faults:
        time.sleep(dice.uniform(0.1, 2.0))
        print(f"{process.name}: signal {signal_number} after {len(load.acknowledged())} records")
        process.send(signal_number)
        process.wait()
        # Stores are away for a while; our own processes are restarted at once.
        if process in (site.minio, site.clickhouse):
            time.sleep(dice.uniform(0.1, 2.5))
        process.up()

    load.wait(180)
    acknowledged = load.acknowledged()
    print(f"{len(acknowledged)} of 80000 acknowledged")
    assert len(acknowledged) > 8_000, "too few records were acknowledged for this to show anything"
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer)
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    site.check_manifest()


def test_a_store_that_is_away_is_waited_for(own_site):
    """An outage of the store holds requests back; what was accepted is committed afterwards."""
    site = own_site
    gateway, consumer = site.gateway(), site.consumer()
    site.minio.kill()
    load = site.load(gateway, "--retry-for", "120s", records=2_000)
    load.start()
    consumer.must_run()
    gateway.must_run()
    assert load.acknowledged() == []
    site.minio.up()
    assert load.wait(120) == 0
    assert len(load.acknowledged()) == 2_000
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)


def test_clickhouse_that_is_away_at_the_start_is_waited_for(own_site):
    site = own_site
    gateway = site.gateway()
    site.clickhouse.kill()
    consumer = site.consumer_of()
    consumer.start()
    load = site.load(gateway, records=2_000)
    load.run()
    eventually("the consumer's admin port", consumer.alive)
    assert not consumer.ready(), "the consumer says that it is ready without ClickHouse"
    consumer.must_run()
    site.clickhouse.up()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)
