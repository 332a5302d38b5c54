"""Thousands of connections on every port that send nothing, or half a message: real clients still
get answers, and the gateway limits its memory and file descriptors."""

import contextlib
import http.client
import resource
import socket
import ssl

import pytest
from confluent_kafka import Producer

from harness.corpus import record, request
from harness.otlp import export
from harness.pki import Authority
from harness.process import PATIENCE, eventually
from harness.services import free_port, http_get

GOOD = request(record("good")).SerializeToString()
JSON = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"good"}}]}]}]}'
MANY = 3_000

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# None of these closes during the tests: the gateway waits for 50 and 75 s.
GRPC = (PREFACE, PREFACE + b"\x00\x01\x00\x01\x04\x00\x00\x00\x01\x82")
HEAD = b"POST /v1/logs HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
HALF_A_BODY = HEAD + b"content-length: 1000\r\n\r\n" + JSON
HTTP = (HEAD, HEAD, HEAD, HALF_A_BODY)
# Half a length, and half a request: the gateway waits for ten minutes and for 30 s.
KAFKA = (b"\x00\x00", b"\x00\x00\x40\x00half")
ADMIN = (b"", b"GET /metrics HTTP/1.1\r\nhost: gateway\r\n")
# Half of a TLS handshake record.
TLS = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


@pytest.fixture
def crowd():
    """Opens connections to an address, each of which sends one of these and then stays silent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as opened:

        def come(
            address: str,
            says: tuple[bytes, ...],
            count: int = MANY,
            tls: ssl.SSLContext | None = None,
        ) -> list[socket.socket]:
            host, port = address.split(":")
            came = []
            for number in range(count):
                slow = socket.create_connection((host, int(port)), timeout=PATIENCE)
                # It may be closed already.
                with contextlib.suppress(OSError):
                    if tls is not None:
                        slow = tls.wrap_socket(slow, server_hostname=host)
                    slow.sendall(says[number % len(says)])
                came.append(opened.enter_context(slow))
            _accepted(host, int(port))
            return came

        yield come
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _accepted(host: str, port: int) -> None:
    """Waits until a port has accepted every connection before this one. A good client that comes to
    another port while it still accepts them may lose its place to them before its first request."""
    last = socket.create_connection((host, port), timeout=PATIENCE)
    with last, contextlib.suppress(ConnectionError):
        last.sendall(b"no protocol\r\n\r\n")
        last.recv(1 << 10)


def _post(address: str, tls: ssl.SSLContext | None = None) -> int:
    """The status of an export over OTLP/HTTP."""
    if tls is None:
        client = http.client.HTTPConnection(address, timeout=PATIENCE)
    else:
        client = http.client.HTTPSConnection(address, timeout=PATIENCE, context=tls)
    with contextlib.closing(client):
        client.request("POST", "/v1/logs", JSON, {"content-type": "application/json"})
        return client.getresponse().status


def _produce(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": PATIENCE * 1_000})
    refused = []
    producer.produce("events.good", b"{}", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE) == 0
    assert refused == [None]


def test_good_clients_are_answered_beside_3000_slow_connections_on_each_port(site, crowd):
    kafka = f"127.0.0.1:{free_port()}"
    gateway = site.gateway("--listen-kafka", kafka)
    # All on one connection, so none is made beside the slow ones.
    steady = ("--rate", 500, "--concurrency", 64)
    before = site.load(gateway, *steady, "--retry-for", "0s", records=1_000_000)
    before.start()
    eventually("a client that was there before", before.acknowledged)
    for address, says in (
        (gateway.address, GRPC),
        (gateway.http_address, HTTP),
        (kafka, KAFKA),
        (gateway.admin, ADMIN),
    ):
        crowd(address, says)
        # HTTP first: the gRPC client retries until slow connections have timed out.
        assert _post(gateway.http_address) == 200
        export(gateway.address, GOOD)
        _produce(kafka)
        assert http_get(f"http://{gateway.admin}/readyz")[0] == 200
    assert gateway.metric("millpond_gateway_connections") <= 1_024
    lines = gateway.metrics().splitlines()
    refused = [line for line in lines if "connections_refused_total{" in line]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in refused if "evicted" in line) > 1_000
    assert "connection closed: another connection needed its place" in gateway.messages()

    # Its connection is the oldest of all, and stayed open.
    count = len(before.acknowledged())
    eventually("more of the client from before", lambda: len(before.acknowledged()) > count)
    before.terminate()
    assert before.report()["errors"] == {}
    gateway.kill()


def test_good_clients_are_answered_beside_slow_handshakes_and_slow_tls_connections(site, crowd):
    authority = Authority(site.directory, "ours")
    certificate, key = authority.issue("gateway")
    gateway = site.gateway("--tls-cert", certificate, "--tls-key", key)
    crowd(gateway.address, TLS)
    crowd(gateway.http_address, TLS)
    trusting = ssl.create_default_context(cafile=str(authority.file))
    speaks_http2 = ssl.create_default_context(cafile=str(authority.file))
    speaks_http2.set_alpn_protocols(["h2"])
    crowd(gateway.address, GRPC, 1_100, speaks_http2)
    flags = ("--tls-ca", authority.file, "--retry-for", "0s")
    load = site.load(gateway, *flags, records=100)
    load.run()
    assert len(load.acknowledged()) == 100
    assert _post(gateway.http_address, trusting) == 200
    gateway.kill()


def test_bodies_that_are_half_sent_do_not_take_the_memory_of_others(site, crowd):
    """Each reserves memory before the gateway knows that the rest never comes."""
    kafka = f"127.0.0.1:{free_port()}"
    gateway = site.gateway("--memory-limit", "64MiB", "--listen-kafka", kafka)
    crowd(gateway.http_address, (HALF_A_BODY,), 500)
    crowd(kafka, (KAFKA[1],), 500)
    assert _post(gateway.http_address) == 200
    _produce(kafka)
    export(gateway.address, GOOD)
    gateway.kill()


def test_the_admin_port_takes_neither_memory_nor_descriptors_from_others(site, crowd):
    gateway = site.gateway()
    header = b"x-padding: " + b"x" * 4_000 + b"\r\n"
    crowd(gateway.admin, (ADMIN[1] + 95 * header,), 1_000)
    assert http_get(f"http://{gateway.admin}/metrics")[0] == 200
    export(gateway.address, GOOD)
    assert gateway.peak_memory() < 128 << 20
    status, text = _admin_post(gateway.admin)
    assert (status, text) == (413, b"this port takes no request with a body\n")


def _admin_post(address: str) -> tuple[int, bytes]:
    client = http.client.HTTPConnection(address, timeout=PATIENCE)
    with contextlib.closing(client):
        client.request("GET", "/metrics", b"x" * 1_000)
        answer = client.getresponse()
        return answer.status, answer.read()


def test_a_gateway_shares_commits_beside_3000_slow_connections_to_the_leader(site, crowd):
    port = f"127.0.0.1:{free_port()}"
    leader = site.gateway("--peer-listen", port, name="leader")
    export(leader.address, GOOD)
    crowd(port, TLS)
    # Its connection is new: it has to get a place among the others.
    follower = site.gateway("--peer-listen", "127.0.0.1:0", name="follower")
    load = site.load(follower, "--rate", 500, "--retry-for", "0s", records=1_000_000)
    load.start()
    appended = "millpond_producer_appended_bytes_total"
    eventually("blocks in the leader's segments", lambda: follower.metric(appended) > 10_000)
    load.terminate()
    assert load.report()["errors"] == {}
    assert "Too many open files" not in leader.messages()


def test_half_a_request_to_the_admin_port_is_closed(site, crowd):
    gateway = site.gateway()
    for slow in crowd(gateway.admin, ADMIN, 2):
        assert slow.recv(1 << 10) == b""


def test_every_port_and_the_store_have_descriptors_when_they_are_few(site, crowd):
    gateway = site.gateway_of()
    gateway.within(("sh", "-c", 'ulimit -n 420; exec "$@"', "sh"))
    gateway.up()
    assert "room for 36 OTLP connections, not 1024" in gateway.messages()
    for address, says in (
        (gateway.admin, ADMIN),
        (gateway.address, GRPC),
        (gateway.http_address, HTTP),
    ):
        crowd(address, says, 500)
    for _ in range(3):
        export(gateway.address, GOOD)
        assert _post(gateway.http_address) == 200
        assert http_get(f"http://{gateway.admin}/healthz")[0] == 200
    assert "Too many open files" not in gateway.messages()

    peers = f"127.0.0.1:{free_port()}"
    shares = site.gateway_of("--peer-listen", peers, name="shares")
    shares.within(("sh", "-c", 'ulimit -n 480; exec "$@"', "sh"))
    shares.up()
    for address, says in ((peers, TLS), (shares.address, GRPC), (shares.http_address, HTTP)):
        crowd(address, says, 500)
    for _ in range(3):
        export(shares.address, GOOD)
    assert "Too many open files" not in shares.messages()

    none = site.gateway_of(name="none")
    none.within(("sh", "-c", 'ulimit -n 300; exec "$@"', "sh"))
    none.start()
    assert none.wait() == 1
    assert "the limit of open files is 300, and a gateway needs 400 at least" in none.messages()
