"""One embedded ClickHouse for all tests here, on a free port with a temporary folder; every test
has its own database. At the end the server must shut down cleanly.

The program is target/debug/embedded-clickhouse or the value of MILLPOND_EMBEDDED_CLICKHOUSE.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("MILLPOND_EMBEDDED_CLICKHOUSE") or (
    ROOT / "target" / "debug" / "embedded-clickhouse"
)

# Longer than this counts as hung.
PATIENCE = 120.0


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Answer:
    """A response to a raw request."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        code = response.headers.get("X-ClickHouse-Exception-Code")
        self.code = None if code is None else int(code)

    def ok(self) -> str:
        assert (self.status, self.code) == (200, None), self.body
        return self.body.decode()


class Server:
    """A running embedded-clickhouse."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "--listen", "127.0.0.1:0", "--path", data, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=_die_with_parent,
        )
        line = self.process.stdout.readline().decode()
        prefix = "listening on http://"
        assert line.startswith(prefix), f"{PROGRAM} did not start: {line!r}"
        self.host, port = line.removeprefix(prefix).strip().rsplit(":", 1)
        self.port = int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def send(
        self,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        method: str = "POST",
        **parameters: object,
    ) -> Answer:
        """One request on a new connection."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            target = "/?" + urllib.parse.urlencode(parameters)
            connection.request(method, target, body, headers or {})
            return Answer(connection.getresponse())

    def query(self, sql: str, **parameters: object) -> str:
        return self.send(sql.encode(), **parameters).ok().strip()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("clickhouse"))
    try:
        yield server
        assert server.terminate() == 0
    finally:
        server.kill()


_numbers = itertools.count(1)


@pytest.fixture
def database(server: Server) -> str:
    name = f"test_{next(_numbers)}"
    server.query(f"CREATE DATABASE {name}")
    return name


@pytest.fixture(params=[False, "lz4", "zstd", "gzip"])
def client(request, server: Server, database: str):
    """clickhouse-connect with each compression that it reads and writes (except brotli)."""
    client = clickhouse_connect.get_client(
        host=server.host,
        port=server.port,
        database=database,
        compress=request.param,
    )
    yield client
    client.close()
