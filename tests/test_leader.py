"""Gateways that commit for each other and for Collectors: one leads, and whatever happens to it,
every acknowledged record arrives once."""

import re
import signal
import subprocess
import sys

import pytest

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.network import Toxiproxy
from harness.process import PATIENCE, eventually
from harness.relay import Relay
from harness.services import (
    ENDLESS,
    REPOSITORY,
    WATCH_PATIENCE,
    Buffer,
    Gateway,
    MillpondCollector,
    append_to,
    free_port,
)

LEADS = "millpond_producer_leads"
FOR_OTHERS = "millpond_producer_commits_for_others_total"
WITHOUT_LEADER = "millpond_producer_fallbacks_total"


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
    assert leader.metric(FOR_OTHERS) > 10
    for follower in followers:
        # One that had to commit for itself may have taken the lead.
        assert follower.metric(WITHOUT_LEADER) > 0 or follower.metric(LEADS) == 0
        assert follower.metric("millpond_producer_appended_bytes_total") > 0
        assert follower.metric("millpond_producer_records_total") == 5_000
    assert leader.metric("millpond_producer_records_total") == 5_100
    _finish(site, loads, consumer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_nothing_is_lost_or_twice_when_the_leader_is_gone(site, how):
    gateways = _gateways(site, 3)
    consumer = site.consumer()
    leader, *followers = gateways
    loads = _loads(site, followers, records=ENDLESS)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    leader.send(how)
    eventually(
        "another gateway to lead",
        lambda: sum(follower.metric(LEADS) for follower in followers) == 1,
    )
    if how == signal.SIGSTOP:
        leader.send(signal.SIGCONT)
    assert [load.terminate() for load in loads] == [0, 0]
    if how == signal.SIGSTOP:
        # It learns with its next commit that it does not lead any more.
        again = site.load(leader, "--rate", 1_000, records=1_000, name="again")
        again.start()
        assert again.wait() == 0
        loads.append(again)
        eventually("the first to follow", lambda: leader.metric(LEADS) == 0)
    _finish(site, loads, consumer)


@pytest.mark.parametrize("forward_below", ["256KiB", "0"])
def test_a_gateway_commits_for_collectors(site, forward_below):
    """They send their blocks, or upload them and ask for the commit alone."""
    (leader,) = _gateways(site, 1)
    consumer = site.consumer()
    peers = {"enabled": True, "forward_below": forward_below}
    collectors = [site.millpond_collector(f"otelcol-{number}", peers=peers) for number in range(2)]
    segments = leader.metric("millpond_producer_segments_total")
    loads = _loads(site, collectors, records=5_000)
    assert [load.wait() for load in loads] == [0, 0]
    assert leader.metric(LEADS) == 1
    assert leader.metric(FOR_OTHERS) > 10
    # Meanwhile no client sent records to the leader.
    built = leader.metric("millpond_producer_segments_total") - segments
    assert built > 10 if forward_below != "0" else built == 0
    _finish(site, loads, consumer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_collector_follows_the_next_leader(site, how):
    """A Collector without a port never leads, nor does it keep a gateway from taking the lead."""
    leader, follower = _gateways(site, 2)
    consumer = site.consumer()
    collectors = [
        site.millpond_collector(f"otelcol-{number}", peers={"enabled": True}) for number in range(2)
    ]
    loads = _loads(site, [follower, *collectors], records=ENDLESS)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    before = leader.metric(FOR_OTHERS)
    eventually("the leader to commit for all", lambda: leader.metric(FOR_OTHERS) > before + 10)
    leader.send(how)
    eventually("the other gateway to lead", lambda: follower.metric(LEADS) == 1)
    if how == signal.SIGSTOP:
        leader.send(signal.SIGCONT)
    assert [load.terminate() for load in loads] == [0, 0, 0]
    # By now the Collectors know who leads.
    for collector in collectors:
        loads += site.loads_until_forwarded(collector, follower)
    # Those that asked the leader when it went commit for themselves; a graceful stop answers them.
    if how != signal.SIGTERM:
        assert all("did not commit" in collector.messages() for collector in collectors)
    assert [collector.terminate() for collector in collectors] == [0, 0]
    _finish(site, loads, consumer)


class Shard:
    """A leader, a gateway and two Collectors that write to one shard, and two processes of a
    consumer. The leader is a gateway or a Collector. It reaches the store, and the others reach it,
    through a network that can be cut."""

    def __init__(self, site, relay: Relay, port: int, kind: str) -> None:
        self.site = site
        self.relay = relay
        self.store = site.add(Toxiproxy(site.directory)).up().link("store", site.store.port)
        listen, store = f"127.0.0.1:{port}", Buffer(site.buffer.url, self.store.url)
        if kind == "gateway":
            flags = ("--peer-listen", listen, "--advertise", relay.address)
            leader = Gateway(site.directory, store, *flags, name="leader")
        else:
            peers = {"enabled": True, "listen": listen, "advertise": relay.address}
            settings = append_to(store, peers=peers)
            leader = MillpondCollector(site.directory, "millpond", settings, name="leader")
        self.leader = site.add(leader).up()
        first = site.load(self.leader, name="first", records=100).run()
        assert first["records_acknowledged"] == 100
        eventually("the first to lead", lambda: self.leader.metric(LEADS) == 1)
        peers = ("--peer-listen", f"127.0.0.1:{free_port()}")
        self.follower = site.gateway(*peers, name="follower")
        self.collectors = [
            site.millpond_collector(f"otelcol-{number}", peers={"enabled": True})
            for number in range(2)
        ]
        self.consumers = [
            site.consumer("--instance", name, name=f"consumer-{name}") for name in "ab"
        ]

    def load(self):
        """Loads on all. A request to the leader is sent once: its client cannot know what became of
        it. Those to the others must all succeed."""
        once = ("--rate", 300, "--retry-for", "0s")
        at_leader = self.site.load(self.leader, *once, records=ENDLESS, name="load-leader")
        at_leader.start()
        loads = _loads(self.site, [self.follower, *self.collectors], records=ENDLESS)
        eventually("rows", lambda: rows_of(self.site.clickhouse, self.site.database) > 1_000)
        committed = self.leader.metric(FOR_OTHERS)
        eventually("commits for all", lambda: self.leader.metric(FOR_OTHERS) > committed + 10)
        return at_leader, loads

    def kill_consumers(self) -> None:
        """Kills both processes of the consumer, one after the other, and starts them again."""
        for consumer in self.consumers:
            rows = rows_of(self.site.clickhouse, self.site.database)
            consumer.kill()
            consumer.up()
            eventually(
                "rows after the crash of a consumer",
                lambda rows=rows: rows_of(self.site.clickhouse, self.site.database) > rows,
            )

    def restore(self) -> None:
        self.store.restore()
        self.relay.restore()
        if self.leader.running():
            self.leader.send(signal.SIGCONT)

    def the_other_leads(self) -> None:
        eventually("the other gateway to lead", lambda: self.follower.metric(LEADS) == 1)

    def the_first_follows(self) -> None:
        """It learns with its next commit that it does not lead any more."""
        again = self.site.load(self.leader, records=100, name="again")
        assert again.run()["records_acknowledged"] == 100
        eventually("the first to follow", lambda: self.leader.metric(LEADS) == 0)


def _killed(shard: Shard) -> None:
    shard.leader.kill()
    shard.the_other_leads()
    shard.kill_consumers()


def _frozen(shard: Shard) -> None:
    """For longer than any timeout: the other gateway gets 1,000 records a second."""
    shard.leader.send(signal.SIGSTOP)
    shard.the_other_leads()
    shard.kill_consumers()
    records = "millpond_producer_records_total"
    eventually("40 s", lambda: shard.follower.metric(records) > 40_000, 4 * PATIENCE)


def _without_the_store(shard: Shard) -> None:
    """Its requests arrive, and it gets no answers."""
    shard.store.silence()
    shard.the_other_leads()
    shard.kill_consumers()


def _without_a_gateway(shard: Shard) -> None:
    shard.relay.cut_off(shard.follower)
    alone = shard.follower.metric(WITHOUT_LEADER)
    eventually(
        "the gateway to commit for itself", lambda: shard.follower.metric(WITHOUT_LEADER) > alone
    )
    shard.kill_consumers()


def _without_a_collector(shard: Shard) -> None:
    collector = shard.collectors[0]
    shard.relay.cut_off(collector)
    eventually(
        "the Collector to commit for itself", lambda: "did not commit" in collector.messages()
    )
    shard.kill_consumers()


@pytest.mark.parametrize("leader", ["gateway", "Collector"])
@pytest.mark.parametrize(
    "fault", [_killed, _frozen, _without_the_store, _without_a_gateway, _without_a_collector]
)
def test_each_record_arrives_once_whatever_happens_to_the_leader(site, fault, leader):
    """Gateways and Collectors write, consumers are killed beside, and rows are compared by their
    identity."""
    port = free_port()
    with Relay(port) as relay:
        shard = Shard(site, relay, port, leader)
        at_leader, loads = shard.load()
        fault(shard)
        # The others do not need the leader.
        assert [load.terminate() for load in loads] == [0, 0, 0]
        shard.restore()
        at_leader.terminate()
        if fault in (_frozen, _without_the_store):
            shard.the_first_follows()
        if fault is _without_a_collector and shard.follower.metric(WITHOUT_LEADER) == 0:
            # It served the only one that may replace it.
            assert (shard.leader.metric(LEADS), shard.follower.metric(LEADS)) == (1, 0)
        assert shard.consumers[1].terminate() == 0
        _finish(site, [at_leader, *loads], shard.consumers[0])


def _gets(consumer) -> float:
    gets = 'millpond_store_requests_total{kind="get"'
    lines = [line for line in consumer.metrics().splitlines() if line.startswith(gets)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_a_consumer_that_watches_hardly_asks_the_store(site):
    """Two consumers read the same buffer at the same time: one watches, the other polls."""
    (leader,) = _gateways(site, 1)
    consumer = site.consumer()
    polls = site.consumer(
        "--watch", "false", consumer="polls", name="polls", database=f"{site.database}_polls"
    )
    consumer.until_it_watches()
    assert leader.metric("millpond_producer_watchers") == 1
    loads = []
    for turn in consumer.while_it_watches():
        before = _gets(consumer), _gets(polls)
        segments = leader.metric("millpond_producer_segments_total")
        loads.append(site.load(leader, "--rate", 1_000, records=5_000, name=f"load-{turn}"))
        loads[-1].run()
        segments = leader.metric("millpond_producer_segments_total") - segments
        enough = before[1] + segments + 100
        eventually("a hundred polls", lambda enough=enough: _gets(polls) > enough)
        after = _gets(consumer), _gets(polls)
    # One GET for each segment; the rest read the manifest.
    watched, polled = after[0] - before[0], after[1] - before[1]
    counts = (
        f"{watched - segments} and {polled - segments} GETs of the manifest, {segments} segments"
    )
    print(counts)
    assert (watched - segments) * 8 < polled - segments, counts
    assert consumer.metric("millpond_consumer_watch_states_total") > 3
    assert polls.metric("millpond_consumer_watched_shards") == 0
    assert polls.terminate() == 0
    _finish(site, loads, consumer)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_rows_are_exact_when_a_watched_leader_is_gone(site, how):
    gateways = _gateways(site, 2)
    consumer = site.consumer()
    consumer.until_it_watches()
    leader, follower = gateways
    loads = _loads(site, [follower], records=ENDLESS)
    eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
    leader.send(how)
    eventually("the other gateway to lead", lambda: follower.metric(LEADS) == 1)
    # The manifest names the next leader.
    watchers = "millpond_producer_watchers"
    eventually("the consumer to watch it", lambda: follower.metric(watchers) == 1, WATCH_PATIENCE)
    if how == signal.SIGSTOP:
        leader.send(signal.SIGCONT)
    assert [load.terminate() for load in loads] == [0]
    assert "watching the leader" in consumer.messages()
    _finish(site, loads, consumer)


def test_a_consumer_that_restarts_watches_again(site):
    (leader,) = _gateways(site, 1)
    consumer = site.consumer("--lease", "1s")
    consumer.until_it_watches()
    loads = _loads(site, [leader], records=10_000)
    for restart in (consumer.kill, consumer.terminate):
        eventually("rows", lambda: rows_of(site.clickhouse, site.database) > 1_000)
        restart()
        # Its cursor has another certificate now.
        consumer.up()
        consumer.until_it_watches()
    assert [load.wait() for load in loads] == [0]
    _finish(site, loads, consumer)


def test_the_benchmark_of_a_leaders_death_measures_one():
    ran = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "scripts/bench-leader-death.py",
            *("--kills", "1", "--gateways", "2", "--linger", "100ms"),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    times = re.findall(r"^[a-z ]+: p50 (\d+\.\d\d) s, max (\d+\.\d\d) s$", ran.stdout, re.M)
    assert len(times) == 3, ran.stdout
    # One death is its own median.
    assert all(p50 == longest for p50, longest in times), ran.stdout
    assert "failed requests at the others: 0" in ran.stdout
