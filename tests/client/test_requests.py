"""Requests that several clients send, as they stand in a frame."""

from __future__ import annotations

import pytest

from penstock.client import requests
from penstock.client.routes import MessageQueue
from penstock.wire.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from penstock.wire.remoting import RemotingCommand

QUEUE = MessageQueue("T", "a", 3)
OF_QUEUE = {"topic": "T", "queueId": "3"}


@pytest.mark.parametrize(
    ("request_", "code", "more"),
    [
        (requests.max_offset(QUEUE), RequestCode.GET_MAX_OFFSET, {}),
        (requests.max_offset(QUEUE, durable=True), RequestCode.GET_MAX_OFFSET, {"durable": "true"}),
        (requests.min_offset(QUEUE), RequestCode.GET_MIN_OFFSET, {}),
        (requests.offset_at(QUEUE, 5), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "5"}),
        (requests.offset_at(QUEUE, 5, lower=True), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
         {"timestamp": "5", "boundaryType": "LOWER"}),
        (requests.committed("G", QUEUE), RequestCode.QUERY_CONSUMER_OFFSET,
         {"consumerGroup": "G", "setZeroIfNotFound": "false"}),
        (requests.commit("G", QUEUE, 9), RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "commitOffset": "9"}),
    ],
)  # fmt: skip
def test_of_a_queue(request_: RemotingCommand, code: int, more: dict[str, str]) -> None:
    assert (request_.code, request_.ext) == (code, OF_QUEUE | more)


def test_routes_of_a_kind() -> None:
    assert requests.route("T").ext == {"topic": "T"}
    assert requests.route("T", "any").ext == {"topic": "T", "kind": "any"}


@pytest.mark.parametrize(
    ("more", "flag", "ext"),
    [
        ({}, PULL_SUBSCRIPTION, {"subscription": "*", "suspendTimeoutMillis": "0"}),
        ({"expression": None, "hold_ms": 500}, PULL_SUSPEND, {"suspendTimeoutMillis": "500"}),
        (
            {"expression": "a > 1", "kind": "SQL92"},
            PULL_SUBSCRIPTION,
            {"subscription": "a > 1", "expressionType": "SQL92"},
        ),
        ({"durable": True, "max_bytes": 7}, PULL_SUBSCRIPTION, {"durable": "true", "maxBytes": "7"}),
    ],
)
def test_pulls(more: dict[str, object], flag: int, ext: dict[str, str]) -> None:
    found = requests.Pull("G", QUEUE, 11, **more).command().ext  # type: ignore[arg-type]
    assert (found["sysFlag"], found["queueOffset"], found["consumerGroup"]) == (str(flag), "11", "G")
    assert {name: found[name] for name in ext} == ext
    assert ("subscription" in found) == (more.get("expression", "*") is not None)
