"""The access-control requests of mqadmin: they change the file of users, and count at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.test_needs import C, Guarded, was_denied
from penstock.fronts.requests.accounts import Accounts


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Guarded]:
    side = Guarded(tmp_path)
    yield side
    side.close()


def test_an_account_counts_at_once(side: Guarded) -> None:
    assert was_denied(side.send_as("", "T"))
    made = side.ask_as(
        "root", C.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="u", secretKey="secret-of-u", topicPerms="T=PUB"
    )
    assert made.code == 0
    assert side.send_as("u", "T").code == 0
    assert was_denied(side.send_as("u", "X"))
    version = side.ask_as("root", C.GET_BROKER_CLUSTER_ACL_INFO).ext
    assert json.loads(version["version"])["counter"] == 2
    told = json.loads(side.ask_as("root", C.GET_BROKER_CLUSTER_ACL_CONFIG).body)
    assert [one["accessKey"] for one in told["plainAccessConfigs"]] == ["root", "u"]
    assert b"secret-of" not in side.ask_as("root", C.GET_BROKER_CLUSTER_ACL_CONFIG).body
    assert side.ask_as("root", C.DELETE_ACL_CONFIG, accessKey="u").code == 0
    assert was_denied(side.send_as("u", "T"))


@pytest.mark.parametrize(
    ("code", "ext", "failure"),
    [(C.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "u", "secretKey": "abc"}, 209),
     (C.DELETE_ACL_CONFIG, {"accessKey": "u"}, 210),
     (C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.0.0.1"}, 211)],
)  # fmt: skip
def test_what_cannot_be_done_is_told(side: Guarded, code: int, ext: dict[str, str], failure: int) -> None:
    assert side.ask_as("root", code, **ext).code == failure


def test_the_first_user_is_not_made_from_the_network(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    answer = side.ask(side.session(), C.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="u", secretKey="secret-of-u")
    assert answer.code == 209
    assert set(Accounts.TABLE) == {50, 51, 52, 53, 54}
    side.close()
