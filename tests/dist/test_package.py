"""The Debian package on a Debian 12 that systemd has booted: installed, configured, started as its
units say, upgraded and purged."""

import pytest

from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.pki import Authority
from harness.process import eventually, free_port
from harness.services import CREDENTIALS, http_get

from .machine import Machine
from .release import DEBIAN, MACHINE, only

SETTINGS = "/etc/millpond/millpond.toml"
UNITS = ("millpond-gateway", "millpond-consumer")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        yield machine.boot()
    finally:
        machine.off()


class Installed:
    """The package in a machine, with settings for a test's store and ClickHouse."""

    def __init__(self, machine: Machine, site) -> None:
        self.machine, self.site = machine, site
        self.package = only(f"millpond_*_{DEBIAN[MACHINE]}.deb")
        self.ports = {name: free_port() for name in ("listen", "http", *UNITS)}
        self.address = f"127.0.0.1:{self.ports['listen']}"
        self.acknowledged: list[str] = []
        machine.install(self.package)

    def configure(self) -> None:
        ports, site = self.ports, self.site
        self.machine.write(
            SETTINGS,
            f"""
            buffer = "{site.buffer.url}"
            s3_endpoint = "{site.buffer.endpoint}"
            [gateway]
            listen = "{self.address}"
            listen_http = "127.0.0.1:{ports["http"]}"
            admin = "127.0.0.1:{ports["millpond-gateway"]}"
            [consume]
            clickhouse = "{site.clickhouse_url}"
            database = "{site.database}"
            admin = "127.0.0.1:{ports["millpond-consumer"]}"
            """,
        )
        secrets = "".join(f"{name}={value}\n" for name, value in CREDENTIALS.items())
        self.machine.write(
            "/etc/millpond/gateway.env", secrets + "MILLPOND_CREATE_BUCKET=true\n", 0o600
        )
        self.machine.write("/etc/millpond/consumer.env", secrets, 0o600)

    def until_ready(self, unit: str) -> None:
        url = f"http://127.0.0.1:{self.ports[unit]}/readyz"

        def serves() -> bool:
            assert self.machine.property(unit, "NRestarts") == "0", self.machine.journal(unit)
            return http_get(url)[0] == 200

        eventually(f"{unit} to be ready", serves)

    def process(self, unit: str) -> dict[str, str]:
        """The kernel's view of a unit's process."""
        pid = self.machine.property(unit, "MainPID")
        lines = self.machine.run("cat", f"/proc/{pid}/status").splitlines()
        return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}

    def send(self, name: str, *flags: object) -> None:
        """Sends records to the unit's gateway, and waits until the unit's consumer has inserted
        them."""
        site = self.site
        load = site.load(self, records=2_000, name=name)
        # The flags have an endpoint in place of the gateway's.
        load.argv = [*load.argv[:2], *map(str, flags), *load.argv[4:]]
        load.run()
        self.acknowledged += load.acknowledged()
        wait_for_all(self.acknowledged, site.clickhouse, site.database, self.machine)


@pytest.fixture(scope="module")
def installed(machine, new_site):
    return Installed(machine, new_site())


# The tests of this file run in their order: each goes on where the one before stopped.


def test_installing_makes_users_and_starts_nothing(machine, installed):
    for unit in UNITS:
        assert int(machine.run("id", "-u", unit)) < 1000
        assert machine.property(unit, "UnitFileState") == "disabled"
        assert machine.property(unit, "ActiveState") == "inactive"
    assert machine.run("stat", "-c", "%U:%G %a", "/etc/millpond/gateway").strip() == (
        "root:millpond-gateway 750"
    )
    assert SETTINGS in machine.run("dpkg-query", "--show", "--showformat=${Conffiles}", "millpond")
    assert machine.run("dpkg", "--verify", "millpond") == ""
    assert machine.run("systemd-analyze", "verify", *(f"{unit}.service" for unit in UNITS)) == ""


def test_the_units_run_the_pipeline_without_rights(machine, installed):
    installed.configure()
    # One after the other: the gateway of this test makes the bucket.
    for unit in UNITS:
        machine.run("systemctl", "enable", "--now", unit)
        installed.until_ready(unit)
        process = installed.process(unit)
        number = machine.run("id", "-u", unit).strip()
        assert process["Uid"].split() == [number] * 4
        assert (process["NoNewPrivs"], process["Seccomp"]) == ("1", "2")
        assert {int(process[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    installed.send("first", "--endpoint", installed.address)


def test_an_upgrade_restarts_the_units_and_keeps_the_settings(machine, installed):
    settings = machine.run("cat", SETTINGS)
    before = {unit: installed.process(unit)["Pid"] for unit in UNITS}
    machine.install(installed.package)
    assert machine.run("cat", SETTINGS) == settings
    for unit in UNITS:
        installed.until_ready(unit)
        assert installed.process(unit)["Pid"] != before[unit]
    installed.send("second", "--endpoint", installed.address)


def test_the_gateway_reads_its_certificate_and_tokens_in_place(machine, installed, tmp_path):
    examples = "/usr/share/doc/millpond/examples"
    drop_in = "/etc/systemd/system/millpond-gateway.service.d"
    machine.run("install", "-D", f"{examples}/millpond-gateway-tls.conf", f"{drop_in}/tls.conf")
    # The example listens on every address of the network that the machine shares.
    for port, name in (("4317", "listen"), ("4318", "http")):
        machine.run(
            "sed", "-i", f"s/0.0.0.0:{port}/127.0.0.1:{installed.ports[name]}/", f"{drop_in}/tls.conf"
        )
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("gateway")
    group = int(machine.run("id", "-g", "millpond-gateway"))
    token = "a-token-of-the-test-with-32-bytes"
    for name, text in {
        "tls.crt": certificate.read_text(),
        "tls.key": key.read_text(),
        "tokens.toml": f'[[token]]\nname = "load"\ntoken = "{token}"\n',
    }.items():
        machine.write(f"/etc/millpond/gateway/{name}", text, 0o640, group)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "millpond-gateway")
    installed.until_ready("millpond-gateway")
    flags = ["--endpoint", f"https://{installed.address}", "--tls-ca", authority.file]
    installed.send("encrypted", *flags, "--token", token)


def test_stopping_loses_nothing_and_purging_leaves_only_secrets(machine, installed):
    machine.run("systemctl", "stop", *UNITS)
    for unit in UNITS:
        assert machine.property(unit, "Result") == "success", machine.journal(unit)
        assert machine.property(unit, "ExecMainStatus") == "0"
    site = installed.site
    assert len(installed.acknowledged) == 6_000
    assert_exactly_once(installed.acknowledged, site.clickhouse, site.database)
    machine.run("dpkg", "--purge", "millpond")
    assert machine.try_run("test", "-e", "/usr/bin/millpond").returncode == 1
    assert machine.try_run("test", "-e", SETTINGS).returncode == 1
    assert machine.run("ls", "/etc/millpond").split() == ["consumer.env", "gateway", "gateway.env"]
    assert "millpond" not in machine.try_run("systemctl", "list-unit-files", "millpond*").stdout
