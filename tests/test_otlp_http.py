"""OTLP/HTTP end to end: sent by telemetrygen, by a Collector in every encoding and compression, and
as JSON that must arrive like protobuf."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from google.protobuf.message import DecodeError

from harness.corpus import LOGS
from harness.corpus_metrics import METRICS
from harness.corpus_traces import TRACES
from harness.otlp import answer
from harness.otlp_http import REQUESTS, as_json, post
from harness.process import eventually
from harness.services import (
    REPOSITORY,
    Buffer,
    Consumer,
    Gateway,
    forward_over_http_to,
    telemetrygen,
)

TABLES = (
    "otel_logs",
    "otel_traces",
    *(
        f"otel_metrics_{kind}"
        for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    ),
)

# telemetrygen's command for each signal, the table, and the number of rows.
GENERATED = (
    ("logs", ("--logs", 200), "otel_logs", 200),
    ("traces", ("--child-spans", 3, "--traces", 50), "otel_traces", 200),
    ("metrics", ("--metrics", 200, "--metric-type", "Sum"), "otel_metrics_sum", 200),
)


def _arrive(site, processes, runs: int) -> None:
    expected = {table: runs * rows for _, _, table, rows in GENERATED}

    def rows(table: str) -> int:
        return int(site.clickhouse.scalar(f"SELECT count() FROM {site.database}.{table}"))

    def arrived() -> bool:
        for process in processes:
            process.must_run()
        return all(rows(table) >= count for table, count in expected.items())

    eventually("the generated records", arrived, timeout=120)
    for process in processes:
        assert process.terminate() == 0
    assert {table: rows(table) for table in expected} == expected


def test_telemetrygen_sends_every_signal_over_http(site):
    gateway, consumer = site.gateway(), site.consumer()
    for signal, flags, _, _ in GENERATED:
        telemetrygen(site.directory, gateway.http_address, "--otlp-http", *flags, signal=signal)
    _arrive(site, [gateway, consumer], runs=1)


def test_a_collector_sends_in_every_encoding_and_compression(site):
    gateway, consumer = site.gateway(), site.consumer()
    ways = [(e, c) for e in ("proto", "json") for c in ("none", "gzip", "zstd")]
    collectors = []
    for encoding, compression in ways:
        name = f"collector-{encoding}-{compression}"
        settings = forward_over_http_to(gateway.http_address, encoding, compression)
        collectors.append(site.collector("otlp_http", settings, name=name))
        for signal, flags, _, _ in GENERATED:
            of = f"telemetrygen-{signal}-{encoding}-{compression}"
            telemetrygen(site.directory, collectors[-1].address, *flags, signal=signal, name=of)
    _arrive(site, [*collectors, gateway, consumer], runs=len(ways))


def _cases() -> list[tuple[str, bytes]]:
    """The corpora's requests in protobuf's canonical form."""
    found = []
    for signal, corpus in (("logs", LOGS), ("traces", TRACES), ("metrics", METRICS)):
        for payload in corpus.requests().values():
            try:
                request = REQUESTS[signal].FromString(payload)
            except DecodeError:
                continue  # Not protobuf, or not UTF-8: JSON cannot represent it.
            # JSON cannot represent unknown fields either, including known ones with the wrong wire
            # type.
            request.DiscardUnknownFields()
            found.append((signal, request.SerializeToString()))
    return found


def test_json_arrives_as_protobuf_does(site):
    cases = _cases()
    assert len(cases) > 450, "too few for a meaningful test"

    def by_grpc(gateway, signal, payload) -> str:
        return answer(gateway.address, payload, signal)[0]

    def by_json(gateway, signal, payload) -> str:
        status, _, body = post(gateway.http_address, f"/v1/{signal}", as_json(signal, payload))
        return "OK" if status == 200 else body.decode()

    def rows(database: str) -> dict[str, list[str]]:
        asked = f"SELECT COLUMNS('^[^_]') FROM {database}"
        found = {table: site.clickhouse.rows(f"{asked}.{table}") for table in TABLES}
        return {table: sorted(json.dumps(row) for row in of) for table, of in found.items()}

    arrived = {}
    for form, send in (("protobuf", by_grpc), ("json", by_json)):
        buffer = Buffer(f"{site.buffer.url}-{form}", site.buffer.endpoint)
        database = f"{site.database}_{form}"
        gateway = site.add(Gateway(site.directory, buffer, name=f"gateway-{form}")).up()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda case, g=gateway, s=send: s(g, *case), cases))
        assert answers == ["OK"] * len(cases), [a for a in answers if a != "OK"][:5]
        records = gateway.metric("millpond_gateway_records_total")
        assert gateway.terminate() == 0
        consumer = site.add(
            Consumer(
                site.directory,
                buffer,
                site.clickhouse.url,
                database=database,
                name=f"consumer-{form}",
            )
        ).up()

        def whole(database=database, records=records) -> bool:
            return sum(len(of) for of in rows(database).values()) >= records

        eventually(f"{records} rows of {form}", whole)
        assert consumer.terminate() == 0
        arrived[form] = rows(database)
    for table in TABLES:
        assert len(arrived["protobuf"][table]) > 10
        assert arrived["json"][table] == arrived["protobuf"][table]


def test_the_readmes_curl_is_accepted(site):
    readme = (Path(REPOSITORY) / "README.md").read_text()
    [command] = re.findall(r"^curl http://127.0.0.1:4318.*?^  .*?'$", readme, re.M | re.S)
    gateway, consumer = site.gateway(), site.consumer()
    command = command.replace("127.0.0.1:4318", gateway.http_address)
    quiet = f"{command} --silent --show-error --fail-with-body"
    output = subprocess.run(quiet, shell=True, check=True, capture_output=True, timeout=60).stdout
    assert output == b"{}"
    line = f"SELECT concat(Body, ' from ', ServiceName) FROM {site.database}.otel_logs"
    eventually("the line", lambda: site.clickhouse.lines(line) == ["hello from shell"])
    for process in (gateway, consumer):
        assert process.terminate() == 0
