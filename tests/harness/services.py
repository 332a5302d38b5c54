"""The programs of the pipeline, each as a process on free loopback ports: how to start it, when it
is ready, and how to query it. All flags of `millpond` that the tests use are here.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import clickhouse
from .process import PATIENCE, Process, eventually, free_port
from .telemetry import scraped

REPOSITORY = Path(__file__).resolve().parents[2]
BIN_DIR = Path(os.environ.get("MILLPOND_BIN_DIR", REPOSITORY / "target" / "debug"))

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "millpond-test",
    "AWS_SECRET_ACCESS_KEY": "millpond-test-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

# A stall of a second ends a watch, and the consumer asks the same leader again after a minute.
WATCH_PATIENCE = 60 + PATIENCE
_STALLS = {"failed", "missed", "not_leading"}


def program(name: str) -> Path:
    """One of this project's binaries; `make build` builds them."""
    path = BIN_DIR / name
    assert path.exists(), f"{path} is missing: run `make build` first (or set MILLPOND_BIN_DIR)"
    return path


def tool(variable: str) -> str:
    """A pinned tool, named by the variable that scripts/tools.sh exports."""
    path = os.environ.get(variable)
    assert path, f'{variable} is not set: run eval "$(scripts/tools.sh)" first, or `make test`'
    return path


def http_get(url: str, timeout: float = PATIENCE) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def with_defaults(flags: Sequence[object], defaults: Mapping[str, object]) -> list[object]:
    """The flags, plus defaults for those that are not given."""
    missing = [(name, value) for name, value in defaults.items() if name not in flags]
    return [*(part for pair in missing for part in pair), *flags]


class Service(Process):
    """A process with a port and a readiness check."""

    def ready(self) -> bool:
        raise NotImplementedError

    def up(self) -> Service:
        """Starts the process and waits until it serves."""
        self.start()
        return self.until_ready()

    def until_ready(self, timeout: float = PATIENCE) -> Service:
        def serves() -> bool:
            self.must_run()
            return self.ready()

        eventually(f"{self.name} to be ready", serves, timeout)
        return self


class Minio(Service):
    """A real S3-compatible store with its data in a directory that outlives the process."""

    def __init__(self, directory: Path, name: str = "minio") -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        data = directory / f"{name}-data"
        data.mkdir()
        super().__init__(
            name,
            [
                tool("MILLPOND_MINIO"),
                "server",
                "--quiet",
                "--address",
                f"127.0.0.1:{self.port}",
                data,
            ],
            directory,
            {
                "MINIO_ROOT_USER": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                "MINIO_ROOT_PASSWORD": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
                "CI": "true",
                "HOME": str(directory),
            },
        )

    def ready(self) -> bool:
        return http_get(f"{self.endpoint}/minio/health/cluster")[0] == 200


class Versitygw(Service):
    """An S3-compatible store that shares no code with MinIO: files in a directory, with ETags in
    their extended attributes."""

    def __init__(self, directory: Path, name: str = "versitygw") -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        data = directory / f"{name}-data"
        data.mkdir()
        super().__init__(
            name,
            [
                tool("MILLPOND_VERSITYGW"),
                "--quiet",
                *("--port", f"127.0.0.1:{self.port}"),
                *("--region", CREDENTIALS["AWS_REGION"]),
                *("--health", "/health"),
                # As in production; without it every request opens a connection.
                "--keep-alive",
                "posix",
                data,
            ],
            directory,
            {
                "ROOT_ACCESS_KEY_ID": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                "ROOT_SECRET_ACCESS_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            },
        )

    def ready(self) -> bool:
        return http_get(f"{self.endpoint}/health")[0] == 200


class ClickHouse(Service):
    """A ClickHouse server, reachable over HTTP at `url`."""

    url: str

    def ready(self) -> bool:
        return http_get(f"{self.url}/ping")[0] == 200

    def query(self, sql: str, **settings: object) -> bytes:
        return clickhouse.query(self.url, sql, **settings)

    def lines(self, sql: str) -> list[str]:
        return clickhouse.lines(self.url, sql)

    def scalar(self, sql: str) -> str:
        return clickhouse.scalar(self.url, sql)

    def rows(self, sql: str) -> list[dict]:
        return clickhouse.rows(self.url, sql)


class EmbeddedClickHouse(ClickHouse):
    """The ClickHouse engine behind its HTTP interface; the data outlives the process."""

    def __init__(self, directory: Path, name: str = "clickhouse") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(
            name,
            [
                program("embedded-clickhouse"),
                *("--listen", f"127.0.0.1:{self.port}"),
                *("--path", directory / f"{name}-data"),
                *("--config", Path(__file__).with_name("clickhouse.xml")),
            ],
            directory,
        )


class Buffer:
    """A buffer URL and the settings that a Millpond process needs to open it."""

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self.url = url
        self.endpoint = endpoint
        self.flags = ["--buffer", url]
        if endpoint is not None:
            self.flags += ["--s3-endpoint", endpoint]


class Millpond(Service):
    """A long-running `millpond` command with its admin port."""

    def __init__(self, name: str, command: list[object], directory: Path) -> None:
        self.admin = f"127.0.0.1:{free_port()}"
        super().__init__(
            name,
            [program("millpond"), *command, "--admin", self.admin],
            directory,
            {**CREDENTIALS, "RUST_BACKTRACE": "1"},
        )

    def ready(self) -> bool:
        return http_get(f"http://{self.admin}/readyz")[0] == 200

    def alive(self) -> bool:
        return http_get(f"http://{self.admin}/healthz")[0] == 200

    def metrics(self) -> str:
        status, body = http_get(f"http://{self.admin}/metrics")
        assert status == 200, f"/metrics of {self.name} answered {status}: {body}"
        return body

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        values = values_of(self.metrics(), name)
        assert values, f"{self.name} has no metric {name}"
        return sum(values)


def values_of(metrics: str, name: str) -> list[float]:
    """The values of a metric in Prometheus' text format, one for each set of labels."""
    return [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.split("{")[0].split(" ")[0] == name
    ]


class Gateway(Millpond):
    def __init__(
        self, directory: Path, buffer: Buffer, *flags: object, name: str = "gateway"
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        super().__init__(
            name,
            [
                "gateway",
                *buffer.flags,
                "--create-bucket",
                *with_defaults(
                    flags,
                    {
                        "--listen": self.address,
                        "--listen-http": self.http_address,
                        "--linger": "100ms",
                    },
                ),
            ],
            directory,
        )


class Consumer(Millpond):
    def __init__(
        self,
        directory: Path,
        buffer: Buffer,
        clickhouse_url: str,
        *flags: object,
        database: str,
        consumer: str = "e2e",
        name: str = "consumer",
    ) -> None:
        super().__init__(
            name,
            [
                "consume",
                *buffer.flags,
                *("--consumer", consumer),
                *("--clickhouse", clickhouse_url),
                *("--database", database),
                *with_defaults(flags, {"--lease": "2s"}),
            ],
            directory,
        )

    def owns(self) -> bool:
        """Returns true if it owns its cursor rather than being a standby."""
        return self.metric("millpond_consumer_shards_owned") > 0

    def knows_its_shards(self) -> bool:
        """Returns true if it knows the number of shards and which of them it owns. A new process is
        ready before it has these metrics."""
        self.metric("millpond_consumer_shards_owned")
        return self.metric("millpond_consumer_shards") > 0

    def fenced(self) -> float:
        """The number of times another owner has taken the cursor away from it."""
        return self.metric("millpond_consumer_fenced_total")

    def until_it_watches(self) -> None:
        watched = "millpond_consumer_watched_shards"
        eventually(f"{self.name} to watch", lambda: self.metric(watched) == 1, WATCH_PATIENCE)

    def while_it_watches(self) -> Iterator[int]:
        """Turns of a measurement, the last of which no stall disturbed: it watched throughout."""
        for turn in range(10):
            self.until_it_watches()
            before = self._fallbacks()
            yield turn
            reasons = (self._fallbacks() - before).keys()
            assert reasons <= _STALLS, f"{self.name} fell back: {reasons}"
            if not reasons:
                return
        raise AssertionError(f"{self.name} fell back in each turn")

    def _fallbacks(self) -> Counter[str]:
        """The number of times that it returned to polls, by reason."""
        name = "millpond_consumer_watch_fallbacks_total"
        found = {
            labels: count for (key, labels), count in scraped(self.metrics()).items() if key == name
        }
        assert found, f"{self.name} has no metric {name}"
        return Counter({dict(labels)["reason"]: count for labels, count in found.items()})


# More records than any test waits for: the load ends when it is terminated.
ENDLESS = 1_000_000_000


class Load(Process):
    """`millpond load`: every record has a unique `millpond.load.id`. It records the acknowledged
    ones."""

    def __init__(
        self, directory: Path, endpoint: str, *flags: object, records: int, name: str = "load"
    ) -> None:
        self.acknowledged_file = directory / f"{name}-acknowledged.txt"
        super().__init__(
            name,
            [
                program("millpond"),
                "load",
                *("--endpoint", endpoint),
                *("--records", records),
                *("--acknowledged-file", self.acknowledged_file),
                "--json",
                *with_defaults(flags, {"--records-per-request": 100}),
            ],
            directory,
        )

    def acknowledged(self) -> list[str]:
        """The ids of the records acknowledged so far."""
        if not self.acknowledged_file.exists():
            return []
        text = self.acknowledged_file.read_text()
        ids = []
        # An incomplete line is not an acknowledgement yet.
        for line in text[: text.rfind("\n") + 1].splitlines():
            run, first, count = line.split()
            ids += [f"{run}-{n:012}" for n in range(int(first), int(first) + int(count))]
        return ids

    def report(self) -> dict:
        return json.loads(self.stdout().strip().splitlines()[-1])

    def run(self, timeout: float = 120) -> dict:
        self.start()
        code = self.wait(timeout)
        assert code == 0, f"millpond load ended with {code}: {self.messages()[-2000:]}"
        return self.report()


class Collector(Service):
    """An OpenTelemetry Collector: OTLP logs in, one exporter out. Without a queue it answers only
    when the exporter has finished. tests/collector/builder.yaml defines the program."""

    variable = "MILLPOND_COLLECTOR"

    def __init__(
        self,
        directory: Path,
        exporter: str,
        settings: Mapping[str, object],
        name: str = "collector",
        extensions: Mapping[str, object] | None = None,
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        protocols = {"grpc": self.address, "http": self.http_address}
        protocols = {name: {"endpoint": address} for name, address in protocols.items()}
        configuration = {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": {exporter: settings},
            "extensions": dict(extensions or {}),
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "extensions": list(extensions or {}),
                "pipelines": {
                    signal: {"receivers": ["otlp"], "exporters": [exporter]}
                    for signal in ("logs", "traces", "metrics")
                },
            },
        }
        # YAML is a superset of JSON.
        self.file = directory / f"{name}.yaml"
        self.file.write_text(json.dumps(configuration, indent=2))
        super().__init__(name, [tool(self.variable), "--config", self.file], directory, CREDENTIALS)

    def rewire(self, kind: str, **components: Mapping[str, object]) -> None:
        """Replaces the `receivers` or `exporters` of every pipeline, from the next start on."""
        configuration = json.loads(self.file.read_text())
        configuration[kind] = components
        for pipeline in configuration["service"]["pipelines"].values():
            pipeline[kind] = list(components)
        self.file.write_text(json.dumps(configuration, indent=2))

    def ready(self) -> bool:
        # Each start logs this line; the file has all of them.
        return "Everything is ready" in self.messages().rsplit("\n--- ", 1)[-1]


class MillpondCollector(Collector):
    """The Collector of otel-exporter/builder.yaml, with the exporter `millpond`."""

    variable = "MILLPOND_OTELCOL"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._metrics_port = free_port()
        prometheus = {
            "host": "127.0.0.1",
            "port": self._metrics_port,
            "without_type_suffix": False,
        }
        configuration = json.loads(self.file.read_text())
        configuration["service"]["telemetry"]["metrics"] = {
            "level": "normal",
            "readers": [{"pull": {"exporter": {"prometheus": prometheus}}}],
        }
        self.file.write_text(json.dumps(configuration, indent=2))

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels. Takes the gateway's names; those of the exporter
        differ in their prefix."""
        status, body = http_get(f"http://127.0.0.1:{self._metrics_port}/metrics")
        assert status == 200, f"/metrics of {self.name} answered {status}: {body}"
        of_exporter = name.replace("millpond_producer_", "otelcol_millpond_")
        values = values_of(body, of_exporter)
        assert values, f"{self.name} has no metric {of_exporter}"
        return sum(values)


def append_to(buffer: Buffer, **settings: object) -> dict:
    """Settings of the exporter `millpond` with neither queue nor retries: it answers with the
    commit, and the client may retry after an error."""
    return {
        "buffer": buffer.url,
        "s3_endpoint": buffer.endpoint,
        "create_bucket": True,
        "linger": "100ms",
        "sending_queue": {"enabled": False},
        "retry_on_failure": {"enabled": False},
        **settings,
    }


def forward_to(address: str) -> dict:
    """Production settings of the otlp_grpc exporter: a queue, and retries without end."""
    return {"endpoint": address, "tls": {"insecure": True}, **_PATIENT}


def forward_over_http_to(address: str, encoding: str, compression: str) -> dict:
    """The same for the otlp_http exporter."""
    return {
        "endpoint": f"http://{address}",
        "encoding": encoding,
        "compression": compression,
        **_PATIENT,
    }


_PATIENT = {
    # The default of 5 s makes the exporter repeat a request whose commit takes longer. The gateway
    # then commits it twice: OTLP requests have no identity.
    "timeout": "300s",
    "sending_queue": {"enabled": True, "num_consumers": 4},
    "retry_on_failure": {
        "enabled": True,
        "initial_interval": "200ms",
        "max_interval": "1s",
        "max_elapsed_time": "0s",
    },
}


def export_to_clickhouse(url: str, database: str) -> dict:
    """Settings of the clickhouseexporter over HTTP, without a queue: it answers with ClickHouse."""
    return {
        "endpoint": url,
        "database": database,
        "create_schema": True,
        "async_insert": False,
        "timeout": "300s",
        "sending_queue": {"enabled": False},
        "retry_on_failure": {"enabled": False},
    }


def telemetrygen(
    directory: Path,
    address: str,
    *flags: object,
    signal: str = "logs",
    name: str = "telemetrygen",
    tls: bool = False,
) -> None:
    """Runs telemetrygen to its end: records of one signal, over OTLP/gRPC without other flags."""
    process = Process(
        name,
        [
            tool("MILLPOND_TELEMETRYGEN"),
            signal,
            *("--otlp-endpoint", address),
            *(() if tls else ("--otlp-insecure",)),
            *("--rate", "0"),
            *("--timeout", "60s"),
            *flags,
        ],
        directory,
    )
    process.start()
    code = process.wait(120)
    assert code == 0, f"telemetrygen ended with {code}: {process.messages()[-2000:]}"


def send_with_sdk(
    directory: Path,
    language: str,
    protocol: str,
    endpoint: str,
    service: str,
    time_unix_nano: int,
    **settings: str,
) -> dict:
    """Runs a program (clients/) that exports with OpenTelemetry's SDK of a language, and returns
    its output. Settings are the SDK's: compression="gzip" is OTEL_EXPORTER_OTLP_COMPRESSION."""
    interpreter = tool("MILLPOND_PYTHON") if language == "python" else "node"
    program = {"python": "python/send.py", "js": "js/send.js"}[language]
    process = Process(
        f"sdk-{service}",
        [
            interpreter,
            REPOSITORY / "tests" / "clients" / program,
            *(protocol, service, time_unix_nano),
        ],
        directory,
        {
            "NODE_PATH": tool("MILLPOND_OTEL_JS"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            **{f"OTEL_EXPORTER_OTLP_{name.upper()}": value for name, value in settings.items()},
        },
    )
    process.start()
    code = process.wait(120)
    assert code == 0, f"{process.name} ended with {code}: {process.messages()[-2000:]}"
    return json.loads(process.stdout())
