"""Kafka's producers write to the gateway as to a broker: each client's records are rows, through
every codec and version, TLS, passwords, and gateways that stop and die."""

import itertools
import json
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

from harness.events import OWN_COLUMNS
from harness.kafka import needs_kafka, produce_lines
from harness.pki import Authority
from harness.process import PATIENCE, eventually, free_port
from harness.senders import LogSender, Senders, found

EVENTS = """
[[table]]
stream = "events.kafka"
table = "events"
"""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _consumer(site):
    """A consumer with a table of events. The gateway made the buffer."""
    site.clickhouse.query(f"CREATE DATABASE {site.database}")
    site.clickhouse.query(
        f"CREATE TABLE {site.database}.events (client String, number UInt64, {OWN_COLUMNS})"
        " ENGINE = MergeTree ORDER BY number SETTINGS non_replicated_deduplication_window = 10000"
    )
    file = site.directory / "event-tables.toml"
    file.write_text(EVENTS)
    return site.consumer("--event-tables", file, "--ack-interval", "50ms")


def _gateway(site, *flags: object, port: int | None = None, name: str = "gateway"):
    address = f"127.0.0.1:{port or free_port()}"
    gateway = site.gateway("--listen-kafka", address, *flags, name=name)
    gateway.kafka_address = address
    return gateway


def _value(client: str, number: int) -> bytes:
    return json.dumps({"client": client, "number": number, "padding": "x" * 100}).encode()


def _stored(site) -> list[str]:
    return sorted(site.clickhouse.lines(f"SELECT client, number FROM {site.database}.events"))


def _expected(*clients: str, numbers: int) -> list[str]:
    return sorted(f"{client}\t{number}" for client in clients for number in range(numbers))


class Outcomes:
    """What a librdkafka producer said about its records."""

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.refused: list[str] = []

    def note(self, error, message) -> None:
        if error is None:
            row = json.loads(message.value())
            self.committed.add(f"{row['client']}\t{row['number']}")
        else:
            self.refused.append(error.str())


def _send(gateway, client: str, numbers: int, **settings: object) -> Outcomes:
    """Sends records with librdkafka, and returns when each has an outcome."""
    producer = Producer({"bootstrap.servers": gateway.kafka_address, **settings})
    outcomes = Outcomes()
    for number in range(numbers):
        value = _value(client, number)
        headers = [("trace", b"1")]
        producer.produce(
            "events.kafka", value, key=b"k", headers=headers, on_delivery=outcomes.note
        )
    assert producer.flush(PATIENCE) == 0
    return outcomes


def test_librdkafka_with_every_codec_and_with_idempotence(site):
    gateway, consumer = _gateway(site), _consumer(site)
    clients = []
    for codec, idempotence in itertools.product(CODECS, (False, True)):
        client = f"{codec}-{idempotence}"
        settings = {"compression.type": codec, "enable.idempotence": idempotence}
        outcomes = _send(gateway, client, 300, **settings)
        assert outcomes.refused == []
        clients.append(client)
    expected = _expected(*clients, numbers=300)
    eventually("all rows", lambda: consumer.must_run() or _stored(site) == expected)


def test_librdkafka_is_told_about_records_that_are_refused(site):
    gateway = _gateway(site)
    producer = Producer({"bootstrap.servers": gateway.kafka_address})
    reasons = []
    for topic, value in (("events.kafka", b"not JSON"), ("otlp.logs", b"{}")):
        try:
            producer.produce(
                topic, value, on_delivery=lambda error, _: reasons.append(error.name())
            )
        except KafkaException as error:
            # The library may have asked for the topic before it takes the record.
            reasons.append(error.args[0].name())
        assert producer.flush(PATIENCE) == 0
    assert reasons in (["INVALID_RECORD", topic] for topic in ("TOPIC_EXCEPTION", "_UNKNOWN_TOPIC"))


def test_kafka_python_as_if_the_broker_had_any_version_since_0_11(site):
    gateway, consumer = _gateway(site), _consumer(site)
    versions = ((0, 11), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3), (2, 4), (2, 8), (3, 5), (4, 0))
    clients = []
    for version, codec in zip(versions, itertools.cycle((None, "gzip", "lz4"))):
        client = ".".join(map(str, version))
        producer = KafkaProducer(
            bootstrap_servers=gateway.kafka_address,
            api_version=version,
            compression_type=codec,
            enable_idempotence=version >= (2, 0),
        )
        sent = [producer.send("events.kafka", _value(client, n), key=b"k") for n in range(50)]
        for record in sent:
            record.get(PATIENCE)
        clients.append(client)
        producer.close()
    expected = _expected(*clients, numbers=50)
    eventually("all rows", lambda: consumer.must_run() or _stored(site) == expected)


def test_kafka_python_finds_out_the_version_and_which_record_is_malformed(site):
    gateway, consumer = _gateway(site), _consumer(site)
    producer = KafkaProducer(
        bootstrap_servers=gateway.kafka_address,
        linger_ms=5_000,
        # An idempotent producer of this library ends after such an error.
        enable_idempotence=False,
    )
    good, bad = (producer.send("events.kafka", value) for value in (_value("a", 0), b"[1]"))
    producer.flush(PATIENCE)
    assert isinstance(bad.exception, InvalidRecordError)
    # A broker does not accept a part of a batch, and the client says so for the others.
    assert not good.succeeded()
    producer.send("events.kafka", _value("a", 1)).get(PATIENCE)
    producer.close()
    eventually("the row", lambda: consumer.must_run() or _stored(site) == ["a\t1"])


@needs_kafka
def test_javas_console_producer(site):
    gateway, consumer = _gateway(site), _consumer(site)
    lines = [_value("java", number).decode() for number in range(500)]
    settings = {"compression.type": "zstd", "acks": "all"}
    produce_lines(gateway.kafka_address, "events.kafka", lines, settings)
    expected = _expected("java", numbers=500)
    eventually("all rows", lambda: consumer.must_run() or _stored(site) == expected)


def test_a_collectors_kafka_exporter_needs_another_address_and_nothing_else(site):
    gateway = _gateway(site)
    consumer = site.consumer("--ack-interval", "50ms")
    collector = site.collector("kafka", {"brokers": [gateway.kafka_address], "timeout": "300s"})
    logs = LogSender(collector.address)
    logs.start()
    with Senders(collector.address, pause=0.1) as senders:
        eventually(
            "requests", lambda: len(senders.acknowledged) > 1_000 and len(logs.accepted) > 50
        )
        others = Counter(senders.stop())
    logs.stop()
    sql = f"SELECT Body FROM {site.database}.otel_logs"
    eventually("all spans and points", lambda: consumer.must_run() or found(site) == others)
    eventually(
        "all logs", lambda: Counter(site.clickhouse.lines(sql)) == Counter(list(logs.accepted))
    )
    assert not logs.doubtful
    assert consumer.terminate() == 0


def test_tls_a_client_certificate_and_a_password(site):
    servers, clients = (Authority(site.directory, name) for name in ("servers", "clients"))
    certificate, key = servers.issue("gateway")
    own, own_key = clients.issue("application")
    tokens = site.directory / "tokens.toml"
    token = "application-token-0123456789"
    tokens.write_text(f'[[token]]\nname = "application"\ntoken = "{token}"\n')
    gateway = _gateway(
        site,
        *("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", clients.file),
        *("--tokens", tokens),
    )
    consumer = _consumer(site)
    secured = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(servers.file),
        "ssl.certificate.location": str(own),
        "ssl.key.location": str(own_key),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "application",
        "sasl.password": token,
    }
    assert _send(gateway, "known", 100, **secured).refused == []
    eventually(
        "the rows", lambda: consumer.must_run() or _stored(site) == _expected("known", numbers=100)
    )
    for wrong in (
        {"sasl.password": "another-token-0123456789"},
        {"security.protocol": "SSL"},
        {"security.protocol": "SASL_PLAINTEXT"},
        {"ssl.certificate.location": "", "ssl.key.location": ""},
    ):
        producer = Producer(
            {
                "bootstrap.servers": gateway.kafka_address,
                **secured,
                **wrong,
                "message.timeout.ms": 2_000,
            }
        )
        outcomes = Outcomes()
        producer.produce("events.kafka", _value("stranger", 0), on_delivery=outcomes.note)
        assert producer.flush(PATIENCE) == 0
        assert len(outcomes.refused) == 1, wrong
        with pytest.raises(KafkaException):
            producer.list_topics(timeout=1)
    assert _stored(site) == _expected("known", numbers=100)


class Sending:
    """An idempotent librdkafka producer that sends records until it is told to stop."""

    def __init__(self, gateway, client: str) -> None:
        self._client = client
        self._outcomes, self._stopping = Outcomes(), threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": gateway.kafka_address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            value = _value(self._client, number)
            self._producer.produce("events.kafka", value, on_delivery=self._outcomes.note)
            self._producer.poll(0)
            time.sleep(0.001)

    def goes_on(self) -> None:
        """Waits for further acknowledged records."""
        enough = len(self._outcomes.committed) + 100
        eventually("further records", lambda: len(self._outcomes.committed) > enough)

    def finish(self) -> set[str]:
        """Returns the records, all of which were sent and acknowledged."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(4 * PATIENCE) == 0
        assert self._outcomes.refused == []
        return self._outcomes.committed


def _assert_stored(site, consumer, committed: set[str]) -> None:
    eventually(
        "every acknowledged record",
        lambda: consumer.must_run() or committed <= set(_stored(site)),
    )
    # Of all records sent, too: the client reported each one.
    assert _stored(site) == sorted(committed)


def test_gateways_stop_and_die_and_every_record_is_there_once(site):
    """An idempotent producer sends again what a gateway had when it died."""
    port = free_port()
    gateway, consumer = _gateway(site, port=port), _consumer(site)
    sending = Sending(gateway, "load")
    for turn, end in enumerate(("kill", "terminate", "kill", "terminate")):
        sending.goes_on()
        getattr(gateway, end)()
        gateway = _gateway(site, port=port, name=f"gateway-{turn}")
    _assert_stored(site, consumer, sending.finish())


def test_a_leader_commits_for_idempotent_producers_of_other_gateways(site):
    """The leader dies, and then the gateway of a producer."""
    ports = [free_port() for _ in range(3)]

    def start(number: int, name: str):
        peers = ("--peer-listen", f"127.0.0.1:{free_port()}")
        return _gateway(site, *peers, port=ports[number], name=name)

    leader = start(0, "gateway-0")
    assert _send(leader, "first", 10).refused == []
    followers = [start(number, f"gateway-{number}") for number in (1, 2)]
    consumer = _consumer(site)
    loads = [Sending(gateway, f"load-{number}") for number, gateway in enumerate(followers)]
    appended = "millpond_producer_appended_bytes_total"
    for load, gateway in zip(loads, followers, strict=True):
        load.goes_on()
        eventually("the leader to commit", lambda of=gateway: of.metric(appended) > 0)
    assert leader.metric("millpond_producer_commits_for_others_total") > 0
    leader.kill()
    leads = "millpond_producer_leads"
    eventually("another leader", lambda: sum(it.metric(leads) for it in followers) == 1)
    for load in loads:
        load.goes_on()
    followers[1].kill()
    start(2, "gateway-again")
    for load in loads:
        load.goes_on()
    committed = set().union(*(load.finish() for load in loads))
    _assert_stored(site, consumer, committed | set(_expected("first", numbers=10)))
    site.check_manifest()


def test_keys_and_headers_are_columns_where_a_topic_says_so(site):
    site.clickhouse.query(f"CREATE DATABASE {site.database}")
    site.clickhouse.query(
        f"CREATE TABLE {site.database}.raw (key Nullable(String), value String,"
        f" timestamp DateTime64(3, 'UTC'), headers Map(String, String), {OWN_COLUMNS})"
        " ENGINE = MergeTree ORDER BY timestamp SETTINGS non_replicated_deduplication_window = 100"
    )
    tables, topics = (site.directory / name for name in ("event-tables.toml", "topics.toml"))
    tables.write_text(
        '[[table]]\nstream = "audit"\ntable = "raw"\n'
        '[table.columns]\ntimestamp = { path = "timestamp", unit = "ms" }\n'
    )
    topics.write_text('unlisted = "refuse"\n[[topic]]\nname = "audit"\nencoding = "raw"\n')
    gateway = _gateway(site, "--kafka-topics", topics)
    consumer = site.consumer("--event-tables", tables)
    producer = Producer({"bootstrap.servers": gateway.kafka_address})
    headers = [("source", b"web"), ("trace", b"\xc3\xa9")]
    producer.produce("audit", b'a "text"', key=b"k1", headers=headers, timestamp=1_700_000_000_123)
    producer.produce("audit", b"{}", timestamp=1_700_000_000_124)
    assert producer.flush(PATIENCE) == 0
    sql = (
        f"SELECT key, value, toUnixTimestamp64Milli(timestamp), headers"
        f" FROM {site.database}.raw ORDER BY timestamp"
    )

    def latin(text: str) -> str:
        return text.encode().decode("latin-1")

    expected = [
        ["k1", 'a "text"', "1700000000123", [["source", "web"], ["trace", latin("é")]]],
        [None, "{}", "1700000000124", []],
    ]

    def stored() -> list:
        return [list(row.values()) for row in site.clickhouse.rows(sql)]

    eventually("the rows", lambda: consumer.must_run() or len(stored()) == 2)
    assert stored() == expected
    assert "audit" in producer.list_topics(timeout=PATIENCE).topics
    assert consumer.terminate() == 0
