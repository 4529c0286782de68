"""A broker inside a program: addresses, a folder of its own, and what keeps it from starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Message, Producer
from penstock.app import Server
from penstock.embedded import Broker, ThreadedBroker
from penstock.errors import ConfigError, Locked


def test_a_folder_of_its_own_goes_with_it() -> None:
    with ThreadedBroker() as broker:
        assert len({broker.registry, broker.remoting, broker.nsq, broker.http, broker.lookup, broker.lookup_http}) == 6
        assert broker.call(lambda server: isinstance(server, Server))
        assert broker.folder.exists()
    assert not broker.folder.exists()


def test_on_a_given_folder_it_may_be_started_again(tmp_path: Path) -> None:
    broker = ThreadedBroker(tmp_path)
    for expected in (0, 1):
        with broker, Producer(broker.registry) as producer:
            assert producer.send(Message("T", b"x", sharding_key="one")).queue_offset == expected


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ThreadedBroker(tmp_path, no_such_setting=1)
    with ThreadedBroker(tmp_path), pytest.raises(Locked):
        ThreadedBroker(tmp_path).start()


async def test_in_the_present_loop(tmp_path: Path) -> None:
    async with Broker(tmp_path, nsq_port=-1, lookup_port=-1, lookup_http_port=-1) as broker:
        assert "nsq" not in broker.addresses
        assert broker.remoting.startswith("127.0.0.1:")
