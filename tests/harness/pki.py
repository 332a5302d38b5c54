"""Certificates for a test, as files: a CA and what it signs."""

from __future__ import annotations

from pathlib import Path

import trustme


class Authority:
    """A CA whose certificates, for servers and clients at 127.0.0.1, are files in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name)
        self._directory = directory / name
        self._directory.mkdir()
        self.file = self._directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate and its key."""
        certificate, key = (self._directory / f"{name}{end}.pem" for end in ("", "-key"))
        leaf = self._ca.issue_cert("127.0.0.1")
        leaf.cert_chain_pems[0].write_to_path(certificate)
        leaf.private_key_pem.write_to_path(key)
        return certificate, key
