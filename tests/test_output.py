"""Standard output that nobody reads anymore, or that is full: no command panics."""

import os
import subprocess

import pytest

from harness.services import CREDENTIALS, Buffer, program

# Commands on the buffer; those that run forever end once nobody reads their output.
ON_A_BUFFER = (
    ("status",),
    ("status", "--json"),
    ("status", "--watch", "50ms"),
    ("tail", "--from", "earliest"),
    ("doctor", "--read-only"),
    ("gc", "--dry-run"),
    ("manifest", "dump"),
    ("manifest", "dump", "--json"),
    ("manifest", "check"),
    ("consumer", "list"),
    ("dead-letters", "list"),
)
ALONE = (
    ("config",),
    ("tables", "print"),
    ("cost", "--throughput", "1MB/s"),
    ("cost", "prices", "print"),
)


@pytest.fixture(scope="module")
def read_once(module_site):
    """A buffer with records and a former consumer."""
    site = module_site
    site.buffer = Buffer((site.directory / "buffer").as_uri())
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--gc-interval", "0s")
    site.load(gateway, records=1_000).run()
    site.millpond("consumer", "wait", "e2e")
    assert [consumer.terminate(), gateway.terminate()] == [0, 0]
    return site


def _ends(site, command: tuple[str, ...], stdout: int) -> tuple[int, str]:
    """The exit code and messages of a command with this standard output."""
    buffer = site.buffer.flags if command in ON_A_BUFFER else []
    done = subprocess.run(
        [str(word) for word in (program("millpond"), *command, *buffer)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**CREDENTIALS, "RUST_BACKTRACE": "1"},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [*ON_A_BUFFER, *ALONE], ids=" ".join)
def test_a_reader_that_is_gone_is_no_error(read_once, command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert _ends(read_once, command, writing) == (0, "")
    finally:
        os.close(writing)


@pytest.mark.parametrize("command", [("status",), ("tail", "--from", "earliest"), ("config",)])
def test_a_full_disk_is_reported(read_once, command):
    with open("/dev/full", "w") as full:
        code, message = _ends(read_once, command, full.fileno())
    assert code == 1
    assert message.startswith("millpond: cannot write to standard output: No space left")
