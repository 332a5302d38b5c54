"""Telemetry of the processes: scrapes of `/metrics`, and the pushes in the output of a Collector's
file exporter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

Sample = tuple[str, tuple[tuple[str, str], ...]]

_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def scraped(text: str) -> dict[Sample, float]:
    """The samples of `/metrics`, by name and labels."""
    samples = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            name, labels, value = found.groups()
            samples[name, tuple(sorted(_LABEL.findall(labels or "")))] = float(value)
    return samples


def help_texts(text: str) -> dict[str, str]:
    """The help texts in `/metrics`, by sample name."""
    counters = set(re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return {name + "_total" * (name in counters): text for name, text in helps.items()}


def attributes_of(holder: dict) -> dict[str, object]:
    """Attributes of OTLP/JSON as a dictionary, with integers as integers."""

    def value(any_value: dict) -> object:
        ((kind, inner),) = any_value.items()
        match kind:
            case "intValue":
                return int(inner)
            case "arrayValue":
                return [value(item) for item in inner.get("values", [])]
            case _:
                return inner

    return {entry["key"]: value(entry["value"]) for entry in holder.get("attributes", [])}


class Pushed:
    """The file of a Collector's file exporter: OTLP/JSON, one line per push."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def _lines(self) -> list[dict]:
        if not self.file.exists():
            return []
        # The last line may be incomplete.
        return [json.loads(line) for line in self.file.read_text().split("\n")[:-1]]

    def metrics(self, service: str) -> list[list[dict]]:
        """The pushes of a service, each as a list of metrics."""
        return [
            [metric for scope in of["scopeMetrics"] for metric in scope["metrics"]]
            for line in self._lines()
            for of in line.get("resourceMetrics", [])
            if attributes_of(of["resource"])["service.name"] == service
        ]

    def resources(self, kind: str = "resourceMetrics") -> list[dict[str, object]]:
        return [
            attributes_of(of["resource"]) for line in self._lines() for of in line.get(kind, [])
        ]

    def spans(self) -> Iterator[dict]:
        """All spans, with their `service` and their attributes as a dictionary."""
        for line in self._lines():
            for of in line.get("resourceSpans", []):
                service = attributes_of(of["resource"])["service.name"]
                for scope in of["scopeSpans"]:
                    for span in scope["spans"]:
                        yield {**span, "service": service, "attributes": attributes_of(span)}


def samples(metrics: list[dict]) -> dict[Sample, float]:
    """The pushed metrics in the form of a scrape; sums and histograms must be cumulative."""
    found = {}

    def put(name: str, labels: dict, value: object) -> None:
        found[name, tuple(sorted((key, str(text)) for key, text in labels.items()))] = float(value)

    for metric in metrics:
        name = metric["name"]
        (kind,) = metric.keys() & {"sum", "gauge", "histogram"}
        data = metric[kind]
        if kind != "gauge":
            assert data["aggregationTemporality"] == 2, metric
        for point in data["dataPoints"]:
            labels = attributes_of(point)
            if kind != "gauge":
                assert 0 < int(point["startTimeUnixNano"]) <= int(point["timeUnixNano"])
            if kind != "histogram":
                assert kind == "gauge" or data["isMonotonic"], metric
                put(name, labels, point.get("asDouble", point.get("asInt")))
                continue
            put(f"{name}_count", labels, point["count"])
            put(f"{name}_sum", labels, point["sum"])
            up_to = 0
            bounds = [*point["explicitBounds"], "+Inf"]
            for bound, count in zip(bounds, point["bucketCounts"], strict=True):
                up_to += int(count)
                le = bound if bound == "+Inf" else float(bound)
                put(f"{name}_bucket", {**labels, "le": le}, up_to)
    return found


def comparable(found: dict[Sample, float]) -> dict[Sample, float]:
    """Samples with numeric bounds, which two printers may format differently."""

    def plain(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (key, text if key != "le" or text == "+Inf" else repr(float(text)))
            for key, text in labels
        )

    return {(name, plain(labels)): value for (name, labels), value in found.items()}


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def trace_of(segment: str) -> str:
    """The trace id for a segment's name, in hexadecimal."""
    number = 0
    for character in segment:
        number = number * 32 + _CROCKFORD.index(character)
    return f"{number:032x}"


def by_trace(spans: list[dict]) -> dict[str, list[dict]]:
    traces: dict[str, list[dict]] = {}
    for span in spans:
        traces.setdefault(span["traceId"], []).append(span)
    return traces
