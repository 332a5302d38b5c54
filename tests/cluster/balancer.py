"""A load balancer that sends consecutive requests to different servers."""

from __future__ import annotations

import http.client
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Balancer:
    """HTTP on a free port; each request goes to the next server, over a new connection."""

    def __init__(self, servers: list[str]) -> None:
        turn = itertools.cycle([urlsplit(server).netloc for server in servers])

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # noqa: N802 - the library's name
                self._forward(b"")

            def do_POST(self) -> None:  # noqa: N802
                self._forward(self._body())

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b""
                while length := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _forward(self, body: bytes) -> None:
                hop = {"host", "connection", "transfer-encoding", "content-length"}
                headers = {k: v for k, v in self.headers.items() if k.lower() not in hop}
                connection = http.client.HTTPConnection(next(turn), timeout=120)
                try:
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                    return
                finally:
                    connection.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in hop | {"keep-alive"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Balancer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
