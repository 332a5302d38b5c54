"""A release's version output and bills of materials."""

import json
import os
import subprocess
import sys

import pytest

from harness.services import REPOSITORY, program


def _says(*command: object, **environment: str) -> str:
    return subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ).stdout


def test_the_version_names_the_formats():
    [first, *formats] = _says(program("millpond"), "--version").splitlines()
    assert _says(program("millpond"), "-V").splitlines() == [first]
    assert first.startswith("millpond 0.")
    assert [line.rsplit(" ", 1)[0] for line in formats] == [
        "segments: format",
        "buffer, manifest, pages, cursors, dead letters: format",
        "rows in ClickHouse: schema version",
    ]
    assert all(line.rsplit(" ", 1)[1].isdigit() for line in formats)
    # The versions of a command are the program's.
    assert _says(program("millpond"), "gateway", "--version").splitlines()[1:] == formats


@pytest.mark.parametrize(
    ("what", "has", "lacks"),
    [
        ("millpond", {"tokio", "millpond-manifest", "zstd-sys", "prost-build"}, {"proptest"}),
        (
            "exporter",
            {"go.opentelemetry.io/collector/pdata"},
            {"pgregory.net/rapid", "go.opentelemetry.io/collector/exporter/exportertest"},
        ),
    ],
)
def test_a_bill_of_materials_has_what_is_shipped(what, has, lacks):
    def bill() -> str:
        script = REPOSITORY / "scripts" / "sbom.py"
        return _says(sys.executable, script, what, SOURCE_DATE_EPOCH="1")

    text = bill()
    assert bill() == text
    found = json.loads(text)
    assert found["specVersion"] == "1.6"
    components = found["components"]
    names = {component["name"] for component in components}
    assert has <= names
    assert not lacks & names
    assert all(component["version"] and component["purl"] for component in components)
    refs = {component["bom-ref"] for component in components}
    top = found["metadata"]["component"]["bom-ref"]
    assert {dependency["ref"] for dependency in found["dependencies"]} == refs | {top}
    if what == "millpond":
        unlicensed = [component["name"] for component in components if not component["licenses"]]
        assert not unlicensed
