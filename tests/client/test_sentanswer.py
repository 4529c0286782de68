"""`client.sentanswer`: what it reads of an answer is what the protocol's own objects say, or it reads nothing."""

from __future__ import annotations

import random

import pytest

from penstock.client.sentanswer import SentAnswer
from penstock.errors import PenstockError
from penstock.wire.remoting import RemotingCommand, decode
from penstock.words import JSON

SOUND = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00","queueId":"3","queueOffset":"17"},'
    b'"flag":1,"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def read(header: bytes) -> SentAnswer | None:
    found = SentAnswer()
    return found if found.read(header, 0, len(header)) else None


def objects(header: bytes) -> RemotingCommand | None:
    try:
        return decode(JSON, header)
    except PenstockError:
        return None


def test_an_answer() -> None:
    found = SentAnswer()
    assert found.read(b"ab" + SOUND + b"}", 2, 2 + len(SOUND))
    assert (found.code, found.flag, found.opaque, found.queue_id, found.queue_offset) == (0, 1, 5, 3, 17)
    assert (found.msg_id(), found.transaction_id()) == ("7F00", None)
    assert not found.read(b"{}", 0, 0)
    assert (found.code, found.msg_id()) == (-1, None)  # nothing is left of the one before


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"{}x",
        SOUND[:-1],
        SOUND + b" ",
        SOUND.replace(b"7F00", b"7\\u0046"),
        SOUND.replace(b"7F00", "Ω".encode()),
        SOUND.replace(b"7F00", b"7\n"),
        SOUND.replace(b'"opaque":5', b'"opaque":5,"opaque":6'),
        SOUND.replace(b'"queueId":"3"', b'"queueId":"3","queueId":"4"'),
        SOUND.replace(b'"queueId":"3"', b'"queueId":3'),
        SOUND.replace(b'"queueId":"3"', b'"queueId":{}'),
        SOUND.replace(b'"opaque":5', b'"opaque":"5"'),
        SOUND.replace(b'"opaque":5', b'"opaque":-5'),
        SOUND.replace(b'"opaque":5', b'"opaque":5.0'),
        SOUND.replace(b'"version":409', b'"version":null'),
        SOUND.replace(b'"version":409', b'"extFields":{"queueId":"9"}'),
        SOUND.replace(b'"version":409', b'"other":{}'),
        b'{"extFields":' * 10_000,
        b'{"extFields":{"extFields":{}}}',
    ],
)
def test_what_is_left_to_the_objects(header: bytes) -> None:
    assert read(header) is None


def test_what_stands_elsewhere_is_not_taken() -> None:
    """A member of the header with the name of a field, and the other way round."""
    found = read(
        b'{"msgId":"x","queueId":7,"code":1,"extFields":{"code":"9","opaque":"8","msgId":"y"},"flag":1,"opaque":2}'
    )
    assert found is not None
    assert (found.msg_id(), found.queue_id, found.code, found.opaque) == ("y", -1, 1, 2)


def test_changed_answers_say_what_they_say_to_the_objects() -> None:
    some, seen = random.Random(51), 0
    letters = b'{}":,0159-.eE\\ \n\xcexXtrue' + SOUND
    for _ in range(20_000):
        header = bytearray(SOUND)
        for _ in range(some.choice([1, 1, 2, 3])):
            at = some.randrange(len(header))
            what = some.randrange(3)
            if what == 0:
                header[at] = some.choice(letters)
            elif what == 1:
                del header[at : at + some.choice([1, 1, 2, 10])]
            else:
                end = some.randrange(at, min(at + 30, len(header)))
                header[at:at] = header[end : end + some.randrange(20)] or b"0"
        found = read(bytes(header))
        if found is None:
            continue
        seen += 1
        command = objects(bytes(header))
        assert command is not None, header
        told = (found.code, found.flag, found.opaque)
        assert all(
            mine in (-1, theirs)
            for mine, theirs in zip(told, (command.code, command.flag, command.opaque), strict=True)
        )
        assert (found.msg_id(), found.transaction_id()) == (
            command.ext.get("msgId"),
            command.ext.get("transactionId"),
        ), header
        for mine, name in ((found.queue_id, "queueId"), (found.queue_offset, "queueOffset")):
            assert mine == -1 or str(mine) == command.ext[name], header
    assert seen > 1_000
