"""`millpond bridge kafka` reads a real Kafka: whatever dies, the log has each record once."""

import json
import os
import signal
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from harness.corpus import record, request
from harness.grafana import ask, dashboard_queries, firing, known, names_in
from harness.kafka import Bridge, Kafka, needs_kafka
from harness.kafka_bytes import produce_bytes
from harness.network import Toxiproxy
from harness.process import PATIENCE, eventually
from harness.services import Buffer, http_get

pytestmark = needs_kafka

PASSWORD = "password-of-the-bridge"

READ = "millpond_bridge_records_total"

# The memory of a bridge with 128 MiB while it reads records with large headers. Together they have
# more.
LARGE_HEADERS_PEAK = 180 << 20

TOPICS = """
[[topic]]
name = "audit"
encoding = "raw"
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kafka")
    settings = {
        # A broker that was killed is let in again after this time.
        "broker_session_timeout_ms": 6_000,
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
        "allow_everyone_if_no_acl_found": "true",
    }
    kafka = Kafka(directory, users={"bridge": PASSWORD}, **settings).format().up()
    yield kafka
    kafka.kill()


@pytest.fixture
def topic(kafka, request) -> str:
    """A topic of three partitions."""
    name = request.node.name.replace("[", "-").replace("]", "")
    _create(kafka, name)
    return name


def _create(kafka, name: str, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(PATIENCE)


def _bridge(site, kafka, topics: str, *flags: object, name: str = "bridge") -> Bridge:
    bridge = site.add(Bridge(site.directory, site.buffer, kafka, topics, *flags, name=name))
    return bridge.up()


def _as_user(kafka, password) -> tuple:
    """Flags of a bridge that shows its password to Kafka."""
    sasl = ("--sasl", "PLAIN", "--sasl-user", "bridge", "--sasl-password-file", password)
    return ("--brokers", kafka.secure_address, *sasl)


def _sender(kafka, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": kafka.address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            **settings,
        }
    )


def _send(kafka, topic: str, numbers: range, partition: int | None = None) -> None:
    """Sends numbered records to one partition, or to all by their keys."""
    sender = _sender(kafka)
    for number in numbers:
        place = {"key": str(number).encode()} if partition is None else {"partition": partition}
        sender.produce(topic, json.dumps({"n": number}).encode(), **place)
    assert sender.flush(4 * PATIENCE) == 0


def _delete(kafka, topic: str, below: int) -> None:
    """Deletes the records of partition 0 below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for deleted in admin.delete_records([TopicPartition(topic, 0, below)]).values():
        deleted.result(PATIENCE)


def _right(topic: str, operation: AclOperation) -> AclBinding:
    """The right of the bridge's user to do this with a topic, and nothing else."""
    pattern = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    return AclBinding(*pattern, "User:bridge", "*", operation, AclPermissionType.ALLOW)


def _grant(admin: AdminClient, right: AclBinding) -> None:
    for made in admin.create_acls([right]).values():
        made.result(PATIENCE)


def _committed(kafka, topic: str) -> list[TopicPartition]:
    """What the bridges' group has committed of partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "millpond"})
    committed = consumer.committed([TopicPartition(topic, 0)], PATIENCE)
    consumer.close()
    return committed


def _rows(site, stream: str) -> list[dict]:
    flags = ("--stream", stream, "--from", "earliest", "--json", "--no-follow")
    tail = site.millpond("tail", *flags)
    return [json.loads(line) for line in tail.stdout().splitlines()]


def _numbers(site, stream: str) -> Counter:
    return Counter(row["record"]["n"] for row in _rows(site, stream))


def _until_read(bridge: Bridge, records: float) -> None:
    eventually(f"{records} records", lambda: bridge.metric(READ) > records, 4 * PATIENCE)


class Load:
    """Sends numbered records until it is told to stop."""

    def __init__(self, kafka, topic: str) -> None:
        self.sent = 0
        self._stopping = threading.Event()
        self._sender = _sender(kafka)
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def _run(self, topic: str) -> None:
        while not self._stopping.is_set():
            value = json.dumps({"n": self.sent}).encode()
            self._sender.produce(topic, value, key=str(self.sent).encode())
            self._sender.poll(0)
            self.sent += 1
            time.sleep(0.001)

    def stop(self) -> Counter:
        self._stopping.set()
        self._thread.join()
        assert self._sender.flush(4 * PATIENCE) == 0
        return Counter(range(self.sent))


def test_three_encodings_and_records_that_match_none(site, kafka):
    for name in ("orders", "audit", "otlp_logs"):
        _create(kafka, name)
    sender = _sender(kafka)
    sender.produce("orders", b'{"n":1}', partition=0)
    sender.produce("orders", b"no JSON", key=b"bad", headers=[("h", b"v")], partition=0)
    sender.produce("orders", b'{"n":2}', partition=0)
    sender.produce("audit", b"\xff\x00", key=b"k", headers=[("h", b"v")], partition=1)
    sender.produce("otlp_logs", request(record("a log")).SerializeToString(), partition=2)
    sender.produce("otlp_logs", b"no OTLP", partition=2)
    assert sender.flush(PATIENCE) == 0
    file = site.directory / "topics.toml"
    file.write_text(TOPICS)
    bridge = _bridge(site, kafka, "orders,audit,otlp_logs", "--kafka-topics", file)
    eventually("all records", lambda: bridge.metric(READ) == 6)
    assert bridge.metric("millpond_bridge_records_rejected_total") == 2
    assert bridge.terminate() == 0
    assert _numbers(site, "orders") == Counter([1, 2])
    [audit] = [row["record"] for row in _rows(site, "audit")]
    assert (audit["key"], audit["value_base64"], audit["headers"]) == ("k", "/wA=", {"h": "v"})
    [log] = _rows(site, "otlp.logs")
    assert "a log" in json.dumps(log)
    rejected = {row["record"]["topic"]: row["record"] for row in _rows(site, "bridge.rejected")}
    assert set(rejected) == {"orders", "otlp_logs"}
    assert (rejected["orders"]["offset"], rejected["orders"]["value"]) == (1, "no JSON")
    assert rejected["otlp_logs"]["value"] == "no OTLP"
    assert rejected["orders"]["headers"] == {"h": "v"}


def test_a_header_that_is_no_text_and_a_record_to_skip(site, kafka):
    topic = "hostile"
    _create(kafka, topic, partitions=1)
    produce_bytes(kafka.address, topic, b'{"n":0}', [(b"\xff\xfe", b"v"), (b"h", b"\x80")])
    _send(kafka, topic, range(1, 4))
    file = site.directory / "topics.toml"
    file.write_text(f'[[topic]]\nname = "{topic}"\nencoding = "raw"\n')
    bridge = _bridge(site, kafka, topic, "--kafka-topics", file, "--skip-record", f"{topic}/0/2")
    eventually("all records", lambda: bridge.metric(READ) == 4)
    assert bridge.terminate() == 0
    rows = [row["record"] for row in _rows(site, topic)]
    assert [row["value"] for row in rows] == ['{"n":0}', '{"n": 1}', '{"n": 3}']
    assert rows[0]["headers"] == {"\ufffd\ufffd": "v", "h_base64": "gA=="}
    [skipped] = [row["record"] for row in _rows(site, "bridge.rejected")]
    assert (skipped["offset"], skipped["value_bytes"]) == (2, 8)
    assert "value" not in skipped


def test_a_record_with_more_headers_than_librdkafka_takes(site, kafka):
    topic = "headers"
    _create(kafka, topic, partitions=1)
    produce_bytes(kafka.address, topic, b'{"n":0}', [(b"h", b"")] * 100_001)
    _send(kafka, topic, range(1, 2))
    file = site.directory / "topics.toml"
    file.write_text(f'[[topic]]\nname = "{topic}"\nencoding = "raw"\n')
    bridge = _bridge(site, kafka, topic, "--kafka-topics", file)
    eventually("both records", lambda: bridge.metric(READ) == 2)
    assert bridge.terminate() == 0
    assert [row["record"]["value"] for row in _rows(site, topic)] == ['{"n": 1}']
    [rejected] = [row["record"] for row in _rows(site, "bridge.rejected")]
    assert "100,000" in rejected["reason"]
    assert rejected["value"] == '{"n":0}'


def test_headers_count_as_memory(site, kafka):
    topic = "large-headers"
    _create(kafka, topic, partitions=1)
    sender = _sender(kafka, **{"queue.buffering.max.kbytes": 1 << 20})
    for number in range(2_500):
        sender.produce(topic, b"", headers=[("h", os.urandom(100_000))], partition=0)
        if number % 100 == 0:
            sender.flush()
    assert sender.flush(4 * PATIENCE) == 0
    file = site.directory / "topics.toml"
    file.write_text(f'[[topic]]\nname = "{topic}"\nencoding = "raw"\n')
    flags = ("--kafka-topics", file, "--memory-limit", "128MiB")
    bridge = _bridge(site, kafka, topic, *flags)
    eventually("all records", lambda: bridge.metric(READ) == 2_500, 4 * PATIENCE)
    assert bridge.peak_memory() < LARGE_HEADERS_PEAK, bridge.peak_memory()
    assert bridge.terminate() == 0


def test_the_dashboard_and_the_alerts_find_a_bridge(site, kafka, topic):
    sender = _sender(kafka)
    for number in range(10):
        sender.produce(topic, b"no JSON" if number % 2 else b"{}", partition=number % 3)
    assert sender.flush(4 * PATIENCE) == 0
    bridge = _bridge(site, kafka, topic)
    # These appear when they are needed.
    rare = {"millpond_bridge_commits_refused_total", "millpond_bridge_partition_stopped"}
    queries = [query for query in dashboard_queries() if "millpond_bridge_" in query]
    needed = set().union(*map(names_in, queries)) - rare
    eventually("the metrics", lambda: needed <= known(bridge))
    answers = ask({"bridge": bridge.admin}, queries)
    for answer in answers:
        assert "error" not in answer, answer
        if "alert" not in answer and not names_in(answer["query"]) & rare:
            assert answer["series"] > 0, f"nothing is found by {answer['query']}"
    stands = {answer["alert"]: answer["series"] for answer in answers if "alert" in answer}
    assert stands["MillpondBridgeStands"] == stands["MillpondBridgeStopped"] == 0


def test_two_streams_each_have_all_of_a_topic(site, kafka, topic):
    _send(kafka, topic, range(30))
    file = site.directory / "topics.toml"
    file.write_text(f'[[topic]]\nname = "{topic}"\nencoding = "ndjson"\nstream = "copy"\n')
    bridges = [
        _bridge(site, kafka, topic),
        _bridge(site, kafka, topic, "--kafka-topics", file, "--group", "copy", name="copy"),
    ]
    expected = Counter(range(30))
    eventually("the first copy", lambda: _numbers(site, topic) == expected)
    eventually("the second copy", lambda: _numbers(site, "copy") == expected)
    for bridge in bridges:
        assert bridge.terminate() == 0


def test_tools_see_the_offsets_of_a_bridge_that_runs(site, kafka, topic):
    _bridge(site, kafka, topic)
    for last in (10, 20, 30):
        _send(kafka, topic, range(last - 10, last), partition=0)
        expected = [TopicPartition(topic, 0, last)]
        eventually("the offset", lambda wanted=expected: _committed(kafka, topic) == wanted)


def test_bridges_and_kafka_are_killed_under_load(site, kafka, topic):
    load = Load(kafka, topic)
    bridge = _bridge(site, kafka, topic)
    for victim in ("bridge", "kafka", "bridge"):
        _until_read(bridge, 300)
        if victim == "kafka":
            kafka.kill()
            time.sleep(1)
            kafka.up()
            _until_read(bridge, 300 + bridge.metric(READ))
        else:
            bridge.kill()
            bridge = _bridge(site, kafka, topic)
    expected = load.stop()
    eventually(
        "each record once",
        lambda: bridge.must_run() or _numbers(site, topic) == expected,
        4 * PATIENCE,
    )
    eventually("no lag", lambda: bridge.metric("millpond_bridge_lag_records") == 0)
    assert bridge.terminate() == 0


def test_a_frozen_bridge_continues_after_another_has_its_partitions(site, kafka, topic):
    load = Load(kafka, topic)
    first = _bridge(site, kafka, topic, name="first")
    _until_read(first, 300)
    first.send(signal.SIGSTOP)
    second = _bridge(site, kafka, topic, name="second")
    eventually(
        "the partitions", lambda: second.metric("millpond_bridge_partitions") == 3, 4 * PATIENCE
    )
    _until_read(second, 300)
    first.send(signal.SIGCONT)
    eventually(
        "both have partitions",
        lambda: (
            first.metric("millpond_bridge_partitions") > 0
            and second.metric("millpond_bridge_partitions") < 3
        ),
        4 * PATIENCE,
    )
    expected = load.stop()
    eventually("each record once", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    for bridge in (first, second):
        assert bridge.terminate() == 0


def test_a_bridge_that_lost_its_partitions_while_it_was_frozen_can_stop(site, kafka, topic):
    first = _bridge(site, kafka, topic, name="first")
    eventually("partitions", lambda: first.metric("millpond_bridge_partitions") == 3)
    first.send(signal.SIGSTOP)
    second = _bridge(site, kafka, topic, name="second")
    eventually(
        "the partitions", lambda: second.metric("millpond_bridge_partitions") == 3, 4 * PATIENCE
    )
    first.send(signal.SIGTERM)
    first.send(signal.SIGCONT)
    assert first.wait() == 0
    assert second.terminate() == 0


def test_aborted_transactions_leave_no_records(site, kafka, topic):
    sender = _sender(kafka, **{"transactional.id": topic, "transaction.timeout.ms": 600_000})
    sender.init_transactions(4 * PATIENCE)
    for number in range(20):
        sender.begin_transaction()
        sender.produce(topic, json.dumps({"n": number}).encode(), partition=number % 3)
        # An abort drops records that were not sent yet, and the broker knows no transaction then.
        assert sender.flush(4 * PATIENCE) == 0
        (sender.abort_transaction if number % 2 else sender.commit_transaction)(PATIENCE)
    bridge = _bridge(site, kafka, topic)
    expected = Counter(range(0, 20, 2))
    eventually("the committed ones", lambda: _numbers(site, topic) == expected)
    bridge.kill()
    _send(kafka, topic, range(100, 110))
    _bridge(site, kafka, topic, name="again")
    expected += Counter(range(100, 110))
    eventually("the later ones", lambda: _numbers(site, topic) == expected)


def test_a_position_that_kafka_has_deleted_stops_its_partition(site, kafka, topic):
    _send(kafka, topic, range(300))
    bridge = _bridge(site, kafka, topic)
    eventually("all", lambda: bridge.metric(READ) == 300)
    assert bridge.terminate() == 0
    _send(kafka, topic, range(300, 320), partition=0)
    low, high = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": "look"}
    ).get_watermark_offsets(TopicPartition(topic, 0), PATIENCE)
    assert low == 0
    _delete(kafka, topic, high - 5)
    stopped = site.add(Bridge(site.directory, site.buffer, kafka, topic, name="stopped"))
    stopped.start()
    wanted = f"use --accept-gap {topic}/0"
    eventually("the error", lambda: wanted in stopped.messages(), 4 * PATIENCE)
    assert f"offsets {high - 5} to {high}" in stopped.messages()
    assert not stopped.ready()
    assert stopped.metric("millpond_bridge_partition_stopped") == 1
    found = firing({"bridge": stopped.admin})
    assert "MillpondBridgeStopped" in found
    assert "MillpondBridgeRejects" not in found
    _send(kafka, topic, range(400, 430))
    assert stopped.terminate() == 0
    _bridge(site, kafka, topic, "--accept-gap", f"{topic}/0", name="accepting")
    expected = Counter([*range(300), *range(315, 320), *range(400, 430)])
    eventually("what is there", lambda: _numbers(site, topic) == expected)


def test_a_log_that_was_cut_off_is_not_read_again(site, tmp_path):
    kafka = Kafka(tmp_path, broker_session_timeout_ms=6_000).format().up()
    topic = "cut-off"
    _create(kafka, topic, partitions=1)
    _send(kafka, topic, range(10))
    log = kafka.segment(topic, 0)
    half = log.stat().st_size
    _send(kafka, topic, range(10, 20))
    bridge = _bridge(site, kafka, topic)
    eventually("all", lambda: bridge.metric(READ) == 20)
    assert bridge.terminate() == 0
    # The leader has lost what its followers had not copied.
    kafka.kill()
    with log.open("r+b") as cut:
        cut.truncate(half)
    kafka.up()
    for name, flags in (("stopped", ()), ("short", ("--accept-gap", f"{topic}/0"))):
        stopped = site.add(Bridge(site.directory, site.buffer, kafka, topic, *flags, name=name))
        stopped.start()
        says = f"use --accept-gap {topic}/0/20/0/0. If its log was cut off"
        eventually("the error", lambda it=stopped, text=says: text in it.messages(), 4 * PATIENCE)
        assert f"use --accept-gap {topic}/0/20/10/0." in stopped.messages()
        assert stopped.terminate() == 0
    # Producers do not wait for the operator, and the end passes the position.
    _send(kafka, topic, range(100, 115))
    flags = ("--accept-gap", f"{topic}/0/20/10/0")
    bridge = _bridge(site, kafka, topic, *flags, name="end")
    expected = Counter([*range(20), *range(100, 115)])
    eventually("what follows", lambda: _numbers(site, topic) == expected)
    assert bridge.terminate() == 0
    # The flag stays, and moves the position no more.
    bridge = _bridge(site, kafka, topic, *flags, name="again")
    _send(kafka, topic, range(200, 205))
    expected += Counter(range(200, 205))
    eventually("each once", lambda: _numbers(site, topic) == expected)
    assert bridge.terminate() == 0
    kafka.kill()


def test_a_position_that_kafka_deletes_while_the_bridge_reads(site, kafka, topic):
    _send(kafka, topic, range(20), partition=0)
    bridge = _bridge(site, kafka, topic, "--accept-gap", f"{topic}/0")
    eventually("all", lambda: bridge.metric(READ) == 20)
    bridge.send(signal.SIGSTOP)
    # Kafka answers a request that waits for records after half a second at most.
    time.sleep(2)
    _send(kafka, topic, range(20, 40), partition=0)
    _delete(kafka, topic, 35)
    _send(kafka, topic, range(40, 45), partition=0)
    bridge.send(signal.SIGCONT)
    expected = Counter([*range(20), *range(35, 45)])
    eventually("what is there", lambda: _numbers(site, topic) == expected)
    eventually("ready", bridge.ready)


def test_a_damaged_batch_stops_its_partition_and_nothing_else(site, kafka, topic):
    for first in (0, 10, 20):
        _send(kafka, topic, range(first, first + 10), partition=0)
    _send(kafka, topic, range(100, 110), partition=1)
    # One bit of a value in the second batch. Brokers do not look at it when they send the batch.
    log = kafka.segment(topic, 0)
    healthy = log.read_bytes()
    place = healthy.index(b'{"n": 15}') + len(b'{"n": 1')
    with log.open("r+b") as damaged:
        damaged.seek(place)
        damaged.write(bytes([healthy[place] ^ 1]))
    bridge = Bridge(site.directory, site.buffer, kafka, topic)
    site.add(bridge).start()
    page = f"http://{bridge.admin}/readyz"
    says = f"BadMessage (Local: Bad message format): {topic}/0 at offset 10"
    eventually("the partition", lambda: says in http_get(page)[1], 4 * PATIENCE)
    expected = Counter([*range(10), *range(100, 110)])
    eventually("all before the damage", lambda: _numbers(site, topic) == expected)
    for partition in (1, 2):
        numbers = range(100 * partition + 50, 100 * partition + 60)
        _send(kafka, topic, numbers, partition)
        expected += Counter(numbers)
    eventually("the others go on", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    # Other errors of the broker may come between, and make the bridge look for the partition again.
    eventually("the page", lambda: says in http_get(page)[1], 4 * PATIENCE)
    alert = "MillpondBridgeStopped"
    eventually("the alert", lambda: alert in firing({"bridge": bridge.admin}), 4 * PATIENCE)
    with log.open("r+b") as repaired:
        repaired.seek(place)
        repaired.write(healthy[place : place + 1])
    expected += Counter(range(10, 30))
    eventually("each record once", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    eventually("ready", bridge.ready)
    assert "millpond_bridge_partition_stopped{" not in bridge.metrics()
    assert bridge.terminate() == 0


def test_partitions_without_a_leader_do_not_hold_up_the_others(site, tmp_path):
    # A broker that was killed is let in again after this time.
    kafka = Kafka(tmp_path, "first", broker_session_timeout_ms=6_000).format().up()
    other = Kafka(tmp_path, "second", beside=kafka).format().up()
    topic = "two-brokers"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    # The group's own topic is on the broker that stays. Half of the others lose their leader.
    half = 8
    places = (("__consumer_offsets", [kafka.node]), (topic, [other.node, kafka.node] * half))
    for name, nodes in places:
        wanted = NewTopic(name, len(nodes), replica_assignment=[[node] for node in nodes])
        for made in admin.create_topics([wanted]).values():
            made.result(PATIENCE)
    for partition in range(0, 2 * half, 2):
        _send(kafka, topic, range(partition, partition + 1), partition)
    other.kill()
    for partition in range(1, 2 * half, 2):
        _send(kafka, topic, range(partition, partition + 1), partition)
    bridge = Bridge(site.directory, site.buffer, kafka, topic)
    site.add(bridge).start()
    expected = Counter(range(1, 2 * half, 2))
    eventually("the other partitions", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    # Kafka's client gives up after two seconds.
    eventually("the reason", lambda: f"the offsets of {topic}/" in bridge.messages())
    assert not bridge.ready()
    other.up()
    expected = Counter(range(2 * half))
    eventually("all partitions", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    eventually("ready", bridge.ready)
    assert bridge.terminate() == 0
    for broker in (other, kafka):
        broker.kill()


def test_a_rebalance_while_the_store_is_away(site, kafka, topic):
    """The bridge has paused its partitions, and must read those that it gets back."""
    proxy = site.add(Toxiproxy(site.directory)).up()
    link = proxy.link("store", int(site.buffer.endpoint.rsplit(":", 1)[1]))
    buffer = Buffer(site.buffer.url, link.url)
    bridge = Bridge(site.directory, buffer, kafka, topic, "--memory-limit", "128MiB")
    site.add(bridge).up()
    eventually("partitions", lambda: bridge.metric("millpond_bridge_partitions") == 3)
    link.silence()
    sender, padding = _sender(kafka), "x" * 100_000
    for number in range(500):
        sender.produce(topic, json.dumps({"n": number, "padding": padding}).encode())
    assert sender.flush(4 * PATIENCE) == 0
    eventually("a pause", lambda: bridge.metric("millpond_bridge_paused") == 1)
    settings = {"bootstrap.servers": kafka.address, "group.id": "millpond"}
    other = Consumer(settings)
    other.subscribe([topic])
    eventually(
        "a rebalance", lambda: other.poll(0.1) is not None or other.assignment(), 4 * PATIENCE
    )
    other.close()
    link.restore()
    expected = Counter(range(500))
    eventually("all records", lambda: _numbers(site, topic) == expected, 4 * PATIENCE)
    eventually("ready", bridge.ready)


def test_a_topic_that_does_not_exist_yet(site, kafka, topic):
    bridge = Bridge(site.directory, site.buffer, kafka, f"{topic},later")
    site.add(bridge).start()
    eventually("the reason", lambda: "a topic is missing: later" in bridge.messages())
    assert not bridge.ready()
    _create(kafka, "later")
    _send(kafka, "later", range(5))
    eventually("its records", lambda: _numbers(site, "later") == Counter(range(5)), 4 * PATIENCE)
    eventually("ready", bridge.ready)


@pytest.mark.parametrize(("place", "first"), [("latest", 100), ("committed", 50)])
def test_where_a_topic_without_a_position_begins(site, kafka, place, first):
    topic = f"begins-{place}"
    _create(kafka, topic, partitions=1)
    _send(kafka, topic, range(100))
    settings = {"bootstrap.servers": kafka.address, "group.id": topic}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, 0, 50)], asynchronous=False)
    consumer.close()
    flags = ("--from", place, "--group", topic)
    bridge = _bridge(site, kafka, topic, *flags)
    eventually("its partition", lambda: bridge.metric("millpond_bridge_partitions") == 1)
    # The end of the topic is where it was when a bridge first saw it.
    bridge.kill()
    _send(kafka, topic, range(100, 120))
    _bridge(site, kafka, topic, *flags, name="again")
    expected = Counter(range(first, 120))
    eventually("the records", lambda: _numbers(site, topic) == expected)


def test_a_password(site, kafka, topic):
    _send(kafka, topic, range(10))
    password = site.directory / "password"
    flags = _as_user(kafka, password)
    password.write_text("wrong\n")
    bridge = Bridge(site.directory, site.buffer, kafka, topic, *flags, name="refused")
    site.add(bridge).start()
    reason = "Authentication failed"
    eventually("the reason", lambda: reason in http_get(f"http://{bridge.admin}/readyz")[1])
    assert bridge.terminate() == 0
    password.write_text(f"{PASSWORD}\n")
    _bridge(site, kafka, topic, *flags)
    eventually("its records", lambda: _numbers(site, topic) == Counter(range(10)))


def test_a_topic_that_must_not_be_read(site, kafka, topic):
    _send(kafka, topic, range(10))
    admin = AdminClient({"bootstrap.servers": kafka.address})
    _grant(admin, _right(topic, AclOperation.DESCRIBE))
    password = site.directory / "password"
    password.write_text(PASSWORD)
    bridge = Bridge(site.directory, site.buffer, kafka, topic, *_as_user(kafka, password))
    site.add(bridge).start()
    page = f"http://{bridge.admin}/readyz"
    eventually("the reason", lambda: "Kafka refuses records" in http_get(page)[1])
    # The right to describe the topic is there, so nothing else is missing.
    eventually("the places", lambda: bridge.metric("millpond_bridge_partitions") == 3)
    assert "Kafka refuses records" in http_get(page)[1]
    _grant(admin, _right(topic, AclOperation.READ))
    eventually("its records", lambda: _numbers(site, topic) == Counter(range(10)), 4 * PATIENCE)
    eventually("ready", bridge.ready, 4 * PATIENCE)


def test_mistakes_are_named(site, kafka):
    for flags, says in (
        (("--topics", "otlp.logs"), "topic otlp.logs: stream otlp.logs is for OTLP"),
        (("--topics", "bridge.rejected"), "stream bridge.rejected is for the records that"),
        (("--topics", "x", "--accept-gap", "x"), "use TOPIC/PARTITION, like"),
        (("--topics", "x", "--accept-gap", "x/1/2/3"), "use TOPIC/PARTITION, like"),
        (("--topics", "x", "--skip-record", "x/1"), "use TOPIC/PARTITION/OFFSET"),
        (("--topics", "x", "--tls-ca", "ca.pem"), "--tls"),
    ):
        bridge = Bridge(site.directory, site.buffer, kafka, *flags[1:], name=f"bad-{flags[1]}")
        bridge.start()
        assert bridge.wait() != 0
        assert says in bridge.messages(), bridge.messages()
