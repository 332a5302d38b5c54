"""Gateways that commit for each other: one leads, and whatever happens to it, every acknowledged
record arrives once."""

import signal

import pytest

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.process import eventually
from harness.services import free_port

LEADS = "millpond_producer_leads"


def _gateways(site, count: int):
    """Gateways that know each other. The first one leads: it commits before the others start."""
    gateways = []
    for number in range(count):
        peers = ("--peer-listen", f"127.0.0.1:{free_port()}")
        gateways.append(site.gateway(*peers, name=f"gateway-{number}"))
        if number == 0:
            first = site.load(gateways[0], name="first", records=100).run()
            assert first["records_acknowledged"] == 100
            eventually("the first to lead", lambda: gateways[0].metric(LEADS) == 1)
    return gateways


def _loads(site, gateways, records: int):
    loads = [
        site.load(gateway, "--rate", 1_000, records=records, name=f"load-{number}")
        for number, gateway in enumerate(gateways)
    ]
    for load in loads:
        load.start()
    return loads


def _finish(site, loads, consumer) -> None:
    acknowledged = [record for load in loads for record in load.acknowledged()]
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer, runs=_runs(acknowledged))
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database, runs=_runs(acknowledged))
    site.check_manifest()


def _runs(acknowledged):
    return sorted({record.split("-")[0] for record in acknowledged})


def test_followers_append_to_the_leaders_segments(site):
    gateways = _gateways(site, 3)
    consumer = site.consumer()
    loads = _loads(site, gateways, records=5_000)
    assert [load.wait() for load in loads] == [0, 0, 0]
    leader, *followers = gateways
    assert leader.metric("millpond_producer_commits_for_others_total") > 10
    for follower in followers:
        assert follower.metric(LEADS) == 0
        assert follower.metric("millpond_producer_appended_bytes_total") > 0
        assert follower.metric("millpond_producer_records_total") == 5_000
    assert leader.metric("millpond_producer_records_total") == 5_100
    _finish(site, loads, consumer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_nothing_is_lost_or_twice_when_the_leader_is_gone(site, how):
    gateways = _gateways(site, 3)
    consumer = site.consumer()
    leader, *followers = gateways
    loads = _loads(site, followers, records=15_000)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    leader.send(how)
    eventually(
        "another gateway to lead",
        lambda: sum(follower.metric(LEADS) for follower in followers) == 1,
    )
    if how == signal.SIGSTOP:
        leader.send(signal.SIGCONT)
    assert [load.wait() for load in loads] == [0, 0]
    if how == signal.SIGSTOP:
        # It learns with its next commit that it does not lead any more.
        again = site.load(leader, "--rate", 1_000, records=1_000, name="again")
        again.start()
        assert again.wait() == 0
        loads.append(again)
        eventually("the first to follow", lambda: leader.metric(LEADS) == 0)
    _finish(site, loads, consumer)
