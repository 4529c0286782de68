"""`tls`: the context that the settings make, and settings that make none."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.config import BrokerConfig
from penstock.errors import ConfigError
from penstock.tls import server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate that signs itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder: Path) -> dict[str, str]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"tls_cert": str(cert), "tls_key": str(key)}


def handshake(config: dict[str, Any], client: ssl.SSLContext) -> str | None:
    """The version that both ends agree on, in memory. SSLError when they do not."""
    server_in, server_out, client_in, client_out = (ssl.MemoryBIO() for _ in range(4))
    context = server_context(BrokerConfig(**config))
    assert context is not None
    ours = context.wrap_bio(server_in, server_out, server_side=True)
    theirs = client.wrap_bio(client_in, client_out)
    for _ in range(6):
        for end in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
            server_in.write(client_out.read())
            client_in.write(server_out.read())
    return ours.version()


def stranger() -> ssl.SSLContext:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    return client


def test_no_certificate_no_tls() -> None:
    assert server_context(BrokerConfig()) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_required": "true"},
        {"tls_required": "tcp-https"},
        {"tls_client_auth_policy": "require"},
        {"tls_cert": "nowhere.pem", "tls_key": "nowhere.key"},
    ],
)
def test_what_cannot_be_had(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        server_context(BrokerConfig(**settings))  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize("settings", [{"tls_min_version": "ssl3.0"}, {"tls_client_auth_policy": "maybe"}])
def test_words_that_mean_nothing(files: dict[str, str], settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        server_context(BrokerConfig(**files, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("oldest", ["tls1.0", "tls1.2", "tls1.3"])
def test_versions(files: dict[str, str], oldest: str) -> None:
    assert handshake(files | {"tls_min_version": oldest}, stranger()) == "TLSv1.3"
    old = stranger()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    if oldest == "tls1.3":
        with pytest.raises(ssl.SSLError):
            handshake(files | {"tls_min_version": oldest}, old)
    else:
        assert handshake(files | {"tls_min_version": oldest}, old) == "TLSv1.2"


def test_client_certificates(files: dict[str, str]) -> None:
    known = stranger()
    known.load_cert_chain(files["tls_cert"], files["tls_key"])
    assert handshake(files, known) == "TLSv1.3"  # one that nobody asked for
    strict = files | {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": files["tls_cert"]}
    assert handshake(strict, known) == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        handshake(strict, stranger())


def test_require_takes_any_certificate_and_none_without(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    require = files | {"tls_client_auth_policy": "require"}
    unknown = make_certificate(tmp_path_factory.mktemp("other"))  # nobody knows who signed it
    client = stranger()
    client.load_cert_chain(unknown["tls_cert"], unknown["tls_key"])
    assert handshake(require, client) == "TLSv1.3"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(require, client) == "TLSv1.2"
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        bare = stranger()
        bare.maximum_version = version
        with pytest.raises(ssl.SSLError):
            handshake(require, bare)
    with pytest.raises(ssl.SSLError):  # the other policy is as strict as before
        handshake(files | {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": files["tls_cert"]}, client)
