#!/usr/bin/env python3
"""Measures deduplication by key: `make bench-unique`.

Publishers send events with the schema of GlassFlow's load test to a gateway, a tenth of them twice.
Then one consumer after another reads the whole backlog into ClickHouse, alternately without and
with `--unique` (8 h). A run counts only if the table has exactly the expected rows. Prints records
per second, CPU-seconds per million records and peak memory of each consumer.

    scripts/bench-unique.py [--records N] [--publishers N] [--repeats N]
"""

import argparse
import http.client
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from usage import cpu_seconds, peak_memory

ROOT = Path(__file__).resolve().parent.parent
# MILLPOND_BIN_DIR: a folder of programs that are already built.
PROGRAMS = Path(os.environ.get("MILLPOND_BIN_DIR", ROOT / "target/release"))
STREAM = "events.user"
ROWS_PER_REQUEST = 5_000
# A tenth of all records repeats the key of an earlier one of the same publisher.
REPEATED = 10
COLUMNS = """event_id UUID, user_id UUID, name String, email String, created_at DateTime,
    _millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3),
    _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def uuid(dice):
    text = f"{dice.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def publish(address, number, records):
    """Sends the events of one publisher. Their keys are those of no other publisher."""
    dice = random.Random(number)
    client = http.client.HTTPConnection(address)
    recent, sent = [], 0
    while sent < records:
        rows = []
        for _ in range(min(ROWS_PER_REQUEST, records - sent)):
            if sent % REPEATED == REPEATED - 1:
                key = recent[dice.randrange(len(recent))]
            else:
                key = uuid(dice)
                # Some of the keys so far, old and new.
                if len(recent) < 100_000:
                    recent.append(key)
                else:
                    recent[dice.randrange(100_000)] = key
            name = f"user {key[:6]}"
            rows.append(
                f'{{"event_id":"{key}","user_id":"{uuid(dice)}","name":"{name}",'
                f'"email":"{key[:8]}@example.com","created_at":"2026-11-25 01:{sent % 60:02}:00"}}'
            )
            sent += 1
        body = "\n".join(rows)
        client.request(
            "POST", f"/v1/streams/{STREAM}", body, {"content-type": "application/x-ndjson"}
        )
        answer = client.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"the gateway answered {answer.status}: {text.decode()}")


def query(url, sql):
    request = urllib.request.Request(url, sql.encode())
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode().strip()


class Bench:
    def __init__(self, directory, flags):
        self.directory, self.flags = directory, flags
        self.processes = []
        self.buffer = f"file://{directory}/buffer"
        self.clickhouse = f"http://127.0.0.1:{free_port()}"

    def start(self, name, program, *arguments):
        log = (self.directory / f"{name}.log").open("w")
        command = [str(PROGRAMS / program), *map(str, arguments)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def wait_for(self, what, condition, process, seconds=3_600):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                logs = [file.read_text()[-2_000:] for file in self.directory.glob("*.log")]
                sys.exit("\n".join([*logs, f"waiting for {what}: ended with {process.poll()}"]))
            time.sleep(0.05)

    def fill(self):
        """Sends everything. Returns records per second."""
        http, grpc, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listen = ("--listen", grpc, "--listen-http", http, "--admin", admin)
        to = ("--buffer", self.buffer, "--create-bucket")
        gateway = self.start("gateway", "millpond", "gateway", *to, *listen)

        def ready():
            return urllib.request.urlopen(f"http://{admin}/readyz").status == 200

        self.wait_for("the gateway", ready, gateway, 60)
        began = time.monotonic()
        share = self.flags.records // self.flags.publishers
        with multiprocessing.Pool(self.flags.publishers) as pool:
            sends = [(http, number, share) for number in range(self.flags.publishers)]
            pool.starmap(publish, sends, chunksize=1)
        took = time.monotonic() - began
        gateway.terminate()
        gateway.wait()
        return share * self.flags.publishers, took

    def consume(self, name, records, rows, *flags):
        """Reads the backlog with a new consumer into a new database."""
        query(self.clickhouse, f"CREATE DATABASE {name}")
        query(
            self.clickhouse,
            f"CREATE TABLE {name}.users ({COLUMNS}) ENGINE = MergeTree ORDER BY event_id"
            " SETTINGS non_replicated_deduplication_window = 10000",
        )
        admin = f"127.0.0.1:{free_port()}"
        began = time.monotonic()
        consumer = self.start(
            name,
            "millpond",
            *("consume", "--buffer", self.buffer, "--consumer", name, "--admin", admin),
            *("--clickhouse", self.clickhouse, "--database", name, "--gc-interval", "0s"),
            *("--event-tables", self.directory / "tables.toml", *flags),
        )

        def count():
            return int(query(self.clickhouse, f"SELECT count() FROM {name}.users"))

        self.wait_for(f"{rows} rows", lambda: count() >= rows, consumer)
        took = time.monotonic() - began
        cpu, peak = cpu_seconds(consumer.pid), peak_memory(consumer.pid)
        consumer.terminate()
        ended = consumer.wait()
        found = query(
            self.clickhouse, f"SELECT count(), uniqExact(event_id) FROM {name}.users"
        ).split("\t")
        keys = records - records // REPEATED
        if ended != 0 or found != [str(rows), str(keys)]:
            sys.exit(f"{name} ended with {ended}; rows and keys {found}, not {[rows, keys]}")
        query(self.clickhouse, f"DROP DATABASE {name} SYNC")
        per_million = cpu * 1e6 / records
        print(
            f"{name:10} {records / took:10,.0f} records/s  {per_million:6.2f} CPU-s per million"
            f"  {peak:6.0f} MiB peak",
            flush=True,
        )
        return per_million

    def run(self):
        (self.directory / "tables.toml").write_text(
            f'[[table]]\nstream = "{STREAM}"\ntable = "users"\n'
        )
        (self.directory / "unique.toml").write_text(
            f'[[unique]]\nstream = "{STREAM}"\nkey = ["event_id"]\nwindow = "8h"\n'
        )
        records, took = self.fill()
        print(f"{records:,} records sent by {self.flags.publishers} publishers,", end=" ")
        print(f"{records / took:,.0f} records/s, a tenth repeated")
        port = self.clickhouse.rsplit(":", 1)[1]
        path = ("--path", self.directory / "clickhouse")
        server = self.start(
            "clickhouse", "embedded-clickhouse", "--listen", f"127.0.0.1:{port}", *path
        )
        self.wait_for("ClickHouse", lambda: query(self.clickhouse, "SELECT 1") == "1", server, 60)
        keys = records - records // REPEATED
        memory = 40 * keys * 5 // 4 + (1 << 20)
        unique = ("--unique", self.directory / "unique.toml", "--unique-memory", f"{memory}B")
        # The same memory for batches in both.
        limits = [512 << 20, (512 << 20) + memory]
        costs = {"plain": [], "unique": []}
        for repeat in range(self.flags.repeats):
            cost = self.consume(
                f"plain_{repeat}", records, records, "--memory-limit", f"{limits[0]}B"
            )
            costs["plain"].append(cost)
            limit = max(limits[1], memory * 4 // 3 + 4)
            cost = self.consume(
                f"unique_{repeat}", records, keys, *unique, "--memory-limit", f"{limit}B"
            )
            costs["unique"].append(cost)
        plain, unique = (sorted(costs[kind])[len(costs[kind]) // 2] for kind in costs)
        print(f"deduplication: {plain:.2f} to {unique:.2f} CPU-s per million records,", end=" ")
        print(f"{100 * (unique / plain - 1):+.0f} % (medians)")

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--publishers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    each = ROWS_PER_REQUEST * REPEATED
    flags.records -= flags.records % (each * flags.publishers)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), flags)
        try:
            bench.run()
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
