"""The traces of Millpond's own work: gateway and consumer share one trace per segment."""

from __future__ import annotations

import re

import pytest

from harness.exactly_once import wait_for_all
from harness.process import eventually
from harness.services import Collector
from harness.telemetry import Pushed, by_trace, scraped, trace_of

ORIGIN = "send segment"
OF_GATEWAY = {ORIGIN, "fill", "encode", "upload", "wait", "commit"}
OF_CONSUMER = {"process otlp.logs", "fetch"}


class Receiver:
    """A Collector that writes received spans to a file."""

    def __init__(self, site) -> None:
        self.pushed = Pushed(site.directory / "pushed.json")
        file = {"path": str(self.pushed.file), "flush_interval": "50ms"}
        self.collector = site.add(Collector(site.directory, "file", file, name="receiver")).up()

    def traced(self, process, ratio: float = 1):
        """The process, not started, with its traces exported to here."""
        endpoint = f"http://{self.collector.http_address}"
        process.argv += ["--otlp-endpoint", endpoint, "--otlp-traces", str(ratio)]
        process.environment["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        return process.up()

    def spans(self) -> list[dict]:
        return list(self.pushed.spans())


def _named(spans: list[dict], name: str) -> list[dict]:
    return [span for span in spans if span["name"] == name]


@pytest.fixture
def receiver(site) -> Receiver:
    return Receiver(site)


def _all_of(spans: list[dict], segments: int) -> bool:
    """Returns true if all spans of this many acknowledged segments have arrived."""
    batches = {span["spanId"] for span in spans if span["name"] == "batch otlp.logs"}
    settled = {span["parentSpanId"] for span in _named(spans, "acknowledge")}
    processed = _named(spans, "process otlp.logs")
    return len(_named(spans, ORIGIN)) == segments == len(processed) and batches == settled


def test_both_processes_trace_a_segment_as_one(site, receiver):
    gateway = receiver.traced(site.gateway_of())
    consumer = receiver.traced(site.consumer_of("--ack-interval", "50ms"))
    load = site.load(gateway, "--rate", 2_000, records=2_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    segments = int(gateway.metric("millpond_producer_segments_total"))
    assert segments > 1
    eventually("every span", lambda: _all_of(receiver.spans(), segments))
    spans = receiver.spans()
    ids = {span["spanId"]: span for span in spans}
    assert len(ids) == len(spans)
    traces = by_trace(spans)
    assert len(traces) == segments
    records = 0
    for trace, of in traces.items():
        (origin,) = _named(of, ORIGIN)
        assert not origin.get("parentSpanId")
        assert trace == trace_of(origin["attributes"]["millpond.segment"])
        assert {span["name"] for span in of} >= OF_GATEWAY | OF_CONSUMER
        assert {span["service"] for span in of} == {"millpond-gateway", "millpond-consumer"}
        records += origin["attributes"]["millpond.records"]
        for span in of:
            if span is not origin:
                assert ids[span["parentSpanId"]]["traceId"] == trace, span
                assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            assert "status" not in span or "code" not in span["status"], span
        (upload,), (commit,) = _named(of, "upload"), _named(of, "commit")
        assert upload["attributes"]["aws.s3.bucket"] == site.buffer.url.split("/")[2]
        assert upload["attributes"]["aws.s3.key"].endswith(origin["attributes"]["millpond.segment"])
        assert commit["attributes"]["aws.s3.key"] == "buffer/shards/0000/manifest"
        # The batch is in this trace, or linked to the part that is.
        (process,) = _named(of, "process otlp.logs")
        assert process["attributes"]["messaging.consumer.group.name"] == "e2e"
        batch = _named(of, "batch otlp.logs")
        linked = [ids[link["spanId"]] for link in process.get("links", [])]
        linked = batch or [span for span in linked if span["name"] == "batch otlp.logs"]
        assert len(linked) == 1, process
        below = [s["name"] for s in spans if s.get("parentSpanId") == linked[0]["spanId"]]
        assert {"decode", f"INSERT {site.database}", "acknowledge"} <= set(below)
    assert records == 2_000
    # The INSERT names its ClickHouse deduplication token.
    insert = _named(spans, f"INSERT {site.database}")[0]
    assert insert["attributes"]["millpond.token"].startswith("millpond/2/")
    assert insert["attributes"]["db.system.name"] == "clickhouse"
    assert [consumer.terminate(), gateway.terminate()] == [0, 0]


def test_both_processes_take_the_same_segments(site, receiver):
    gateway = receiver.traced(site.gateway_of("--linger", "20ms"), ratio=0.5)
    consumer = receiver.traced(site.consumer_of("--ack-interval", "50ms"), ratio=0.5)
    load = site.load(gateway, "--rate", 1_000, records=1_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    # They push the rest when they end.
    assert [gateway.terminate(), consumer.terminate()] == [0, 0]
    dumped = site.millpond("manifest", "dump").stdout()
    all_of = {trace_of(name) for name in re.findall(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", dumped)}
    assert all_of
    # By the last 56 bits of the id.
    right = {trace for trace in all_of if int(trace[-14:], 16) >= 1 << 55}

    def taken(name: str) -> set[str]:
        return {span["traceId"] for span in _named(receiver.spans(), name)}

    eventually("those of the gateway", lambda: taken(ORIGIN) == right)
    eventually("the same of the consumer", lambda: taken("process otlp.logs") == right)


def test_the_trace_shows_failures(own_site):
    """With store and ClickHouse unreachable, each attempt is an event of the waiting span."""
    site = own_site
    receiver = Receiver(site)
    gateway = receiver.traced(site.gateway_of("--request-timeout", "1s"))
    consumer = receiver.traced(site.consumer_of("--ack-interval", "50ms"))
    site.load(gateway, records=100).run()
    site.store.kill()
    load = site.load(gateway, "--retry-for", "60s", records=100, name="load-away")
    load.start()
    retries = "millpond_producer_upload_retries_total"
    eventually("an upload to be retried", lambda: gateway.metric(retries) > 0)
    site.store.up()
    assert load.wait() == 0

    def retried(name: str) -> list[dict]:
        spans = [span for span in receiver.spans() if span["name"] == name]
        return [span for span in spans if span.get("events")]

    (upload, *_) = eventually("its span", lambda: retried("upload"))
    assert {event["name"] for event in upload["events"]} == {"retry"}
    keys = {entry["key"] for event in upload["events"] for entry in event["attributes"]}
    assert keys == {"exception.message"}

    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    site.clickhouse.kill()
    site.load(gateway, records=100, name="load-behind").run()
    writes = "millpond_consumer_write_retries_total"
    eventually("an INSERT to be retried", lambda: consumer.metric(writes) > 0)
    site.clickhouse.up()
    (insert, *_) = eventually("its span", lambda: retried(f"INSERT {site.database}"))
    assert {event["name"] for event in insert["events"]} == {"retry"}
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0


def test_a_gateway_that_traces_itself_makes_a_segment_a_push_and_no_more(site):
    """Its pushes become a segment, which it traces: one request for all segments between two
    pushes, so the rate follows the pushes and does not grow."""
    gateway = site.gateway_of("--linger", "1ms", "--otlp-traces", "1", "--otlp-interval", "1h")
    gateway.argv += ["--otlp-endpoint", f"http://{gateway.http_address}"]
    gateway.environment["OTEL_BSP_SCHEDULE_DELAY"] = "20"
    gateway.up()
    site.load(gateway, records=1).run()

    def pushes() -> float:
        found = scraped(gateway.metrics())
        return sum(
            value
            for (name, labels), value in found.items()
            if name == "millpond_telemetry_pushes_total" and ("signal", "traces") in labels
        )

    eventually("many pushes", lambda: pushes() >= 20)
    segments = gateway.metric("millpond_producer_segments_total")
    # The load's segments, and one for each push, including the one in flight.
    assert segments <= 1 + pushes() + 1
    assert gateway.metric("millpond_telemetry_spans_dropped_total") == 0
    assert gateway.terminate() == 0


def test_spans_wait_for_an_endpoint_that_is_away(site):
    receiver = Receiver(site)
    gateway = receiver.traced(site.gateway_of("--linger", "1ms"))
    receiver.collector.kill()
    load = site.load(gateway, "--rate", 1_000, records=500)
    load.run()
    segments = gateway.metric("millpond_producer_segments_total")
    before = len(_named(receiver.spans(), ORIGIN))
    receiver.collector.up()
    eventually(
        "the spans of all segments",
        lambda: len({s["traceId"] for s in _named(receiver.spans(), ORIGIN)}) == segments,
    )
    assert before < segments
    assert gateway.terminate() == 0
