"""One operating-system process under test: started, killed, stopped and restarted, with its output
in a file that a failing test shows. Time decides nothing: waits poll for a condition, and name it
when they give up.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Generous: a wait takes this long only if something is broken.
PATIENCE = 60.0


class TimedOut(AssertionError):
    """A condition did not come true in time."""


def eventually(
    what: str,
    condition: Callable[[], object],
    timeout: float = PATIENCE,
    interval: float | None = None,
):
    """Polls `condition` until it returns a true value, and returns that value. Without an
    `interval`, less often the longer it takes.

    An exception counts as "not yet"; the last value or exception is part of the failure.
    """
    began = time.monotonic()
    while True:
        try:
            last = condition()
            if last:
                return last
        except TimedOut:
            raise
        except Exception as error:  # noqa: BLE001 - anything may not exist yet
            last = error
        waited = time.monotonic() - began
        if waited > timeout:
            raise TimedOut(f"waited {timeout:.0f} s for {what}; last: {last!r:.500}")
        time.sleep(interval or min(max(0.05, waited / 10), 0.5))


# Below the ports that the system gives to outgoing connections (from 32768 on Linux): otherwise one
# of these could take a server's port while the test keeps the server down.
_PORTS = range(10_240, 32_768)
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A loopback port for a server of this run. Until this process ends, no other run gets it: a
    UDP socket, which does not disturb TCP, reserves it."""
    for port in random.sample(_PORTS, len(_PORTS)):
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation)
        return port
    raise RuntimeError("no loopback port is free")


def _dying_with_parent() -> list[str]:
    """Words before a command that keep a killed pytest from leaving servers behind. Without setpriv
    the protection is missing. Not `preexec_fn`: it makes Python fork for real, and a fork of a
    process with threads in gRPC may die before it becomes the program."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


class Process:
    """A program with its arguments; it can run many times, one at a time.

    Start it from the main thread only: it dies with the thread that started it.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[object],
        logs: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log = logs / f"{name}.log"
        self.output = logs / f"{name}.out"
        self.environment = {**os.environ, **(environment or {})}
        self._child: subprocess.Popen | None = None

    def within(self, place: Sequence[object]) -> None:
        """Adds these words before the command of later starts; they must become the program."""
        self.argv = [*(str(word) for word in place), *self.argv]

    def start(self) -> None:
        assert self._child is None, f"{self.name} runs already"
        with self.log.open("ab") as log, self.output.open("wb") as output:
            log.write(f"--- {' '.join(self.argv)}\n".encode())
            log.flush()
            self._child = subprocess.Popen(
                [*_dying_with_parent(), *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=self.environment,
            )

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was not started"
        return self._child.pid

    def peak_memory(self) -> int:
        """The most resident memory so far, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def send(self, signal_number: int) -> None:
        assert self._child is not None, f"{self.name} was not started"
        self._child.send_signal(signal_number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Waits for the process to end by itself and returns its exit code (-9: SIGKILL)."""
        assert self._child is not None, f"{self.name} was not started"
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{self.name} did not end within {timeout:.0f} s") from None
        self._child = None
        return code

    def kill(self) -> None:
        """SIGKILL, without a clean shutdown. Works on an ended process too."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGKILL)
            self.wait()

    def terminate(self, timeout: float = PATIENCE) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def must_run(self) -> None:
        """Fails at once if the process has ended, instead of letting a wait time out."""
        if not self.running():
            raise TimedOut(f"{self.name} {self._how_it_ended()}: {self.messages()[-1500:]}")

    def ended_by(self, signal_number: int) -> bool:
        """Returns true if the latest start died from this signal and nobody has waited for it."""
        return self._child is not None and self._child.poll() == -signal_number

    def _how_it_ended(self) -> str:
        code = None if self._child is None else self._child.poll()
        if code is None:
            return "does not run"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"has ended with exit code {code}"

    def messages(self) -> str:
        """Everything written to stderr so far, over all starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stdout(self) -> str:
        """What the latest start wrote to stdout."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""
