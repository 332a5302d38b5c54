"""Events in tables of their owners: each accepted row is there once, through crashes of gateway,
consumer and both, and a row that does not fit waits as a dead letter."""

import json

from harness.events import OWN_COLUMNS
from harness.otlp_http import post
from harness.process import eventually

NDJSON = "application/x-ndjson"

SIGNUP = """
[[table]]
stream = "events.signup"
table = "signup"

[table.columns]
user_id = "user.id"
at = { path = "ts", unit = "ms" }
source = { value = "web" }
"""


def _tables(site, text: str = SIGNUP) -> tuple[str, str]:
    """Creates the table of events, and returns the flags for it."""
    site.clickhouse.query(f"CREATE DATABASE {site.database}")
    site.clickhouse.query(
        f"""CREATE TABLE {site.database}.signup (user_id UInt64, at DateTime64(3, 'UTC'),
        plan LowCardinality(String), tags Array(String), source String, {OWN_COLUMNS})
        ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY user_id
        SETTINGS non_replicated_deduplication_window = 10000"""
    )
    file = site.directory / "event-tables.toml"
    file.write_text(text)
    return ("--event-tables", str(file))


def _post(gateway, rows: list[str], stream: str = "events.signup") -> None:
    body = "\n".join(rows)
    status, _, answer = post(gateway.http_address, f"/v1/streams/{stream}", body, NDJSON)
    assert (status, json.loads(answer)) == (200, {"accepted": len(rows)})


def _row(number: int) -> str:
    event = {"user": {"id": number}, "ts": 1_700_000_000_000 + number, "plan": f"p{number % 3}"}
    return json.dumps(event | {"tags": [f"t{number}", "é"]})


def _stored(site) -> list[str]:
    rows = site.clickhouse.lines(
        f"SELECT user_id, toUnixTimestamp64Milli(at), plan, arrayStringConcat(tags, ' '), source"
        f" FROM {site.database}.signup ORDER BY user_id"
    )
    return [row.encode("latin-1").decode() for row in rows]


def _expected(numbers) -> list[str]:
    return [f"{n}\t{1_700_000_000_000 + n}\tp{n % 3}\tt{n} é\tweb" for n in sorted(numbers)]


def _answer(site, *command: object, code: int = 0):
    return site.parsed(site.millpond(*command, "--json", code=code))


def test_a_table_proposed_from_a_sample_takes_its_rows(site):
    rows = [_row(n) for n in range(20)] + [json.dumps({"ts": 1_700_000_000_999, "note": None})]
    sample = site.directory / "sample.ndjson"
    sample.write_text("\n".join(rows))
    proposal = ("tables", "print", "--stream", "events.signup", "--from-sample", sample)
    sql = site.command(*proposal, "--database", site.database).stdout()
    assert "-- note: no row has a value" in sql
    for statement in sql.split(";\n"):
        if statement.strip():
            site.clickhouse.query(statement)
    file = site.directory / "event-tables.toml"
    file.write_text(site.command(*proposal, "--event-tables-entry").stdout())

    gateway = site.gateway()
    site.consumer("--event-tables", file)
    _post(gateway, rows)
    count = f"SELECT count(), sum(user_id), uniqExact(plan) FROM {site.database}.signup"
    eventually("the rows", lambda: site.clickhouse.lines(count) == ["21\t190\t4"])

    sample.write_text('{"a": 1}\n[2]\n')
    refused = site.command(*proposal, code=1)
    assert "line 2, column 2: 2 is not an object" in refused.messages()


def test_each_row_is_there_once_through_crashes(site):
    flags = _tables(site)
    gateway = site.gateway()
    consumer = site.consumer("--batch-records", 50, "--chunk-rows", 20, *flags)
    for round_ in range(6):
        rows = range(round_ * 200, (round_ + 1) * 200)
        _post(gateway, [_row(n) for n in rows[:100]])
        _post(gateway, [_row(n) for n in rows[100:]])
        if round_ in (1, 3):
            consumer.kill()
            name = f"consumer-{round_}"
            consumer = site.consumer("--batch-records", 50, "--chunk-rows", 20, *flags, name=name)
        if round_ == 2:
            gateway.kill()
            gateway = site.gateway(name="gateway-2")
    expected = _expected(range(1_200))
    eventually("all rows", lambda: consumer.must_run() or _stored(site) == expected, timeout=90)
    assert consumer.terminate() == 0
    assert _stored(site) == expected
    assert site.clickhouse.scalar(f"SELECT count() FROM {site.database}.otel_logs") == "0"


def test_a_row_that_does_not_fit_is_a_dead_letter_until_the_table_changes(site):
    flags = _tables(site)
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms", *flags)
    bad = '{"user": {"id": -7}, "ts": 1699999999993, "plan": "p1", "tags": ["t-7", "é"]}'
    _post(gateway, [_row(1), bad, _row(2)])
    eventually("the rows", lambda: consumer.must_run() or _stored(site) == _expected([1, 2]))

    def letters() -> list[dict]:
        return _answer(site, "dead-letters", "list")["letters"]

    eventually("the dead letter", lambda: consumer.must_run() or len(letters()) == 1)
    [letter] = letters()
    assert (letter["kind"], letter["stream"]) == ("unreadable", "events.signup")
    assert "$.user.id: -7 does not fit UInt64 (column user_id)" in letter["reason"]
    held = _answer(site, "dead-letters", "show", letter["letter"])
    assert bytes.fromhex(held["payload"]).decode() == bad

    def acknowledged() -> bool:
        [listed] = _answer(site, "consumer", "list")["consumers"]
        return all(stream["records_behind"] == 0 for stream in listed["streams"])

    eventually("everything to be acknowledged", acknowledged)
    assert consumer.terminate() == 0
    to = ("--clickhouse", site.clickhouse.url, "--database", site.database, *flags)
    kept = _answer(site, "dead-letters", "replay", letter["letter"], *to, code=1)["kept"]
    assert [one["letter"] for one in kept] == [letter["letter"]]
    # A key column keeps its type, so the rows move to a table with another one.
    site.clickhouse.query(
        f"CREATE TABLE {site.database}.wider AS {site.database}.signup"
        " ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100"
    )
    site.clickhouse.query(f"ALTER TABLE {site.database}.wider MODIFY COLUMN user_id Int64")
    site.clickhouse.query(f"INSERT INTO {site.database}.wider SELECT * FROM {site.database}.signup")
    site.clickhouse.query(f"EXCHANGE TABLES {site.database}.wider AND {site.database}.signup")
    assert _answer(site, "dead-letters", "replay", letter["letter"], *to)["rows"] == 1
    assert len(_stored(site)) == 3
    assert _stored(site)[0] == "-7\t1699999999993\tp1\tt-7 é\tweb"
    assert letters() == []


def test_a_stream_without_a_table_does_not_stop_others_and_is_reported(site):
    flags = _tables(site)
    gateway = site.gateway()
    _post(gateway, ['{"a": 1}'], stream="events.unknown")
    _post(gateway, [_row(1)])
    consumer = site.consumer(*flags)
    eventually("the row", lambda: consumer.must_run() or _stored(site) == _expected([1]))
    assert "stream events.unknown (ndjson) has no place in this sink" in consumer.messages()
    assert consumer.terminate() == 0


def test_a_wrong_file_or_table_ends_the_start(site):
    flags = _tables(site, SIGNUP.replace("user_id =", "user ="))
    site.gateway()
    to = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    ended = site.millpond("consume", *to, *flags, "--admin", "127.0.0.1:0", code=1)
    assert "name column user, which table" in ended.messages()
    broken = site.directory / "broken.toml"
    broken.write_text("[[table]]\nstream = 1\n")
    file = ("--event-tables", broken, "--admin", "127.0.0.1:0")
    ended = site.millpond("consume", *to, *file, code=1)
    assert "line 2" in ended.messages()
