"""Kills a process at a chosen system call: between two steps that a random moment seldom hits, such
as the write of a deduplication token and the rename of its part."""

from __future__ import annotations

import shutil
import subprocess
import time

from .process import Process


def available() -> bool:
    return shutil.which("strace") is not None


def kill_at(process: Process, call: str, when: int, patience: float) -> bool:
    """Kills the process at its `when`-th such call from now on, which fails. Returns False if that
    call did not come in time: the process may then be running or dying."""
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-p", str(process.pid)),
            *("-e", f"trace={call}"),
            *("-e", f"inject={call}:error=EIO:signal=KILL:when={when}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + patience
        while process.running() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not process.running()
    finally:
        # Detaches from a process that is still alive.
        tracer.terminate()
        tracer.wait()
