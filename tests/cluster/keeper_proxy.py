"""A proxy in front of ZooKeeper that loses the answer to a commit."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

# Occurs only in the request that commits a part of a replicated table.
COMMIT = b"source replica"


class KeeperProxy:
    """Listens on a free port. After `arm`, it forwards the next commit of a part but not the
    answer: the connection ends a second later, and the replica cannot know the outcome."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port = self._listener.getsockname()[1]
        self._armed = threading.Event()
        self.fired = threading.Event()

    def forward_to(self, port: int) -> None:
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def arm(self) -> None:
        self.fired.clear()
        self._armed.set()

    def _accept(self, port: int) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                keeper = socket.create_connection(("127.0.0.1", port))
            except OSError:
                client.close()
                continue
            silent = threading.Event()
            for source, sink, asks in ((client, keeper, True), (keeper, client, False)):
                pump = threading.Thread(
                    target=self._pump, args=(source, sink, silent, asks), daemon=True
                )
                pump.start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, silent: threading.Event, asks: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and COMMIT in data and self._armed.is_set():
                    self._armed.clear()
                    silent.set()
                    sink.sendall(data)
                    self.fired.set()
                    # The keeper applies the commit meanwhile.
                    time.sleep(1)
                    break
                if asks or not silent.is_set():
                    sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
