"""Certificates made at test time: an authority, a server's, a client's, and an authority that nobody trusts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """As a listener's settings."""
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}


def openssl(*words: str | Path) -> None:
    try:
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl program")


class Authority:
    """Signs certificates, all in one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 looks whether it is there
                "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def sign(self, name: str, alternative: str = "DNS:localhost,IP:127.0.0.1", subject: str = "") -> Certificate:
        """A certificate of this common name."""
        made = Certificate(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request, extension = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={alternative}\nauthorityKeyIdentifier=keyid\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", subject or f"/O=tests/CN={name}", "-keyout", made.key, "-out", request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-days", "2",
                "-extfile", extension, "-out", made.cert)  # fmt: skip
        made.key.chmod(0o600)
        return made

    def client(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context
