"""Settings from the network: numbers of a list, from an administrator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import user
from fronts.frontside import RemotingSide
from fronts.test_needs import C, Guarded, was_denied
from penstock.config import BrokerConfig
from penstock.fronts.requests.settings import CHANGEABLE


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Guarded]:
    side = Guarded(tmp_path)
    yield side
    side.close()


def test_an_administrator_changes_numbers(side: Guarded) -> None:
    body = b"#comment\ntransactionCheckMax=7\n\n stageTtlMs = 60000 \n"
    side.grant(user("u", "monitor"))
    assert was_denied(side.ask_as("u", C.UPDATE_BROKER_CONFIG, body))
    assert side.ask_as("root", C.UPDATE_BROKER_CONFIG, body).code == 0
    config = side.broker.config
    assert (config.transaction_check_max, config.stage_ttl_ms) == (7, 60_000)


@pytest.mark.parametrize(
    "line",
    ["rocketmqHome=/tmp;sh", "storePathRootDir=/etc", "listenPort=1", "brokerName=x", "users=/tmp/x", "transactionCheckMax",
     "transactionCheckMax=0", "transactionCheckMax=1e9", "transactionCheckMax=99999", "transactionCheckMax=\u0663",
     "filterServerNums=1", "aclEnable=false"],
)  # fmt: skip
def test_nothing_else_and_nothing_of_what_comes_with_it(side: Guarded, line: str) -> None:
    before = side.broker.config
    answer = side.ask_as("root", C.UPDATE_BROKER_CONFIG, f"stageTtlMs=60000\n{line}\n".encode())
    assert answer.code in (1, 16)
    assert side.broker.config == before


def test_without_users_nothing_is_changed_from_the_network(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    assert side.ask(side.session(), C.UPDATE_BROKER_CONFIG, b"transactionCheckMax=7\n").code == 16
    side.close()


def test_the_list_is_of_numbers() -> None:
    assert all(type(getattr(BrokerConfig(), setting)) is int for setting, _, _ in CHANGEABLE.values())
