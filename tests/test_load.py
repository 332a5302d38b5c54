"""`millpond load` sends events as well as logs: over HTTP and as a Kafka producer, each once."""

import pytest

from harness.events import OWN_COLUMNS
from harness.pki import Authority
from harness.process import eventually, free_port
from harness.services import Load

EVENTS = """
[[table]]
stream = "events.load"
table = "events"
"""

STREAM = ("--stream", "events.load", "--records-per-request", 50, "--concurrency", 4)
TOKEN = "a-token-that-is-long-enough-0123"


def _rows(site) -> list[str]:
    """A consumer has the events in a table: their ids, with the names of their users."""
    site.clickhouse.query(f"CREATE DATABASE {site.database}")
    site.clickhouse.query(
        f"CREATE TABLE {site.database}.events"
        f" (event_id String, time DateTime64(9), message String, status UInt16, {OWN_COLUMNS})"
        " ENGINE = MergeTree ORDER BY event_id"
    )
    file = site.directory / "event-tables.toml"
    file.write_text(EVENTS)
    consumer = site.consumer("--event-tables", file, "--ack-interval", "50ms")

    def stored() -> list[str]:
        consumer.must_run()
        return sorted(
            site.clickhouse.lines(
                f"SELECT event_id FROM {site.database}.events"
                " WHERE message != '' AND status IN (200, 500)"
                " AND time > now() - INTERVAL 1 HOUR"
            )
        )

    return stored


def test_events_of_every_format_are_acknowledged_and_stored_once(site):
    kafka = f"127.0.0.1:{free_port()}"
    gateway = site.gateway("--listen-kafka", kafka)
    stored = _rows(site)
    loads = [
        Load(site.directory, endpoint, *STREAM, *flags, records=1_020, name=name)
        for name, endpoint, flags in (
            ("json", gateway.http_address, ("--format", "json")),
            ("gzip", gateway.http_address, ("--format", "json", "--compression", "gzip")),
            ("zstd", gateway.http_address, ("--format", "json", "--compression", "zstd")),
            ("kafka", kafka, ("--format", "kafka", "--compression", "zstd")),
        )
    ]
    acknowledged = []
    for load in loads:
        site.add(load)
        report = load.run()
        assert (report["records_acknowledged"], report["errors"]) == (1_020, {}), report
        acknowledged += load.acknowledged()
    eventually("the rows", lambda: len(stored()) >= len(acknowledged))
    assert stored() == sorted(acknowledged)


@pytest.mark.parametrize("form", ["json", "kafka"])
def test_a_load_shows_a_token(site, form):
    authority = Authority(site.directory, "servers")
    certificate, key = authority.issue("gateway")
    tokens = site.directory / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "load"\ntoken = "{TOKEN}"\n')
    kafka = f"127.0.0.1:{free_port()}"
    secured = ("--tls-cert", certificate, "--tls-key", key) if form == "json" else ()
    gateway = site.gateway("--listen-kafka", kafka, "--tokens", tokens, *secured)
    endpoint, trust, name = {
        "json": (f"https://{gateway.http_address}", ("--tls-ca", authority.file), ()),
        "kafka": (kafka, (), ("--token-name", "load")),
    }[form]
    command = (
        *("load", "--endpoint", endpoint, "--format", form, *STREAM, *trust, *name),
        *("--records", 200, "--run", form, "--json"),
    )
    report = site.parsed(site.command(*command, "--token", TOKEN))
    assert report["unacknowledged"] == 0, report
    if form == "json":
        report = site.parsed(site.command(*command, "--token", TOKEN[:-1], code=1))
        assert (report["errors"], report["unacknowledged"]) == ({"HTTP 401": 4}, 200)
    stored = _rows(site)
    eventually("the rows", lambda: len(stored()) >= 200)
    assert stored() == [f"{form}-{number:012}" for number in range(200)]


def test_a_stream_that_cannot_be_is_reported(site):
    gateway = site.gateway()
    report = site.parsed(
        site.command(
            *("load", "--endpoint", gateway.http_address, "--format", "json", "--json"),
            *("--stream", "no stream", "--records", 10),
            code=1,
        )
    )
    assert (report["errors"], report["records_acknowledged"]) == ({"HTTP 400": 1}, 0)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ("--token", TOKEN),
            "token: Kafka's SASL/PLAIN needs the token's name as well: add --token-name",
        ),
        (
            ("--token-name", "load"),
            "token-name: there is no token of this name: set MILLPOND_TOKEN",
        ),
        (
            ("--endpoint", "http://127.0.0.1:9092/"),
            "endpoint: --format kafka takes host:port without http://, such as 127.0.0.1:9092",
        ),
        (("--endpoint", "https://gateway:9092"), "without https://, such as gateway:9092"),
        (
            ("--tls-ca", "ca.pem"),
            "tls-ca: this program was built without TLS for Kafka: use a release",
        ),
    ],
    ids=["token", "token-name", "http", "https", "tls"],
)
def test_settings_that_kafka_cannot_have_are_refused(site, flags, expected):
    command = ("load", "--format", "kafka", "--stream", "events.load", "--records", 1, *flags)
    refused = site.command(*command, code=1)
    assert expected in refused.messages(), refused.messages()
