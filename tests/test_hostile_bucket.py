"""Objects that somebody with a consumer's key puts into the bucket: they exhaust no memory, stop
nobody else, and send no control characters to a terminal. Over `file://`, where a cursor is a
file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.services import Buffer, program

# C0 except line ends, DEL, C1, marks and overrides of the writing direction.
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ENVELOPE = 10


def _crc32c(data: bytes) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _append(cursor: Path, fields: bytes) -> None:
    """Adds fields to a cursor, with a valid checksum."""
    old = cursor.read_bytes()
    body = old[ENVELOPE:] + fields
    crc = _crc32c(old[4:6] + body).to_bytes(4, "little")
    cursor.write_bytes(old[:6] + crc + body)


def _field(number: int, text: str) -> bytes:
    data = text.encode()
    assert number < 16
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


@pytest.fixture
def cursor(site):
    """The cursor of a consumer that has read a buffer."""
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway("--linger", "20ms")
    site.load(gateway, records=100).run()
    consumer = site.consumer("--gc-interval", "0s")
    site.millpond("consumer", "wait", "e2e")
    assert [consumer.terminate(), gateway.terminate()] == [0, 0]
    return folder / "shards/0000/consumers/e2e/cursor"


# Runs a command with its output in stderr; prints the exit code and the peak RSS in KiB.
_MEASURE = """
import os, sys
to_stderr = [(os.POSIX_SPAWN_DUP2, 2, 1)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=to_stderr)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""


def _peak_mib(site, *command: object, code: int) -> tuple[int, str]:
    """Runs a command and returns its peak memory and its output."""
    printed = site.directory / "printed"
    with printed.open("wb") as file:
        words = [str(word) for word in (program("millpond"), *command, *site.buffer.flags)]
        # A forked process counts its parent's memory as its own, so the parent must be small.
        measured = subprocess.run(
            [sys.executable, "-c", _MEASURE, *words], stdout=subprocess.PIPE, stderr=file, text=True
        )
    returned, peak_kib = measured.stdout.split()
    assert int(returned) == code, printed.read_text()
    return int(peak_kib) >> 10, printed.read_text()


def test_a_cursor_that_is_a_bomb_costs_no_memory_and_keeps_only_its_shard(site, cursor):
    # Four million empty skipped parts, which would take 264 MiB decoded.
    _append(cursor, bytes([13 << 3 | 2, 0]) * 4_000_000)
    for command in (("gc", "--gc-grace", "0s"), ("status",), ("doctor", "--read-only")):
        peak, printed = _peak_mib(site, *command, code=1)
        assert peak < 128, f"{command} took {peak} MiB"
        assert "consumers/e2e/cursor" in printed, printed
        assert "skipped parts" in printed, printed
    done = site.parsed(site.millpond("gc", "--json", code=1))
    [why] = done["unreadable_cursors"]
    assert why.startswith("shards/0000/consumers/e2e/cursor: "), why
    assert done["trimmed_sequences"] == 0
    # The remedy.
    site.millpond("consumer", "remove", "e2e", "--force")
    site.millpond("gc")


def test_a_name_that_is_not_allowed_is_no_name(site, cursor):
    # A stream of that name, at position 0.
    name = _field(1, "otlp.logs\x1b[2J")
    _append(cursor, bytes([12 << 3 | 2, len(name)]) + name)
    [why] = site.parsed(site.millpond("status", "--json", code=1))["unreadable"]
    assert "is not allowed" in why
    assert "\x1b" not in why


def test_text_from_the_bucket_cannot_control_a_terminal(site, cursor):
    hostile = "a\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202egpj\u2066\rb\nshard 0001: forged"
    _append(cursor, _field(15, hostile) + _field(8, hostile))
    shown = site.millpond("status").stdout()
    assert not UNSAFE.search(shown), ascii(shown)
    escaped = r"a\u001b]0;owned\u0007\u001b[2J\u007f\u009b31m\u202egpj\u2066\rb\nshard 0001: forged"
    assert f"waits for: {escaped}\n" in shown
    text = site.millpond("status", "--json").stdout()
    assert not UNSAFE.search(text), ascii(text)
    [consumer] = site.answer("status")["shards"][0]["consumers"]
    assert consumer["waiting_for"] == [hostile]
    for command in (("doctor", "--read-only"), ("consumer", "list"), ("manifest", "dump")):
        process = site.begun(*command, *site.buffer.flags)
        process.wait()
        printed = process.stdout() + process.messages()
        assert printed
        assert not UNSAFE.search(printed), ascii(printed)
