"""Records, spans and data points with unique ids, each sent once: which of them were acknowledged,
and which are in the tables."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from .corpus import attributes, record, request
from .corpus_metrics import one_of_each
from .corpus_metrics import request as metrics_request
from .corpus_traces import request as traces_request
from .corpus_traces import span
from .otlp import answer, export

METRICS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


class LogSender(threading.Thread):
    """A client that sends one log record after another and never repeats one. It notes each
    record's time by its body."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.accepted: dict[str, int] = {}
        self.doubtful: dict[str, int] = {}
        self._address = address
        self._stopping = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._sending = threading.Lock()

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            # A lock alone would not let a pause begin: this thread takes it again at once.
            self._going.wait()
            with self._sending:
                self._send(f"record {number}")
            number += 1

    def _send(self, body: str) -> None:
        now = time.time_ns()
        made = request(record("moving", body=body, time=now)).SerializeToString()
        try:
            export(self._address, made)
        except grpc.RpcError:
            # The server stopped before it answered.
            self.doubtful[body] = now
        else:
            self.accepted[body] = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Sends nothing within a `with` block; when it begins, the latest request is answered."""
        self._going.clear()
        with self._sending:
            yield
        self._going.set()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Senders:
    """Send requests of spans and of data points with unique ids, once each and without retries, and
    record the acknowledged ones. They stop at the latest at the end of a `with` block: their
    threads would keep a failed run from ending."""

    RECORDS = 40

    def __init__(self, address: str, pause: float = 0.0, run: str = "") -> None:
        """Each sender pauses for this many seconds after a request. `run` is the ids' prefix."""
        self.address = address
        self.pause = pause
        self.run = run
        self.acknowledged: list[str] = []
        self._numbers = iter(range(10**9))
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(6)
        self._running = [self._pool.submit(self._send_until_stopped) for _ in range(6)]

    def _send_until_stopped(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            of = ("traces", "metrics")[number % 2]
            ids = [f"{self.run}{of}-{number}-{n}" for n in range(self.RECORDS)]
            payload = (_spans if of == "traces" else _points)(number, ids)
            if answer(self.address, payload, of)[0] == "OK":
                self.acknowledged += ids
            time.sleep(self.pause)

    def __enter__(self) -> Senders:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def stop(self) -> list[str]:
        self._stop.set()
        for running in self._running:
            running.result()
        self._pool.shutdown()
        return self.acknowledged


def _now(number: int) -> int:
    """A time within three days, so that an insert touches several partitions."""
    return time.time_ns() - number % 3 * 86_400 * 10**9


def _spans(number: int, ids: list[str]) -> bytes:
    made = (
        span(
            "",
            time=_now(n),
            trace_id=number.to_bytes(8, "big") + n.to_bytes(8, "big", signed=False),
            attributes={"id": name},
        )
        for n, name in enumerate(ids, start=1)
    )
    return traces_request(*made).SerializeToString()


def _points(_: int, ids: list[str]) -> bytes:
    made = []
    for n in range(0, len(ids), len(METRICS)):
        kinds = one_of_each("", time_unix_nano=_now(n))
        for metric, name in zip(kinds, ids[n:], strict=False):
            [point] = getattr(metric, metric.WhichOneof("data")).data_points
            point.attributes.extend(attributes({"id": name}))
            made.append(metric)
    return metrics_request(*made).SerializeToString()


def rows_with_ids(site, *columns: str) -> str:
    """SQL for the ids of all spans and data points, with these columns."""
    more = "".join(f", {column}" for column in columns)
    tables = [("otel_traces", "SpanAttributes")]
    tables += [(f"otel_metrics_{kind}", "Attributes") for kind in METRICS]
    return " UNION ALL ".join(
        f"SELECT {attributes}['id'] AS id{more} FROM {site.database}.{table}"
        for table, attributes in tables
    )


def found(site) -> Counter[str]:
    return Counter(site.clickhouse.lines(rows_with_ids(site)))
