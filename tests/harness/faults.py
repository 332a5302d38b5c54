"""Faults from a seed: networks that fail, processes that are killed, frozen or stopped.

Each step disturbs a link, a process, or both, and undoes it. The kinds come from bags that hold
each of them once, so that a round has all of them, in a random order.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from . import strace
from .network import Link
from .process import eventually
from .services import EmbeddedClickHouse, Service

# Recovery time after a step: leases and backoffs take seconds.
_RECOVERY = 180.0

# ClickHouse's system calls while it stores a part: the files, the token, the part's name.
_STORING = ["openat", "write", "fsync", "rename", "unlink", "rmdir"]


class Bag:
    """Returns each of its kinds once, in random order, and then all of them again."""

    def __init__(self, kinds: list, dice: random.Random) -> None:
        self._kinds = kinds
        self._dice = dice
        self._left: list = []

    def draw(self):
        if not self._left:
            self._left = self._dice.sample(self._kinds, len(self._kinds))
        return self._left.pop()


class Faults:
    """The faults of a pipeline. `own` are Millpond's processes, which restart at once; `others` are
    servers, which stay away for a while; `links` lead to those servers."""

    def __init__(
        self, dice: random.Random, own: list[Service], others: list[Service], links: list[Link]
    ) -> None:
        self._dice = dice
        self._all = [*own, *others]
        processes: list[tuple[str, Service, Callable[[Service], Callable[[], None]]]] = []
        for process in own:
            processes += [("kill", process, self._kill(0.0))] * 2
            processes += [("freeze", process, self._freeze), ("stop", process, self._stop(0.0))]
        for process in others:
            processes += [("kill", process, self._kill(2.0))] * 2
            processes += [("stop", process, self._stop(2.0))]
            if isinstance(process, EmbeddedClickHouse) and strace.available():
                processes += [("kill at a call", process, self._kill_at_a_call)] * 4
        self._processes = Bag(processes, dice)
        self._links = Bag([(link, kind) for link in links for kind in self._kinds()], dice)
        self.steps_in_a_round = max(len(processes), len(links) * len(self._kinds()))
        self.counts: Counter[str] = Counter()

    @property
    def crashes(self) -> int:
        """The number of SIGKILLs so far."""
        return sum(count for name, count in self.counts.items() if name.startswith("kill "))

    def step(self) -> None:
        """Runs one step; afterwards every process runs and the network works."""
        link, process = self._dice.choice(
            [(True, True), (True, True), (True, False), (False, True)]
        )
        broken = self._break_a_link() if link else None
        finish = self._disturb_a_process() if process else None
        if broken is not None:
            self._wait(0.2, 1.5)
            broken.restore()
        if finish is not None:
            finish()
        self.until_all_are_ready()
        self._wait(0.0, 0.5)

    def until_all_are_ready(self) -> None:
        """Waits until every process serves. Fails at once if one has ended."""

        def all_serve() -> bool:
            for process in self._all:
                self._start_again_if_aborted(process)
                process.must_run()
            waits = [process.name for process in self._all if not process.ready()]
            assert not waits, f"not ready: {', '.join(waits)}"
            return True

        eventually("everything to be ready", all_serve, _RECOVERY)

    def _start_again_if_aborted(self, process: Service) -> None:
        """ClickHouse 26.7 aborts when a connection breaks within a request's header: it answers 400
        and does not catch the error of the second write. Its watchdog would restart a server."""
        if isinstance(process, EmbeddedClickHouse) and process.ended_by(signal.SIGABRT):
            self._note(f"{process.name} aborted")
            process.wait()
            process.start()

    def _break_a_link(self) -> Link:
        link, (name, do) = self._links.draw()
        self._note(f"{name} {link.name}")
        do(link)
        self._wait(0.0, 0.5)
        return link

    def _kinds(self) -> list[tuple[str, Callable[[Link], None]]]:
        return [
            ("cut", Link.cut),
            ("reset", Link.reset),
            ("silence", Link.silence),
            ("delay", lambda link: link.delay(self._dice.choice([50, 300]))),
            ("throttle", lambda link: link.throttle(self._dice.choice([10, 200]))),
            ("cut all answers of", Link.cut_answers),
            ("cut answers of", lambda link: link.cut_answers(self._dice.randrange(100, 3_000))),
            ("cut requests to", lambda link: link.cut_requests(self._dice.randrange(20_000))),
        ]

    def _disturb_a_process(self) -> Callable[[], None]:
        """Returns the steps that remain once the network works again."""
        name, process, do = self._processes.draw()
        self._note(f"{name} {process.name}")
        return do(process)

    def _kill(self, away: float) -> Callable[[Service], Callable[[], None]]:
        def kill(process: Service) -> Callable[[], None]:
            process.kill()
            self._wait(0.0, away)
            process.start()
            return lambda: None

        return kill

    def _kill_at_a_call(self, process: Service) -> Callable[[], None]:
        call = self._dice.choice(_STORING)
        # There are many writes per rename.
        when = self._dice.randint(1, 40 if call in ("openat", "write") else 4)
        in_time = strace.kill_at(process, call, when, patience=3.0)
        self._note(f"kill {process.name} at {call}" if in_time else f"kill {process.name}")
        # If the call did not come in time, it may have come since.
        process.kill()
        self._wait(0.0, 2.0)
        process.start()
        return lambda: None

    def _stop(self, away: float) -> Callable[[Service], Callable[[], None]]:
        def stop(process: Service) -> Callable[[], None]:
            process.send(signal.SIGTERM)
            self._wait(0.0, 0.5)

            def start_again() -> None:
                # Only after the network works: the process finishes what it has accepted.
                process.wait(_RECOVERY)
                self._wait(0.0, away)
                process.start()

            return start_again

        return stop

    def _freeze(self, process: Service) -> Callable[[], None]:
        process.send(signal.SIGSTOP)
        self._wait(0.5, 3.5)
        process.send(signal.SIGCONT)
        return lambda: None

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._dice.uniform(least, most))

    def _note(self, what: str) -> None:
        print(what)
        self.counts[what] += 1
