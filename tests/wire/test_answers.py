"""Answers that are written in place are the bytes of answers that are objects."""

from __future__ import annotations

import pytest

from penstock.wire import remoting
from penstock.wire.answers import Answers
from penstock.wire.codes import LanguageCode, ResponseCode
from penstock.wire.outbox import Outbox
from penstock.wire.record import offset_msg_id, pack_host
from penstock.words import BINARY, JSON

HOSTS = ("127.0.0.1:10911", "[::1]:10911")
KINDS = pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])


def parsed(out: Outbox) -> list[remoting.RemotingCommand]:
    return list(remoting.CommandParser().feed(out.take()))


def expected(opaque: int, kind: int, ext: dict[str, str], remark: str | None = None, body: bytes = b"") -> object:
    return remoting.RemotingCommand(
        ResponseCode.SUCCESS,
        ext,
        body,
        opaque=opaque,
        flag=1,
        remark=remark,
        language=LanguageCode.JAVA,
        serialize=kind,
    )


@KINDS
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (2**31 - 1, 2**62, 7, 2**63 - 1), (-(2**31), 1, 1023, 10)])
def test_an_answer_to_a_send(kind: int, host: str, numbers: tuple[int, int, int, int]) -> None:
    opaque, physical, queue_id, queue_offset = numbers
    answers, out = Answers(pack_host(host)), Outbox()
    answers.sent(out, kind, opaque, physical, queue_id, queue_offset)
    ext = {
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "msgId": offset_msg_id(pack_host(host), physical),
        "queueId": str(queue_id), "queueOffset": str(queue_offset),
    }  # fmt: skip
    assert parsed(out) == [expected(opaque, kind, ext)]


@KINDS
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("count", [1, 2, 300])
def test_an_answer_to_a_batch_names_every_message(kind: int, host: str, count: int) -> None:
    answers, out = Answers(pack_host(host)), Outbox()
    out.put(b"")
    places = [1000 + 91 * n for n in range(count)]
    answers.begin_batch(out, kind, 5, places[0], count)
    for place in places[1:]:
        answers.next_id(out, place)
    answers.end_batch(out, 3, 44)
    answers.sent(out, kind, 6, 0, 0, 0)  # a second answer behind it
    first, second = parsed(out)
    assert first.ext["msgId"] == ",".join(offset_msg_id(pack_host(host), place) for place in places)
    assert (first.ext["queueId"], first.ext["queueOffset"], first.opaque, second.opaque) == ("3", "44", 5, 6)


@KINDS
def test_an_answer_to_a_pull_and_its_records(kind: int) -> None:
    answers, out = Answers(pack_host(HOSTS[0])), Outbox()
    answers.found(out, kind, 9, 2**40, 3, 17, 5)
    out.put(b"abcde")
    ext = {"maxOffset": str(2**40), "minOffset": "3", "nextBeginOffset": "17", "suggestWhichBrokerId": "0"}
    assert parsed(out) == [expected(9, kind, ext, "FOUND", b"abcde")]
