"""`millpond tail`: shows the records of a buffer as they are committed."""

import json
import subprocess

from harness.corpus import record, request
from harness.corpus_metrics import one_of_each
from harness.corpus_metrics import request as metrics_request
from harness.corpus_traces import request as traces_request
from harness.corpus_traces import span
from harness.otlp import METHODS, export
from harness.process import eventually
from harness.services import Buffer, program

ALL = ("--from", "earliest")


def _send(gateway, signal: str, made) -> None:
    export(gateway.address, made.SerializeToString(), method=METHODS[signal])


def _shown(site, *flags: object) -> list[dict]:
    """The output of a tail up to the current end."""
    tail = site.millpond("tail", "--no-follow", "--json", *flags)
    return [json.loads(line) for line in tail.stdout().splitlines()]


def test_records_of_every_signal_are_shown(site):
    gateway = site.gateway("--tail-max", 1)
    _send(gateway, "logs", request(record("a log", body="one\ntwo", severity_number=17)))
    _send(gateway, "traces", traces_request(span("a span", name="GET /", kind=2)))
    _send(gateway, "metrics", metrics_request(*one_of_each("a point")))
    _send(gateway, "logs", request(record("another", body="three")))

    shown = _shown(site, *ALL)
    assert [found["stream"] for found in shown] == [
        "otlp.logs",
        "otlp.traces",
        *["otlp.metrics"] * 5,
        "otlp.logs",
    ]
    assert [found["sequence"] for found in shown] == [0, 1, *[2] * 5, 3]
    records = [found["record"] for found in shown]
    assert [found["attributes"]["case"] for found in records] == [
        "a log",
        "a span",
        *["a point"] * 5,
        "another",
    ]
    assert (records[0]["body"], records[0]["severity_number"]) == ("one\ntwo", 17)
    assert (records[1]["name"], records[1]["kind"]) == ("GET /", "server")
    assert [point["kind"] for point in records[2:7]] == [
        "gauge",
        "sum",
        "histogram",
        "exponential_histogram",
        "summary",
    ]
    assert _shown(site, *ALL, "--stream", "otlp.traces") == [shown[1]]
    assert _shown(site, "--from", 3) == [shown[7]]
    assert _shown(site, *ALL, "--grep", "o.e.*two") == [shown[0]]

    lines = site.millpond("tail", *ALL, "--no-follow").stdout().splitlines()
    assert len(lines) == len(shown)
    assert "ERROR" in lines[0]
    assert "one\\ntwo" in lines[0]
    assert "server" in lines[1]
    assert "GET /" in lines[1]


def test_tail_shows_records_as_they_are_committed(site):
    gateway = site.gateway("--linger", "20ms")
    _send(gateway, "logs", request(record("before", body="before")))
    tail = site.begun("tail", *site.buffer.flags, "--poll-interval", "50ms", "--from", "latest")
    # Only its output reveals where it begins.
    sent = []

    def shown() -> list[str]:
        tail.must_run()
        sent.append(f"after {len(sent)}")
        _send(gateway, "logs", request(record("after", body=sent[-1])))
        return tail.stdout().splitlines()

    eventually("new records to be shown", lambda: len(shown()) > 2)
    lines = tail.stdout().splitlines()
    bodies = [next(body for body in sent if f" {body} " in f"{line} ") for line in lines]
    first = sent.index(bodies[0])
    assert bodies == sent[first : first + len(bodies)], "each once, in their order, and none before"


def test_an_outage_of_the_store_leaves_nothing_out(own_site):
    site = own_site
    gateway = site.gateway("--linger", "20ms")
    _send(gateway, "logs", request(record("before", body="before")))
    tail = site.begun("tail", *site.buffer.flags, *ALL, "--poll-interval", "50ms")
    eventually("the earlier record", lambda: len(tail.stdout().splitlines()) == 1)
    site.store.kill()
    eventually("the outage to be logged", lambda: "trying again" in tail.messages())
    site.store.up()
    _send(gateway, "logs", request(record("after", body="after")))
    eventually("the new record", lambda: len(tail.stdout().splitlines()) == 2)
    tail.must_run()
    before, after = tail.stdout().splitlines()
    assert (" before" in before, " after" in after) == (True, True)


def test_damaged_parts_are_named_and_the_rest_is_shown(site):
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway()
    for number in range(3):
        _send(gateway, "logs", request(record(f"log {number}")))
    [shard] = site.answer("manifest", "dump")["shards"]
    second = folder / "shards/0000/segments" / shard["entries"][1]["segment"]
    data = bytearray(second.read_bytes())
    data[len(data) // 3] ^= 4
    second.write_bytes(data)

    tail = site.millpond("tail", "--no-follow", "--json", *ALL, code=1)
    shown = [json.loads(line) for line in tail.stdout().splitlines()]
    assert [found["record"]["attributes"]["case"] for found in shown] == ["log 0", "log 2"]
    assert (
        f"sequence 1 of shard 0000, otlp.logs: shards/0000/segments/{second.name}"
        in tail.messages()
    )
    assert tail.messages().rstrip().endswith("1 part could not be read, see above")


def test_a_reader_that_goes_away_is_no_error(site):
    gateway = site.gateway("--linger", "20ms")
    site.load(gateway, records=20_000).run()
    tail = [program("millpond"), "tail", *site.buffer.flags, *ALL, "--no-follow"]
    process = subprocess.Popen(
        [str(word) for word in tail],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=site.begun("--version").environment,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0, process.stderr.read()
    process.stderr.close()


def test_a_stream_that_is_not_there_is_named(site):
    gateway = site.gateway()
    _send(gateway, "logs", request(record("a log")))
    wrong = ("tail", *ALL, "--no-follow", "--stream", "otlp.log")
    assert "there is no stream otlp.log" in site.millpond(*wrong, code=1).messages()
    wrong = ("tail", *ALL, "--no-follow", "--shard", 7)
    assert "there is no shard 7" in site.millpond(*wrong, code=1).messages()
