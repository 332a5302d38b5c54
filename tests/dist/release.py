"""The files of the release in dist/, which `make dist` builds, or in MILLPOND_DIST."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from harness.services import REPOSITORY

DIST = Path(os.environ.get("MILLPOND_DIST", REPOSITORY / "dist"))
# Debian's name of an architecture by the kernel's.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
MACHINE = platform.machine()


def only(pattern: str) -> Path:
    """The one file of the release with such a name."""
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"{DIST} has {found or 'nothing'} for {pattern}: run `make dist`"
    return found[0]


def architectures() -> list[str]:
    """The kernel's names of the architectures that were built."""
    built = [name for name in DEBIAN if list(DIST.glob(f"*-{name}-linux-gnu.tar.gz"))]
    return built or [MACHINE]


def version() -> str:
    return only("millpond-*.tgz").name.removeprefix("millpond-").removesuffix(".tgz")
