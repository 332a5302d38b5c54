"""A Collector that leads its shard: it commits for gateways and other Collectors, and tells
consumers of commits. tests/test_leader.py has what happens to a leader of either kind."""

import json
import signal
import socket

import pytest

from harness.events import NDJSON
from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.otlp_http import post
from harness.process import eventually
from harness.services import ENDLESS, WATCH_PATIENCE, free_port

LEADS = "millpond_producer_leads"
FOR_OTHERS = "millpond_producer_commits_for_others_total"
WITHOUT_LEADER = "millpond_producer_fallbacks_total"


def _peers(**peers: object) -> dict:
    """Settings of an exporter that may lead."""
    return {"enabled": True, "listen": f"127.0.0.1:{free_port()}", **peers}


def _leader(site, **settings: object):
    """A Collector that leads: it commits before the others start."""
    leader = site.millpond_collector("otelcol-leader", peers=_peers(), **settings)
    first = site.load(leader, name="first", records=100).run()
    assert first["records_acknowledged"] == 100
    eventually("the Collector to lead", lambda: leader.metric(LEADS) == 1)
    return leader


def _gateway(site, name: str = "gateway"):
    return site.gateway("--peer-listen", f"127.0.0.1:{free_port()}", name=name)


def _loads(site, producers, records: int, turn: int = 0):
    loads = [
        site.load(producer, "--rate", 1_000, records=records, name=f"load-{producer.name}-{turn}")
        for producer in producers
    ]
    for load in loads:
        load.start()
    return loads


def _finish(site, loads, consumer) -> None:
    acknowledged = [record for load in loads for record in load.acknowledged()]
    runs = sorted({record.split("-")[0] for record in acknowledged})
    wait_for_all(acknowledged, site.clickhouse, site.database, consumer, runs=runs)
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database, runs=runs)
    site.check_manifest()


@pytest.mark.parametrize("forward_below", ["256KiB", "0"])
def test_a_collector_commits_for_all_and_tells_consumers(site, forward_below):
    """Followers send their blocks, or upload them and ask for the commit alone."""
    leader = _leader(site)
    flags = ("--peer-listen", f"127.0.0.1:{free_port()}", "--forward-below", forward_below)
    gateway = site.gateway(*flags)
    candidate = site.millpond_collector(
        "otelcol-candidate", peers=_peers(forward_below=forward_below)
    )
    follower = site.millpond_collector(
        "otelcol-follower", peers={"enabled": True, "forward_below": forward_below}
    )
    consumer = site.consumer()
    consumer.until_it_watches()
    assert leader.metric("millpond_producer_watchers") == 1
    followers = [gateway, candidate, follower]
    loads = []
    for turn in consumer.while_it_watches():
        loads += _loads(site, [leader, *followers], records=5_000, turn=turn)
        assert [load.wait() for load in loads[-4:]] == [0] * 4
    records = 5_000 * (turn + 1)
    # One that had to commit for itself may have taken the lead, if it has an address.
    may_lead = [one for one in (gateway, candidate) if one.metric(WITHOUT_LEADER) > 0]
    assert may_lead or leader.metric(LEADS) == 1
    assert leader.metric(FOR_OTHERS) > 10
    assert leader.metric("millpond_producer_records_total") == 100 + records
    for one in followers:
        assert one in may_lead or one.metric(LEADS) == 0
        assert one.metric("millpond_producer_records_total") == records
    sent = gateway.metric("millpond_producer_appended_bytes_total")
    uploaded = gateway.metric("millpond_producer_delegated_bytes_total")
    assert uploaded > 0 if forward_below == "0" else sent > 0
    assert leader.metric("millpond_producer_watch_answers_total") > 3
    assert consumer.metric("millpond_consumer_watch_states_total") > 3
    _finish(site, loads, consumer)


def test_a_collector_that_stops_hands_over_the_lead_at_once(site):
    leader = _leader(site)
    followers = [
        _gateway(site),
        site.millpond_collector("otelcol-follower", peers={"enabled": True}),
    ]
    consumer = site.consumer()
    consumer.until_it_watches()
    loads = _loads(site, followers, records=ENDLESS)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    before = leader.metric(FOR_OTHERS)
    eventually("the leader to commit for all", lambda: leader.metric(FOR_OTHERS) > before + 10)
    term = site.answer("status")["shards"][0]["leader"]["term"]
    assert leader.terminate() == 0
    # The Collector was the leader of its term to the end: nobody had to replace it.
    named = site.answer("status")["shards"][0]["leader"]
    assert named is None or named["term"] > term
    eventually("the gateway to lead", lambda: followers[0].metric(LEADS) == 1)
    watchers = "millpond_producer_watchers"
    eventually(
        "the consumer to watch it", lambda: followers[0].metric(watchers) == 1, WATCH_PATIENCE
    )
    assert [load.terminate() for load in loads] == [0, 0]
    _finish(site, loads, consumer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_collector_takes_the_lead_of_one_that_is_gone(site, how):
    """No gateway has a part in this shard."""
    leader = _leader(site)
    candidates = [site.millpond_collector(f"otelcol-{name}", peers=_peers()) for name in "ab"]
    consumer = site.consumer()
    loads = _loads(site, candidates, records=ENDLESS)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    before = leader.metric(FOR_OTHERS)
    eventually("the leader to commit for all", lambda: leader.metric(FOR_OTHERS) > before + 10)
    leader.send(how)
    eventually(
        "another Collector to lead",
        lambda: sum(candidate.metric(LEADS) for candidate in candidates) == 1,
    )
    # This takes longer than any timeout.
    enough = [len(load.acknowledged()) + 10_000 for load in loads]
    eventually(
        "records without the first leader",
        lambda: all(len(load.acknowledged()) > n for load, n in zip(loads, enough, strict=True)),
    )
    assert [load.terminate() for load in loads] == [0, 0]
    if how == signal.SIGSTOP:
        leader.send(signal.SIGCONT)
        # It learns with its next commit that it does not lead any more.
        again = site.load(leader, records=1_000, name="again")
        assert again.run()["records_acknowledged"] == 1_000
        loads.append(again)
        eventually("the first to follow", lambda: leader.metric(LEADS) == 0)
    else:
        leader.kill()
        leader.up()
        again = site.load(leader, records=1_000, name="again")
        assert again.run()["records_acknowledged"] == 1_000
        loads.append(again)
        assert leader.metric(LEADS) == 0
    assert sum(candidate.metric(LEADS) for candidate in candidates) == 1
    _finish(site, loads, consumer)


def test_the_address_of_the_pod_is_advertised(site):
    """As the README has it: the port on every interface, and the address in a variable."""
    port = free_port()
    peers = _peers(listen=f"0.0.0.0:{port}", advertise=f"${{env:POD_IP}}:{port}")
    leader = site.millpond_gc_of("otelcol-leader", peers=peers)
    leader.environment["POD_IP"] = "127.0.0.1"
    leader.up()
    site.load(leader, records=100).run()
    eventually("the Collector to lead", lambda: leader.metric(LEADS) == 1)
    assert site.answer("status")["shards"][0]["leader"]["address"] == f"127.0.0.1:{port}"
    site.loads_until_forwarded(_gateway(site), leader)


def test_a_gateway_with_numbered_requests_takes_the_lead_from_a_collector(site):
    """The Collector does not take them. It follows the gateway from then on."""
    leader = _leader(site)
    gateway = _gateway(site)
    consumer = site.consumer()
    loads = _loads(site, [gateway, leader], records=ENDLESS)
    eventually("the Collector to commit for the gateway", lambda: leader.metric(FOR_OTHERS) > 3)
    rows = json.dumps({"n": 1})
    for number in range(1, 4):
        numbering = {"Millpond-Producer": "billing", "Millpond-Number": str(number)}
        for repeated in (False, True):
            status, headers, _ = post(
                gateway.http_address, "/v1/streams/events.n", rows, NDJSON, numbering
            )
            assert (status, "millpond-repeated" in headers) == (200, repeated)
    eventually("the gateway to lead", lambda: gateway.metric(LEADS) == 1)
    assert [load.terminate() for load in loads] == [0, 0]
    loads += site.loads_until_forwarded(leader, gateway)
    assert leader.metric(LEADS) == 0
    assert gateway.metric("millpond_producer_client_requests_settled_total") == 3
    _finish(site, loads, consumer)


@pytest.mark.parametrize(
    ("peers", "reason"),
    [
        (
            {"enabled": True, "listen": "0.0.0.0:4319"},
            "peers.listen 0.0.0.0:4319 does not say where others reach this producer: set "
            "peers.advertise to HOST:PORT",
        ),
        ({"listen": "127.0.0.1:4319"}, "set peers.enabled to true"),
        ({"enabled": True, "advertise": "10.0.0.7:4319"}, "without peers.listen"),
        ({"enabled": True, "listen": "localhost:4319"}, "write an IP address and a port"),
        (
            {"enabled": True, "listen": "127.0.0.1:4319", "advertise": "10.0.0.7"},
            "write HOST:PORT, for example 10.0.0.7:4319",
        ),
    ],
)
def test_a_wrong_address_ends_the_collector_with_the_setting(site, peers, reason):
    wrong = site.millpond_gc_of("wrong", peers=peers)
    wrong.start()
    assert wrong.wait() == 1
    assert reason in wrong.messages()


def test_a_port_in_use_ends_the_collector_with_its_address(site):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong = site.millpond_gc_of("wrong", peers=_peers(listen=address))
        wrong.start()
        assert wrong.wait() == 1
        assert "cannot listen" in wrong.messages()
        assert f"{address}: bind: address already in use" in wrong.messages()
