#!/usr/bin/env python3
"""Measures deduplication by key: `make bench-unique`.

Publishers send events with the schema of GlassFlow's load test to a gateway, a tenth of them twice,
while a consumer with `--unique` (8 h) writes them: that is the latency. Then one consumer after
another reads the whole backlog into ClickHouse, alternately without and with `--unique`. A run
counts only if the table has exactly the expected rows. Prints records per second, CPU-seconds per
million records and peak memory of each consumer, and the CPU-seconds of the gateway and of
ClickHouse with its merges.

With `--twice`, as QuestDB's benchmark does, publishers send a whole data set twice: once in order
and one after the other, and once at the same time and the copy in another order.

    scripts/bench-unique.py [--records N] [--publishers N] [--repeats N] [--rows-per-request N]
                            [--twice]
"""

import argparse
import http.client
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from usage import cpu_seconds, peak_memory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.process import free_port  # noqa: E402

# MILLPOND_BIN_DIR: a folder of programs that are already built.
PROGRAMS = Path(os.environ.get("MILLPOND_BIN_DIR", ROOT / "target/release"))
STREAM = "events.user"
# A tenth of all records repeats the key of an earlier one of the same publisher.
REPEATED = 10
COLUMNS = """event_id UUID, user_id UUID, name String, email String, created_at DateTime,
    _millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3),
    _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32"""


def uuid(dice):
    text = f"{dice.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def event(key, user, sent):
    return (
        f'{{"event_id":"{key}","user_id":"{user}","name":"user {key[:6]}",'
        f'"email":"{key[:8]}@example.com","created_at":"2026-11-25 01:{sent % 60:02}:00"}}'
    )


def with_repetitions(publisher, records, per_request):
    """The requests of a publisher. A tenth of the rows repeats the key of an earlier one."""
    dice = random.Random(publisher)
    recent, sent = [], 0
    while sent < records:
        rows = []
        for _ in range(min(per_request, records - sent)):
            if sent % REPEATED == REPEATED - 1:
                key = recent[dice.randrange(len(recent))]
            else:
                key = uuid(dice)
                # Some of the keys so far, old and new.
                if len(recent) < 100_000:
                    recent.append(key)
                else:
                    recent[dice.randrange(100_000)] = key
            rows.append(event(key, uuid(dice), sent))
            sent += 1
        yield rows


def data_set(publisher, records, per_request, in_order):
    """The requests of a publisher, each with rows that no other one has."""
    requests = list(range(records // per_request))
    if not in_order:
        random.Random(publisher).shuffle(requests)
    for request in requests:
        dice = random.Random(f"{publisher} {request}")
        rows = [event(uuid(dice), uuid(dice), sent) for sent in range(per_request)]
        if not in_order:
            dice.shuffle(rows)
        yield rows


def publish(address, requests, *arguments):
    client = http.client.HTTPConnection(address)
    for rows in requests(*arguments):
        body = "\n".join(rows)
        client.request(
            "POST", f"/v1/streams/{STREAM}", body, {"content-type": "application/x-ndjson"}
        )
        answer = client.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"the gateway answered {answer.status}: {text.decode()}")


def quantile(metrics, name, share):
    """An upper bound of the histogram's quantile: its buckets are 15 % apart."""
    buckets = [line for line in metrics.splitlines() if line.startswith(f"{name}_bucket")]
    counts = [(re.search(r'le="([^"]+)"', line)[1], int(line.split()[-1])) for line in buckets]
    total = counts[-1][1]
    return next(float(bound) for bound, count in counts if count >= share * total)


def query(url, sql):
    request = urllib.request.Request(url, sql.encode())
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode().strip()


class Bench:
    def __init__(self, directory, flags):
        self.directory, self.flags = directory, flags
        self.processes = []
        self.clickhouse = f"http://127.0.0.1:{free_port()}"
        self.share = flags.records // flags.publishers
        self.records = self.share * flags.publishers
        self.sent = self.records * (2 if flags.twice else 1)
        self.keys = self.records - (0 if flags.twice else self.records // REPEATED)
        # The same memory for batches with and without keys.
        memory = 40 * self.keys * 5 // 4 + (1 << 20)
        limit = max((512 << 20) + memory, memory * 4 // 3 + 4)
        unique = ("--unique", directory / "unique.toml", "--unique-memory", f"{memory}B")
        self.unique = (*unique, "--memory-limit", f"{limit}B")
        self.plain = ("--memory-limit", f"{512 << 20}B")

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

    def start_clickhouse(self):
        port = self.clickhouse.rsplit(":", 1)[1]
        path = ("--path", self.directory / "clickhouse")
        server = ("embedded-clickhouse", "--listen", f"127.0.0.1:{port}", *path)
        self.server = self.start("clickhouse", *server)

        def answers():
            return query(self.clickhouse, "SELECT 1") == "1"

        self.wait_for("ClickHouse", answers, self.server, 60)

    def start_gateway(self, buffer):
        http, grpc, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listen = ("--listen", grpc, "--listen-http", http, "--admin", admin)
        to = ("--buffer", buffer, "--create-bucket")
        gateway = self.start("gateway", "millpond", "gateway", *to, *listen)

        def ready():
            return urllib.request.urlopen(f"http://{admin}/readyz").status == 200

        self.wait_for("the gateway", ready, gateway, 60)
        return gateway, http

    def fill(self, buffer, *rounds):
        """Sends the requests of each round at the same time, and one round after the other."""
        gateway, http = self.start_gateway(buffer)
        live = self.start_consumer("live", buffer, *self.unique)
        began = time.monotonic()
        for tasks in rounds:
            sends = [(http, *task) for task in tasks]
            with multiprocessing.Pool(len(sends)) as pool:
                pool.starmap(publish, sends, chunksize=1)
        took = time.monotonic() - began
        self.arrive("live", live, self.keys)
        self.check("live", self.keys)
        metrics = urllib.request.urlopen(f"http://{live.admin}/metrics").read().decode()
        p50, p99 = (
            quantile(metrics, "millpond_consumer_latency_seconds", share) for share in (0.5, 0.99)
        )
        self.end("live", live)
        cpu = cpu_seconds(gateway.pid)
        gateway.terminate()
        gateway.wait()
        per_million = cpu * 1e6 / self.sent
        print(
            f"{self.sent:,} records sent by {self.flags.publishers} publishers,"
            f" {self.sent / took:,.0f} records/s; gateway {per_million:.2f} CPU-s per million;"
            f" rows arrive within {p50:.2f} s (p50), {p99:.2f} s (p99)",
            flush=True,
        )
        return per_million

    def start_consumer(self, name, buffer, *flags):
        """A new consumer of a buffer, which writes into a new database."""
        query(self.clickhouse, f"CREATE DATABASE {name}")
        query(
            self.clickhouse,
            f"CREATE TABLE {name}.users ({COLUMNS}) ENGINE = MergeTree ORDER BY event_id"
            " SETTINGS non_replicated_deduplication_window = 10000",
        )
        admin = f"127.0.0.1:{free_port()}"
        consumer = self.start(
            name,
            "millpond",
            *("consume", "--buffer", buffer, "--consumer", name, "--admin", admin),
            *("--clickhouse", self.clickhouse, "--database", name, "--gc-interval", "0s"),
            *("--event-tables", self.directory / "tables.toml", *flags),
        )
        consumer.admin = admin
        return consumer

    def arrive(self, name, consumer, rows):
        def count():
            return int(query(self.clickhouse, f"SELECT count() FROM {name}.users"))

        self.wait_for(f"{rows} rows", lambda: count() >= rows, consumer)

    def check(self, name, rows):
        sql = f"SELECT count(), uniqExact(event_id) FROM {name}.users"
        found = query(self.clickhouse, sql).split("\t")
        if found != [str(rows), str(self.keys)]:
            sys.exit(f"{name}: rows and keys {found}, not {[rows, self.keys]}")

    def end(self, name, consumer):
        consumer.terminate()
        if ended := consumer.wait():
            sys.exit(f"{name} ended with {ended}")
        query(self.clickhouse, f"DROP DATABASE {name} SYNC")

    def consume(self, name, buffer, rows, *flags):
        """Reads the backlog with a new consumer. Returns the CPU-seconds per million records of
        the consumer and of ClickHouse.
        """
        before, began = cpu_seconds(self.server.pid), time.monotonic()
        consumer = self.start_consumer(name, buffer, *flags)
        self.arrive(name, consumer, rows)
        took = time.monotonic() - began
        cpu, peak = cpu_seconds(consumer.pid), peak_memory(consumer.pid)
        merging = "SELECT count() FROM system.merges"
        self.wait_for("merges", lambda: query(self.clickhouse, merging) == "0", self.server, 300)
        server = cpu_seconds(self.server.pid) - before
        self.check(name, rows)
        self.end(name, consumer)
        costs = [cpu * 1e6 / self.sent, server * 1e6 / self.sent]
        print(
            f"{name:12} {self.sent / took:10,.0f} records/s  {costs[0]:6.2f} CPU-s per million"
            f"  {peak:6.0f} MiB peak  ClickHouse {costs[1]:6.2f} CPU-s per million",
            flush=True,
        )
        return costs

    def run(self):
        (self.directory / "tables.toml").write_text(
            f'[[table]]\nstream = "{STREAM}"\ntable = "users"\n'
        )
        (self.directory / "unique.toml").write_text(
            f'[[unique]]\nstream = "{STREAM}"\nkey = ["event_id"]\nwindow = "8h"\n'
        )
        self.start_clickhouse()
        if self.flags.twice:
            self.run_twice()
        else:
            self.run_beside_plain()

    def in_turns(self, first, second):
        """Runs two kinds of consumers in turns. Prints the medians of their costs."""
        costs = {first[0]: [], second[0]: []}
        for repeat in range(self.flags.repeats):
            for kind, *arguments in (first, second):
                costs[kind].append(self.consume(f"{kind}_{repeat}", *arguments))
        medians = (map(statistics.median, zip(*costs[kind], strict=True)) for kind in costs)
        consumer, server = zip(*medians, strict=True)
        both = [sum(costs) for costs in zip(consumer, server, strict=True)]
        print(f"CPU-s per million records, medians: {first[0]}, {second[0]}")
        return {"consumer": consumer, "consumer and ClickHouse": both}

    def run_beside_plain(self):
        buffer = f"file://{self.directory}/buffer"
        publishers = range(self.flags.publishers)
        tasks = [
            (with_repetitions, number, self.share, self.flags.rows_per_request)
            for number in publishers
        ]
        gateway = self.fill(buffer, tasks)
        costs = self.in_turns(
            ("plain", buffer, self.records, *self.plain),
            ("unique", buffer, self.keys, *self.unique),
        )
        both = costs["consumer and ClickHouse"]
        costs["gateway, consumer and ClickHouse"] = [cost + gateway for cost in both]
        show(costs)

    def run_twice(self):
        publishers = range(self.flags.publishers)
        tasks = [
            [
                (data_set, number, self.share, self.flags.rows_per_request, in_order)
                for number in publishers
            ]
            for in_order in (True, False)
        ]
        in_order, mixed = (f"file://{self.directory}/{name}" for name in ("in-order", "mixed"))
        self.fill(in_order, tasks[0], tasks[0])
        self.fill(mixed, tasks[0] + tasks[1])
        show(
            self.in_turns(
                ("in_order", in_order, self.keys, *self.unique),
                ("mixed", mixed, self.keys, *self.unique),
            )
        )

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def show(costs):
    for what, (before, after) in costs.items():
        print(f"  {what:32}  {before:6.2f}  {after:6.2f}  {100 * (after / before - 1):+.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--publishers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows-per-request", type=int, default=25_000)
    parser.add_argument("--twice", action="store_true")
    flags = parser.parse_args()
    if min(flags.publishers, flags.repeats, flags.rows_per_request) < 1:
        parser.error("--publishers, --repeats and --rows-per-request are at least 1")
    # Each publisher sends the same number of whole requests, and repeats whole tenths.
    least = flags.rows_per_request * REPEATED * flags.publishers
    if flags.records < least:
        parser.error(f"--records is {flags.records:,}: give {least:,} or a multiple")
    flags.records -= flags.records % least
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), flags)
        try:
            bench.run()
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
