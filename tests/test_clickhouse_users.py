"""The users of docs/clickhouse-users.md have all rights that Millpond needs and no others, and a
mistake with users or rights gives one sentence that names what to do."""

from __future__ import annotations

import itertools

import pytest

from harness import corpus_metrics, corpus_traces
from harness.clickhouse import QueryError
from harness.corpus import record, request
from harness.otlp import METHODS, export
from harness.process import eventually
from harness.services import http_get
from harness.site import Site
from harness.users import (
    ClickHouseWithUsers,
    documented,
    login,
    statements,
)

DATABASE = "otel"
GAUGE = "otel.otel_metrics_gauge"
TABLES = [
    *("otel_logs", "otel_traces", "otel_traces_trace_id_ts"),
    *(f"otel_metrics_{kind}" for kind in ("gauge", "sum", "histogram", "summary")),
    "otel_metrics_exponential_histogram",
]

_AS_DOCUMENTED = "GRANT SELECT ON otel.*"

# Users with one mistake each: statements beside the documented ones, or another profile.
MISTAKES = {
    "without_insert": (f"REVOKE INSERT ON {GAUGE}", None),
    "without_select": (f"REVOKE SELECT ON {GAUGE}", None),
    "without_table": (f"REVOKE ALL ON {GAUGE}", None),
    "without_columns": (f"REVOKE ALL ON {GAUGE}; GRANT SHOW TABLES ON {GAUGE}", None),
    "without_window": ("REVOKE SELECT ON system.merge_tree_settings", None),
    "without_processes": ("REVOKE SELECT ON system.processes", None),
    "reads_nothing": (_AS_DOCUMENTED, "locked"),
    "reads_only": (_AS_DOCUMENTED, "millpond_reader"),
    "constrained": (_AS_DOCUMENTED, "constrained"),
}

_names = itertools.count(1)


def _access():
    access = documented()
    access.profiles["locked"] = {"readonly": "1"}
    constraint = "<async_insert><const/></async_insert>"
    access.profiles["constrained"] = {"constraints": constraint}
    for name, (statement, profile) in MISTAKES.items():
        access.add(name, "millpond", *statement.split("; "), profile=profile)
    access.add("everything", "millpond", *access.users["millpond_setup"].grants)
    access.add("limited", "millpond")
    access.quotas["small"] = {"query_inserts": "1"}
    access.users["limited"].quota = "small"
    return access


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ClickHouseWithUsers(tmp_path_factory.mktemp("users"), _access())
    server.up()
    yield server
    server.kill()


class Place(Site):
    """A site whose commands log in as users of the page."""

    def at_clickhouse(self, user: str) -> tuple[object, ...]:
        place = ("--clickhouse", self.clickhouse.url, "--database", self.database)
        return (*place, *login(self.directory, user))

    def create_tables(self, user: str = "millpond_setup", code: int = 0):
        return self.command("tables", "create", *self.at_clickhouse(user), code=code)

    def consumer_as(self, user: str, *flags: object):
        """A consumer, not started. Each has a separate cursor."""
        name = f"consumer-{next(_names)}"
        flags = (*login(self.directory, user), "--ack-interval", "50ms", *flags)
        return self.consumer_of(*flags, consumer=name, name=name)

    def send_everything(self) -> None:
        """Sends a log record, a span and a data point of each kind."""
        for signal, made in {
            "logs": request(record("log", body="log")),
            "traces": corpus_traces.request(corpus_traces.span("span", trace_id=b"t" * 16)),
            "metrics": corpus_metrics.request(*corpus_metrics.one_of_each("point")),
        }.items():
            export(self.sender.address, made.SerializeToString(), method=METHODS[signal])

    def rows(self) -> dict[str, int]:
        count = self.clickhouse.scalar
        return {table: int(count(f"SELECT count() FROM otel.{table}")) for table in TABLES}


@pytest.fixture
def place(request, tmp_path, shared_minio, server):
    server.query(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")
    place = Place(tmp_path, shared_minio, server)
    place.database = DATABASE
    request.node.site = place
    place.sender = place.gateway()
    yield place
    place.stop()


@pytest.mark.parametrize("statement", statements())
def test_a_server_takes_every_statement_of_the_page(server, statement):
    """As far as a server goes whose users are in a file: it parses the statement and looks up its
    rights, settings and names."""
    with pytest.raises(QueryError) as refused:
        server.query(statement)
    stored = ("ACCESS_STORAGE_READONLY", "ACCESS_STORAGE_FOR_INSERTION_NOT_FOUND")
    assert any(name in str(refused.value) for name in (*stored, "ACCESS_ENTITY_ALREADY_EXISTS"))


def _all_is_written(place, consumer):
    def written() -> bool:
        consumer.must_run()
        return all(count == 1 for count in place.rows().values())

    eventually("a row in every table", written)


def test_each_user_does_its_task(place):
    place.create_tables()
    # A lease that runs out during an INSERT is a warning.
    consumer = place.consumer_as("millpond", "--no-create", "--lease", "60s").up()
    place.send_everything()
    _all_is_written(place, consumer)
    for line in consumer.messages().splitlines():
        assert " WARN " not in line
        assert " ERROR " not in line
    assert consumer.terminate() == 0
    compared = place.millpond("doctor", "--rows", *place.at_clickhouse("millpond_reader"), "--json")
    about_rows = [one for one in place.parsed(compared)["findings"] if "row" in one["what"]]
    assert about_rows
    assert {one["severity"] for one in about_rows} == {"ok"}


def test_the_writer_repairs_and_replays(place):
    place.create_tables()
    place.clickhouse.query("ALTER TABLE otel.otel_logs ADD CONSTRAINT tidy CHECK Body != 'log'")
    consumer = place.consumer_as("millpond", "--no-create").up()
    place.send_everything()
    letters = "millpond_consumer_dead_letters_total"
    eventually("a dead letter", lambda: consumer.metric(letters) == 1)
    eventually("the other rows", lambda: sum(place.rows().values()) == len(TABLES) - 1)
    assert consumer.terminate() == 0
    place.clickhouse.query("ALTER TABLE otel.otel_logs DROP CONSTRAINT tidy")
    place.clickhouse.query("TRUNCATE TABLE otel.otel_metrics_sum")
    as_writer = place.at_clickhouse("millpond")
    place.millpond("dead-letters", "replay", "--all-of", consumer.name, *as_writer)
    place.millpond("consumer", "repair", consumer.name, *as_writer, *_EVERYTHING)
    assert set(place.rows().values()) == {1}


_EVERYTHING = ("--shard", 0, "--from", 0, "--to", 2)


def test_one_user_can_do_everything(place):
    consumer = place.consumer_as("everything").up()
    place.send_everything()
    _all_is_written(place, consumer)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE otel.otel_logs",
        "TRUNCATE TABLE otel.otel_logs",
        "ALTER TABLE otel.otel_logs DELETE WHERE 1",
        "ALTER TABLE otel.otel_logs DROP COLUMN Body",
        "CREATE TABLE otel.other (a Int8) ENGINE = MergeTree ORDER BY a",
        "CREATE DATABASE other",
        "SELECT * FROM elsewhere.secret",
        "INSERT INTO elsewhere.secret SELECT 1",
        "SYSTEM FLUSH LOGS",
        "CREATE USER other",
    ],
)
@pytest.mark.parametrize("user", ["millpond", "millpond_reader"])
def test_a_user_has_no_other_rights(place, statement, user):
    place.create_tables()
    place.clickhouse.query("CREATE DATABASE IF NOT EXISTS elsewhere")
    made = "CREATE TABLE IF NOT EXISTS elsewhere.secret (a Int8) ENGINE = MergeTree ORDER BY a"
    place.clickhouse.query(made)
    with pytest.raises(QueryError, match="ACCESS_DENIED|READONLY"):
        place.clickhouse.as_user(user, statement)


def _ends(consumer) -> str:
    """The sentence that a consumer ends with."""
    consumer.start()
    assert consumer.wait() == 1
    assert "panicked" not in consumer.messages()
    return consumer.messages().strip().splitlines()[-1]


def _waits(place, consumer) -> str:
    """What /readyz says of a consumer that cannot write. It keeps trying."""
    consumer.start()
    place.send_everything()

    def reason() -> str:
        consumer.must_run()
        status, body = http_get(f"http://{consumer.admin}/readyz")
        return body if status == 503 and "writing to the sink" in body else ""

    return eventually("a reason on /readyz", reason)


@pytest.mark.parametrize("user", ["millpond", "nobody"])
def test_a_wrong_password_or_user_is_named(place, user):
    consumer = place.consumer_as(user)
    (place.directory / f"{user}.password").write_text("another-password")
    output = _ends(consumer)
    assert place.clickhouse.url in output
    assert user in output
    assert "the user or the password is wrong; set --clickhouse-user, and MILLPOND_" in output
    assert "password is incorrect, or there is no user with such name" in output
    assert "another-password" not in consumer.messages()


@pytest.mark.parametrize("right", ["insert", "select"])
def test_a_right_that_one_table_lacks_is_named_and_the_consumer_waits_for_it(place, right):
    place.create_tables()
    consumer = place.consumer_as(f"without_{right}", "--no-create")
    output = _waits(place, consumer)
    statement = f"GRANT {right.upper()} ON {GAUGE} TO without_{right}"
    assert f"the user lacks a right; run {statement}: Code: 497." in output
    # The other streams go on.
    others = {"otel_logs": 1, "otel_traces": 1}
    eventually("the other rows", lambda: others.items() <= place.rows().items())


def test_a_table_that_the_user_may_not_see_is_named(place):
    place.create_tables()
    output = _ends(place.consumer_as("without_table", "--no-create"))
    assert "there is no table `otel`.`otel_metrics_gauge`" in output
    assert "or grant SELECT and INSERT on it" in output
    output = _ends(place.consumer_as("without_table"))
    assert "table `otel`.`otel_metrics_gauge` at " in output
    assert "hidden from the user; if it exists, grant SELECT and INSERT on it" in output


def test_a_table_whose_columns_are_hidden_is_one_fault(place):
    """And not an ALTER for each column."""
    place.create_tables()
    consumer = place.consumer_as("without_columns", "--no-create")
    _ends(consumer)
    output = consumer.messages()
    assert "the user does not see the columns of table `otel`.`otel_metrics_gauge`" in output
    assert "GRANT SELECT, INSERT ON `otel`.`otel_metrics_gauge`" in output
    assert "ALTER TABLE" not in output


def test_a_right_that_the_start_needs_is_named(place):
    place.create_tables()
    output = _ends(place.consumer_as("without_window", "--no-create"))
    assert "run GRANT SELECT ON system.merge_tree_settings TO without_window: Code" in output
    output = _refused_create(place)
    assert "database `otel` at " in output
    assert "create it as another user (`millpond tables create`)" in output


def _refused_create(place) -> str:
    place.clickhouse.query(f"DROP DATABASE {DATABASE} SYNC")
    return place.create_tables("millpond", code=1).messages()


def test_a_read_only_user_gets_an_explanation(place):
    place.create_tables()
    remedy = "give the user a profile with readonly = 0"
    output = _ends(place.consumer_as("reads_nothing", "--no-create"))
    assert remedy in output
    assert "setting in readonly mode" in output
    output = _waits(place, place.consumer_as("reads_only", "--no-create"))
    assert remedy in output
    assert "reads_only: Cannot execute query in readonly mode" in output


def test_a_setting_that_the_profile_fixes_is_named(place):
    place.create_tables()
    output = _waits(place, place.consumer_as("constrained", "--no-create"))
    assert "remove that constraint" in output
    assert "Setting async_insert should not be changed" in output


def test_a_consumer_waits_for_its_quota(place):
    place.create_tables()
    output = _waits(place, place.consumer_as("limited", "--no-create"))
    assert "QUOTA_EXCEEDED" in output


@pytest.mark.parametrize("user", ["millpond", "without_processes"])
def test_without_the_right_to_see_queries_a_reset_waits(place, user):
    """Without it, the consumer waits after a reset until earlier INSERTs have timed out."""
    place.create_tables()
    first = place.consumer_as(user, "--no-create").up()
    place.send_everything()
    _all_is_written(place, first)
    assert first.terminate() == 0
    place.millpond("consumer", "reset", first.name, "--to", "earliest", "--yes")
    # Longer than the patience of the tests.
    again = place.consumer_of(
        *(*login(place.directory, user), "--no-create", "--insert-timeout", "600s"),
        consumer=first.name,
        name=f"{first.name}-again",
    )
    again.start()
    if user == "millpond":
        again.until_ready()
    else:
        waiting = "requests of earlier owners"
        eventually("it waits", lambda: waiting in http_get(f"http://{again.admin}/readyz")[1])
    assert set(place.rows().values()) == {1}
