"""A Debian that systemd boots in a container (systemd-nspawn), for packages and units. Its root is
a folder; it shares this machine's network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from harness.process import Process, eventually
from harness.services import tool

# Timers that would use the network.
MASKED = ["apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer"]


class Machine(Process):
    """Needs root, and Debian's systemd-container."""

    def __init__(self, directory: Path, name: str = "machine") -> None:
        assert os.geteuid() == 0, "systemd-nspawn needs root"
        assert shutil.which("systemd-nspawn"), "apt-get install systemd-container"
        self.root = directory / f"{name}-root"
        self.root.mkdir()
        subprocess.run(["tar", "-xf", tool("MILLPOND_DEBIAN"), "-C", self.root], check=True)
        self.root.chmod(0o755)
        for unit in MASKED:
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")
        # Without a systemd on this machine nothing can give the container a scope.
        scope = [] if Path("/run/systemd/system").exists() else ["--keep-unit"]
        super().__init__(
            name,
            [
                "systemd-nspawn",
                *("--quiet", "--register=no", *scope),
                *("--directory", self.root, "--hostname", "debian"),
                *("--console=pipe", "--boot"),
            ],
            directory,
        )

    def boot(self) -> Machine:
        self.start()
        eventually("the machine's first process", self._first_process)
        # Degraded: some unit of Debian's cannot work in a container.
        eventually(
            "the machine to boot",
            lambda: (
                self.must_run()
                or self.try_run("systemctl", "is-system-running").stdout.strip()
                in {"running", "degraded"}
            ),
        )
        return self

    def _first_process(self) -> str:
        self.must_run()
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        assert len(children) == 1
        # systemd, not a step of nspawn on the way to it.
        assert Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd"
        return children[0]

    def try_run(self, *command: object) -> subprocess.CompletedProcess:
        """Runs a command in the machine as its root."""
        namespaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd"]
        words = [
            *("nsenter", f"--target={self._first_process()}", *namespaces, "--"),
            *("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"),
            *("DEBIAN_FRONTEND=noninteractive", *command),
        ]
        return subprocess.run(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    def run(self, *command: object) -> str:
        done = self.try_run(*command)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"
        return done.stdout

    def install(self, package: Path) -> str:
        shutil.copy(package, self.root / "root")
        return self.run("dpkg", "--install", f"/root/{package.name}")

    def write(self, path: str, text: str, mode: int = 0o644, group: int = 0) -> None:
        file = self.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(mode)
        os.chown(file, 0, group)

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def off(self) -> None:
        if self.running():
            with contextlib.suppress(AssertionError):
                self.try_run("systemctl", "poweroff")
                self.wait()
        self.kill()
