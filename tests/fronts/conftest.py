"""A broker in a thread, and plain sockets to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fronts.raw_peer import RawPeer
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[], RawPeer]]:
    peers = []

    def make() -> RawPeer:
        peers.append(RawPeer(broker.remoting))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(connect: Callable[[], RawPeer]) -> RawPeer:
    return connect()
