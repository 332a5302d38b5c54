"""Events over HTTP: what the gateway accepts is in the buffer byte for byte, through a crash, and
neither stops a consumer of OTLP nor shows up in its tables."""

import gzip
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

from harness.corpus import record, request
from harness.otlp import export
from harness.otlp_http import post
from harness.process import eventually, free_port

SIGNUP = "/v1/streams/events.signup"
NDJSON = "application/x-ndjson"


def _post(gateway, body: str | bytes, content_type: str = NDJSON, query: str = ""):
    status, headers, answer = post(gateway.http_address, SIGNUP + query, body, content_type)
    assert headers["content-type"] == "application/json"
    return status, json.loads(answer)


def _tailed(site, *flags: object) -> list[str]:
    """The lines of a tail up to the current end."""
    everything = ("--no-follow", "--from", "earliest", "--stream", "events.signup")
    return site.millpond("tail", *everything, *flags).stdout().splitlines()


def test_every_form_arrives_as_it_was_sent(site):
    gateway = site.gateway()
    assert _post(gateway, '{"n": 1.50}\n{"s":"é"}\r\n') == (200, {"accepted": 2})
    assert _post(gateway, '[{"a":1}, {"b":"],["}]', "application/json") == (200, {"accepted": 2})
    assert _post(gateway, '{\n  "c": [\n    1\n  ]\n}\n', "application/json") == (
        200,
        {"accepted": 1},
    )
    assert _tailed(site) == [
        '{"n": 1.50}',
        '{"s":"é"}',
        '{"a":1}',
        '{"b":"],["}',
        '{   "c": [     1   ] }',
    ]
    records = [json.loads(line)["record"] for line in _tailed(site, "--json")]
    assert records == [{"n": 1.5}, {"s": "é"}, {"a": 1}, {"b": "],["}, {"c": [1]}]
    shard = json.loads(site.millpond("status", "--json").stdout())["shards"][0]
    (stream,) = shard["streams"]
    assert (stream["stream"], stream["records"], stream["messages"]) == ("events.signup", 5, 3)


def test_malformed_rows_do_not_take_others_with_them_unless_asked(site):
    gateway = site.gateway()
    body = '{"a":1}\n{"a":}\nnull\n{"b":2}\n'
    status, answer = _post(gateway, body, query="?on_error=refuse")
    assert (status, answer["accepted"], answer["rejected"]) == (400, 0, 2)
    assert "on_error=refuse" in answer["error"]
    status, skipped = _post(gateway, body)
    assert (status, skipped["accepted"], skipped["errors"]) == (200, 2, answer["errors"])
    assert [(error["line"], error["column"]) for error in answer["errors"]] == [(2, 6), (3, 1)]
    assert _tailed(site) == ['{"a":1}', '{"b":2}']
    assert gateway.metric("millpond_gateway_rejected_rows_total") == 4


def test_wrong_requests_say_why(site):
    gateway = site.gateway()
    for path, body, status, words in (
        (SIGNUP, "", 400, "empty"),
        (SIGNUP + "?table=x", "{}", 400, "on_error=skip"),
        ("/v1/streams/otlp.logs", "{}", 409, "/v1/logs"),
        ("/v1/streams/a b".replace(" ", "%20"), "{}", 400, "name"),
        (SIGNUP, gzip.compress(b"{}"), 400, "malformed rows: "),
    ):
        found, _, answer = post(gateway.http_address, path, body, NDJSON)
        assert found == status, answer
        assert words in json.loads(answer)["error"]
    assert site.millpond("status", "--json").stdout()


def test_an_acknowledged_row_survives_a_killed_gateway(site):
    gateway = site.gateway()
    rows = [json.dumps({"n": n}) for n in range(1_000)]
    assert _post(gateway, "\n".join(rows)) == (200, {"accepted": 1_000})
    gateway.kill()
    assert _post(site.gateway(), '{"n": 1000}') == (200, {"accepted": 1})
    assert _tailed(site) == [*rows, '{"n": 1000}']


def test_numbered_rows_are_there_once_whatever_happens_to_gateways_and_answers(site):
    """Clients repeat each request, to any gateway, until one answers. Some do not wait for it."""
    gateways = [site.gateway(*_peer(), name=f"gateway-{n}") for n in range(2)]
    stopping, sent = threading.Event(), Counter()

    def until_accepted(choose: random.Random, client: str, number: int) -> None:
        row = json.dumps({"client": client, "number": number})
        numbering = {"Millpond-Producer": client, "Millpond-Number": str(number)}
        if client.startswith("key"):
            numbering = {"Idempotency-Key": f"{client}-{number}"}
        while True:
            address = choose.choice(gateways).http_address
            patience = choose.choice((0.01, 0.03, 20))
            try:
                status, headers, answer = post(address, SIGNUP, row, NDJSON, numbering, patience)
            except (OSError, HTTPException):
                time.sleep(0.05)
                continue
            assert status in (200, 429, 503), answer
            if status == 200:
                sent["repeated"] += "millpond-repeated" in headers
                return

    def send(client: str) -> int:
        choose = random.Random(client)
        number = 0
        while not stopping.is_set():
            number += 1
            until_accepted(choose, client, number)
        return number

    clients = ("counting-1", "counting-2", "counting-3", "key-1")
    with ThreadPoolExecutor(len(clients)) as threads:
        counts = {client: threads.submit(send, client) for client in clients}
        try:
            for turn, end in enumerate(("kill", "terminate", "kill", "kill")):
                before = sent["repeated"]
                eventually("repetitions", lambda before=before: sent["repeated"] > before)
                gateway = gateways[turn % 2]
                getattr(gateway, end)()
                gateway.up()
        finally:
            stopping.set()
    expected = Counter(
        (client, number) for client in clients for number in range(1, counts[client].result() + 1)
    )
    rows = [json.loads(line) for line in _tailed(site)]
    assert Counter((row["client"], row["number"]) for row in rows) == expected


def _peer() -> tuple[str, str]:
    return "--peer-listen", f"127.0.0.1:{free_port()}"


def test_a_consumer_of_otlp_passes_over_events(site):
    gateway, consumer = site.gateway(), site.consumer()
    _post(gateway, '{"a":1}')
    export(gateway.address, request(record("between events")).SerializeToString())
    _post(gateway, '{"b":2}')

    def arrived() -> bool:
        consumer.must_run()
        return site.clickhouse.scalar(f"EXISTS TABLE {site.database}.otel_logs") == "1" and (
            site.clickhouse.scalar(f"SELECT count() FROM {site.database}.otel_logs") == "1"
        )

    eventually("the log record", arrived, timeout=60)
    assert consumer.terminate() == 0
