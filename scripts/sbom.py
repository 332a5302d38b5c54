#!/usr/bin/env python3
"""Prints a bill of materials (CycloneDX 1.6, JSON) of the shipped software:

    eval "$(scripts/tools.sh python)"
    "$MILLPOND_PYTHON" scripts/sbom.py millpond   # the program: cargo's lock file, for --target
    "$MILLPOND_PYTHON" scripts/sbom.py exporter   # the Collector's exporter: its Go modules

It lists everything that is linked or runs during the build, without dependencies of tests or of
the rest of the Collector. With SOURCE_DATE_EPOCH set, the same tree gives the same
bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import uuid
from datetime import datetime, timezone
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
PROGRAM = "millpond-cli"
EXPORTER = "./millpondexporter"


def output(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def component(
    kind: ComponentType, purl: PackageURL, licence: str | None, version: str | None
) -> Component:
    # Crates from before 2018 write `A/B` for `A OR B`.
    expression = re.sub(r" */ *", " OR ", licence) if licence else None
    return Component(
        type=kind,
        name=purl.name if purl.type == "cargo" else "/".join(filter(None, purl[1:3])),
        version=version,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=[LicenseFactory().make_from_string(expression)] if expression else [],
    )


def shipped(platform: str) -> dict[str, tuple[dict, list[str]]]:
    """The packages of cargo's metadata that the program needs, by their ids, the program first;
    each with the ids of its dependencies."""
    command = ("cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", platform)
    metadata = json.loads(output(ROOT, *command))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    [start] = [package["id"] for package in packages.values() if package["name"] == PROGRAM]
    found: dict[str, tuple[dict, list[str]]] = {}
    todo = [start]
    while todo:
        package_id = todo.pop()
        if package_id in found:
            continue
        below = [
            dependency["pkg"]
            for dependency in nodes[package_id]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
        found[package_id] = packages[package_id], below
        todo += below
    return found


def crates(platform: str) -> tuple[Component, dict[Component, list[Component]]]:
    """The program's crate, and each crate with its dependencies."""
    found = shipped(platform)
    made: dict[str, Component] = {}
    kind = ComponentType.APPLICATION
    for package_id, (package, _) in found.items():
        purl = PackageURL("cargo", None, package["name"], package["version"])
        made[package_id] = component(kind, purl, package["license"], package["version"])
        kind = ComponentType.LIBRARY
    needs = {made[each]: [made[one] for one in below] for each, (_, below) in found.items()}
    return next(iter(made.values())), needs


def modules() -> tuple[Component, dict[Component, list[Component]]]:
    """The exporter's Go module and the modules that it links, without the dependencies between
    them."""
    folder = ROOT / "otel-exporter"
    listed = output(folder, "go", "list", "-deps", "-json=Module", EXPORTER)
    decoder, at, found = json.JSONDecoder(), 0, {}
    while at < len(listed.rstrip()):
        package, at = decoder.raw_decode(listed, at)
        at += len(listed[at:]) - len(listed[at:].lstrip())
        module = package.get("Module")
        if module:
            found[module["Path"]] = module
    [exporter] = [module for module in found.values() if module.get("Main")]
    version = re.search(r'(?m)^version = "(.+)"', (ROOT / "Cargo.toml").read_text())[1]

    def make(module: dict, kind: ComponentType = ComponentType.LIBRARY) -> Component:
        *namespace, name = module["Path"].split("/")
        number = module.get("Version", version)
        purl = PackageURL("golang", "/".join(namespace), name, number)
        return component(kind, purl, "Apache-2.0" if module.get("Main") else None, number)

    top = make(exporter)
    return top, {top: [make(module) for module in found.values() if not module.get("Main")]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["millpond", "exporter"])
    parser.add_argument("--target", choices=PLATFORMS, default=PLATFORMS[0])
    flags = parser.parse_args()
    top, needs = crates(flags.target) if flags.what == "millpond" else modules()
    bom = Bom()
    bom.metadata.component = top
    for each, below in needs.items():
        for one in {each, *below} - {top}:
            bom.components.add(one)
        bom.register_dependency(each, below)
    if "SOURCE_DATE_EPOCH" in os.environ:
        at = int(os.environ["SOURCE_DATE_EPOCH"])
        bom.metadata.timestamp = datetime.fromtimestamp(at, tz=timezone.utc)
        bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{top.purl}#{at}")
    print(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2))


if __name__ == "__main__":
    main()
