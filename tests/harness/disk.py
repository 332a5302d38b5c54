"""A small disk that a test can fill: a tmpfs in a separate mount namespace, which disappears with
the process that holds it. Needs root, or user namespaces."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .process import Process, eventually


class SmallDisk(Process):
    """Mounted on `path` for processes started `inside` it."""

    def __init__(self, directory: Path, mebibytes: int, name: str = "disk") -> None:
        self.path = directory / name
        self.path.mkdir()
        unshare = next((words for words in _UNSHARE if _works(words)), None)
        self.possible = unshare is not None
        mount = (
            f"mount -t tmpfs -o size={mebibytes}m tmpfs '{self.path}' && echo up && exec sleep inf"
        )
        self._as_user = unshare is not None and "--map-root-user" in unshare
        super().__init__(name, [*(unshare or []), "sh", "-c", mount], directory)

    def up(self) -> SmallDisk:
        self.start()
        eventually("the small disk", lambda: self.stdout() == "up\n")
        return self

    @property
    def inside(self) -> list[object]:
        user = ["--user", "--preserve-credentials"] if self._as_user else []
        return ["nsenter", "--target", self.pid, "--mount", *user]

    def fill(self) -> None:
        """Fills the disk completely."""
        self._run(f"cat /dev/zero >> '{self.path}/ballast' 2>/dev/null; true")

    def free(self) -> None:
        self._run(f"rm '{self.path}/ballast'")

    def _run(self, script: str) -> str:
        words = [str(word) for word in self.inside]
        return subprocess.run(
            [*words, "sh", "-c", script], check=True, capture_output=True, text=True
        ).stdout


_UNSHARE = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


def _works(unshare: list[str]) -> bool:
    mount = [*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
