"""`millpond dev`: runs everything in one command and stops on a signal; it ends when a
child ends."""

import os
import signal
from pathlib import Path

from harness import clickhouse as ask
from harness.exactly_once import wait_for_all
from harness.process import eventually, free_port
from harness.services import Load, Service, http_get, program


class Dev(Service):
    def __init__(self, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        super().__init__(
            "dev",
            [
                program("millpond"),
                "dev",
                *("--directory", directory / "everything"),
                *("--listen", self.address),
                *("--listen-http", self.http_address),
                *("--clickhouse-listen", self.url.removeprefix("http://")),
            ],
            directory,
        )

    def ready(self) -> bool:
        return "everything runs" in self.messages() and http_get(f"{self.url}/ping")[0] == 200

    def lines(self, sql: str) -> list[str]:
        return ask.lines(self.url, sql)


def _children(of: Dev) -> dict[str, int]:
    """The pids of its children, by command or program."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == of.pid:
            found[words[1].decode() if b"millpond" in words[0] else "clickhouse"] = int(
                process.name
            )
    return found


def test_dev_runs_everything_and_stops_in_order(tmp_path):
    dev = Dev(tmp_path)
    try:
        dev.up()
        load = Load(tmp_path, dev.address, records=3_000)
        load.run()
        wait_for_all(load.acknowledged(), dev, "otel", dev)
        children = _children(dev)
        assert len(children) == 3
        assert dev.terminate() == 0
        for pid in children.values():
            assert not Path(f"/proc/{pid}").exists()
    finally:
        dev.kill()


def test_dev_ends_when_a_child_ends_and_says_which(tmp_path):
    dev = Dev(tmp_path)
    try:
        dev.up()
        children = _children(dev)
        os.kill(children["gateway"], signal.SIGKILL)
        assert dev.wait() == 1
        assert "gateway ended" in dev.messages()
        eventually(
            "the others to end",
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in children.values()),
        )
    finally:
        dev.kill()
