"""What no client should send: it is refused with an exception or a closed connection, inserts
nothing, and never ends, blocks or bloats the server. Random bytes come from fixed seeds.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct

import pytest

from conftest import PATIENCE, Server

MIB = 1 << 20


@pytest.fixture
def table(server: Server, database: str):
    server.query(
        "CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a", database=database
    )

    class Table:
        insert = {"database": database, "query": "INSERT INTO t FORMAT Native"}

        @staticmethod
        def count() -> int:
            return int(server.query("SELECT count() FROM t", database=database))

    return Table


@pytest.fixture(autouse=True)
def _still_serves(server: Server):
    yield
    assert server.process.poll() is None
    assert server.query("SELECT 'alive'") == "alive"


def talk(server: Server, request: bytes, dies: bool = True) -> bytes:
    """Sends bytes and reads until the server closes; a client that dies sends nothing after them,
    and a reset is an answer to it.
    """
    answer = b""
    with server.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(request)
        if dies:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def rows(server: Server, count: int, **parameters: object) -> bytes:
    sql = f"SELECT number AS a, toString(number) AS b FROM numbers({count})"
    answer = server.send(sql.encode(), default_format="Native", **parameters)
    assert answer.status == 200
    return answer.body


def post(body: bytes, length: int, query: str = "SELECT+1") -> bytes:
    head = f"POST /?query={query} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def test_random_bytes_instead_of_http(server):
    dice = random.Random(1)
    for length in [1, 10, 1000, 100_000] * 5:
        answer = talk(server, dice.randbytes(length))
        assert not answer.startswith(b"HTTP/1.1 200")


def test_random_bytes_as_sql(server):
    dice = random.Random(2)
    words = [
        b"INSERT INTO",
        b"FORMAT",
        b"SELECT",
        b"VALUES",
        b"'",
        b"`",
        b"$a$",
        b"/*",
        b"--",
        b"(",
        b"1",
        b";",
    ]
    for number in range(100):
        if number % 2:
            sql = b" ".join(dice.choices(words, k=dice.randrange(1, 20)))
        else:
            sql = dice.randbytes(dice.randrange(1, 300))
        answer = server.send(sql)
        assert (answer.status == 200) == (answer.code is None), sql


def test_random_parameters(server):
    dice = random.Random(3)
    for _ in range(30):
        name = dice.randbytes(4).decode("latin-1")
        value = dice.randbytes(20).decode("latin-1")
        answer = server.send(b"SELECT 1", **{name: value})
        assert answer.status in (400, 404), (name, value, answer.body)
    answer = talk(server, post(b"", 0, "%ff%fe&%zz=%&&="), dies=False)
    assert answer.startswith(b"HTTP/1.1 4")


def test_a_body_shorter_than_its_length_inserts_nothing(server, table):
    query = f"INSERT+INTO+{table.insert['database']}.t+FORMAT+Native"
    whole = rows(server, 1000)
    for cut in [0, 1, len(whole) // 2, len(whole) - 1, len(whole)]:
        answer = talk(server, post(whole[:cut], len(whole) + 1, query))
        assert not answer.startswith(b"HTTP/1.1 200"), cut
    # Two whole blocks, and the promise of a third.
    answer = talk(server, post(whole * 2, len(whole) * 3, query))
    assert not answer.startswith(b"HTTP/1.1 200")
    assert table.count() == 0
    assert talk(server, post(whole, len(whole), query), dies=False).startswith(b"HTTP/1.1 200")
    assert table.count() == 1000


def test_a_cut_native_block_inserts_nothing(server, table):
    whole = rows(server, 1000)
    for cut in [1, 10, len(whole) // 2, len(whole) - 1]:
        answer = server.send(whole[:cut], **table.insert)
        assert answer.status != 200, cut
        assert answer.code is not None
    assert table.count() == 0


def test_random_native_blocks(server, table):
    dice = random.Random(4)
    whole = rows(server, 50)
    for number in range(100):
        block = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            # Damage to the block's head (counts, names, types) is the harder to survive.
            block[dice.randrange(24 if number % 2 else len(block))] = dice.randrange(256)
        before = table.count()
        answer = server.send(bytes(block), **table.insert)
        assert (answer.status == 200) == (answer.code is None)
        if answer.status != 200:
            assert table.count() == before


def test_damaged_frames_insert_nothing(server, table):
    dice = random.Random(5)
    frame = rows(server, 1000, compress=1)
    for at in [*range(40), *dice.sample(range(len(frame)), 30)]:
        damaged = bytearray(frame)
        damaged[at] ^= 1 << dice.randrange(8)
        answer = server.send(bytes(damaged), decompress=1, **table.insert)
        assert answer.status in (400, 413), at
        assert answer.code in (33, 40, 271, 307), at
    for cut in [1, 15, 16, 24, 25, len(frame) - 1]:
        answer = server.send(frame + frame[:cut], decompress=1, **table.insert)
        assert (answer.status, answer.code) == (400, 33), cut
    assert table.count() == 0
    assert server.send(frame, decompress=1, **table.insert).ok() == ""
    assert table.count() == 1000


def test_frames_that_claim_gigabytes(server, table):
    for compressed, raw in [(0xFFFF_FFFF, 0xFFFF_FFFF), (9, 0xFFFF_FFFF), (0, 0), (8, 1)]:
        frame = bytes(16) + struct.pack("<BII", 0x82, compressed, raw)
        answer = server.send(frame + bytes(1000), decompress=1, **table.insert)
        assert answer.status == 400, (compressed, raw)
    for _ in range(20):
        answer = server.send(random.Random(6).randbytes(5000), decompress=1, **table.insert)
        assert answer.status == 400
    assert table.count() == 0


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4", "br", "nonsense"])
def test_bodies_that_are_not_what_their_encoding_says(server, table, encoding):
    dice = random.Random(7)
    for length in [0, 1, 10, 1000, 100_000]:
        body = dice.randbytes(length)
        answer = server.send(body, headers={"Content-Encoding": encoding}, **table.insert)
        assert answer.status == 400 or length == 0, length
    assert table.count() == 0


def test_malformed_forms(server):
    for body in [
        b"",
        b"--b",
        b"--b\r\n\r\n",
        b"--b\r\nContent-Disposition: x\r\n\r\n",
        b"\xff" * 999,
    ]:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        assert server.send(body, headers=headers, query="SELECT 1").status in (200, 400, 501)
    headers = {"Content-Type": "multipart/form-data"}
    assert server.send(b"x", headers=headers, query="SELECT 1").status == 400


def test_bodies_that_are_too_large_together(tmp_path):
    """Their memory is bounded, and the one too many is refused, not the others."""
    server = Server(tmp_path, "--max-body", "8")
    try:
        server.query("CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
        body = b"x" * (8 * MIB - 1)
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(server.connect()) for _ in range(5)]
            for connection in connections:
                connection.setblocking(False)
            request = post(body, len(body) + 1, "INSERT+INTO+t+FORMAT+LineAsString")
            unsent = dict.fromkeys(connections, request)
            refused = set()
            # All wait for their last byte until the server, with 32 MiB for all, refuses one.
            while not refused:
                readable, writable, _ = select.select(
                    connections, [c for c in connections if unsent[c]], [], PATIENCE
                )
                assert readable or writable, "the server neither reads nor refuses"
                refused.update(readable)
                for connection in writable:
                    with contextlib.suppress(ConnectionError):
                        sent = connection.send(unsent[connection])
                        unsent[connection] = unsent[connection][sent:]
            accepted = 0
            for connection in connections:
                connection.settimeout(PATIENCE)
                with contextlib.suppress(ConnectionError):
                    if connection not in refused:
                        connection.sendall(unsent[connection] + b"\n")
                    answer = connection.recv(12)
                    if connection in refused:
                        assert answer == b"HTTP/1.1 503"
                    accepted += answer == b"HTTP/1.1 200"
        assert 1 <= accepted <= 4
        assert server.query("SELECT count() FROM t") == str(accepted)
        assert server.terminate() == 0
    finally:
        server.kill()
