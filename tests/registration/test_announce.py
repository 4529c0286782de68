"""`announce`: registries are told what there is, over sockets and within the process, and asked about new topics."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from http_rows import ask

from penstock.app import Server
from penstock.config import RegistryConfig
from penstock.embedded import ThreadedBroker
from penstock.registration import announce
from penstock.registration.announce import commands
from penstock.testing import Broker
from ports import free_port


def test_the_difference_is_what_is_told() -> None:
    old = {(b"gone", b""), (b"gone", b"c"), (b"kept", b""), (b"kept", b"old")}
    new = {(b"kept", b""), (b"kept", b"new"), (b"t", b""), (b"u", b""), (b"u", b"c"), (b"u", b"d")}
    assert commands(old, new) == [
        b"UNREGISTER gone\n",
        b"UNREGISTER kept old\n",
        b"REGISTER t\n",
        b"REGISTER kept new\n",
        b"REGISTER u c\n",
        b"REGISTER u d\n",
    ]
    assert commands(new, new) == []


class Registry(ThreadedBroker):
    """A registry alone, in a thread."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        folder = str(self.folder)
        ports = {"registry_port": -1, "lookup_port": 0, "lookup_http_port": 0} | settings
        self._make = lambda: Server(None, RegistryConfig(data=folder, **ports))


@pytest.fixture
def registries() -> Iterator[tuple[Registry, Registry]]:
    with Registry(lookup_port=free_port()) as one, Registry() as two:
        yield one, two


def until(true: Callable[[], Any]) -> Any:
    """What `true` returns once it is true. Another process of the network is waited for: its moment is not ours."""
    end = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < end
        threading.Event().wait(0.01)
    return found


def topics(registry: ThreadedBroker) -> dict[str, list[str]]:
    """Topic to channels, as clients see them."""
    found = {}
    for topic in json.loads(ask(registry.lookup_http, "GET", "/topics").body)["topics"]:
        told = ask(registry.lookup_http, "GET", f"/lookup?topic={quote(topic)}")
        if told.status == 200:  # else it has gone meanwhile
            found[topic] = json.loads(told.body)["channels"]
    return found


def producers(registry: ThreadedBroker, topic: str) -> list[Any]:
    told = ask(registry.lookup_http, "GET", f"/lookup?topic={topic}")
    return [] if told.status == 404 else json.loads(told.body)["producers"]


def make(broker: ThreadedBroker, topic: str, *channels: str) -> None:
    ask(broker.http, "POST", f"/topic/create?topic={topic}")
    for channel in channels:
        ask(broker.http, "POST", f"/channel/create?topic={topic}&channel={channel}")


def test_registries_of_other_processes(registries: tuple[Registry, Registry]) -> None:
    one, two = registries
    with Broker(
        lookupd_tcp_address=f"{one.lookup};{two.lookup}", lookup_port=-1, lookup_http_port=-1, open_config=True
    ) as broker:
        make(broker, "t", "a", "b")
        make(broker, "e%23ephemeral")
        for registry in registries:
            until(lambda registry=registry: topics(registry).get("t") == ["a", "b"])
            until(lambda registry=registry: "e#ephemeral" in topics(registry))
            (node,) = json.loads(ask(registry.lookup_http, "GET", "/nodes").body)["producers"]
            assert node["broadcast_address"] == "127.0.0.1"
            assert f"127.0.0.1:{node['tcp_port']}" == broker.nsq
            assert f"127.0.0.1:{node['http_port']}" == broker.http
        ask(broker.http, "POST", "/channel/delete?topic=t&channel=a")
        ask(broker.http, "POST", "/topic/delete?topic=e%23ephemeral")
        until(lambda: "e#ephemeral" not in topics(one))
        (node,) = json.loads(ask(one.lookup_http, "GET", "/nodes").body)["producers"]
        assert node["topics"] == ["t"]
        # A registry that is no longer in the list hears no more of us.
        ask(broker.http, "PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([two.lookup]).encode())
        until(lambda: not producers(one, "t"))
        assert len(producers(two, "t")) == 1
        ask(broker.http, "PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([two.lookup, one.lookup]).encode())
        until(lambda: producers(one, "t"))
    until(lambda: not producers(two, "t"))


def test_a_registry_that_comes_later(registries: tuple[Registry, Registry]) -> None:
    one, _ = registries
    address = one.lookup
    one._stop_thread()
    with Broker(lookupd_tcp_address=address, lookup_port=-1, lookup_http_port=-1) as broker:
        make(broker, "t", "c")
        port = int(address.rpartition(":")[2])
        with Registry(lookup_port=port) as again:
            until(lambda: topics(again) == {"t": ["c"]})


def test_a_registry_that_is_started_anew_is_told_at_once(
    registries: tuple[Registry, Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next ping: until then it answers consumers that there is no such topic."""
    monkeypatch.setattr(announce, "PING_MS", 600_000)
    one, _ = registries
    with Broker(lookupd_tcp_address=one.lookup, lookup_port=-1, lookup_http_port=-1) as broker:
        make(broker, "t", "c")
        until(lambda: topics(one) == {"t": ["c"]})
        port = int(one.lookup.rpartition(":")[2])
        one._stop_thread()
        with Registry(lookup_port=port) as again:
            until(lambda: producers(again, "t") and topics(again) == {"t": ["c"]})


def test_a_registry_that_hangs_up_as_soon_as_it_was_told_is_dialled_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "RETRY_S", (0.001, 60.0))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as peer, peer.makefile("rb") as lines:
                        lines.read(len(b"  V1IDENTIFY\n"))
                        lines.read(int.from_bytes(lines.read(4), "big"))
                        peer.sendall(b"\0\0\0\2{}")
                        lines.readline()  # a ping
                        peer.sendall(b"\0\0\0\2OK")

        threading.Thread(target=hang_up, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Broker(lookupd_tcp_address=address, lookup_port=-1, lookup_http_port=-1) as broker:

            def pause_s() -> float:
                return float(broker.call(lambda server: server.announcer.peers[address]._retry_s))

            until(lambda: pause_s() >= 0.03)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_new_topic_gets_the_channels_that_are_known(registries: tuple[Registry, Registry]) -> None:
    one, _ = registries
    for name in ("c", "d", "e%23ephemeral"):
        ask(one.lookup_http, "POST", f"/channel/create?topic=t&channel={name}")
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # accepts and says nothing
        silent = f"127.0.0.1:{stranger.getsockname()[1]}"
        with Broker(lookupd_tcp_address=f"{silent};{one.lookup}", lookup_port=-1, lookup_http_port=-1) as broker:
            until(lambda: json.loads(ask(one.lookup_http, "GET", "/nodes").body)["producers"])
            # Known to the registry is not yet known to the broker: it says so in its own time.
            until(lambda: broker.call(lambda server: server.announcer.peers[one.lookup].http))
            assert ask(broker.http, "POST", "/pub?topic=t", b"first").answer == "OK"

            def channels() -> Any:
                found = json.loads(ask(broker.http, "GET", "/stats?format=json&topic=t").body)["topics"][0]["channels"]
                return [(channel["channel_name"], channel["depth"]) for channel in found] if len(found) == 2 else None

            assert until(channels)[0] == ("c", 1)


def test_the_registry_of_the_same_process_knows_at_once() -> None:
    with Broker() as broker:
        ask(broker.lookup_http, "POST", "/channel/create?topic=new&channel=known")
        make(broker, "t", "c")
        assert topics(broker) == {"new": ["known"], "t": ["c"]}
        (node,) = producers(broker, "t")
        assert f"{node['broadcast_address']}:{node['tcp_port']}" == broker.nsq
        make(broker, "new")
        found = json.loads(ask(broker.http, "GET", "/stats?format=json&topic=new").body)["topics"][0]["channels"]
        assert [channel["channel_name"] for channel in found] == ["known"]
        ask(broker.http, "POST", "/topic/delete?topic=t")
        assert producers(broker, "t") == []


def test_the_registry_of_the_same_process_forgets_what_is_deleted() -> None:
    """Else its tables grow with every topic name there ever was."""
    with Broker() as broker:
        make(broker, "kept", "c", "d")
        make(broker, "t", "c", "d")
        make(broker, "e%23ephemeral", "c")
        ask(broker.http, "POST", "/channel/delete?topic=t&channel=c")
        ask(broker.http, "POST", "/channel/delete?topic=kept&channel=d")
        ask(broker.http, "POST", "/topic/delete?topic=t")
        ask(broker.http, "POST", "/topic/delete?topic=e%23ephemeral")
        assert topics(broker) == {"kept": ["c"]}
        assert json.loads(ask(broker.lookup_http, "GET", "/topics").body)["topics"] == ["kept"]
        assert broker.call(lambda server: dict(server.announcer.neighbour.lookupd.tables.channels)).keys() == {"kept"}
        make(broker, "t", "new")  # made again, it does not get the channels of before
        assert topics(broker)["t"] == ["new"]


def test_what_another_nsqd_has_is_not_forgotten() -> None:
    """And what another one had stays, as at nsqlookupd: it may come back."""
    with Broker() as one, Broker(lookupd_tcp_address=one.lookup, lookup_port=-1, lookup_http_port=-1) as two:
        make(two, "t", "c", "d")
        until(lambda: topics(one).get("t") == ["c", "d"])
        make(one, "t", "e")
        ask(one.http, "POST", "/topic/delete?topic=t")
        assert topics(one) == {"t": ["c", "d"]}
        ask(two.http, "POST", "/topic/delete?topic=t")
        until(lambda: not producers(one, "t"))
        assert topics(one) == {"t": ["c", "d"]}


def test_lookupd_over_a_socket(registries: tuple[Registry, Registry]) -> None:
    one, _ = registries
    host, _, port = one.lookup.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(b"  V1PING\nFOO\nPING\n")
        got = b""
        while data := peer.recv(4096):
            got += data
        assert got == b"\0\0\0\2OK\0\0\0\x1dE_INVALID invalid command FOO"
