"""The files of a release: what is in them, and which systems the program runs on."""

import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from harness.services import REPOSITORY

from .release import DEBIAN, DIST, architectures, only, version

SIZE_MAX = 60_000_000
# scripts/dist.sh says which systems have it.
GLIBC_MAX = (2, 28)
INTERPRETERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def says(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module", params=architectures())
def unpacked(request, tmp_path_factory) -> tuple[str, Path]:
    """The architecture, and a folder with its tarballs' content."""
    folder = tmp_path_factory.mktemp(request.param)
    for suffix in (".tar.gz", "-symbols.tar.gz"):
        with tarfile.open(only(f"*-{request.param}-linux-gnu{suffix}")) as tar:
            assert {(entry.uid, entry.gid) for entry in tar} == {(0, 0)}
            tar.extractall(folder, filter="data")
    return request.param, folder


@pytest.fixture(scope="module")
def program(unpacked) -> Path:
    [path] = unpacked[1].glob("*/millpond")
    return path


def section(file: Path, name: str, folder: Path) -> bytes:
    copy = folder / "section"
    dump = f"--dump-section={name}={copy}"
    root = Path(says("rustc", "--print", "sysroot").strip())
    host = says("rustc", "--print", "host-tuple").strip()
    # rustc's, because the system's knows one architecture only.
    objcopy = root / "lib/rustlib" / host / "bin/rust-objcopy"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(root / "lib")}
    subprocess.run([objcopy, dump, file, "/dev/null"], check=True, env=environment)
    return copy.read_bytes()


def test_the_checksums_cover_every_file():
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    assert listed.keys() == {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest


def test_a_release_has_every_kind_of_file():
    number = version()
    names = {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
    expected = {f"millpond-{number}.tgz", f"otel-exporter-{number}.cdx.json"}
    for name in architectures():
        expected |= {
            f"millpond-{number}-{name}-linux-gnu.tar.gz",
            f"millpond-{number}-{name}-linux-gnu-symbols.tar.gz",
            f"millpond_{number.replace('-', '~', 1)}_{DEBIAN[name]}.deb",
            f"millpond-{number}-{DEBIAN[name]}.oci.tar",
        }
    assert names == expected


def test_a_tarball_has_the_program_and_what_it_needs(unpacked, program):
    _, folder = unpacked
    assert program.parent.name == f"millpond-{version()}"
    for name in (
        "LICENSE",
        "CHANGELOG.md",
        "deploy/systemd/millpond.toml",
        "deploy/iam/gateway.json",
        "docs/README.md",
    ):
        assert (program.parent / name).read_text() == (REPOSITORY / name).read_text()
    bill = json.loads((program.parent / "millpond.cdx.json").read_text())
    licences = (program.parent / "third-party-licences.txt").read_text()
    for component in bill["components"]:
        if component["name"].startswith("millpond"):
            continue
        assert f"\n{component['name']} {component['version']}: " in licences
    # The texts of a crate, and of the C sources within one.
    for text in ("The above copyright notice and this permission", "Zstandard software"):
        assert text in licences
    assert folder in program.parents


def completed(script: Path) -> str:
    """What bash completes `dead-l` to."""
    ask = (
        f"source {script}; COMP_WORDS=(millpond dead-l); COMP_CWORD=1; "
        "_millpond millpond dead-l millpond; echo $COMPREPLY"
    )
    return says("bash", "-c", ask)


def test_a_tarball_has_completions_and_man_pages(program):
    folder = program.parent
    assert completed(folder / "completions" / "millpond.bash") == "dead-letters\n"
    assert "#compdef millpond" in (folder / "completions" / "millpond.zsh").read_text()
    assert "complete -c millpond" in (folder / "completions" / "millpond.fish").read_text()
    pages = {page.name for page in (folder / "man" / "man1").iterdir()}
    assert {"millpond.1", "millpond-gateway.1", "millpond-dead-letters-replay.1"} <= pages


@pytest.mark.parametrize("name", architectures())
def test_a_package_has_completions_and_man_pages_where_debian_looks_for_them(name, tmp_path):
    says("dpkg-deb", "--extract", only(f"millpond_*_{DEBIAN[name]}.deb"), tmp_path)
    share = tmp_path / "usr" / "share"
    script = share / "bash-completion" / "completions" / "millpond"
    assert completed(script) == "dead-letters\n"
    for other in ("zsh/vendor-completions/_millpond", "fish/vendor_completions.d/millpond.fish"):
        assert "dead-letters" in (share / other).read_text()
    for page in ("millpond", "millpond-gateway", "millpond-dead-letters-replay"):
        assert b".TH" in gzip.decompress((share / "man" / "man1" / f"{page}.1.gz").read_bytes())


def test_the_program_needs_only_an_old_glibc(unpacked, program):
    name, _ = unpacked
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", says("readelf", "--dynamic", program)))
    glibc = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
    assert libraries <= {*glibc, INTERPRETERS[name]}
    versions = re.findall(r"GLIBC_([0-9.]+)", says("readelf", "--version-info", program))
    assert max(tuple(map(int, one.split("."))) for one in versions) <= GLIBC_MAX


def test_the_program_is_small_and_has_no_names_of_the_build_machine(program):
    content = program.read_bytes()
    assert len(content) <= SIZE_MAX
    assert ".symtab" not in says("readelf", "--sections", "--wide", program)
    for path in (REPOSITORY, os.environ.get("CARGO_HOME", Path.home() / ".cargo")):
        assert str(path).encode() not in content


def test_the_symbols_are_those_of_the_program(unpacked, program, tmp_path):
    identity = re.search(r"Build ID: ([0-9a-f]{40})", says("readelf", "--notes", program))[1]
    symbols = unpacked[1] / f"usr/lib/debug/.build-id/{identity[:2]}/{identity[2:]}.debug"
    assert f"Build ID: {identity}" in says("readelf", "--notes", symbols)
    name, _, rest = section(program, ".gnu_debuglink", tmp_path).partition(b"\0")
    assert name.decode() == symbols.name
    assert struct.unpack("<I", rest[-4:])[0] == zlib.crc32(symbols.read_bytes())
    # A name and a line of this project, as a debugger finds them.
    listed = says("readelf", "--symbols", "--wide", symbols)
    [address] = re.findall(r"([0-9a-f]{16}) .* _R?.*millpond.*4main(?:17h[0-9a-f]{16}E)?$", listed, re.M)[:1]
    assert "cli/src/main.rs:" in says("addr2line", "-e", symbols, address)
