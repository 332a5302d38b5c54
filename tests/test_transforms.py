"""Programs over events: the rows that they make are there once, through crashes of the consumer,
and an event that a program fails on waits as a dead letter."""

import json

import pytest

from harness.events import OWN_COLUMNS
from harness.otlp_http import post
from harness.process import eventually

NDJSON = "application/x-ndjson"

TABLES = """
[[table]]
stream = "events.order"
table = "orders"
"""

PROGRAM = """
if .kind == "test" { abort }
.id = del(.order.id)
.total = int!(.price) * int!(.count)
.name = upcase(string!(.name))
"""

TRANSFORM = f'''
[[stream.transform]]
stream = "events.order"
program = """{PROGRAM}"""
'''


def _flags(site, transform: str = TRANSFORM) -> list[object]:
    """Creates the table of events, and returns the flags for it and for the program."""
    site.clickhouse.query(f"CREATE DATABASE IF NOT EXISTS {site.database}")
    site.clickhouse.query(
        f"""CREATE TABLE IF NOT EXISTS {site.database}.orders
        (id UInt64, total UInt64, name String, amount Decimal(38, 10), {OWN_COLUMNS})
        ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"""
    )
    tables, transforms = (site.directory / name for name in ("tables.toml", "transforms.toml"))
    tables.write_text(TABLES)
    transforms.write_text(transform)
    return ["--event-tables", tables, "--transform", transforms]


def _post(gateway, rows: list[str]) -> None:
    status, _, answer = post(
        gateway.http_address, "/v1/streams/events.order", "\n".join(rows), NDJSON
    )
    assert (status, json.loads(answer)) == (200, {"accepted": len(rows)})


AMOUNT = "1234567890123456789012345678.0123456789"


def _event(number: int) -> str:
    kind = "test" if number % 5 == 0 else "order"
    # Some events have a name that the program cannot use.
    name = number if number % 1_000 == 7 else f"n{number}"
    event = {"order": {"id": number}, "kind": kind, "price": 3, "count": number, "name": name}
    return json.dumps(event)[:-1] + f', "amount": {AMOUNT}}}'


def _expected(numbers) -> list[str]:
    rows = [n for n in numbers if n % 5 != 0 and n % 1_000 != 7]
    return [f"{n}\t{3 * n}\tN{n}\t{AMOUNT}" for n in rows]


def _stored(site) -> list[str]:
    return site.clickhouse.lines(
        f"SELECT id, total, name, toString(amount) FROM {site.database}.orders ORDER BY id"
    )


def _to(site) -> list[object]:
    return ["--clickhouse", site.clickhouse.url, "--database", site.database]


def _not_compared(site, *doctor: object) -> list[str]:
    """The findings of a doctor that has compared nothing."""
    found = site.parsed(site.millpond(*doctor, "--json"))
    assert found["rows"] == []
    assert not any("no rows were compared" in finding["what"] for finding in found["findings"])
    warnings = [f["what"] for f in found["findings"] if f["severity"] == "warning"]
    return [what for what in warnings if "compared" in what]


def test_each_row_of_a_program_is_there_once_through_crashes(site):
    flags = [*_flags(site), "--batch-records", 400, "--chunk-rows", 60, "--ack-interval", "200ms"]
    gateway = site.gateway()
    consumer = site.consumer(*flags)
    events = 6_000
    for begin in range(0, events, 500):
        _post(gateway, [_event(n) for n in range(begin, begin + 500)])
        if begin in (1_000, 3_000, 5_000):
            consumer.kill()
            consumer = site.consumer(*flags, name=f"consumer-{begin}")
    expected = _expected(range(events))
    eventually("all rows", lambda: consumer.must_run() or _stored(site) == expected, timeout=120)

    def letters() -> list[dict]:
        return site.answer("dead-letters", "list")["letters"]

    eventually("the dead letters", lambda: len(letters()) == events // 1_000)
    for letter in letters():
        assert (letter["kind"], letter["stream"]) == ("unreadable", "events.order")
        assert (
            "program of events.order: upcase at line 4, column 9: string at line 4"
            in letter["reason"]
        )
        held = site.answer("dead-letters", "show", letter["letter"])
        assert json.loads(bytes.fromhex(held["payload"]))["name"] % 1_000 == 7
    # Each process counts what it has read, and reads batches in doubt again.
    assert 0 < consumer.metric("millpond_consumer_filtered_total") <= events / 5
    assert consumer.terminate() == 0
    assert _stored(site) == expected

    # No question takes dropped events for missing rows, and no repair inserts them.
    doctor = site.parsed(site.millpond("doctor", "--rows", *_to(site), *flags[:4], "--json"))
    [compared] = doctor["rows"]
    assert (compared["missing"], compared["duplicate"], compared["unknown"]) == (0, 0, 0)

    repair = ("consumer", "repair", "e2e", "--from", "earliest", "--to", "latest")
    site.clickhouse.query(
        f"DELETE FROM {site.database}.orders WHERE id IN (1, 2) SETTINGS mutations_sync = 2"
    )
    assert site.answer(*repair, *_to(site), *flags[:4])["rows_inserted"] == 2
    assert _stored(site) == expected

    # The program that takes these events makes their rows of the dead letters.
    flags = _flags(
        site,
        TRANSFORM.replace("string!(.name)", "to_string!(.name)").replace("upcase", '"N" + upcase'),
    )
    for letter in letters():
        replayed = site.answer("dead-letters", "replay", letter["letter"], *_to(site), *flags)
        assert replayed["rows"] == 1
    late = [n for n in range(events) if n % 1_000 == 7]
    everything = sorted([*expected, *[f"{n}\t{3 * n}\tN{n}\t{AMOUNT}" for n in late]])
    assert sorted(_stored(site)) == everything
    # They have the identities of their events, so nothing is missing for a repair.
    repair = (*repair, "--other-transform")
    assert site.answer(*repair, *_to(site), *flags[:4])["rows_inserted"] == 0
    assert sorted(_stored(site)) == everything


def test_commands_without_the_consumers_program_store_and_compare_nothing(site):
    flags = _flags(site)
    gateway = site.gateway()
    consumer = site.consumer(*flags)
    _post(gateway, [_event(n) for n in (1, 2, 5, 7)])
    expected = _expected((1, 2))
    eventually("the rows", lambda: consumer.must_run() or _stored(site) == expected)
    eventually("the letter", lambda: len(site.answer("dead-letters", "list")["letters"]) == 1)
    assert consumer.terminate() == 0
    site.clickhouse.query(
        f"DELETE FROM {site.database}.orders WHERE id = 1 SETTINGS mutations_sync = 2"
    )
    [shard] = site.answer("manifest", "dump")["shards"]
    [cursor] = shard["consumers"]
    assert list(cursor["programs"]) == ["events.order"]
    without = [*_to(site), *flags[:2]]
    given = [*_to(site), *flags]
    doctor = ("doctor", "--rows")
    repair = ("consumer", "repair", "e2e", "--from", "earliest", "--to", "latest")
    [letter] = site.answer("dead-letters", "list")["letters"]
    replay = ("dead-letters", "replay", letter["letter"])

    refused = site.millpond(*repair, *without, code=1).messages()
    assert "events.order: the consumer has a program for it, and none is given" in refused
    kept = site.millpond(*replay, *without, code=1).stdout()
    assert "its consumer has a program for stream events.order, and none is given" in kept
    assert len(site.answer("dead-letters", "list")["letters"]) == 1
    assert _not_compared(site, *doctor, *without) == [
        "consumer e2e in shard 0000: rows of events.order are not compared: the consumer has a "
        "program for it, and none is given"
    ]
    assert _stored(site) == expected[1:]

    # The consumer's program finds the missing row, and another one is told from it.
    [compared] = site.parsed(site.millpond(*doctor, *given, "--json", code=1))["rows"]
    assert (compared["missing"], compared["unknown"]) == (1, 0)
    _flags(site, TRANSFORM.replace("int!(.count)", "1"))
    refused = site.millpond(*repair, *given, code=1).messages()
    assert "events.order: the consumer has another program for it" in refused
    [finding] = _not_compared(site, *doctor, *given)
    assert finding.endswith("the consumer has another program for it")
    assert _stored(site) == expected[1:]

    # An operator may mean it.
    other = ("--other-transform",)
    [compared] = site.parsed(site.millpond(*doctor, *given, *other, "--json", code=1))["rows"]
    assert compared["missing"] == 1
    assert site.answer(*repair, *given, *other)["rows_inserted"] == 1
    assert _stored(site) == [f"1\t3\tN1\t{AMOUNT}", expected[1]]


def test_a_function_that_panics_ends_no_consumer(site):
    # VRL panics if a product is not a number.
    transform = TRANSFORM.replace("upcase(string!(.name))", "to_string(to_float!(.factor) * 0.0)")
    gateway = site.gateway()
    consumer = site.consumer(*_flags(site, transform))
    events = [json.loads(_event(n)) | {"factor": f} for n, f in ((1, 1), (2, "inf"), (3, 2))]
    _post(gateway, [json.dumps(event) for event in events])
    query = f"SELECT id FROM {site.database}.orders ORDER BY id"
    rows = ["1", "3"]
    eventually("the rows", lambda: consumer.must_run() or site.clickhouse.lines(query) == rows)
    eventually("the letter", lambda: len(site.answer("dead-letters", "list")["letters"]) == 1)
    [letter] = site.answer("dead-letters", "list")["letters"]
    assert "program of events.order: a function panicked: " in letter["reason"]
    assert "panicked at" not in consumer.messages()
    assert consumer.terminate() == 0


def test_repeated_events_are_dropped_as_they_came(site):
    # The program gives all events one id: only the key of the event counts.
    transform = TRANSFORM.replace(".id = del(.order.id)", ".id = 1")
    unique = site.directory / "unique.toml"
    unique.write_text('[[unique]]\nstream = "events.order"\nkey = ["order.id"]\nwindow = "8h"\n')
    gateway = site.gateway()
    consumer = site.consumer(*_flags(site, transform), "--unique", unique)
    # The first event of the key 5 is one that the program drops.
    _post(gateway, [_event(n) for n in (1, 2, 1, 5)] + [_event(5).replace("test", "order")])
    query = f"SELECT id, total FROM {site.database}.orders ORDER BY total"
    rows = ["1\t3", "1\t6"]
    eventually("the rows", lambda: consumer.must_run() or site.clickhouse.lines(query) == rows)
    eventually("the counts", lambda: consumer.metric("millpond_consumer_duplicates_total") == 2)
    assert consumer.metric("millpond_consumer_filtered_total") == 1
    assert consumer.terminate() == 0
    assert site.clickhouse.lines(query) == rows


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (
            TRANSFORM.replace("upcase", "upcase(uuid_v4()) + upcase"),
            "uuid_v4 is not available in transforms: it gives another result each time",
        ),
        (TRANSFORM.replace(".total =", ".total = ("), "program of events.order: "),
        (TRANSFORM.replace("int!(.price)", "int(.price)"), "program of events.order:3:"),
        (
            TRANSFORM.replace("int!(.price)", ".price").replace("int!(.count)", ".count ?? 0"),
            "a factor may be a string",
        ),
        (TRANSFORM.replace("events.order", "otlp.logs"), "stream otlp.logs is for OTLP"),
        (
            TRANSFORM.replace("events.order", "events.other"),
            "stream events.other has no table of events",
        ),
        (TRANSFORM.replace('program = """', 'programme = """'), "unknown field `programme`"),
        (
            '[[stream.transform]]\nstream = "events.order"\nfile = "none.vrl"\n',
            "none.vrl: cannot be read",
        ),
    ],
    ids=["refused", "syntax", "fallible", "product", "otlp", "no table", "unknown key", "no file"],
)
def test_a_wrong_program_or_file_ends_the_start(site, transform, words):
    flags = _flags(site, transform)
    site.gateway()
    ended = site.millpond("consume", *_to(site), *flags, "--admin", "127.0.0.1:0", code=1)
    assert f"--transform {flags[3]}: " in ended.messages()
    assert words in ended.messages()


def test_a_program_can_be_tried_with_a_file_of_events(site):
    program, transforms = (site.directory / name for name in ("order.vrl", "transforms.toml"))
    program.write_text(PROGRAM)
    transforms.write_text('[[stream.transform]]\nstream = "events.order"\nfile = "order.vrl"\n')
    events = site.directory / "events.ndjson"
    events.write_text("\n".join(_event(n) for n in (1, 5, 7, 8)))
    trying = ("transform", "--transform", transforms, "--stream")
    tried = site.command(*trying, "events.order", events, code=1)
    rows = [json.loads(row) for row in tried.stdout().splitlines()]
    assert [(row["id"], row["total"], row["name"]) for row in rows] == [(1, 3, "N1"), (8, 24, "N8")]
    assert AMOUNT in tried.stdout()
    assert "event 3: order.vrl: upcase at line 5, column 9: string at line 5" in tried.messages()
    assert "2 rows, 1 events dropped, 1 events failed" in tried.messages()
    assert (
        "no program for stream events.other"
        in site.command(*trying, "events.other", events, code=1).messages()
    )
