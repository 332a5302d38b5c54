#!/usr/bin/env python3
"""Writes the container image of a release as an archive, without a container engine:

    scripts/image.py --architecture amd64 --version 0.1.0 --program millpond \\
        --packages FOLDER --document LICENSE --output millpond.oci.tar

The archive is an OCI image layout that also has the index of `docker save`, so podman, skopeo and
Docker load it. Its lower layer has glibc, CA certificates and users; its upper one the program. It
has no shell. With SOURCE_DATE_EPOCH set, the same input gives the same bytes.

The lower layer comes from the Debian packages in FOLDER. No maintainer script runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path

NAME = "millpond"
USER = 65532
# OTLP/gRPC, OTLP/HTTP, the gateway's and the consumer's admin ports: those of deploy/Dockerfile.
PORTS = ["4317/tcp", "4318/tcp", "4380/tcp", "4381/tcp"]
# The files to take from each package. Programs, gconv's modules and locales stay out.
PACKAGES = {
    "base-files": ["etc/debian_version", "etc/os-release", "usr/lib/os-release"],
    "libc6": ["lib/*", "lib64/*"],
    "ca-certificates": ["usr/share/ca-certificates/mozilla/*.crt"],
}
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


class Layer:
    """Files of one layer. Parents appear by themselves; all belong to root."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def _add(self, path: str, kind: bytes, mode: int, content: bytes = b"", link: str = "") -> None:
        parent = os.path.dirname(path)
        if parent and parent not in self._entries:
            self.folder(parent)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.linkname = kind, mode, link
        entry.size, entry.mtime = len(content), epoch()
        self._entries[path] = (entry, content)

    def folder(self, path: str, mode: int = 0o755) -> None:
        self._add(path, tarfile.DIRTYPE, mode)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add(path, tarfile.REGTYPE, mode, content)

    def link(self, path: str, target: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, link=target)

    def tar(self) -> bytes:
        return tar_of(self._entries[path] for path in sorted(self._entries))


def epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def tar_of(entries) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def output(*command: object) -> bytes:
    return subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE
    ).stdout


def base_layer(packages: Path) -> Layer:
    """glibc, certificates, and what names the system and its users."""
    layer = Layer()
    for name, patterns in PACKAGES.items():
        found = sorted(packages.glob(f"{name}_*.deb"))
        if len(found) != 1:
            raise SystemExit(f"{packages} has {len(found)} packages {name}, and must have one")
        add_package(layer, name, patterns, found[0])
    layer.file("etc/passwd", passwd().encode())
    layer.file("etc/group", f"root:x:0:\n{NAME}:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    layer.folder("tmp", 0o1777)
    return layer


def passwd() -> str:
    users = [("root", 0, "/root"), (NAME, USER, "/")]
    return "".join(
        f"{name}:x:{number}:{number}::{home}:/sbin/nologin\n" for name, number, home in users
    )


def add_package(layer: Layer, name: str, patterns: list[str], package: Path) -> None:
    certificates = []
    patterns = [*patterns, f"usr/share/doc/{name}/copyright"]
    files = io.BytesIO(output("dpkg-deb", "--fsys-tarfile", package))
    with tarfile.open(fileobj=files) as archive:
        for entry in sorted(archive, key=lambda entry: entry.name):
            path = entry.name.removeprefix("./").rstrip("/")
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                continue
            if entry.issym():
                layer.link(path, entry.linkname)
            elif entry.isreg():
                content = archive.extractfile(entry).read()
                layer.file(path, content, entry.mode & 0o755)
                if path.endswith(".crt"):
                    certificates.append(content)
            elif not entry.isdir():
                raise SystemExit(f"{package}: {path} is neither a file nor a symbolic link")
    if certificates:
        # The bundle that update-ca-certificates makes.
        layer.file(CERTIFICATES, b"".join(certificates))
    # Scanners for vulnerabilities look here for the versions of an image without a package manager.
    layer.file(f"var/lib/dpkg/status.d/{name}", output("dpkg-deb", "--field", package))


def program_layer(program: Path, documents: list[Path]) -> Layer:
    layer = Layer()
    layer.file(f"usr/bin/{NAME}", program.read_bytes(), 0o755)
    for document in documents:
        layer.file(f"usr/share/doc/{NAME}/{document.name}", document.read_bytes())
    return layer


def archive(layers: list[bytes], architecture: str, version: str) -> bytes:
    """The OCI image layout of these layers, as a tar archive."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    config = blob(canonical(configuration(layers, architecture, version)), CONFIG_TYPE)
    packed = [blob(gzip.compress(layer, mtime=0), LAYER_TYPE) for layer in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": packed,
    }
    entry = blob(canonical(manifest), MANIFEST_TYPE)
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    # podman names the image by this annotation.
    entry["annotations"] = {"org.opencontainers.image.ref.name": f"{NAME}:{version}"}
    # What `docker save` writes, for versions of Docker that do not read index.json.
    saved = {
        "Config": path_of(config),
        "RepoTags": [f"{NAME}:{version}"],
        "Layers": [path_of(layer) for layer in packed],
    }
    files = {
        "oci-layout": canonical({"imageLayoutVersion": "1.0.0"}),
        "index.json": canonical({"schemaVersion": 2, "manifests": [entry]}),
        "manifest.json": canonical([saved]),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    layout = Layer()
    for path, content in files.items():
        layout.file(path, content)
    return layout.tar()


def configuration(layers: list[bytes], architecture: str, version: str) -> dict:
    """The settings of deploy/Dockerfile; tests/test_release.py compares them."""
    created = datetime.fromtimestamp(epoch(), tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {port: {} for port in PORTS},
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": [f"/usr/bin/{NAME}"],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": NAME,
                "org.opencontainers.image.description": (
                    "An object-storage buffer between OpenTelemetry and ClickHouse"
                ),
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.version": version,
            },
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [
            {"created": created, "created_by": f"scripts/image.py: {what}"}
            for what in ("Debian's packages", "the program")
        ],
    }


def path_of(descriptor: dict) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architecture", required=True, choices=["amd64", "arm64"])
    parser.add_argument("--version", required=True)
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--packages", required=True, type=Path)
    parser.add_argument("--document", action="append", default=[], type=Path)
    parser.add_argument("--output", required=True, type=Path)
    flags = parser.parse_args()
    layers = [base_layer(flags.packages), program_layer(flags.program, flags.document)]
    flags.output.write_bytes(
        archive([layer.tar() for layer in layers], flags.architecture, flags.version)
    )


if __name__ == "__main__":
    main()
