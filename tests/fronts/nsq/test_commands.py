"""The table of NSQ commands that are handled as objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import sized
from penstock.fronts.nsq.commands import COMMANDS, digits


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"0", 0), (b"12", 12), (b"", 0), (b"-1", -1), (b"1_0", -1), (b" 1", -1), (b"9" * 40, -1), (b"\xd9\xa3", -1)],
)
def test_digits(text: bytes, number: int) -> None:
    assert digits(text) == number


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_a_command_alone_is_answered_or_ends_the_connection(tmp_path: Path, verb: bytes) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    frames = side.say(session, verb + b"\n" + (sized(b"{}") if verb in (b"IDENTIFY", b"AUTH", b"DPUB") else b""))
    if verb == b"NOP":
        assert (frames, session.closing) == ([], False)
    elif verb == b"IDENTIFY":
        assert frames == [b"OK"]
    else:
        assert frames[0].startswith(b"E_")
        assert session.closing
    side.close()


def test_a_message_is_given_back_touched_and_rejected(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    side.pub(session, b"t", b"x")
    assert side.say(session, b"SUB t c\n") == [b"OK"]
    (message,) = side.say(session, b"RDY 5\n")
    id_ = message[10:26]
    assert side.say(session, b"TOUCH " + id_ + b"\n") == []
    (again,) = side.say(session, b"REQ " + id_ + b" 0\n")
    assert (again[8:10], again[10:26]) == (b"\0\2", id_)
    assert side.say(session, b"REJECT " + id_ + b"\n") == []
    assert side.say(session, b"TOUCH " + id_ + b"\n") == [b"E_TOUCH_FAILED TOUCH " + id_ + b" failed ID not in flight"]
    assert side.say(session, b"CLS\n") == [b"CLOSE_WAIT"]
    side.close()


@pytest.mark.parametrize("level", ["memory", "os", "log"])
@pytest.mark.parametrize("verb", ["DPUB", "REQ"])
def test_a_delay_begins_when_its_command_comes_not_with_the_turn(tmp_path: Path, level: str, verb: str) -> None:
    side = NsqSide(tmp_path, level="os" if level == "log" else level)
    if level == "log":
        side.broker.topics.create(b"t", 1, 1)
    session = side.session()
    assert side.say(session, b"SUB t c\n") == [b"OK"]
    assert side.say(session, b"RDY 5\n") == []
    if verb == "REQ":
        frames = side.pub(session, b"t", b"x")
        side.turn()
        message = next(frame for frame in [*frames, *side.frames(session)] if frame != b"OK")
        command = b"REQ " + message[10:26] + b" 100\n"
    else:
        command = b"DPUB t 100\n" + sized(b"x")
    side.clock.advance(40)  # the turn is as old
    assert b"x" not in [frame[26:] for frame in side.say(session, command)]
    found = []
    for ms in (99, 1, 1):
        side.turn(ms)
        found.append([frame[26:] for frame in side.frames(session)])
    assert found[0] == []
    assert [b"x"] in found[1:]
    side.close()


def test_deferred_publishes_have_limits(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    assert side.say(side.session(), b"DPUB t 1000\n" + sized(b"x")) == [b"OK"]
    limit = side.config.max_req_timeout_ms
    for words, said in ((b"DPUB t x\n", b"could not parse timeout"), (b"DPUB t %d\n" % (limit + 1), b"out of range"),
                        (b"DPUB a/b 5\n", b"E_BAD_TOPIC")):  # fmt: skip
        (frame,) = side.say(side.session(), words + sized(b"x"))
        assert said in frame
    side.close()
