"""An unreliable network: toxiproxy between client and server, with faults switched over HTTP."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from .process import free_port
from .services import Service, http_get, tool

# Passes "100 Continue" and cuts the answer: the client never learns the result.
LESS_THAN_AN_ANSWER = 27


class Toxiproxy(Service):
    """The proxy and its links."""

    def __init__(self, directory: Path, name: str = "toxiproxy") -> None:
        self.port = free_port()
        self.control = f"http://127.0.0.1:{self.port}"
        super().__init__(
            name,
            [tool("MILLPOND_TOXIPROXY"), "-host", "127.0.0.1", "-port", self.port],
            directory,
            # By default it writes a line for every step of every connection.
            {"LOG_LEVEL": "error"},
        )
        self._links: list[Link] = []

    def ready(self) -> bool:
        return http_get(f"{self.control}/version")[0] == 200

    def ask(self, method: str, path: str, body: object = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.control}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    def link(self, name: str, port: int) -> Link:
        """A link to the server on this port of the loopback interface."""
        link = Link(self, name, port)
        self._links.append(link)
        link.open()
        return link

    def begin_anew(self) -> None:
        """Repairs all links."""
        self.kill()
        self.up()
        for link in self._links:
            link.open()


class Link:
    """One link through the proxy. It works at first, and again after `restore`."""

    def __init__(self, proxy: Toxiproxy, name: str, port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{free_port()}"
        self._proxy = proxy
        self._upstream = f"127.0.0.1:{port}"
        self._toxics: list[str] = []

    def open(self) -> None:
        listen = self.url.removeprefix("http://")
        proxy = {"name": self.name, "listen": listen, "upstream": self._upstream, "enabled": True}
        self._proxy.ask("POST", "/proxies", proxy)

    def cut(self) -> None:
        """Closes connections and refuses new ones."""
        self._proxy.ask("POST", f"/proxies/{self.name}", {"enabled": False})

    def reset(self) -> None:
        """Resets connections in the middle of their data."""
        self._add("reset_peer", "downstream", timeout=0)

    def delay(self, ms: int) -> None:
        """Delays answers, each by up to twice this long."""
        self._add("latency", "downstream", latency=ms, jitter=ms)

    def throttle(self, kib_per_second: int) -> None:
        self._add("bandwidth", "upstream", rate=kib_per_second)

    def silence(self) -> None:
        """Forwards requests and holds back answers until the link is repaired."""
        self._add("timeout", "downstream", timeout=0)

    def cut_answers(self, after: int = LESS_THAN_AN_ANSWER) -> None:
        """Forwards requests, but only this many bytes of answers per connection: none, or complete
        first answers and not the next."""
        self._add("limit_data", "downstream", bytes=after)

    def cut_requests(self, after: int) -> None:
        """Closes connections after this many bytes of requests."""
        self._add("limit_data", "upstream", bytes=after)

    def restore(self) -> None:
        try:
            for toxic in self._toxics:
                self._proxy.ask("DELETE", f"/proxies/{self.name}/toxics/{toxic}")
            self._proxy.ask("POST", f"/proxies/{self.name}", {"enabled": True})
        except TimeoutError:
            # Once in thousands of times toxiproxy never removes a fault, because its connection was
            # just being closed.
            self._proxy.begin_anew()
        self._toxics.clear()

    def _add(self, kind: str, stream: str, **attributes: int) -> None:
        toxic = f"{kind}-{stream}"
        self._proxy.ask(
            "POST",
            f"/proxies/{self.name}/toxics",
            {"name": toxic, "type": kind, "stream": stream, "attributes": attributes},
        )
        self._toxics.append(toxic)
