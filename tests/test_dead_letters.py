"""Records that a table permanently refuses: the rest arrives, they are listed and shown, and are
replayed once the table is fixed, each once."""

from collections import Counter

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harness.corpus import record, request
from harness.corpus_metrics import one_of_each
from harness.corpus_metrics import request as metrics_request
from harness.corpus_traces import request as traces_request
from harness.corpus_traces import span
from harness.otlp import METHODS, export
from harness.process import eventually
from harness.services import Buffer


def _bodies(site) -> list[str]:
    return sorted(site.clickhouse.lines(f"SELECT Body FROM {site.database}.otel_logs"))


def _send(gateway, *bodies: str) -> None:
    made = request(*(record(f"case of {body}", body=body) for body in bodies))
    export(gateway.address, made.SerializeToString())


def _forbid(site, condition: str) -> None:
    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs ADD CONSTRAINT tidy CHECK NOT ({condition})"
    )


def _repair_table(site) -> None:
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_logs DROP CONSTRAINT tidy")


def _letters(site) -> list[dict]:
    return site.answer("dead-letters", "list")["letters"]


def _table(site) -> tuple[str, ...]:
    return ("--clickhouse", site.clickhouse.url, "--database", site.database)


def _acknowledged(site, consumer) -> bool:
    consumer.must_run()
    [listed] = site.answer("consumer", "list")["consumers"]
    return all(stream["records_behind"] == 0 for stream in listed["streams"])


def test_refused_records_are_letters_that_can_be_replayed(site):
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    _forbid(site, "startsWith(Body, 'bad')")
    good = [f"good {number:03}" for number in range(200)]
    mixed = [*good[:70], "bad one", *good[70:150], "bad two", *good[150:]]
    _send(gateway, *mixed)
    eventually("the good records", lambda: _bodies(site) == good)
    eventually("everything to be acknowledged", lambda: _acknowledged(site, consumer))

    letters = _letters(site)
    assert len(letters) == 2
    for letter in letters:
        assert (letter["kind"], letter["stream"]) == ("refused", "otlp.logs")
        assert "`tidy`" in letter["reason"]
        assert "VIOLATED_CONSTRAINT" in letter["reason"]
        assert letter["consumer"] == "e2e"
        assert letter["sink"] == f"clickhouse:{site.database}.otel_logs"
    # A letter holds a request with one record, including its resource and scope.
    payload = site.directory / "payload"
    for letter in letters:
        shown = site.answer("dead-letters", "show", letter["letter"], "--payload", payload)
        assert bytes.fromhex(shown["payload"]) == payload.read_bytes()
        held = ExportLogsServiceRequest.FromString(payload.read_bytes())
        body = held.resource_logs[0].scope_logs[0].log_records[0].body.string_value
        assert held == request(record(f"case of {body}", body=body))
        assert body in ("bad one", "bad two")
        [decoded] = shown["records"]
        assert decoded["body"] == body
        assert decoded["attributes"]["case"] == f"case of {body}"
        text = site.millpond("dead-letters", "show", letter["letter"]).stdout()
        assert f'"body": "{body}"' in text
        raw = site.millpond("dead-letters", "show", letter["letter"], "--raw").stdout()
        assert body in raw
        assert '"body"' not in raw

    assert consumer.metric("millpond_consumer_dead_letters_total") == 2
    doctor = site.millpond("doctor", "--json")
    [finding] = [f for f in site.parsed(doctor)["findings"] if "dead letters" in f["what"]]
    assert (finding["severity"], "2 dead letters" in finding["what"]) == ("warning", True)

    # The table still refuses them, so they stay.
    names = [letter["letter"] for letter in letters]
    refused = site.millpond("dead-letters", "replay", *names, *_table(site), "--json", code=1)
    assert [kept["letter"] for kept in site.parsed(refused)["kept"]] == names
    other = site.millpond(
        *("dead-letters", "replay", names[0], *_table(site)),
        *("--logs-table", "otel_logs_other", "--json"),
        code=1,
    )
    assert "otel_logs_other" in other.messages()
    assert _bodies(site) == good

    _repair_table(site)
    replayed = site.millpond("dead-letters", "replay", "--all", *_table(site), "--json")
    done = site.parsed(replayed)
    assert (done["rows"], sorted(done["replayed"]), done["kept"]) == (2, names, [])
    assert "deduplication_window" not in replayed.messages(), "a sufficient window needs no advice"
    assert _bodies(site) == sorted(["bad one", "bad two", *good])
    assert _letters(site) == []
    assert consumer.terminate() == 0


# Each table with the column for a case's name.
_TABLES = {
    "otel_logs": "LogAttributes",
    "otel_traces": "SpanAttributes",
    **{
        f"otel_metrics_{kind}": "Attributes"
        for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    },
}


def _cases(site) -> dict[str, list[str]]:
    return {
        table: sorted(site.clickhouse.lines(f"SELECT {of}['case'] FROM {site.database}.{table}"))
        for table, of in _TABLES.items()
    }


def _held(site, letter: dict):
    shown = site.answer("dead-letters", "show", letter["letter"])
    requests = {
        "otlp.logs": ExportLogsServiceRequest,
        "otlp.traces": ExportTraceServiceRequest,
        "otlp.metrics": ExportMetricsServiceRequest,
    }
    return requests[letter["stream"]].FromString(bytes.fromhex(shown["payload"]))


def test_refused_rows_of_every_table_are_replayed_into_it_alone(site):
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    for table, of in _TABLES.items():
        site.clickhouse.query(
            f"ALTER TABLE {site.database}.{table} ADD CONSTRAINT tidy CHECK {of}['case'] != 'bad'"
        )
    names = ("one", "bad", "two")
    requests = {
        "logs": request(*(record(name) for name in names)),
        "traces": traces_request(*(span(name) for name in names)),
        "metrics": metrics_request(*(metric for name in names for metric in one_of_each(name))),
    }
    for of, made in requests.items():
        export(gateway.address, made.SerializeToString(), method=METHODS[of])
    taken = dict.fromkeys(_TABLES, ["one", "two"])
    eventually("the accepted records", lambda: _cases(site) == taken)
    eventually("everything to be acknowledged", lambda: _acknowledged(site, consumer))

    letters = _letters(site)
    streams = Counter(letter["stream"] for letter in letters)
    assert streams == {"otlp.logs": 1, "otlp.traces": 1, "otlp.metrics": 5}
    assert len({(letter["stream"], letter["record"]) for letter in letters}) == 7
    held = [_held(site, letter) for letter in letters]
    bad = [request(record("bad")), traces_request(span("bad"))]
    bad += [metrics_request(metric) for metric in one_of_each("bad")]
    assert len(held) == len(bad)
    assert all(alone in held for alone in bad)

    for table in _TABLES:
        site.clickhouse.query(f"ALTER TABLE {site.database}.{table} DROP CONSTRAINT tidy")
    done = site.answer("dead-letters", "replay", "--all-of", "e2e", *_table(site))
    assert (done["rows"], done["kept"]) == (7, [])
    assert _cases(site) == dict.fromkeys(_TABLES, ["bad", "one", "two"])
    lacking = (
        f"SELECT count() FROM {site.database}.otel_traces WHERE TraceId NOT IN"
        f" (SELECT TraceId FROM {site.database}.otel_traces_trace_id_ts)"
    )
    assert site.clickhouse.scalar(lacking) == "0"
    assert _letters(site) == []
    assert consumer.terminate() == 0


def test_a_letter_replayed_twice_is_one_row(site):
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    _forbid(site, "Body = 'bad'")
    _send(gateway, "good", "bad")
    eventually("everything to be acknowledged", lambda: _acknowledged(site, consumer))
    assert consumer.terminate() == 0
    [letter] = _letters(site)
    file = folder / letter["letter"]
    kept = file.read_bytes()
    _repair_table(site)
    site.answer("dead-letters", "replay", letter["letter"], *_table(site))
    # Simulates a letter that was not deleted, and a table that has forgotten the token.
    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs "
        "MODIFY SETTING non_replicated_deduplication_window = 0"
    )
    file.write_bytes(kept)
    done = site.answer("dead-letters", "replay", letter["letter"], *_table(site))
    assert done["replayed"] == [letter["letter"]]
    assert _bodies(site) == ["bad", "good"]
    gone = site.millpond("dead-letters", "replay", letter["letter"], *_table(site), code=1)
    assert "no such dead letter" in gone.stdout()


def test_a_consumer_killed_in_the_midst_of_it_leaves_every_record_in_one_place(site):
    gateway = site.gateway("--linger", "20ms")
    flags = ("--ack-interval", "50ms", "--batch-records", 100, "--chunk-rows", 60)
    consumer = site.consumer(*flags, "--instance", "one")
    eventually("the consumer to own its cursor", consumer.owns)
    _forbid(site, "endsWith(Body, 'bad')")
    bodies = [f"{n:03} {'bad' if n % 60 == 7 else 'good'}" for n in range(240)]
    for start in range(0, 240, 20):
        _send(gateway, *bodies[start : start + 20])
    for _ in range(3):
        seen = len(_letters(site)), len(_bodies(site))
        eventually(
            "something to happen",
            lambda seen=seen: (
                (len(_letters(site)), len(_bodies(site))) != seen or _acknowledged(site, consumer)
            ),
        )
        consumer.kill()
        consumer.up()
    eventually("everything to be acknowledged", lambda: _acknowledged(site, consumer))
    bad = [body for body in bodies if body.endswith("bad")]
    assert _bodies(site) == sorted(set(bodies) - set(bad))
    assert len(_letters(site)) == len(bad)
    assert consumer.terminate() == 0
    _repair_table(site)
    site.answer("dead-letters", "replay", "--all-of", "e2e", *_table(site))
    assert _bodies(site) == sorted(bodies)


def test_a_table_that_refuses_everything_ends_the_consumer_which_continues_after_the_repair(site):
    gateway = site.gateway()
    first = site.consumer("--dead-letters-max", 10, name="consumer-stopped")
    eventually("the consumer to own its cursor", first.owns)
    _forbid(site, "1")
    bodies = [f"{number:03}" for number in range(100)]
    _send(gateway, *bodies)
    assert first.wait() == 1
    for word in ("more than 10 records", "`tidy`", "--dead-letters-max"):
        assert word in first.messages()
    assert _letters(site) == []
    _repair_table(site)
    consumer = site.consumer("--dead-letters-max", 10)
    eventually("all of them", lambda: _bodies(site) == bodies)
    assert consumer.terminate() == 0
