"""Reads a container image from an OCI archive, and checks on the way all that the specification of
the image layout demands of it (https://github.com/opencontainers/image-spec)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

_INDEX_ANNOTATION = "org.opencontainers.image.ref.name"


class Image:
    """An image of one platform. Reading it asserts every size, digest and media type."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            files = {
                entry.name: tar.extractfile(entry).read() for entry in tar if not entry.isdir()
            }
        assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        self._blobs = {name: files.pop(name) for name in list(files) if name.startswith("blobs/")}
        self._read: set[str] = set()
        index = json.loads(files.pop("index.json"))
        assert index["schemaVersion"] == 2
        [entry] = index["manifests"]
        self.name = entry["annotations"][_INDEX_ANNOTATION]
        self.platform = entry["platform"]
        manifest = json.loads(self._blob(entry, "manifest.v1+json"))
        assert manifest["schemaVersion"] == 2
        assert manifest["mediaType"] == entry["mediaType"]
        self.configuration = json.loads(self._blob(manifest["config"], "config.v1+json"))
        self.layers = [
            gzip.decompress(self._blob(layer, "layer.v1.tar+gzip")) for layer in manifest["layers"]
        ]
        self._check_configuration()
        self._check_docker_index(json.loads(files.pop("manifest.json")), manifest)
        assert not files, "the layout has no other files"
        assert self._read == self._blobs.keys(), "every blob is referred to"

    @staticmethod
    def _path(descriptor: dict) -> str:
        return "blobs/" + descriptor["digest"].replace(":", "/")

    def _blob(self, descriptor: dict, media_type: str) -> bytes:
        assert descriptor["mediaType"] == f"application/vnd.oci.image.{media_type}"
        path = self._path(descriptor)
        content = self._blobs[path]
        self._read.add(path)
        assert len(content) == descriptor["size"]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
        return content

    def _check_configuration(self) -> None:
        assert self.platform == {
            "os": self.configuration["os"],
            "architecture": self.configuration["architecture"],
        }
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.layers]
        assert self.configuration["rootfs"] == {"type": "layers", "diff_ids": digests}
        assert len(self.configuration["history"]) == len(digests)

    def _check_docker_index(self, saved: list, manifest: dict) -> None:
        assert saved == [
            {
                "Config": self._path(manifest["config"]),
                "RepoTags": [self.name],
                "Layers": [self._path(layer) for layer in manifest["layers"]],
            }
        ]

    def unpack(self, directory: Path) -> Path:
        """Makes the root file system, as a runtime does, and returns its path."""
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                for entry in tar:
                    # Python's filters reject a link to an absolute path, such as that of ld.so.
                    assert not entry.name.startswith("/")
                    assert ".." not in entry.name.split("/")
                    assert (entry.uid, entry.gid) == (0, 0)
                    tar.extract(entry, directory, filter="fully_trusted")
        return directory
