"""A broker tells registries that want TLS, signed as a user of theirs."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.request
from pathlib import Path

import pytest

from certificates import Authority, Certificate
from penstock.embedded import ThreadedBroker
from penstock.testing import Broker
from penstock.wire.acl import ACCESS_KEY, is_signed
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import CommandParser, RemotingCommand, encode
from polling import eventually
from registration.test_announce import Registry

SECRET = "s3cret-of-the-broker"


@pytest.fixture
def security(tmp_path: Path, authority: Authority) -> str:
    """The file that the broker's setting names."""
    file = tmp_path / "security.toml"
    file.write_text(f'tls = true\ntls_ca = "{authority.cert}"\nuser = "broker"\nsecret = "{SECRET}"\n')
    file.chmod(0o600)
    return str(file)


def test_registries_that_want_tls_are_told(
    security: str, server_certificate: Certificate, authority: Authority
) -> None:
    modes = {"registry_tls": "required", "lookup_tls": "required", "registry_port": 0, "broadcast_address": "127.0.0.1"}
    with Registry(**modes, **server_certificate.settings) as registry:
        told = {"registry": registry.registry, "lookupd_tcp_address": registry.lookup, "broker_name": "far"}
        with Broker(security=security, **told) as broker:
            eventually(lambda: "far" in registry.call(lambda server: server.registered()))
            broker.call(lambda server: server.broker and server.broker.queueing.topic(b"jobs").channel(b"c"))
            eventually(lambda: "jobs" in lookup(registry, authority))
        with Broker(**told) as broker:  # it knows nothing of TLS
            assert "far" not in registry.call(lambda server: server.registered())


def lookup(registry: ThreadedBroker, authority: Authority) -> str:
    """What its HTTP says, over TLS."""
    url = f"https://{registry.lookup_http}/topics"
    with urllib.request.urlopen(url, timeout=30, context=authority.client()) as told:
        return str(told.read())


def test_what_a_broker_says_is_signed(security: str, server_certificate: Certificate) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_certificate.cert, server_certificate.key)
    heard: list[RemotingCommand] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = context.wrap_socket(listener.accept()[0], server_side=True)
            parser = CommandParser()
            with connection:
                while data := connection.recv(1 << 16):
                    for command in parser.feed(data):
                        heard.append(command)
                        connection.sendall(encode(command.reply()))

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Broker(security=security, registry=address):
            eventually(lambda: heard)
        thread.join(30)
    assert {command.code for command in heard} == {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
    assert all(command.ext[ACCESS_KEY] == "broker" and is_signed(command, SECRET) for command in heard)
