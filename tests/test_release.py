"""A release's version output, bills of materials and licences, and its image from packages that a
test makes. tests/dist tests a built release."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from harness.oci import Image
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
        "buffer, pages, cursors, dead letters, snapshots of keys: format",
        "manifest: format 1, with numbered requests 2, with sources",
        "buffers that route streams by key: format",
        "cursors of consumers with --unique: format",
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


def test_the_licences_have_every_crate_with_its_texts():
    text = _says(sys.executable, REPOSITORY / "scripts" / "licences.py")
    crates = json.loads(_says(sys.executable, REPOSITORY / "scripts" / "sbom.py", "millpond"))
    names = [(one["name"], one["version"]) for one in crates["components"]]
    foreign = [one for one in names if not one[0].startswith("millpond")]
    assert len(foreign) > 100
    for name, version in foreign:
        assert f"\n{name} {version}: " in text
    # The licence of C sources within a crate.
    assert "Zstandard software" in text
    assert "millpond-" not in text


def test_a_version_that_is_not_tagged_is_older_than_the_release(tmp_path):
    """On a copy of the tree's version and script, so that tags and changes harm nobody."""
    for name in ("Cargo.toml", "scripts/dist.sh", "scripts/lib.sh", "scripts/go-env.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    number = re.search(r'(?m)^version = "(.+)"', (tmp_path / "Cargo.toml").read_text())[1]

    def git(*command: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        _says("git", "-C", tmp_path, *identity, *command)

    def version() -> str:
        return _says(tmp_path / "scripts/dist.sh", "version").strip()

    assert version() == number, "a source tarball has no history"
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    assert re.fullmatch(re.escape(number) + r"-dev\.1\.g[0-9a-f]{10}", version())
    git("tag", f"v{number}-rc.1")
    assert version() != number
    git("tag", f"v{number}")
    assert version() == number
    (tmp_path / "Cargo.toml").write_text((tmp_path / "Cargo.toml").read_text() + "\n")
    assert re.fullmatch(re.escape(number) + r"-dev\.1\.g[0-9a-f]{10}\.dirty", version())


def _package(folder, name: str, files: dict[str, str]) -> None:
    tree = folder / name
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: a test <test@localhost>\n"
        "Description: made by a test\n"
    )
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    (tree / "lib").mkdir(exist_ok=True)
    (tree / "lib/link").symlink_to("/etc/passwd")
    _says("dpkg-deb", "--root-owner-group", "--build", tree, folder / f"{name}_1_amd64.deb")
    shutil.rmtree(tree)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not on this machine")
def test_an_image_is_the_same_every_time_and_fits_the_specification(tmp_path):
    packages = tmp_path / "packages"
    crt = "usr/share/ca-certificates/mozilla/{}.crt"
    _package(packages, "base-files", {"usr/lib/os-release": "ID=debian", "bin/sh": "no"})
    _package(packages, "libc6", {"lib/x86_64-linux-gnu/libc.so.6": "glibc", "usr/bin/ldd": "no"})
    _package(packages, "ca-certificates", {crt.format("b"): "two\n", crt.format("a"): "one\n"})
    (tmp_path / "program").write_text("the program")
    (tmp_path / "NOTES").write_text("notes")

    def image(name: str) -> bytes:
        command = [sys.executable, REPOSITORY / "scripts" / "image.py", "--version", "1.2.3"]
        command += ["--architecture", "amd64", "--program", tmp_path / "program"]
        command += ["--packages", packages, "--document", tmp_path / "NOTES"]
        _says(*command, "--output", tmp_path / name, SOURCE_DATE_EPOCH="86400")
        return (tmp_path / name).read_bytes()

    assert image("one") == image("two")
    read = Image(tmp_path / "one")
    assert read.name == "millpond:1.2.3"
    assert read.configuration["created"] == "1970-01-02T00:00:00Z"
    root = read.unpack(tmp_path / "root")
    content = {
        str(path.relative_to(root)): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    for name in ("base-files", "libc6", "ca-certificates"):
        assert f"Package: {name}\n" in content.pop(f"var/lib/dpkg/status.d/{name}")
    assert {name: content[name] for name in content if not name.startswith("etc/")} == {
        "usr/lib/os-release": "ID=debian",
        "lib/x86_64-linux-gnu/libc.so.6": "glibc",
        crt.format("a"): "one\n",
        crt.format("b"): "two\n",
        "usr/bin/millpond": "the program",
        "usr/share/doc/millpond/NOTES": "notes",
    }
    assert content["etc/ssl/certs/ca-certificates.crt"] == "one\ntwo\n"
    assert os.readlink(root / "lib/link") == "/etc/passwd"
    assert (root / "usr/bin/millpond").stat().st_mode & 0o777 == 0o755
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    _like_the_dockerfile(read.configuration["config"])


def _like_the_dockerfile(config: dict) -> None:
    """Whoever builds the image from the Dockerfile gets the same settings."""
    text = (REPOSITORY / "deploy/Dockerfile").read_text().replace("\\\n", " ")

    def setting(name: str) -> str:
        return re.findall(rf"(?m)^{name} (.*)$", text)[-1]

    assert config["User"] == setting("USER")
    assert list(config["ExposedPorts"]) == [f"{port}/tcp" for port in setting("EXPOSE").split()]
    assert config["Entrypoint"] == json.loads(setting("ENTRYPOINT"))
    labels = dict(re.findall(r'([a-z.]+)="([^"]*)"', setting("LABEL")))
    assert config["Labels"] == {**labels, "org.opencontainers.image.version": "1.2.3"}
