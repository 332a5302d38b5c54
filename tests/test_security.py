"""TLS, client certificates and bearer tokens end to end: real clients, tenants with separate
streams, and certificates and tokens that change while records flow."""

import hashlib
import http.server
import os
import threading

import pytest

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.pki import Authority
from harness.process import eventually
from harness.services import ENDLESS, forward_to, telemetrygen

AGENTS = "agents-0123456789abcdef0123456789abcdef"
ACME = "acme-0123456789abcdef0123456789abcdef"
GLOBEX = "globex-0123456789abcdef0123456789abcdef"


def _tokens(site, *entries: tuple[str, str, str | None]):
    """Writes the tokens file: each entry has a name, a token and optionally a prefix. The file
    contains only digests."""
    text = "# Allowed senders.\n"
    for name, token, prefix in entries:
        digest = hashlib.sha256(token.encode()).hexdigest()
        text += f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n'
        text += f'prefix = "{prefix}"\n' if prefix else ""
    file = site.directory / "tokens.toml"
    file.write_text(text)
    return file


def _assert_silent(*processes) -> None:
    """Asserts that no log contains a token."""
    for process in processes:
        for token in (AGENTS, ACME, GLOBEX):
            assert token not in process.messages()


def _reloaded(gateway, outcome: str) -> bool:
    label = f'outcome="{outcome}"'
    lines = gateway.metrics().splitlines()
    counts = [line for line in lines if "_reloads_total{" in line and label in line]
    return any(float(line.rsplit(" ", 1)[1]) > 0 for line in counts)


def test_real_clients_with_certificates_and_tokens(site):
    servers, clients = (Authority(site.directory, name) for name in ("servers", "clients"))
    certificate, key = servers.issue("gateway")
    own, own_key = clients.issue("agent")
    tokens = _tokens(site, ("agents", AGENTS, None), ("acme", ACME, "acme"))
    gateway = site.gateway(
        *("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", clients.file),
        *("--tokens", tokens),
    )
    consumer = site.consumer()
    collector = site.collector(
        "otlp_grpc",
        {
            **forward_to(gateway.address),
            "tls": {"ca_file": str(servers.file), "cert_file": str(own), "key_file": str(own_key)},
            "headers": {"authorization": f"Bearer {ACME}"},
        },
    )
    load = site.load(collector, records=5_000)
    run = load.run()["run"]
    acknowledged = load.acknowledged()
    assert len(acknowledged) == 5_000

    shown = ("--ca-cert", servers.file, "--client-cert", own, "--client-key", own_key, "--mtls")
    telemetrygen(
        site.directory,
        gateway.address,
        *shown,
        *("--otlp-header", f'authorization="Bearer {AGENTS}"', "--logs", 500),
        tls=True,
    )
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer, collector)
    eventually("all rows", lambda: rows_of(site.clickhouse, site.database) >= 5_500)
    for process in (collector, gateway, consumer):
        assert process.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database, [run])
    # Rows show the streams that they came through.
    by_stream = site.clickhouse.rows(
        "SELECT splitByChar('/', _millpond_source)[3] AS stream, toUInt32(count()) AS rows"
        f" FROM {site.database}.otel_logs GROUP BY stream ORDER BY stream"
    )
    assert by_stream == [
        {"stream": "acme.otlp.logs", "rows": 5_000},
        {"stream": "otlp.logs", "rows": 500},
    ]
    _assert_silent(gateway, consumer)


def test_tenants_have_their_own_consumers_and_tables(site):
    entries = (("acme", ACME, "acme"), ("globex", GLOBEX, "globex"), ("agents", AGENTS, None))
    gateway = site.gateway("--tokens", _tokens(site, *entries))
    sent = {}
    for name, token, prefix in entries:
        load = site.load(gateway, records=2_000, name=f"load-{name}")
        load.environment["MILLPOND_TOKEN"] = token
        load.run()
        sent[f"{prefix or 'otlp'}.*"] = load.acknowledged()
    consumers = []
    for number, pattern in enumerate(sent):
        name, database = f"tenant-{number}", f"{site.database}_{number}"
        consumer = site.consumer(
            *("--streams", pattern), consumer=name, name=name, database=database
        )
        consumers.append((consumer, database))
    for (consumer, database), acknowledged in zip(consumers, sent.values(), strict=True):
        assert len(acknowledged) == 2_000
        wait_for_all(acknowledged, site.clickhouse, database, gateway, consumer)
    for (consumer, database), acknowledged in zip(consumers, sent.values(), strict=True):
        assert consumer.terminate() == 0
        assert_exactly_once(acknowledged, site.clickhouse, database)
    site.check_manifest()
    _assert_silent(gateway)


def test_requests_without_a_token_are_refused_and_leave_nothing(site):
    gateway = site.gateway("--tokens", _tokens(site, ("agents", AGENTS, None)))
    for name, environment in (("missing", {}), ("wrong", {"MILLPOND_TOKEN": ACME})):
        load = site.load(gateway, records=100, name=f"load-{name}")
        load.environment.update(environment)
        load.start()
        assert load.wait() == 1
        assert load.report()["errors"] == {"Unauthenticated": 1}
        assert load.acknowledged() == []
    assert gateway.metric("millpond_gateway_requests_denied_total") == 2
    assert gateway.metric("millpond_producer_records_total") == 0
    assert "request refused: no bearer token" in gateway.messages()
    _assert_silent(gateway)


def test_a_hangup_takes_over_new_files_and_refuses_broken_ones(site):
    old, new = (Authority(site.directory, name) for name in ("old", "new"))
    place = site.directory / "secrets"
    place.mkdir()
    certificate, key = place / "tls.crt", place / "tls.key"

    def install(issued) -> None:
        for source, target in zip(issued, (certificate, key), strict=True):
            target.write_bytes(source.read_bytes())

    install(old.issue("gateway"))
    flags = ("--tls-cert", certificate, "--tls-key", key, "--reload-interval", "0s")
    gateway, consumer = site.gateway(*flags), site.consumer()
    # All on one connection, so none is made after the certificate has changed.
    steady = ("--rate", 1_000, "--concurrency", 64)
    loads = [site.load(gateway, "--tls-ca", old.file, *steady, records=ENDLESS)]
    loads[0].start()

    def goes_on(already: int = 0) -> bool:
        loads[0].must_run()
        return len(loads[0].acknowledged()) > already

    eventually("records over the old certificate", goes_on)

    certificate.write_text("no certificate")
    gateway.send(1)
    eventually("the refusal", lambda: _reloaded(gateway, "failure"))
    assert gateway.metric("millpond_gateway_reload_failing") == 1
    assert f"--tls-cert {certificate}: it contains no certificate" in gateway.messages()
    loads.append(site.load(gateway, "--tls-ca", old.file, records=500, name="load-still"))
    loads[1].run()

    install(new.issue("gateway"))
    gateway.send(1)
    eventually("the new certificate", lambda: _reloaded(gateway, "success"))
    assert gateway.metric("millpond_gateway_reload_failing") == 0
    loads.append(site.load(gateway, "--tls-ca", new.file, records=500, name="load-new"))
    loads[2].run()
    stranger = site.load(
        gateway, *("--tls-ca", old.file, "--retry-for", "0s"), records=100, name="load-stranger"
    )
    stranger.start()
    assert stranger.wait() == 1

    # The old connection continues undisturbed.
    before = len(loads[0].acknowledged())
    eventually("more over the old connection", lambda: goes_on(before))
    loads[0].terminate()
    assert loads[0].report()["errors"] == {}
    assert loads[0].report()["retries"] == 0
    acknowledged = [name for load in loads for name in load.acknowledged()]
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer)
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)


def test_a_mounted_secret_that_is_swapped_is_seen_without_a_signal(site):
    """Like Kubernetes: files are links through `..data`, and a rename replaces that link."""
    tokens = site.directory / "mounted"
    tokens.mkdir()

    def mount(number: int, *entries) -> None:
        folder = tokens / f"..2026_{number}"
        folder.mkdir()
        _tokens(site, *entries).rename(folder / "tokens.toml")
        (tokens / "..data_tmp").symlink_to(folder.name)
        os.replace(tokens / "..data_tmp", tokens / "..data")

    mount(1, ("agents", AGENTS, None))
    (tokens / "tokens.toml").symlink_to("..data/tokens.toml")
    gateway = site.gateway("--tokens", tokens / "tokens.toml", "--reload-interval", "50ms")
    mount(2, ("acme", ACME, None))
    eventually("the new tokens", lambda: _reloaded(gateway, "success"))
    for token, code in ((ACME, 0), (AGENTS, 1)):
        load = site.load(gateway, records=100, name=f"load-{code}")
        load.environment["MILLPOND_TOKEN"] = token
        load.start()
        assert load.wait() == code


def test_a_tokens_file_that_is_written_in_halves_locks_nobody_out(site):
    entries = [("agents", AGENTS, None), ("acme", ACME, "acme"), ("globex", GLOBEX, "globex")]
    file = _tokens(site, *entries)
    whole = "count = 3\n" + file.read_text()
    # Each piece but the last ends at the end of a [[token]], so it is a valid file by itself.
    ends = [at for at in range(len(whole)) if whole.startswith("[[token]]", at)][1:]
    file.write_text(whole)
    gateway = site.gateway("--tokens", file, "--reload-interval", "0s")

    def reloads() -> float:
        return gateway.metric("millpond_gateway_reloads_total")

    def lets_all_in(name: str) -> None:
        for who, token, _ in entries:
            load = site.load(gateway, records=100, name=f"{name}-{who}")
            load.environment["MILLPOND_TOKEN"] = token
            load.run()

    for number, end in enumerate(ends):
        file.write_text(whole[:end])
        gateway.send(1)
        eventually("the refusal", lambda done=number + 1: reloads() == done)
        lets_all_in(f"half-{number}")
    assert not _reloaded(gateway, "success")
    assert "line 1: count is 3, and the file has 2 [[token]]" in gateway.messages()
    file.write_text(whole)
    gateway.send(1)
    eventually("the whole file", lambda: gateway.metric("millpond_gateway_reload_failing") == 0)
    lets_all_in("whole")

    # Without a count, a shorter file is applied with a warning.
    file.write_text(whole[whole.index("[[token]]") : ends[0]])
    gateway.send(1)
    eventually("the shorter file", lambda: _reloaded(gateway, "success"))
    warning = "2 of 3 tokens are no longer in force: acme, globex. If nobody took them away"
    eventually("the warning", lambda: warning in gateway.messages())
    _assert_silent(gateway)


def test_a_secret_of_the_settings_is_in_no_help_no_error_and_no_flag(site):
    secret = "hunter2-in-a-settings-file"
    file = site.directory / "millpond.toml"
    lines = f'clickhouse_password = "{secret}"\notlp_headers = "authorization={secret}"\n'
    file.write_text(f"[consume]\n{lines}")
    shown = site.command("consume", "--config", file, "--help").stdout()
    assert "--clickhouse-password-file" in shown
    assert secret not in shown
    file.write_text(f'[consume]\nclickhouse_password = "{secret}\n')
    broken = site.command("consume", "--config", file, code=1).messages()
    assert "line 2, column " in broken
    assert secret not in broken
    flag = site.command(
        *("consume", "--buffer", "file:///nowhere", "--clickhouse", "http://127.0.0.1:1"),
        *("--clickhouse-password", secret),
        code=1,
    )
    assert "give MILLPOND_CLICKHOUSE_PASSWORD or --clickhouse-password-file" in flag.messages()


def test_a_password_in_a_file_reaches_clickhouse(site):
    file = site.directory / "password"
    file.write_text("hunter2-in-a-file\n")
    told = []

    class Refuses(http.server.BaseHTTPRequestHandler):
        """Records who asks, and refuses."""

        def do_POST(self):  # noqa: N802 - as http.server wants it
            told.append(self.headers)
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        create = ("tables", "create", "--clickhouse", f"http://127.0.0.1:{server.server_port}")
        site.command(
            *create,
            *("--clickhouse-user", "consumer"),
            *("--clickhouse-password-file", file),
            code=1,
        )
        server.shutdown()
    assert {headers["x-clickhouse-key"] for headers in told} == {"hunter2-in-a-file"}
    gone = file.with_name("gone")
    warning = site.command(*create, "--clickhouse-password-file", gone, code=1).messages()
    assert f"--clickhouse-password-file {gone}: cannot be read" in warning


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_every_address_of_the_machine_may_be_listened_on_with_tls_or_a_word(site, listen):
    certificate, key = Authority(site.directory, "ours").issue("gateway")
    for name, flags in (
        ("tls", ("--tls-cert", certificate, "--tls-key", key)),
        ("insecure", ("--insecure",)),
    ):
        gateway = site.gateway("--listen", listen, *flags, name=f"gateway-{name}")
        assert gateway.terminate() == 0
