"""Every client of ours with TLS, and as a user: what it sends is signed, and what is not safe is not spoken to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from certificates import Authority, Certificate
from client.scripted import Scripted
from client.steps import peer
from penstock.client import line as line_module
from penstock.client.line import FRESH_S, Line
from penstock.client.liveness import Options
from penstock.client.nsqline import NsqLine
from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.client.staging import Sender, SinkRun, StageClient, Stager
from penstock.embedded import ThreadedBroker as Broker
from penstock.errors import BrokerRefused, ConnectionLost, NotTrusted, PenstockError, TimedOut
from penstock.security import Security
from penstock.wire.acl import ACCESS_KEY, is_signed
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import CommandParser, RemotingCommand, encode
from polling import eventually
from test_authority import AuthServer

SECRET = "s3cret-of-anna"
QUEUE = MessageQueue("T", "a", 0)
STRICT = {
    "remoting_tls": "required", "registry_tls": "required", "lookup_tls": "required", "tls_required": "tcp-https",
}  # fmt: skip


@pytest.fixture
def safe(authority: Authority) -> Security:
    """What a client needs for the broker below."""
    return Security(True, str(authority.cert))


@pytest.fixture
def broker(server_certificate: Certificate) -> Iterator[Broker]:
    """Nobody gets in without TLS."""
    with Broker(**server_certificate.settings, **STRICT) as broker:
        yield broker


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(begin, end)]


# -- TLS


def test_sends_and_receives_of_both_kinds_of_topic(broker: Broker, safe: Security) -> None:
    for kind in ("log", "queue"):
        with penstock.Producer(broker.registry, kind=kind, security=safe) as producer:  # type: ignore[arg-type]
            big = random.Random(1).randbytes(300_000)
            producer.send(penstock.Message(kind, b"0"))  # over the loop: the route is not known
            producer.send(penstock.Message(kind, b"1"))  # over a line of the thread's own
            assert any(producer._direct._lines.values()) or any(producer._direct._nsq_lines.values())
            producer.send(penstock.Message(kind, big))
            producer.send_batch([penstock.Message(kind, body) for body in numbers(2, 5)])
            for sending in [producer.send_nowait(penstock.Message(kind, body)) for body in numbers(5, 200)]:
                sending.result(60)
            if kind == "log":
                assert producer.send_oneway(penstock.Message(kind, b"200"))
        got: list[bytes] = []
        with penstock.PushConsumer("G", broker.registry, kind=kind, start="first", security=safe) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(kind)
            for message in consumer:
                got.append(message.body)
                if len(got) == (202 if kind == "log" else 201):
                    break
        assert sorted(got) == sorted([big, *numbers(0, 201 if kind == "log" else 200)])


def test_readers_and_tools(broker: Broker, safe: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.Admin(broker.registry, security=safe) as admin:
        admin.create_topic("T", 1)
        assert "T" in admin.topics()
    with StageClient(broker.registry, security=safe) as stage:
        (queue,) = stage.queues("T")
        run = SinkRun("sink", "run", 1)
        stager = Stager(stage, run, 0)
        assert not stager.over()
        stager.close()
    with LogReader(broker.registry, security=safe) as reader:
        assert reader.topics() == ["T"]
        with penstock.Producer(broker.registry, security=safe) as producer:
            producer.send(penstock.Message("T", random.Random(1).randbytes(2 << 20)))
            producer.send(penstock.Message("T", b"x"))
        found = reader.fetch(queue, 0, until=10, max_count=1, durable=False)
        assert len(found.records) > 2 << 20
        assert reader.fetch(queue, found.next_offset, until=10, max_count=1, durable=False).records.count(b"x")
    with penstock.PullConsumer(broker.registry, security=safe) as puller:
        puller.assign("T", start="first")
        assert sum(map(len, puller.getmany(30).values())) >= 1
    monkeypatch.setenv("PENSTOCK_TLS", "true")
    monkeypatch.setenv("PENSTOCK_TLS_CA", safe.tls_ca)
    with LogReader(broker.registry) as reader:  # without arguments: as the environment says
        assert reader.topics() == ["T"]


def test_the_command_line_takes_the_environment(broker: Broker, safe: Security) -> None:
    command = [sys.executable, "-m", "penstock.cli", "topic", "ls", "--registry", broker.registry]
    plain = subprocess.run(command, capture_output=True, text=True)
    assert plain.returncode != 0
    environment = {**os.environ, "PENSTOCK_TLS": "true", "PENSTOCK_TLS_CA": safe.tls_ca}
    told = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert told.returncode == 0, told.stderr


def refused(call: Callable[[], object], kind: type[PenstockError] = PenstockError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def topics(broker: Broker, security: Security) -> list[str]:
    with LogReader(broker.registry, security=security, timeout_s=10) as reader:
        return reader.topics()


@pytest.mark.parametrize(("whose", "why"), [("ours", "IP address mismatch"), ("stranger", "verify failed")])
def test_a_server_that_is_not_the_one_is_not_spoken_to(
    authority: Authority, tmp_path: Path, whose: str, why: str
) -> None:
    elsewhere = authority.sign("elsewhere", "DNS:elsewhere.test")
    trusted = authority if whose == "ours" else Authority(tmp_path, "stranger")
    wary = Security(True, str(trusted.cert))
    with Broker(**elsewhere.settings, **STRICT) as broker:
        assert why in refused(lambda: topics(broker, wary), NotTrusted)
        assert why in refused(lambda: NsqLine(broker.nsq, 10, wary), NotTrusted)
        assert why in refused(lambda: penstock.Producer(broker.registry, security=wary).start(), NotTrusted)
        with penstock.Producer(nsqd=broker.nsq, kind="queue", security=wary, send_timeout_s=3) as producer:
            assert refused(lambda: producer.send(penstock.Message("t", b"x")))
        if whose == "ours":
            skipping = Security(True, str(authority.cert), insecure_skip_hostname=True)
            assert topics(broker, skipping) == []
            NsqLine(broker.nsq, 10, skipping).close()


def test_where_there_is_no_tls_nobody_goes_on_without(safe: Security) -> None:
    with Broker() as broker:
        assert refused(lambda: topics(broker, safe))
        assert "no TLS for NSQ" in refused(lambda: NsqLine(broker.nsq, 10, safe))


def test_a_time_that_is_over_is_over_with_tls_too(server_certificate: Certificate, safe: Security) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_certificate.cert, server_certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[ssl.SSLSocket] = []
        thread = threading.Thread(
            target=lambda: held.append(context.wrap_socket(listener.accept()[0], server_side=True))
        )
        thread.start()
        line = Line(listener.getsockname(), 10, short=True, security=safe)
        thread.join()
        with pytest.raises(TimedOut):
            line.call(RemotingCommand(1), 0.1)
        line.close()
        held[0].close()


def test_an_answer_that_takes_long_is_waited_for_with_tls_too(
    server_certificate: Certificate, safe: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that was looked at meanwhile, again and again, goes on where it was."""
    monkeypatch.setattr(line_module, "LOOK_S", 0.001)
    looks: list[Options] = []
    answered = threading.Event()

    def look(connection: Options) -> bool:
        looks.append(connection)
        if len(looks) == 3:
            answered.set()
        return False

    monkeypatch.setattr(line_module, "is_gone", look)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(server_certificate.cert), str(server_certificate.key))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with context.wrap_socket(server.accept()[0], server_side=True) as connection:
                (command,) = CommandParser().feed(connection.recv(65_536))
                answered.wait(60)
                connection.sendall(encode(command.reply(0, {"done": "yes"}, b"x" * 10_000)))

        thread = threading.Thread(target=serve)
        thread.start()
        line = Line(server.getsockname(), 60, security=safe)
        assert line.call(RemotingCommand(1), 60).body == b"x" * 10_000
        line.close()
        thread.join()
    assert len(looks) >= 3


def test_a_line_that_lay_idle_is_looked_at_without_waiting(broker: Broker, safe: Security) -> None:
    host, _, port = broker.remoting.rpartition(":")
    line = Line((host, int(port)), 600, short=True, security=safe)
    for _ in range(2):
        assert line.call(RemotingCommand(RequestCode.GET_BROKER_CONFIG), 600).code == 0
        end = time.monotonic() + 2 * FRESH_S
        eventually(lambda: time.monotonic() > end)  # noqa: B023
        assert line.is_quiet()  # the test ends: with a time of ten minutes it would not
    broker.stop()
    assert not line.is_quiet()
    line.close()
    broker.start()


# -- users: what a raw peer receives


class Noting(Scripted):
    """Answers everything, and checks that everything is signed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[RemotingCommand] = []
        sent = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0", "transactionId": ""}
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE):
            self.replies[code] = lambda command: command.reply(0, dict(sent))
        self.replies[RequestCode.GET_TOPIC_CONFIG] = lambda command: command.reply(17)
        self.replies[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(
            body=b'{"consumerIdList":[]}'
        )

    async def answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        self.seen.append(command)
        await super().answer(command, writer)


@pytest.mark.parametrize("idempotent", [False, True])
async def test_whatever_a_client_asks_is_signed(idempotent: bool) -> None:
    script = Noting()
    anna = Security(user="anna", secret=SECRET)

    def work(address: str) -> None:
        with penstock.Producer(address, security=anna, idempotent=idempotent) as producer:
            for body in (b"by the loop", b"by a line", bytes(1 << 20), b""):
                producer.send(penstock.Message("T", body, keys=("k",), properties={"p": "ä"}))
            producer.send_batch([penstock.Message("T", b"a"), penstock.Message("T", b"b")])
            producer.send_oneway(penstock.Message("T", b"one way"))
            for sending in [producer.send_nowait(penstock.Message("T", body)) for body in numbers(0, 500)]:
                sending.result(60)
        with penstock.Admin(address, security=anna) as admin:
            admin.create_topic("T", 1)
        with LogReader(address, security=anna) as reader:
            for call in (reader.topics, lambda: reader.committed("G", QUEUE)):
                with contextlib.suppress(PenstockError):
                    call()
        with StageClient(address, security=anna, patience_s=0) as stage:
            Sender(stage, "G").send(QUEUE, b"batch", 1, 0)

    async with peer(script.answer) as address:
        await asyncio.to_thread(work, address)
        consumer = penstock.aio.PushConsumer("G", address, security=anna)
        await consumer.start()
        await consumer.subscribe("T")
        await consumer.close()
    codes = {command.code for command in script.seen}
    expected = {
        RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.HEART_BEAT, RequestCode.UPDATE_AND_CREATE_TOPIC,
    }  # fmt: skip
    assert expected <= codes
    assert not [command for command in script.seen if command.ext.get(ACCESS_KEY) != "anna"]
    assert not [command for command in script.seen if not is_signed(command, SECRET)]


async def test_nobody_signs_without_a_user() -> None:
    script = Noting()
    async with peer(script.answer) as address, penstock.aio.Producer(address) as producer:
        await producer.send(penstock.Message("T", b"x"))
    assert not [command for command in script.seen if ACCESS_KEY in command.ext]


# -- NSQ: AUTH


@pytest.fixture
def auth() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


def test_auth_says_who_we_are_inside_tls(auth: AuthServer, authority: Authority, client_certificate: Certificate,
                                         server_certificate: Certificate) -> None:  # fmt: skip
    more = {"tls_client_auth_policy": "optional", "tls_root_ca_file": str(authority.cert)}
    own = str(client_certificate.cert), str(client_certificate.key)
    anna = Security(True, str(authority.cert), *own, user="anna", secret=SECRET)
    auth.answer = json.dumps(
        {"ttl": 3600, "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}]}
    )
    with Broker(auth_http_address=auth.address, **server_certificate.settings, **STRICT, **more) as broker:
        with penstock.Producer(nsqd=broker.nsq, kind="queue", security=anna) as producer:
            for body in numbers(0, 3):
                producer.send(penstock.Message("t", body))
        got = []
        with penstock.PushConsumer("c", nsqd=broker.nsq, kind="queue", security=anna) as consumer:
            consumer.subscribe("t")
            for message in consumer:
                got.append(message.body)
                if len(got) == 3:
                    break
        assert sorted(got) == numbers(0, 3)
        NsqLine(broker.nsq, 10, anna).close()
        asked = {json.dumps(told, sort_keys=True) for _, _, told in auth.asked}
        assert asked == {
            json.dumps(
                {"common_name": ["anna"], "remote_ip": ["127.0.0.1"], "secret": [f"anna:{SECRET}"], "tls": ["true"]},
                sort_keys=True,
            )
        }
        assert len(auth.asked) >= 3
        nobody = Security(True, str(authority.cert))
        assert "set user and secret" in refused(lambda: NsqLine(broker.nsq, 10, nobody))
        with pytest.raises((BrokerRefused, ConnectionLost)):
            penstock.Producer(nsqd=broker.nsq, kind="queue", security=nobody, send_timeout_s=3).start().send(
                penstock.Message("t", b"x")
            )


def test_who_has_no_auth_is_not_told_who_we_are() -> None:
    with Broker() as broker:
        NsqLine(broker.nsq, 10, Security(user="anna", secret=SECRET)).close()
        with penstock.Producer(nsqd=broker.nsq, kind="queue", security=Security(user="a", secret="b")) as producer:
            producer.send(penstock.Message("t", b"x"))


# -- users: at a broker that knows them


@pytest.fixture
def guarded(server_certificate: Certificate, authority: Authority, tmp_path: Path) -> Iterator[Broker]:
    """One that takes nothing but TLS, and nobody whom it does not know."""
    users = tmp_path / "users.toml"
    users.write_text(
        f'[[user]]\nname = "anna"\nsecret = "{SECRET}"\nrights = ["publish:t", "subscribe:t", "group:g"]\n'
        '[[user]]\nname = "root"\nsecret = "s3cret-of-root"\nrights = ["admin"]\n'
    )
    users.chmod(0o600)
    more = {"tls_client_auth_policy": "optional", "tls_root_ca_file": str(authority.cert), "users": str(users)}
    with Broker(tmp_path / "data", **server_certificate.settings, **STRICT, **more) as broker:
        yield broker


@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("secret", ["", SECRET], ids=["alone", "and a secret"])
def test_a_certificate_says_who_we_are(
    guarded: Broker, safe: Security, client_certificate: Certificate, kind: str, secret: str
) -> None:
    own = replace(safe, tls_cert=str(client_certificate.cert), tls_key=str(client_certificate.key))
    anna = replace(own, user="anna", secret=secret) if secret else own
    with penstock.Producer(guarded.registry, kind=kind, security=anna, send_timeout_s=10) as producer:  # type: ignore[arg-type]
        for body in numbers(0, 3):
            producer.send(penstock.Message("t", body))
        producer.send_nowait(penstock.Message("t", b"3")).result(60)
        with pytest.raises(PenstockError):
            producer.send(penstock.Message("other", b"x"))


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_user_does_what_it_may_and_nothing_else(guarded: Broker, safe: Security, kind: str) -> None:
    anna = replace(safe, user="anna", secret=SECRET)
    with penstock.Admin(guarded.registry, security=replace(safe, user="root", secret="s3cret-of-root")) as admin:
        if kind == "log":
            admin.create_topic("t", 1)
        else:
            admin.change_queue("t", "add")
    with penstock.Producer(guarded.registry, kind=kind, security=anna, send_timeout_s=10) as producer:  # type: ignore[arg-type]
        for body in numbers(0, 5):
            producer.send(penstock.Message("t", body))
        for sending in [producer.send_nowait(penstock.Message("t", body)) for body in numbers(5, 50)]:
            sending.result(60)
        with pytest.raises(PenstockError):
            producer.send(penstock.Message("other", b"x"))
    got: list[bytes] = []
    with penstock.PushConsumer("g", guarded.registry, kind=kind, start="first", security=anna) as consumer:  # type: ignore[arg-type]
        consumer.subscribe("t")
        for message in consumer:
            got.append(message.body)
            if len(got) == 50:
                break
    assert sorted(got) == sorted(numbers(0, 50))
    for nobody in (safe, replace(safe, user="anna", secret="another-secret"), replace(safe, user="eve", secret=SECRET)):
        with (
            pytest.raises(PenstockError),
            penstock.Producer(guarded.registry, security=nobody, send_timeout_s=5) as out,
        ):
            out.send(penstock.Message("t", b"x"))
