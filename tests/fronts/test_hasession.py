"""What both sides of a connection of replication do: frames in any pieces, silence, and nothing for strangers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.broker.clock import BrokerClock
from penstock.broker.replica import NAME_MAX, PEERS_MAX
from penstock.clock import FakeClock
from penstock.errors import WireError
from penstock.fronts.hasession import BEAT_MS, OPENING_BYTES_MAX, SILENT_MS, HaSession
from penstock.log.epochs import EPOCHS_MAX
from penstock.wire import ha, haframe, hawords
from penstock.wire.fastjson import JsonObject


class Front:
    def __init__(self) -> None:
        time = BrokerClock(FakeClock(monotonic_ms=1_000))
        self.broker = SimpleNamespace(store=None, copies=None, time=time)
        self.lost: list[HaSession] = []

    def gone(self, session: HaSession) -> None:
        self.lost.append(session)


class Session(HaSession):
    def __init__(self, front: Front) -> None:
        super().__init__(front, "127.0.0.1:1", lambda: None)  # type: ignore[arg-type]
        self.seen: list[tuple[int, bytes]] = []
        self.beaten = 0

    def _open(self, owner: bytearray, total: int) -> int:
        return 4 if total >= 4 else 0

    def frame(self, head: haframe.Head, owner: bytearray) -> None:
        self.seen.append((head.kind, self.body(head, owner)))

    def beat(self) -> None:
        self.beaten += 1
        self.say(b"beat")


def feed(session: Session, data: bytes, piece: int) -> None:
    left = bytearray()
    for at in range(0, len(data), piece):
        left += data[at : at + piece]
        del left[: session.feed(left, len(left))]
    assert not left


@pytest.mark.parametrize("piece", [1, 7, 16, 1_000])
def test_frames_come_in_any_pieces(piece: int) -> None:
    session = Session(Front())
    feed(session, b"open" + ha.start(7, 5) + ha.may_i(7, 1, 4_000) + ha.yes(7, 1, 4_000), piece)
    assert [kind for kind, _ in session.seen] == [hawords.START, hawords.MAY_I, hawords.YES]
    assert [ha.read_favour(body) for _, body in session.seen[1:]] == [(1, 4_000)] * 2


def test_a_stranger_sends_nothing_large_and_nothing_to_be_passed_over() -> None:
    large = bytearray(b"open" + ha.frame(hawords.META, 1, bytes(12), bytes(OPENING_BYTES_MAX)))
    with pytest.raises(WireError):
        Session(Front()).feed(large, 100)
    skipped = bytearray(b"open" + ha.frame(hawords.SKIPPED | 1, 1, b""))
    session = Session(Front())
    with pytest.raises(WireError):
        session.feed(skipped, len(skipped))
    session.trusted = True
    session.feed(bytearray(skipped[4:]), len(skipped) - 4)
    assert session.seen == []


def test_the_longest_opening_that_a_node_of_ours_has_is_let_through() -> None:
    """A thousand epochs, and of a master the names and addresses of a hundred nodes."""
    epochs = tuple(ha.Epoch(n, b"8 bytes.", n) for n in range(EPOCHS_MAX))
    names = {f"{n:0{NAME_MAX}}": f"{n:0{NAME_MAX}}" for n in range(PEERS_MAX + 1)}
    about: JsonObject = {"masterAddr": "m" * NAME_MAX, "node": "n" * NAME_MAX, "peers": names}
    told = ha.Accept(bytes(16), bytes(8), 0, 0, 0, 0, 0, epochs, about)
    assert len(ha.accept(told, 1, b"", bytes(16))) <= OPENING_BYTES_MAX


def test_silence_and_beats() -> None:
    front = Front()
    session = Session(front)
    session.look(1_000 + BEAT_MS - 1)
    assert session.beaten == 0
    session.look(1_000 + BEAT_MS)
    assert (session.beaten, session.take(), session.take()) == (1, b"beat", b"")
    session.look(1_000 + SILENT_MS)
    assert not session.closing
    session.look(1_001 + SILENT_MS)
    assert session.closing
    data = bytearray(b"open" + ha.start(7, 5))
    session.feed(data, len(data))
    assert session.seen == []  # nothing is taken of one that is about to be closed
    session.lost()
    assert front.lost == [session]
