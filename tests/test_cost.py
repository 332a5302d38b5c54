"""`millpond cost`: compares its model with the requests of real processes by kind, and tests the
command itself.

No comparison depends on the time. Counters are read twice during a load, and the model gets the
facts of that time: the stored bytes, the intervals between segments, the duration of requests to
the store. A slow machine makes fewer requests, and these facts explain it to the model.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.process import Process, eventually
from harness.services import REPOSITORY, Millpond, tool

# Collectors here run every two seconds, so the duration of a round matters, and on a busy machine a
# round's requests are not average ones.
WITHIN = {"put": 0.10, "get": 0.10, "list": 0.20}
SEGMENTS = "millpond_producer_segments_total"
COMMITS = "millpond_producer_commit_attempts_total"
LOOKS = "millpond_producer_looks_total"
HEDGED = "millpond_consumer_hedged_fetches_total"
READS_FIRST = 12
# Seconds. With slower ones, several segments become one plan, which the model does not know.
INSERT_MAX = 1.0
OFFER = REPOSITORY / "cost" / "testdata" / "offer.json"


@dataclass(frozen=True)
class Configuration:
    """The settings of the pipeline, and the model's input about it. Intervals are long, so
    that the delays of a busy machine are small in comparison."""

    name: str
    # One per gateway.
    lingers: tuple[str, ...]
    # Settings by flag for gateways and consumers, and for the model.
    gateway: dict[str, object] = field(default_factory=dict)
    consumer: dict[str, object] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)
    consumers: int = 1
    # Requests per second of each load, and the number of segments to wait for.
    requests: int = 20
    segments: int = 30
    # Segments close by size, and the model predicts their number. Otherwise the test tells the
    # model: their interval is the linger plus the machine's delay until the next message.
    by_size: bool = False
    # Segments that fill long before their linger ends share commits. The test also tells the model
    # the number of commits: a machine that pauses looks like an ended load, and commits early.
    shared: bool = False
    # A second stream in addition to logs.
    metrics: bool = False
    # The gateways commit for each other, and send smaller segments to the leader.
    forward_below: str | None = None

    def is_unlike(self, between: Between) -> str | None:
        """Returns what was unlike the model's assumptions in this time, if something was."""
        insert = between.mean("millpond_consumer_write_seconds")
        if insert > INSERT_MAX:
            return f"plans wait for ClickHouse: an INSERT takes {insert:.1f} s"
        if self.shared and between.segments_per_commit() < 2:
            return f"a commit has {between.segments_per_commit():.1f} segments"
        return None


CONFIGURATIONS = [
    Configuration("planned ahead", ("2s",)),
    Configuration(
        "acknowledged by itself", ("3s",), consumer={"--ack-interval": "1s"}, segments=20
    ),
    Configuration(
        "closed by size",
        ("4s",),
        gateway={
            "--segment-bytes": "128KiB",
            "--segment-raw-bytes": "16MiB",
            "--block-bytes": "2KiB",
        },
        model={"--segment": "128KiB", "--segment-raw": "16MiB"},
        # A segment accepts messages while its last block is compressed: it must fill for seconds.
        requests=40,
        segments=20,
        by_size=True,
    ),
    Configuration(
        "full segments share commits",
        ("7s",),
        gateway={
            "--segment-bytes": "64KiB",
            "--segment-raw-bytes": "16MiB",
            "--block-bytes": "2KiB",
        },
        model={"--segment": "64KiB", "--segment-raw": "16MiB"},
        requests=40,
        segments=40,
        by_size=True,
        shared=True,
    ),
    # Different lingers: their phases drift, as the model assumes.
    Configuration(
        "two producers of one shard",
        ("2s", "1900ms"),
        consumer={"--poll-interval": "4s"},
        segments=60,
    ),
    Configuration(
        "a leader uploads for others",
        ("1s", "1s", "1s"),
        forward_below="1MiB",
    ),
    # Different lingers, as above.
    Configuration(
        "a leader commits for others",
        ("1500ms", "1400ms", "1600ms"),
        forward_below="0B",
        segments=45,
    ),
    Configuration(
        "pages and two consumers",
        ("2s",),
        gateway={"--tail-max": 2},
        model={"--tail-max": 2},
        consumers=2,
    ),
    Configuration(
        "two streams and gc",
        ("1s",),
        consumer={"--gc-interval": "2s", "--gc-grace": "20s"},
        segments=60,
        metrics=True,
    ),
]

# Not the program's defaults: no plan may wait for a slow ClickHouse, and collectors would run only
# every five minutes.
CONSUMER = {
    "--poll-interval": "500ms",
    "--ack-interval": "20s",
    "--lease": "15s",
    "--writers": 8,
    "--gc-interval": "0s",
    "--gc-grace": "1h",
}


@dataclass
class Reading:
    """The metrics of all processes at one time."""

    at: float
    gateways: list[str]
    consumers: list[str]

    @staticmethod
    def of(gateways: list[Millpond], consumers: list[Millpond]) -> Reading:
        return Reading(
            time.monotonic(), [g.metrics() for g in gateways], [c.metrics() for c in consumers]
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over the processes and unspecified labels."""
        found = 0.0
        for line in "\n".join(self.gateways + self.consumers).splitlines():
            sample = re.fullmatch(r"([a-z_]+)(\{.*\})? (\S+)", line)
            if sample and sample[1] == name:
                wanted = [f'{label}="{value}"' for label, value in labels.items()]
                if all(pair in (sample[2] or "") for pair in wanted):
                    found += float(sample[3])
        return found


class Between:
    """The differences between two readings."""

    def __init__(self, before: Reading, after: Reading) -> None:
        self.before, self.after = before, after
        self.seconds = after.at - before.at

    def __call__(self, name: str, **labels: str) -> float:
        return self.after.total(name, **labels) - self.before.total(name, **labels)

    def mean(self, histogram: str, **labels: str) -> float:
        return self(f"{histogram}_sum", **labels) / self(f"{histogram}_count", **labels)

    def segments_per_commit(self) -> float:
        return self(SEGMENTS) / self(COMMITS, outcome="committed")

    def requests(self) -> dict[str, float]:
        """Requests per second by kind, whatever their outcome, as on the bill. The model lacks the
        looks for new shards: all gateways may have one in these seconds, but only once a minute.
        It also lacks the second GETs of consumers whose store is slow to answer."""
        kinds = {"put": ("put",), "get": ("get", "head"), "list": ("list",)}
        counted = {
            name: sum(self("millpond_store_requests_total", kind=kind) for kind in of)
            for name, of in kinds.items()
        }
        counted["get"] -= self(LOOKS) + self(HEDGED)
        return {name: count / self.seconds for name, count in counted.items()}


def flags(settings: dict[str, object]) -> list[object]:
    return [part for pair in settings.items() for part in pair]


def microseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1e6))}us"


class Pipeline:
    """One configuration under a steady load."""

    def __init__(self, site, configuration: Configuration) -> None:
        self.site, self.configuration = site, configuration
        self.gateways = [
            site.gateway_of(
                *("--linger", linger, *self.peers()),
                *flags(configuration.gateway),
                name=f"gateway-{n}",
            )
            for n, linger in enumerate(configuration.lingers)
        ]
        settings = flags({**CONSUMER, **configuration.consumer})
        self.consumers = [
            site.consumer_of(
                *settings,
                database=f"{site.database}_{n}",
                consumer=f"cost-{n}",
                name=f"consumer-{n}",
            )
            for n in range(configuration.consumers)
        ]

    def peers(self) -> tuple[str, ...]:
        below = self.configuration.forward_below
        return ("--peer-listen", "127.0.0.1:0", "--forward-below", below) if below else ()

    def start(self) -> None:
        configuration = self.configuration
        for gateway in self.gateways:
            gateway.up()
        for consumer in self.consumers:
            consumer.up()
        for n, gateway in enumerate(self.gateways):
            # Requests wait for their commits: this concurrency keeps the load from stalling.
            load = (
                *("--rate", 5 * configuration.requests, "--records-per-request", 5),
                *("--concurrency", 4_096),
            )
            self.site.load(gateway, *load, records=100_000_000, name=f"load-{n}").start()
        if configuration.metrics:
            # Four clients that each send again after every answer: each segment has some.
            generator = [
                *(tool("MILLPOND_TELEMETRYGEN"), "metrics"),
                *("--otlp-endpoint", self.gateways[0].address, "--otlp-insecure"),
                *("--rate", "0", "--workers", "4", "--duration", "30m", "--timeout", "60s"),
            ]
            self.site.add(Process("telemetrygen", generator, self.site.directory)).start()

    def read(self) -> Reading:
        return Reading.of(self.gateways, self.consumers)

    def next(self, before: Reading) -> Reading:
        """The metrics once there are as many segments more as a measurement takes."""
        wanted = before.total(SEGMENTS) + self.configuration.segments
        eventually(
            f"segments of {self.configuration.name}",
            lambda: self.read().total(SEGMENTS) >= wanted,
            timeout=300,
            interval=0.5,
        )
        return self.read()

    def is_under_way(self) -> bool:
        """Returns true if each consumer has written each stream, more than once, and no gateway
        reads the manifest first, as it does for a while after it has met another."""
        if self.configuration.forward_below and self.read().total(COMMITS) < READS_FIRST + 10:
            return False
        streams = 2 if self.configuration.metrics else 1
        written = re.compile(r"^millpond_consumer_batches_total\{.*\} (?!1$)\d+$", re.MULTILINE)
        return all(len(written.findall(c.metrics())) == streams for c in self.consumers)


@pytest.fixture(scope="module")
def measured(new_site) -> dict[str, tuple[Pipeline, Between]]:
    """All configurations at once, since they mostly wait."""
    pipelines = [Pipeline(new_site(), configuration) for configuration in CONFIGURATIONS]
    for pipeline in pipelines:
        pipeline.start()
    measured = {}
    begun = {}
    for pipeline in pipelines:
        eventually("each stream to be in each table", pipeline.is_under_way, timeout=120)
        begun[pipeline.configuration.name] = pipeline.read()
    for pipeline in pipelines:
        name = pipeline.configuration.name
        before = begun[name]
        after = pipeline.next(before)
        while unlike := pipeline.configuration.is_unlike(Between(before, after)):
            # The machine paused too often. Another time may be as the model assumes.
            assert Between(begun[name], after).seconds < 240, f"{name}: {unlike}"
            before, after = after, pipeline.next(after)
        measured[name] = (pipeline, Between(before, after))
        pipeline.site.stop()
    return measured


def predicted(pipeline: Pipeline, between: Between) -> dict[str, float]:
    """The model's prediction for the same time."""
    configuration = pipeline.configuration
    producers = len(configuration.lingers)
    interval = between.seconds / between(SEGMENTS)
    below = configuration.forward_below
    if configuration.shared:
        return mixed(pipeline, between, interval)
    if configuration.by_size:
        return asked(pipeline, between, configuration.lingers[0])
    makers = 1 if below and below != "0B" else producers
    return asked(pipeline, between, microseconds(makers * interval))


def mixed(pipeline: Pipeline, between: Between, interval: float) -> dict[str, float]:
    """The prediction for commits of which some have one segment more than others.

    The model knows one number of segments per commit, so it is asked for two, in the proportion
    that was counted.
    """
    together = between.segments_per_commit()
    fewer = math.floor(together)
    share = fewer * (fewer + 1 - together) / together
    few, many = (
        asked(pipeline, between, microseconds((n + 0.5) * interval)) for n in (fewer, fewer + 1)
    )
    return {kind: share * few[kind] + (1 - share) * many[kind] for kind in few}


def asked(pipeline: Pipeline, between: Between, linger: str) -> dict[str, float]:
    """The model's answer for this linger."""
    configuration = pipeline.configuration
    stored = between("millpond_producer_stored_bytes_total")
    raw = between("millpond_producer_raw_bytes_total")
    below = configuration.forward_below
    latencies = {
        f"--{kind}-latency": microseconds(between.mean("millpond_store_request_seconds", kind=kind))
        for kind in ("put", "get")
    }
    site = pipeline.site
    answer = site.parsed(
        site.command(
            "cost",
            "--json",
            "--compressed",
            *("--throughput", f"{stored / between.seconds:.3f}B/s"),
            *("--ratio", max(1.0, raw / stored)),
            *("--linger", linger),
            *("--producers", len(configuration.lingers)),
            *("--consumers", configuration.consumers),
            *("--streams", 2 if configuration.metrics else 1),
            *(("--peers", "--forward-below", below) if below else ()),
            *flags({**CONSUMER, **configuration.consumer, **configuration.model, **latencies}),
        )
    )
    return answer["requests_per_second"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: c.name.replace(" ", "-"))
def test_the_model_counts_as_the_processes_do(request, measured, configuration):
    pipeline, between = measured[configuration.name]
    request.node.site = pipeline.site
    counted = between.requests()
    model = predicted(pipeline, between)
    seen = {kind: (round(model[kind], 3), round(rate, 3)) for kind, rate in counted.items()}
    print(f"{configuration.name}, {between.seconds:.1f} s, a second (model, counted): {seen}")
    for kind, rate in counted.items():
        assert abs(model[kind] - rate) <= WITHIN[kind] * rate, f"{kind}: {seen}"


def test_a_live_buffer_is_priced_by_what_is_in_it(site):
    gateway = site.gateway("--tail-max", 4)
    load = site.load(gateway, "--concurrency", 4, records=10_000)
    load.run()
    consumer = site.consumer("--gc-interval", "0s")
    eventually("the consumer to have a cursor", consumer.owns)
    assert consumer.terminate() == 0
    [shard] = site.answer("manifest", "dump")["shards"]
    entries = shard["entries"]

    answer = site.answer("cost", "--since", "1h")
    seen = answer["observed"]
    assert seen["segments"] == seen["segments_in_log"] == len(entries)
    assert seen["bytes"] == seen["bytes_kept"] == sum(entry["size"] for entry in entries)
    assert seen["pages"] == len(shard["pages"]) > 0
    assert seen["commits_in_log"] == len({entry["committed_at_ms"] for entry in entries})
    assert (seen["producers"], seen["consumers"]) == (1, 1)
    assert 0 < seen["seconds"] <= 3_600
    items = {item["name"]: item for group in answer["items"] for item in group["items"]}
    month = len(entries) / seen["seconds"] * 2_628_000
    assert items["segments"]["quantity_per_month"] == pytest.approx(month)
    assert items["segments"]["basis"] == "counted"
    assert items["manifest polls"]["basis"] == "estimated"
    text = site.millpond("cost", "--since", "1h").stdout()
    assert f"counted: {len(entries)} segments" in text
    assert "~ the model's" in text
    # Quantities that no object shows are not invented.
    assert "p99" not in text
    assert "--linger from" not in text

    refused = site.millpond("cost", "--throughput", "1MB/s", code=1)
    assert "give one of them" in refused.messages()


def test_a_described_load_is_answered_in_json_as_documented(site):
    answer = site.parsed(
        site.command(
            *("cost", "--throughput", "1.1Gbps", "--compressed", "--linger", "1s"),
            *("--segment", "16MiB", "--producers", 1, "--region", "us-east-1", "--json"),
        )
    )
    total = answer["total_usd_per_month"]
    assert total == pytest.approx(sum(group["usd_per_month"] for group in answer["items"]))
    lines = [item for group in answer["items"] for item in group["items"]]
    assert total == pytest.approx(sum(item["usd_per_month"] for item in lines))
    assert answer["dominant"]["usd_per_month"] == max(item["usd_per_month"] for item in lines)
    assert answer["advice"]["change"]["knob"] == "--segment"
    names = " ".join(comparator["name"] for comparator in answer["comparators"])
    for name in ("OpenData Buffer", "Kafka", "MSK", "WarpStream", "Kinesis"):
        assert name in names
    assert all(comparator["assumptions"] for comparator in answer["comparators"])
    assert any("days ago" in warning for warning in answer["warnings"])


def test_imported_prices_are_those_that_count(site):
    printed = site.command("cost", "prices", "import", OFFER)
    assert "sa-east-1: no Requests-Tier2" in printed.messages()
    file = site.directory / "prices.toml"
    file.write_text(printed.stdout().replace("0.005\n", "0.05\n"))
    load = ("--throughput", "500GB/day", "--json")
    usual = site.parsed(site.command("cost", *load))
    dear = site.parsed(site.command("cost", *load, "--prices", file))
    assert dear["price"]["put_usd_per_1000"] == 10 * usual["price"]["put_usd_per_1000"]
    assert dear["price"]["source"].startswith("AWS offer file AmazonS3")
    assert dear["total_usd_per_month"] > 5 * usual["total_usd_per_month"]
    # The output is again a file for --prices.
    whole = site.command("cost", "prices", "print", "--prices", file)
    file.write_text(whole.stdout())
    again = site.parsed(site.command("cost", *load, "--prices", file))
    assert again["total_usd_per_month"] == dear["total_usd_per_month"]

    file.write_text("[[storage]]\nprovider = 1\n")
    refused = site.command("cost", *load, "--prices", file, code=1)
    assert "prices.toml" in refused.messages()
    assert "not an offer file" in site.command("cost", "prices", "import", file, code=1).messages()


def test_a_sweep_is_a_table_and_a_chart(site):
    chart: Path = site.directory / "cost.svg"
    sweep = ("--sweep", "linger=250ms,1s,5s,segment=4MiB,16MiB,900MiB")
    load = ("cost", "--throughput", "20MB/s", "--compressed", *sweep)
    table = site.command(*load, "--chart", chart).stdout()
    assert len(table.splitlines()) == 1 + 9
    assert table.count("cheapest") == 1
    assert table.count("refused: a segment of 900 MiB does not fit") == 3
    svg = chart.read_text()
    assert svg.startswith("<svg")
    assert "segment 16 MiB" in svg
    assert "US dollars a month" in svg
    answer = site.parsed(site.command(*load, "--json"))
    priced = [point["usd_per_month"] for point in answer["points"] if point["usd_per_month"]]
    assert answer["points"][answer["cheapest"]]["usd_per_month"] == min(priced)
    assert json.dumps(answer["axes"][0]["values"]) == "[0.25, 1.0, 5.0]"
