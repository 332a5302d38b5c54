"""The resources of one test: its processes, its buffer and its database."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from .process import PATIENCE, Process, eventually
from .services import (
    CREDENTIALS,
    Buffer,
    Collector,
    Consumer,
    EmbeddedClickHouse,
    Gateway,
    Load,
    MillpondCollector,
    Minio,
    Versitygw,
    append_to,
    program,
)

_LOG_TAIL = 6_000
_numbers = itertools.count(1)


class Site:
    """The processes of one test, all stopped at its end, and its buffer and database."""

    def __init__(
        self, directory: Path, store: Minio | Versitygw, clickhouse: EmbeddedClickHouse
    ) -> None:
        number = next(_numbers)
        self.directory = directory
        self.store = store
        self.clickhouse = clickhouse
        # The URL for consumers, which may lead through a proxy.
        self.clickhouse_url = clickhouse.url
        self.buffer = Buffer(f"s3://test-{number}/buffer", store.endpoint)
        self.database = f"test_{number}"
        self._own: list[Process] = []
        # Shared services keep writing; a failure shows their output during this test.
        self._seen = {process: len(process.messages()) for process in (store, clickhouse)}

    def add(self, process):
        """Makes this test the owner of a process: stopped at the end, shown on failure."""
        self._own.append(process)
        return process

    def gateway_of(self, *flags: object, name: str = "gateway") -> Gateway:
        """A gateway, not started."""
        return self.add(Gateway(self.directory, self.buffer, *flags, name=name))

    def gateway(self, *flags: object, name: str = "gateway") -> Gateway:
        return self.gateway_of(*flags, name=name).up()

    def consumer_of(self, *flags: object, **options: str) -> Consumer:
        """A consumer, not started."""
        options.setdefault("database", self.database)
        return self.add(
            Consumer(self.directory, self.buffer, self.clickhouse_url, *flags, **options)
        )

    def consumer(self, *flags: object, **options: str) -> Consumer:
        return self.consumer_of(*flags, **options).up()

    def load(self, gateway: Gateway, *flags: object, records: int, name: str = "load") -> Load:
        return self.add(Load(self.directory, gateway.address, *flags, records=records, name=name))

    def loads_until_forwarded(self, producer: Gateway, leader: Gateway) -> list[Load]:
        """Loads on a producer until its leader has committed for it. After a stall, the producer
        commits for itself for some seconds."""
        for_others = "millpond_producer_commits_for_others_total"
        before = leader.metric(for_others)
        loads: list[Load] = []

        def is_forwarded() -> bool:
            name = f"{producer.name}-forwards-{len(loads)}"
            loads.append(self.load(producer, records=1_000, name=name))
            loads[-1].run()
            return leader.metric(for_others) > before

        eventually(f"{leader.name} to commit for {producer.name}", is_forwarded, interval=0.5)
        assert [load.report()["unacknowledged"] for load in loads] == [0] * len(loads)
        return loads

    def collector(
        self,
        exporter: str,
        settings: dict,
        name: str = "collector",
        extensions: dict | None = None,
    ) -> Collector:
        return self.add(
            Collector(self.directory, exporter, settings, name=name, extensions=extensions)
        ).up()

    def millpond_gc_of(
        self, name: str = "otelcol", extensions: dict | None = None, **settings: object
    ) -> MillpondCollector:
        """A Collector, not started, that appends to this test's buffer."""
        exporter = append_to(self.buffer, **settings)
        return self.add(
            MillpondCollector(
                self.directory, "millpond", exporter, name=name, extensions=extensions
            )
        )

    def millpond_collector(self, *name: str, **settings: object) -> MillpondCollector:
        return self.millpond_gc_of(*name, **settings).up()

    def check_manifest(self) -> None:
        """Asserts that `millpond manifest check` finds no problem in the buffer."""
        self.millpond("manifest", "check", "--json")

    def millpond(self, *command: object, code: int = 0) -> Process:
        """Runs a `millpond` command on the buffer to its end and checks the exit code."""
        return self.command(*command, *self.buffer.flags, code=code)

    def command(self, *command: object, code: int = 0) -> Process:
        """Runs a `millpond` command that needs no buffer."""
        process = self.begun(*command)
        ended = process.wait(4 * PATIENCE)
        failure = f"{process.name} ended with {ended}: {process.stdout()} {process.messages()}"
        assert ended == code, failure
        return process

    def begun(self, *command: object) -> Process:
        """Starts a `millpond` command that keeps running."""
        name = "-".join(str(word) for word in command[:2])
        process = self.add(
            Process(name, [program("millpond"), *command], self.directory, CREDENTIALS)
        )
        process.start()
        return process

    def answer(self, *command: object) -> dict:
        """The JSON output of such a command."""
        return self.parsed(self.millpond(*command, "--json"))

    @staticmethod
    def parsed(process: Process) -> dict:
        return json.loads(process.stdout().strip().splitlines()[-1])

    def stop(self) -> None:
        for process in reversed(self._own):
            process.kill()

    def report(self) -> Iterator[tuple[str, str]]:
        for process in [*self._own, *self._seen]:
            text = process.messages()[self._seen.get(process, 0) :]
            if process.output.exists():
                text += process.stdout()[-_LOG_TAIL // 4 :]
            yield f"{process.name} ({process.log})", text[-_LOG_TAIL:]
