"""What people get wrong: each ends with a non-zero exit code and one sentence that says what to
change; nothing hangs and nothing prints a backtrace."""

import pytest

from harness.process import Process, free_port
from harness.services import CREDENTIALS, Buffer, program


def _millpond(site, *argv: object, environment: dict | None = None) -> str:
    """Runs a command that must fail and returns what it said."""
    process = site.add(
        Process(
            "millpond",
            [program("millpond"), *argv],
            site.directory,
            {**CREDENTIALS, **(environment or {})},
        )
    )
    process.start()
    code = process.wait()
    said = process.messages().split("\n", 1)[1]
    assert code > 0, f"ended with {code}: {said}"
    assert "panicked" not in said
    assert "stack backtrace" not in said.lower()
    return said


def _addresses() -> list[str]:
    return [
        *("--listen", f"127.0.0.1:{free_port()}"),
        *("--admin", f"127.0.0.1:{free_port()}"),
    ]


def _consume(site, *flags: object, buffer: Buffer | None = None, database: str | None = None):
    return _millpond(
        site,
        "consume",
        *(buffer or site.buffer).flags,
        *("--consumer", "e2e", "--clickhouse", site.clickhouse.url),
        *("--database", database or site.database),
        *("--admin", f"127.0.0.1:{free_port()}"),
        *flags,
    )


def test_an_unknown_flag_names_the_nearest_one(site):
    said = _millpond(site, "gateway", *site.buffer.flags, "--lingr", "1s")
    assert "--lingr" in said
    assert "--linger" in said


def test_an_unknown_command_is_named(site):
    assert "gatway" in _millpond(site, "gatway")


def test_a_missing_buffer_is_asked_for(site):
    assert "buffer" in _millpond(site, "gateway", *_addresses())


def test_a_url_of_an_unknown_scheme_is_refused(site):
    said = _millpond(site, "gateway", "--buffer", "ftp://host/path", *_addresses())
    assert "ftp" in said
    assert "s3://" in said


def test_an_unusable_value_names_its_setting(site):
    said = _millpond(site, "gateway", *site.buffer.flags, "--linger", "soon", *_addresses())
    assert "linger" in said
    assert "soon" in said


def test_an_unknown_key_of_the_configuration_file_names_the_nearest(site):
    file = site.directory / "millpond.toml"
    file.write_text(f'buffer = "{site.buffer.url}"\nlingr = "1s"\n')
    said = _millpond(site, "gateway", "--config", file, *_addresses())
    assert "lingr" in said.replace("linger", "")
    assert "linger" in said


def test_a_bucket_that_does_not_exist_is_named(site):
    said = _millpond(site, "gateway", *site.buffer.flags, *_addresses())
    assert site.buffer.url.split("/")[2] in said


def test_wrong_credentials_are_told_from_an_outage(site):
    site.gateway().terminate()
    said = _millpond(
        site,
        *("gateway", *site.buffer.flags, *_addresses()),
        environment={"AWS_SECRET_ACCESS_KEY": "wrong-secret"},
    )
    assert site.buffer.url.split("/")[2] in said


def test_an_address_in_use_is_named(site):
    gateway = site.gateway()
    said = _millpond(
        site,
        *("gateway", *site.buffer.flags, "--listen", gateway.address),
        *("--admin", f"127.0.0.1:{free_port()}"),
    )
    assert gateway.address in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("DROP COLUMN Body", ["Body"]),
        ("MODIFY COLUMN SeverityNumber Int64", ["SeverityNumber", "Int64", "UInt8"]),
    ],
    ids=["missing", "other type"],
)
def test_a_table_that_does_not_fit_names_the_column(site, change, expected):
    site.gateway()
    site.consumer().terminate()
    table = f"{site.database}.otel_logs"
    # The exporter's table has an index over the body, which holds on to it.
    for index in site.clickhouse.lines(
        "SELECT name FROM system.data_skipping_indices"
        f" WHERE database = '{site.database}' AND expr LIKE '%Body%'"
    ):
        site.clickhouse.query(f"ALTER TABLE {table} DROP INDEX {index}")
    site.clickhouse.query(f"ALTER TABLE {table} {change}")
    said = _consume(site)
    for word in [f"`{site.database}`.`otel_logs`", "ALTER TABLE", *expected]:
        assert word in said
