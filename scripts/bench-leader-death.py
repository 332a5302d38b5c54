#!/usr/bin/env python3
"""Measures how soon requests succeed again after the leader of a shard dies.

Gateways with `--peer-listen` share a shard in MinIO. One client per gateway sends a log record
every 50 ms over HTTP, each request on a separate connection. The leader is killed with SIGKILL
again and again, and comes back once another gateway leads. Prints, for the gateways that are left:
the time from each kill until every one of them has answered a request that came after it; until the
last request is answered that was waiting then; and the longest wait of a request that came shortly
before or after.

    make bench-leader-death BENCH_FLAGS="--kills 10 --gateways 3 --linger 1s"
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.process import eventually  # noqa: E402
from harness.services import Buffer, Gateway, Minio, free_port  # noqa: E402

EVERY_S = 0.05
SETTLED_S = 5
LEADS = "millpond_producer_leads"
BODY = json.dumps(
    {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "hello"}}]}]}]}
)


class Client:
    """Sends to one gateway at a constant rate, whatever happens to its requests."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # When each request was sent and answered, if it succeeded.
        self.answered: list[tuple[float, float]] = []
        self.failed = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(200) as pool:
            while not self._stopped.wait(EVERY_S):
                pool.submit(self._send, time.monotonic())

    def _send(self, sent: float) -> None:
        connection = http.client.HTTPConnection(self.gateway.http_address, timeout=30)
        try:
            connection.request("POST", "/v1/logs", BODY, {"content-type": "application/json"})
            if connection.getresponse().status == 200:
                self.answered.append((sent, time.monotonic()))
                return
        except OSError:
            pass
        finally:
            connection.close()
        self.failed += 1


def leader_of(gateways: list[Gateway]) -> Gateway:
    def only_one() -> Gateway | None:
        leaders = [gateway for gateway in gateways if gateway.metric(LEADS) == 1]
        return leaders[0] if len(leaders) == 1 else None

    return eventually("one gateway to lead", only_one)


def kill(gateways: list[Gateway], clients: list[Client]) -> tuple[float, float, float, int]:
    """Kills the leader once. Returns the time until all others answered new requests, and those
    that waited, the longest wait of a request, and the failed requests of the others."""
    leader = leader_of(gateways)
    others = [client for client in clients if client.gateway is not leader]
    failed = sum(client.failed for client in others)
    killed = time.monotonic()
    leader.kill()
    leader_of([client.gateway for client in others])
    time.sleep(SETTLED_S)
    again, waiting, waits = [], [], []
    for client in others:
        near = [pair for pair in client.answered if pair[0] > killed - 1]
        again.append(min(answer for sent, answer in near if sent > killed) - killed)
        waiting.append(max(answer for sent, answer in near if sent <= killed) - killed)
        waits.append(max(answer - sent for sent, answer in near))
    leader.up()
    time.sleep(SETTLED_S)
    failed = sum(client.failed for client in others) - failed
    return max(again), max(waiting), max(waits), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--linger", default="1s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        processes = [Minio(directory).up()]
        clients: list[Client] = []
        try:
            buffer = Buffer("s3://leader-death/buffer", processes[0].endpoint)
            for number in range(arguments.gateways):
                peers = ("--peer-listen", f"127.0.0.1:{free_port()}", "--linger", arguments.linger)
                processes.append(Gateway(directory, buffer, *peers, name=f"gateway-{number}").up())
            gateways = processes[1:]
            clients = [Client(gateway) for gateway in gateways]
            time.sleep(SETTLED_S)
            deaths = [kill(gateways, clients) for _ in range(arguments.kills)]
        finally:
            for client in clients:
                client.stop()
            for process in reversed(processes):
                process.kill()
    again, waiting, waits, failed = zip(*deaths, strict=True)
    for name, values in (
        ("from the kill until new requests are answered", again),
        ("from the kill until those that waited are answered", waiting),
        ("longest wait of a request", waits),
    ):
        print(f"{name}: p50 {statistics.median(values):.2f} s, max {max(values):.2f} s")
    print(f"failed requests at the others: {sum(failed)}")


if __name__ == "__main__":
    main()
