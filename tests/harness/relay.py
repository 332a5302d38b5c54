"""A relay before a server. It knows which process connects, so that a test can cut off some clients
of the server and not others."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from .process import Process, free_port

LOOPBACK = "127.0.0.1"


class Relay:
    """Forwards connections to a port of the loopback interface while the `with` statement lasts."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server((LOOPBACK, free_port()))
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._cut_off: list[Process] = []
        self._open: set[tuple[socket.socket, socket.socket]] = set()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._close(lambda _: True)

    def cut_off(self, *processes: Process) -> None:
        """Closes the connections of these processes, and every new one until `restore`."""
        with self._lock:
            self._cut_off = list(processes)
        self._close(self._is_cut_off)

    def restore(self) -> None:
        with self._lock:
            self._cut_off = []

    def _is_cut_off(self, client: socket.socket) -> bool:
        with self._lock:
            processes = list(self._cut_off)
        return any(_owns(process.pid, client) for process in processes)

    def _close(self, which) -> None:
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            if which(pair[0]):
                _shut(*pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.socket() as server:
            server.connect((LOOPBACK, self._upstream))
            with self._lock:
                self._open.add((client, server))
            # Only now: `cut_off` closes what is open, and this refuses what was not yet.
            if not self._is_cut_off(client):
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()
            with self._lock:
                self._open.remove((client, server))


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _shut(source, sink)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _owns(pid: int, client: socket.socket) -> bool:
    """Returns true if the process has the other end of this connection."""
    with contextlib.suppress(OSError):
        inode = _inode(client.getpeername()[1], client.getsockname()[1])
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) == f"socket:[{inode}]":
                    return True
    return False


def _inode(local: int, remote: int) -> str | None:
    """The inode of a connection of this machine from one port to another."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        ports = [int(address.rsplit(":", 1)[1], 16) for address in words[1:3]]
        if ports == [local, remote]:
            return words[9]
    return None
