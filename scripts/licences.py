#!/usr/bin/env python3
"""Prints the licences of everything that is linked into the program, with their texts:

    eval "$(scripts/tools.sh python)"
    "$MILLPOND_PYTHON" scripts/licences.py --target x86_64-unknown-linux-gnu

Licences such as MIT demand that their text accompanies the program. deploy/tests checks that each
licence is allowed.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import sbom

# Also the texts of C sources within a crate, such as zstd's and AWS-LC's.
FILES = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice)([-_.].*)?")
LINE = "=" * 80


def texts(package: dict) -> list[str]:
    """The licence files of a crate, each once."""
    root = Path(package["manifest_path"]).parent
    files = sorted(
        path
        for path in root.rglob("*")
        if FILES.fullmatch(path.name) and path.is_file() and path.suffix not in {".rs", ".py", ".h"}
    )
    return [path.read_text(errors="replace").strip() for path in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=sbom.PLATFORMS, default=sbom.PLATFORMS[0])
    crates = [
        package
        for package, _ in sbom.shipped(parser.parse_args().target).values()
        if package["source"]
    ]
    crates.sort(key=lambda package: (package["name"], package["version"]))
    users: dict[str, list[str]] = defaultdict(list)
    original: dict[str, str] = {}
    print(
        "Millpond's program contains Rust's standard library (MIT OR Apache-2.0) and these crates."
    )
    print("The texts of their licences follow the list.\n")
    for package in crates:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}")
        for text in texts(package):
            # Copies differ in their line breaks.
            key = " ".join(text.split())
            original.setdefault(key, text)
            if name not in users[key]:
                users[key].append(name)
    for key, names in users.items():
        print(f"\n{LINE}\n{', '.join(names)}\n{LINE}\n\n{original[key]}")


if __name__ == "__main__":
    main()
