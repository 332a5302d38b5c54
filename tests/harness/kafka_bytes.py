"""Sends a record in Kafka's own bytes, for what the client libraries refuse to send."""

from __future__ import annotations

import socket
import struct
import time

from .process import PATIENCE, eventually

# The topic is new, and its partition has no leader that knows of it.
NOT_YET = (3, 5, 6)


def produce_bytes(
    address: str, topic: str, value: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Sends one record to partition 0 as other clients may: keys of headers are any bytes."""
    fields = [_sized(field) for pair in headers for field in pair]
    record = b"\0" + _zigzag(0) + _zigzag(0) + _zigzag(-1) + _sized(value)
    record += _zigzag(len(headers)) + b"".join(fields)
    now = int(time.time() * 1000)
    # Attributes, the last offset's delta, two timestamps, no idempotence, one record.
    body = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + _sized(record)
    batch = struct.pack(">ibI", -1, 2, _crc32c(body)) + body
    batch = struct.pack(">qi", 0, len(batch)) + batch
    name = topic.encode()
    # Produce, version 7: no transaction, all replicas, ten seconds.
    request = struct.pack(">hhih", 0, 7, 1, -1) + struct.pack(">hhi", -1, -1, 10_000)
    request += struct.pack(f">ih{len(name)}siii", 1, len(name), name, 1, 0, len(batch)) + batch

    def is_taken() -> bool:
        # Correlation, one topic with its name, one partition, the error.
        place = 4 + 4 + 2 + len(name) + 4 + 4
        error = struct.unpack_from(">h", _answer(address, request), place)[0]
        assert error in (0, *NOT_YET), f"Kafka refuses the record with error {error}"
        return error == 0

    eventually(f"a leader of topic {topic}", is_taken)


def _answer(address: str, request: bytes) -> bytes:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (length,) = struct.unpack(">i", answer.read(4))
        return answer.read(length)


def _zigzag(number: int) -> bytes:
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _sized(data: bytes) -> bytes:
    return _zigzag(len(data)) + data


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
