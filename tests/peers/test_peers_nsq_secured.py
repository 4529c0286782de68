"""Foreign NSQ clients, unchanged, at a broker with users, plain and over TLS: granted and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import SECRET, user, write
from certificates import Authority
from peers.conftest import CACHE, HERE, Lines, Program, install
from peers.test_peers_nsq import GO_NSQ, NSQJS, SMALL, pip
from penstock.testing import Broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["plain", "tls"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, authority: Authority) -> Iterator[Broker]:
    path = tmp_path / "users.toml"
    write(path, user("application", "publish:peer", "subscribe:peer", "group:ch"), user("stranger", "publish:other"))
    settings = {}
    if request.param == "tls":
        settings = authority.sign("server").settings | {"tls_required": "true"}
    with Broker(tmp_path / "data", users=str(path), **settings) as broker:
        broker.tls = request.param == "tls"  # type: ignore[attr-defined]
        yield broker


def _client(package: str) -> Program:
    if package == "pynsq":
        folder = install(CACHE / "nsq-small", *pip(*SMALL))
        return Program([str(folder / "bin" / "python"), str(HERE / "nsq_secured.py")], {}, "")
    if package == "go-nsq":
        folder = install(
            CACHE / "go-nsq-secured",
            ["go", "version"],
            ["cp", str(HERE / "nsq_secured.go"), "FOLDER/main.go"],
            ["sh", "-c", f"cd FOLDER && go mod init peer && go get {GO_NSQ} && go build -o peer ."],
        )
        return Program([str(folder / "peer")], {}, "")
    folder = install(
        CACHE / "nsqjs-alone",
        ["npm", "install", "--prefix", "FOLDER", "--no-audit", "--no-fund", "--silent", NSQJS],
        ["node", "--version"],
    )
    return Program(["node", str(HERE / "nsqjs_secured.js")], {"NODE_PATH": str(folder / "node_modules")}, "")


@pytest.mark.parametrize("package", ["pynsq", "nsqjs", "go-nsq"])
def test_who_may_does_and_nobody_else(package: str, broker: Broker, authority: Authority) -> None:
    client = _client(package)
    ca = [str(authority.cert)] if broker.tls else []  # type: ignore[attr-defined]

    def run(secret: str) -> Lines:
        return Program(client._command, client._environment, "peer").run(broker.nsq, secret, *ca)

    told = run(f"application:{SECRET}application")
    assert {"published": True} in told
    assert {"body": "hello"} in told
    for secret, why in (("application:wrong", "E_AUTH_FAILED"), (f"stranger:{SECRET}stranger", "E_UNAUTHORIZED")):
        told = run(secret)
        assert any(why in str(line.get("error")) for line in told), told
        assert {"published": True} not in told
        assert not [line for line in told if "body" in line]
