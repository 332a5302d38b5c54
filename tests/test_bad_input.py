"""Invalid input at a gateway's port: it answers with an error or closes the connection, and keeps
serving everyone else."""

import errno
import random
import socket
import struct

import grpc
import pytest

from harness.corpus import record, request
from harness.otlp import answer, export, refusal
from harness.process import eventually

GOOD = request(record("good")).SerializeToString()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """An HTTP/2 frame; `length` overrides the payload's length."""
    claimed = len(payload) if length is None else length
    return struct.pack(">I", claimed)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _dice() -> random.Random:
    return random.Random(20_260_304)


RAW = {
    "nothing": b"",
    "random bytes": _dice().randbytes(100_000),
    "zeros": bytes(65_536),
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a preface": PREFACE[:10],
    "preface, then random bytes": PREFACE + _dice().randbytes(50_000),
    "preface, settings of a wrong length": PREFACE + _frame(4, 0, 0, b"12345"),
    "preface, a frame cut short": PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, b"x", 500),
    "preface, a frame that is too long": PREFACE
    + _frame(4, 0, 0, b"")
    + _frame(0, 0, 1, bytes(1_000), 0xFFFFFF),
    "preface, headers that are no HPACK": PREFACE
    + _frame(4, 0, 0, b"")
    + _frame(1, 5, 1, b"\xff" * 64),
    "preface, data on a stream that is not open": PREFACE
    + _frame(4, 0, 0, b"")
    + _frame(0, 1, 7, b"data"),
}


@pytest.fixture
def gateway(site):
    gateway = site.gateway("--linger", "20ms")
    yield gateway
    # After any input it still serves, and shuts down cleanly.
    export(gateway.address, GOOD)
    assert gateway.terminate() == 0
    assert "panicked" not in gateway.messages()


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
def test_bytes_that_are_no_grpc(gateway, raw):
    host, port = gateway.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
        except ConnectionError:
            pass  # closed in the middle: fine
        except OSError as failure:
            # Closed before the shutdown, which then finds no connection.
            if failure.errno != errno.ENOTCONN:
                raise
    gateway.must_run()


def test_many_connections_that_say_nothing_do_not_keep_others_out(gateway):
    host, port = gateway.address.split(":")
    idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(200)]
    export(gateway.address, GOOD)
    for connection in idle:
        connection.close()


def test_payloads_that_are_no_otlp_are_refused_and_say_where(gateway):
    dice = _dice()
    malformed = {
        "cut short": GOOD[:-1],
        "a length past the end": b"\x0a\xff\xff\xff\xff\x0f",
        "a varint without end": b"\xff" * 11,
        "field number 0": b"\x00\x00",
        "group of another kind": b"\x0b",
        "random": dice.randbytes(1_000),
    }
    for what, payload in malformed.items():
        error = refusal(gateway.address, payload)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, (what, error)
        assert "at byte" in error.details(), (what, error.details())


def test_every_truncation_is_refused_or_a_valid_request(gateway):
    answers = [answer(gateway.address, GOOD[:length]) for length in range(1, len(GOOD))]
    assert {code for code, _ in answers} <= {"OK", "INVALID_ARGUMENT"}, answers


def test_nesting_without_end_is_refused(gateway):
    # Arrays nested 10,000 deep as the body of a record, built from the inside out.
    value = b"\x0a\x01x"
    for _ in range(10_000):
        array = b"\x0a" + _varint(len(value)) + value
        value = b"\x2a" + _varint(len(array)) + array
    for tag in (b"\x2a", b"\x12", b"\x12", b"\x0a"):  # body, log_records, scope_logs, resource_logs
        value = tag + _varint(len(value)) + value
    error = refusal(gateway.address, value)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_over_the_limit_is_refused_and_says_the_limit(site):
    gateway = site.gateway("--max-message-bytes", "1MiB")
    big = request(record("big", body="x" * 2_000_000)).SerializeToString()
    error = refusal(gateway.address, big)
    # Not RESOURCE_EXHAUSTED: no retry could succeed.
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "the limit is 1048576" in error.details()
    export(gateway.address, GOOD)


def test_an_unknown_method_is_unimplemented(gateway):
    error = refusal(gateway.address, GOOD, method="/opentelemetry.proto.Nothing/Export")
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


def test_an_empty_request_is_accepted_and_adds_nothing(site, gateway):
    consumer = site.consumer()
    export(gateway.address, b"")
    export(gateway.address, GOOD)

    def bodies() -> list[str]:
        return site.clickhouse.lines(f"SELECT Body FROM {site.database}.otel_logs")

    assert eventually("the good record", bodies) == ["body of good"]
    consumer.must_run()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
