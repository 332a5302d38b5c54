"""Common mistakes: each ends with a non-zero exit code and one sentence with the remedy; nothing
hangs and nothing prints a backtrace."""

import socketserver
import threading

import pytest

from harness.pki import Authority
from harness.process import Process, free_port
from harness.services import CREDENTIALS, Buffer, program, with_defaults


def _millpond(site, *argv: object, environment: dict | None = None) -> str:
    """Runs a command that must fail and returns its messages."""
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
    output = process.messages().split("\n", 1)[1]
    assert code > 0, f"ended with {code}: {output}"
    assert "panicked" not in output
    assert "stack backtrace" not in output.lower()
    return output


def _free() -> dict[str, str]:
    flags = ("--listen", "--listen-http", "--admin")
    return {flag: f"127.0.0.1:{free_port()}" for flag in flags}


def _addresses() -> list[object]:
    return with_defaults([], _free())


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
    output = _millpond(site, "gateway", *site.buffer.flags, "--lingr", "1s")
    assert "--lingr" in output
    assert "--linger" in output


def test_an_unknown_command_is_named(site):
    assert "gatway" in _millpond(site, "gatway")


def test_a_missing_buffer_is_asked_for(site):
    assert "buffer" in _millpond(site, "gateway", *_addresses())


def test_a_url_of_an_unknown_scheme_is_refused(site):
    output = _millpond(site, "gateway", "--buffer", "ftp://host/path", *_addresses())
    assert "ftp" in output
    assert "s3://" in output


def test_an_unusable_value_names_its_setting(site):
    output = _millpond(site, "gateway", *site.buffer.flags, "--linger", "soon", *_addresses())
    assert "linger" in output
    assert "soon" in output


def test_an_unknown_key_of_the_configuration_file_names_the_nearest(site):
    file = site.directory / "millpond.toml"
    file.write_text(f'buffer = "{site.buffer.url}"\nlingr = "1s"\n')
    output = _millpond(site, "gateway", "--config", file, *_addresses())
    assert "lingr" in output.replace("linger", "")
    assert "linger" in output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[gateway]\nmemory_limit = 5\n", 'line 2: memory_limit cannot be "5": use 16MiB or more'),
        (
            '\nlinger = "soon"\n',
            'line 2: linger: "soon" is not a length of time: write 250ms, 1s, 2m or 1h',
        ),
        ('[gateway]\ninsecure = "perhaps"\n', "line 2: insecure must be true or false"),
        (
            "[gateway]\nwriters = 4\n",
            "line 2: writers is a setting of `millpond consume`: move it to [consume]",
        ),
        (
            '[consume]\n\nlinger = "1s"\n',
            "line 3: linger is a setting of `millpond gateway`: move it to [gateway]",
        ),
    ],
)
def test_a_mistake_in_the_configuration_file_names_its_line_and_key(site, text, says):
    file = site.directory / "millpond.toml"
    file.write_text(text)
    output = _millpond(site, "gateway", *site.buffer.flags, "--config", file, *_addresses())
    assert output == f"millpond: settings file {file}: {says}\n"


@pytest.mark.parametrize(
    ("command", "settings", "unknown"),
    [
        ("gateway", {"MILLPOND_LINGR": "5s"}, {"MILLPOND_LINGR": "MILLPOND_LINGER"}),
        (
            "consume",
            {"MILLPOND_WRITER": "3", "MILLPOND_FETCHER": "4"},
            {"MILLPOND_FETCHER": "MILLPOND_FETCHERS", "MILLPOND_WRITER": "MILLPOND_WRITERS"},
        ),
        ("gc", {"MILLPOND_GC_GRAC": "3h"}, {"MILLPOND_GC_GRAC": "MILLPOND_GC_GRACE"}),
    ],
)
def test_a_mistyped_variable_names_the_nearest_one(site, command, settings, unknown):
    flags = ["--clickhouse", site.clickhouse.url] if command == "consume" else []
    output = _millpond(site, command, *site.buffer.flags, *flags, environment=settings)
    sentences = [
        f"{typed} is not a setting; did you mean {meant}?" for typed, meant in unknown.items()
    ]
    remedy = "unset it, or pass --ignore-unknown-env if something else needs it"
    assert output == "\n".join([f"millpond: {sentences[0]}", *sentences[1:], remedy, ""])


def test_a_mistyped_variable_of_a_required_setting_is_named(site):
    output = _millpond(site, "status", environment={"MILLPOND_BUFER": site.buffer.url})
    assert "--buffer <URL>" in output
    assert output.endswith("MILLPOND_BUFER is not a setting; did you mean MILLPOND_BUFFER?\n")


def test_variables_of_kubernetes_and_accepted_ones_are_no_mistake(site):
    address = "tcp://10.43.0.7:4317"
    injected = {
        "MILLPOND_GATEWAY_SERVICE_HOST": "10.43.0.7",
        "MILLPOND_GATEWAY_SERVICE_PORT": "4317",
        "MILLPOND_GATEWAY_SERVICE_PORT_OTLP_GRPC": "4317",
        "MILLPOND_GATEWAY_PORT": address,
        "MILLPOND_GATEWAY_PORT_4317_TCP": address,
        "MILLPOND_GATEWAY_PORT_4317_TCP_PROTO": "tcp",
        "MILLPOND_GATEWAY_PORT_4317_TCP_PORT": "4317",
        "MILLPOND_GATEWAY_PORT_4317_TCP_ADDR": "10.43.0.7",
    }
    # The missing bucket ends both, so the variables did not.
    gateway = ("gateway", *site.buffer.flags, *_addresses())
    assert "there is no bucket" in _millpond(site, *gateway, environment=injected)
    other = {"MILLPOND_OF_OUR_PLATFORM": "1"}
    assert "there is no bucket" in _millpond(
        site, *gateway, "--ignore-unknown-env", environment=other
    )
    assert "MILLPOND_OF_OUR_PLATFORM is not a setting" in _millpond(
        site, *gateway, environment=other
    )


def test_a_directory_that_cannot_be_created_ends_the_start(site):
    flags = ("--buffer", "file:///proc/millpond/buffer", "--create-bucket")
    output = _millpond(site, "gateway", *flags, *_addresses())
    assert "cannot create the directory /proc/millpond/buffer" in output
    assert "no directory can be created there" in output


def test_an_address_that_is_not_clickhouse_ends_the_start(site):
    site.gateway().terminate()
    output = _millpond(
        site,
        *("consume", *site.buffer.flags, "--clickhouse", site.buffer.endpoint),
        *("--admin", f"127.0.0.1:{free_port()}"),
    )
    assert f"{site.buffer.endpoint} is not ClickHouse's HTTP interface (HTTP status " in output
    assert "give its address, such as http://127.0.0.1:8123" in output
    assert len(output.splitlines()) == 1, output


def test_an_address_that_does_not_speak_http_ends_the_start(site):
    site.gateway().terminate()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Redis) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        output = _millpond(
            site,
            *("consume", *site.buffer.flags, "--clickhouse", url),
            *("--admin", f"127.0.0.1:{free_port()}"),
        )
        server.shutdown()
    expected = f"{url} is not ClickHouse's HTTP interface (the answer is not HTTP; for TLS give"
    assert expected in output
    assert len(output.splitlines()) == 1, output


class _Redis(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"-ERR unknown command 'POST'\r\n")


def test_missing_credentials_are_two_lines(site):
    missing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(site.directory)}
    output = _millpond(site, "gateway", *site.buffer.flags, *_addresses(), environment=missing)
    found, remedy = output.splitlines()
    assert f"cannot open {site.buffer.url}: no AWS credentials were found (" in found
    assert remedy.startswith("whatever works for `aws s3 ls` works here: ")
    for debug in ("{", "}", "CredentialsNotLoaded", "source:"):
        assert debug not in output


def test_a_bucket_that_does_not_exist_is_named(site):
    output = _millpond(site, "gateway", *site.buffer.flags, *_addresses())
    assert site.buffer.url.split("/")[2] in output


def test_wrong_credentials_differ_from_an_outage(site):
    site.gateway().terminate()
    output = _millpond(
        site,
        *("gateway", *site.buffer.flags, *_addresses()),
        environment={"AWS_SECRET_ACCESS_KEY": "wrong-secret"},
    )
    assert site.buffer.url.split("/")[2] in output


def test_an_address_in_use_is_named(site):
    gateway = site.gateway()
    for flag, address in (
        ("--listen", gateway.address),
        ("--listen-http", gateway.http_address),
    ):
        output = _millpond(
            site, "gateway", *site.buffer.flags, *with_defaults([flag, address], _free())
        )
        assert address in output
        assert f"({flag})" in output


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
@pytest.mark.parametrize("port", ["--listen", "--listen-http", "--listen-kafka"])
def test_reachable_addresses_need_tls_or_an_explicit_flag(site, port, address):
    output = _millpond(site, "gateway", *site.buffer.flags, port, address)
    for word in (f"{port}: {address}", "--tls-cert", "127.0.0.1", "--insecure"):
        assert word in output


def test_files_of_tls_that_cannot_be_used_are_named(site):
    ours, other = (Authority(site.directory, name) for name in ("ours", "other"))
    certificate, key = ours.issue("gateway")
    _, others_key = other.issue("gateway")
    missing = site.directory / "missing.pem"
    for flags, expected in (
        (("--tls-cert", certificate), "--tls-cert needs --tls-key"),
        (("--tls-client-ca", ours.file), "--tls-client-ca needs --tls-cert and --tls-key"),
        (("--tls-cert", certificate, "--tls-key", missing), f"--tls-key {missing}: cannot be read"),
        (
            ("--tls-cert", certificate, "--tls-key", others_key),
            f"--tls-key {others_key}: it is not the key of the certificate in --tls-cert",
        ),
        (
            ("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", key),
            f"--tls-client-ca {key}: it contains no certificate",
        ),
    ):
        assert expected in _millpond(site, "gateway", *site.buffer.flags, *flags, *_addresses())


def test_settings_of_the_kafka_port_that_cannot_be_used_are_named(site):
    listen = ("--listen-kafka", "127.0.0.1:0")
    file, missing = (site.directory / name for name in ("topics.toml", "missing.toml"))
    file.write_text('[[topic]]\nname = "audit"\nencoding = "avro"\n')
    for flags, expected in (
        ((*listen, "--kafka-topics", missing), f"--kafka-topics {missing}: cannot be read"),
        ((*listen, "--kafka-topics", file), "unknown variant `avro`"),
        ((*listen, "--advertise-kafka", "gateway"), '"gateway" is not HOST:PORT'),
        (("--kafka-topics", file), "--listen-kafka <ADDR>"),
        (("--advertise-kafka", "gateway:9092"), "--listen-kafka <ADDR>"),
    ):
        assert expected in _millpond(site, "gateway", *site.buffer.flags, *flags, *_addresses())


def test_a_mistake_in_the_tokens_file_names_its_line_and_no_token(site):
    file = site.directory / "tokens.toml"
    secret = "secret-0123456789abcdef"
    for text, expected in (
        (f'[[token]]\nname = "agents"\ntokn = "{secret}"\n', "line 3: an unknown key"),
        (f'[[token]]\nname = "agents"\ntoken = "{secret}\n', "line 3: "),
        ("", "it has no [[token]]"),
    ):
        file.write_text(text)
        flags = ("--tokens", file, *_addresses())
        output = _millpond(site, "gateway", *site.buffer.flags, *flags)
        assert f"--tokens {file}: {expected}" in output
        assert secret not in output


@pytest.mark.parametrize("streams", ["*.logs", "", "a b"])
def test_an_invalid_stream_name_is_refused(site, streams):
    output = _millpond(site, "consume", *site.buffer.flags, f"--streams={streams}")
    assert "--streams" in output


@pytest.mark.parametrize("grace", ["soon", "10", "-1s", ""])
def test_a_grace_that_is_no_time_is_refused(site, grace):
    output = _millpond(site, "gc", *site.buffer.flags, f"--gc-grace={grace}")
    assert "--gc-grace" in output
    assert "is not a length of time" in output


def test_a_grace_that_starves_gateways_causes_a_warning(site):
    site.gateway().terminate()
    assert "gc-grace is 5s" in site.millpond("gc", "--gc-grace", "5s").messages()
    assert "gc-grace" not in site.millpond("gc", "--dry-run").messages().split("\n", 1)[1]


def test_a_tail_that_can_hold_nothing_is_refused(site):
    flags = ("--create-bucket", *_addresses())
    output = _millpond(site, "gateway", *site.buffer.flags, "--tail-max", "0", *flags)
    assert "tail_max" in output
    assert "use 1 to 3,072" in output


@pytest.mark.parametrize("most", ["1001", "-1", "many"])
def test_a_number_of_dead_letters_that_cannot_be_is_refused(site, most):
    output = _millpond(site, "consume", *site.buffer.flags, f"--dead-letters-max={most}")
    assert "--dead-letters-max" in output


@pytest.mark.parametrize("command", [("show",), ("remove",)])
def test_other_objects_than_dead_letters_stay_untouched(site, command):
    site.gateway().terminate()
    output = _millpond(site, "dead-letters", *command, "shards/0000/manifest", *site.buffer.flags)
    assert "is not the name of a dead letter" in output
    gone = "shards/0000/dead-letters/e2e/00000000000000000005-otlp.logs-0000000003-0badcafe"
    output = _millpond(site, "dead-letters", *command, gone, *site.buffer.flags)
    assert f"there is no dead letter {gone}" in output


@pytest.mark.parametrize("command", [("reset", "--to", "earliest"), ("remove",)])
def test_a_shard_that_is_not_there_is_named(site, command):
    site.gateway().terminate()
    word, *flags = command
    output = _millpond(site, "consumer", word, "e2e", *flags, "--shard", "1", *site.buffer.flags)
    assert "there is no shard 1: the buffer has 1" in output


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
    # The exporter's table has an index on the body, which prevents the change.
    for index in site.clickhouse.lines(
        "SELECT name FROM system.data_skipping_indices"
        f" WHERE database = '{site.database}' AND expr LIKE '%Body%'"
    ):
        site.clickhouse.query(f"ALTER TABLE {table} DROP INDEX {index}")
    site.clickhouse.query(f"ALTER TABLE {table} {change}")
    output = _consume(site)
    for word in [f"`{site.database}`.`otel_logs`", "millpond tables migrate", *expected]:
        assert word in output


def test_commands_on_a_buffer_that_is_not_there_say_so(site):
    folder = site.directory / "empty"
    folder.mkdir()
    empty = Buffer(folder.as_uri())
    for command in (("status",), ("gc",), ("consumer", "wait", "e2e"), ("tail",), ("cost",)):
        output = _millpond(site, *command, *empty.flags)
        assert f"there is no buffer at {folder.as_uri()}" in output
        assert "a gateway makes the buffer" in output


@pytest.mark.parametrize(
    ("command", "flags", "says"),
    [
        ("gateway", ("--listen", "localhost:4317"), "like 127.0.0.1:4317"),
        ("gateway", ("--shards", "0"), "1..=10000"),
        ("gateway", ("--shards", "100000"), "1..=10000"),
        ("gateway", ("--compression-level", "99"), "1..=22"),
        ("gateway", ("--request-timeout", "0s"), "without a pause"),
        ("gateway", ("--price-put", "-1"), "0 or more"),
        ("gateway", ("--memory-limit", "5"), "use 16MiB or more"),
        ("gateway", ("--segment-bytes", "1"), "use 4KiB or more"),
        ("gateway", ("--segment-raw-bytes", "1"), "use 4KiB or more"),
        ("gateway", ("--block-bytes", "1"), "use 1KiB or more"),
        ("gateway", ("--max-message-bytes", "1"), "use 4KiB or more"),
        ("gateway", ("--max-uploads", "0"), "1 or more"),
        ("consume", ("--memory-limit", "5"), "use 16MiB or more"),
        ("consume", ("--batch-bytes", "1"), "use 4KiB or more"),
        ("consume", ("--chunk-bytes", "1"), "use 4KiB or more"),
        ("consume", ("--batch-records", "0"), "1 or more"),
        ("consume", ("--chunk-rows", "0"), "1 or more"),
        ("consume", ("--max-in-flight", "0"), "1 or more"),
        # It would poll the store, which bills each request, without a pause.
        ("consume", ("--poll-interval", "0s"), "without a pause"),
        ("consume", ("--ack-interval", "0s"), "without a pause"),
        ("consume", ("--lease", "10ms"), "1s or more"),
        ("consume", ("--writers", "0"), "1 or more"),
        ("consume", ("--fetchers", "0"), "1 or more"),
        ("tail", ("--poll-interval", "0s"), "without a pause"),
        ("doctor", ("--rows",), "--clickhouse"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(site, command, flags, says):
    output = _millpond(site, command, *site.buffer.flags, *flags)
    assert flags[0] in output
    assert says in output
