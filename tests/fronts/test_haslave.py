"""A slave's connection by hand: what it says first, what it does with answers, and what the one does that only asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Server
from penstock.broker.taking import last_records
from penstock.errors import DiskFull, StoreError, WireError
from penstock.fronts.ha import HaFront
from penstock.fronts.hasession import LAST_BYTES, PACE_MS
from penstock.fronts.haslave import UNSAID_BYTES_MAX, AskingSession, SlaveSession
from penstock.log import status
from penstock.log.draft import Draft
from penstock.log.follow import Feeder
from penstock.log.store import LogStore
from penstock.testing import Broker
from penstock.wire import ha, haframe, hawords

SET = b"s" * 16
EPOCH = ha.Epoch(3, b"8 bytes.", 0)


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "b", role="slave", ha_master="127.0.0.1:1", node="b") as broker:
        yield broker


def in_slave(slave: Broker, call: Any) -> Any:
    """What `call(front)` returns, in the slave's own thread."""

    def run(server: Server) -> Any:
        return call(next(f for f in server._process.fronts if isinstance(f, HaFront)))

    return slave.call(run)


def told(session: SlaveSession, data: bytes) -> None:
    owner = bytearray(data)
    session.feed(owner, len(owner))


def accept(session: SlaveSession, **other: Any) -> bytes:
    about = {"node": "a", "brokerId": 7, "masterAddr": "", "peers": {"a": "127.0.0.1:9"}}
    answer = ha.Accept(SET, EPOCH.tag, 0, 0, 0, 0, 0, (EPOCH,), about)._replace(**other)
    return ha.accept(answer, answer.epochs[-1].number, b"", session.nonce)


def feeding(folder: Path) -> tuple[LogStore, Callable[..., bytes]]:
    """A master's log, and what gives the frame of the next message of it."""
    master = LogStore(folder)
    master.open()
    draft = Draft()
    feeder = Feeder(master, 0)

    def data(flags: int = 0, size: int = 100, queue_id: int = 0) -> bytes:
        draft.queue = master.queue(b"T", queue_id)
        draft.set_body(b"x" * size)
        assert master.append(draft) == status.OK
        assert feeder.next(1 << 20)
        sums, records = feeder.parts()
        positions = haframe.Positions(feeder.begin, master.end_position, 0, 0, 0)
        return ha.data(EPOCH.number, positions, sums, bytes(records), flags=flags)

    return master, data


def frames(data: bytes) -> list[int]:
    kinds, at = [], 0
    while at < len(data):
        head, _ = haframe.read_head(data, at, len(data))
        assert head is not None
        kinds.append(head.kind)
        at = head.end
    return kinds


def test_what_it_says_first_and_when_it_is_let_in(slave: Broker) -> None:
    def run(front: HaFront) -> None:
        session = SlaveSession(front, "127.0.0.1:9", lambda: None)
        assert session.take() == ha.OPENER
        told(session, ha.greeting(b"n" * 16, False))
        assert frames(session.take()) == [hawords.HELLO]
        told(session, accept(session))
        assert session.running
        assert frames(session.take()) == [hawords.START]
        assert front.replica.set_id == SET
        assert front.followed_at == "127.0.0.1:9"
        assert front.broker.config.broker_id == 7
        session.lost()
        assert front.followed_at == ""

    in_slave(slave, run)


def test_a_greeting_that_wants_a_secret_of_a_node_that_has_none(slave: Broker) -> None:
    def run(front: HaFront) -> None:
        session = SlaveSession(front, "127.0.0.1:9", lambda: None)
        with pytest.raises(WireError):
            told(session, ha.greeting(b"n" * 16, True))
        assert frames(session.take()[len(ha.OPENER) :]) == []

    in_slave(slave, run)


def test_people_are_told_why_it_does_not_follow_the_master_it_has_reached(
    slave: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def run(front: HaFront) -> None:
        def why() -> object:
            return next(iter(front.broker.copies.rows(front.broker.mono_ms)))["why_not"]

        def met(data: Callable[[SlaveSession], bytes]) -> SlaveSession:
            session = SlaveSession(front, "127.0.0.1:9", lambda: None)
            told(session, ha.greeting(b"n" * 16, False))
            with suppress(WireError):
                told(session, data(session))
            return session

        assert why() == "no master was heard yet"
        with pytest.raises(WireError):
            told(SlaveSession(front, "127.0.0.1:9", lambda: None), ha.greeting(b"n" * 16, True))
        assert "wants a secret" in str(why())
        met(lambda session: ha.refuse(1, ha.WRONG_SET, "its log is of another replica set"))
        assert why() == "the master refuses this slave: its log is of another replica set"
        met(lambda session: ha.refuse(1, ha.NOT_MASTER, "this broker is a slave itself"))  # asked in passing
        assert "another replica set" in str(why())
        refusals = [line for line in caplog.records if "refuses this slave" in line.getMessage()]
        assert [line.levelname for line in refusals] == ["ERROR", "INFO"]
        met(lambda session: b"").lost()
        assert "without a word" in str(why())
        met(lambda session: accept(session, cut_to=5))
        assert "cannot be copied here" in str(why())
        assert met(accept).running
        assert why() == "no master was heard yet"

    in_slave(slave, run)


@pytest.mark.parametrize(
    "said", [b"", b"E_BAD_PROTOCOL", b"HTTP/1.1 400 Bad Request\r\n\r\n", ha.greeting(b"n" * 16, False)[:9]]
)
def test_people_are_told_that_there_is_no_master_where_it_was_sent(
    slave: Broker, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Another port than the master's ha_port, say; once, though it tries again and again."""

    def run(front: HaFront) -> None:
        for _ in range(3):
            session = SlaveSession(front, "127.0.0.1:9", lambda: None)
            told(session, said)
            session.lost()
        why = str(next(iter(front.broker.copies.rows(front.broker.mono_ms)))["why_not"])
        assert "127.0.0.1:9 has not greeted as a master does" in why
        AskingSession(front, "127.0.0.1:8", lambda: None).lost()  # nobody to follow: no news

    in_slave(slave, run)
    assert len([line for line in caplog.messages if "has not greeted" in line]) == 1


def test_what_is_confirmed_when_the_connection_ends_outlives_the_process(slave: Broker, tmp_path: Path) -> None:
    """A slave that was stopped within half a second of a message showed readers less than before, until a master spoke."""
    master, data = feeding(tmp_path / "a")

    def run(front: HaFront) -> None:
        session = SlaveSession(front, "127.0.0.1:9", lambda: None)
        told(session, ha.greeting(b"n" * 16, False))
        told(session, accept(session, written=0))
        told(session, data())
        end = front.broker.store.end_position
        assert end == master.end_position > 0
        told(session, ha.beat(EPOCH.number, haframe.Positions(end, end, end, end, 0), 0))
        session.lost()
        assert front.replica.confirmed() == end

    in_slave(slave, run)
    master.close()


@pytest.mark.parametrize("full", [True, False])
def test_people_are_told_that_its_disk_takes_nothing(
    slave: Broker, tmp_path: Path, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It connects, is sent the log, and leaves again twice a second: its master has no row for it, and its log one line."""
    caplog.set_level("INFO", "penstock.ha")
    master, data = feeding(tmp_path / "a")

    def run(front: HaFront) -> None:
        def no_room(fd: int, at: int, length: int) -> None:
            raise DiskFull("no room for a test")

        def why() -> str:
            return str(next(iter(front.broker.copies.rows(front.broker.mono_ms)))["why_not"])

        def connected() -> SlaveSession:
            session = SlaveSession(front, "127.0.0.1:9", lambda: None)
            told(session, ha.greeting(b"n" * 16, False))
            end = front.broker.store.end_position
            size, found = last_records(front.broker.store, end, LAST_BYTES)
            told(session, accept(session, cut_to=end, written=master.end_position, block_size=size, block_sum=found))
            return session

        files: Any = front.broker.files
        session, block = connected(), data()
        if full:
            files.allocate = no_room
            told(session, block)  # into room that was there, but for its queue
            block = data()
        else:
            front.broker.store.fail(StoreError("a flush: Input/output error"))
        assert not session.closing
        words = "disk is full" if full else "disk has failed"
        for _ in range(3):
            told(session, block)
            assert session.closing
            session.lost()
            assert words in why()
            session = connected()
            assert words in why()
        if full:
            del files.allocate
            told(session, block)
            assert not session.closing
            assert "disk" not in why()
        session.lost()

    in_slave(slave, run)
    master.close()
    said = [record.getMessage() for record in caplog.records]
    assert len([words for words in said if "the log cannot be copied now" in words]) == 1
    assert len([words for words in said if "following master" in words]) == (2 if full else 1)


def test_a_disk_that_lets_something_through_now_and_then_is_told_of_once_a_minute(
    slave: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it took a block, and each time that it did not, was a line."""
    caplog.set_level("INFO", "penstock.ha")
    master, data = feeding(tmp_path / "a")

    def run(front: HaFront) -> None:
        def no_room(fd: int, at: int, length: int) -> None:
            raise DiskFull("no room for a test")

        def connected() -> SlaveSession:
            session = SlaveSession(front, "127.0.0.1:9", lambda: None)
            told(session, ha.greeting(b"n" * 16, False))
            end = front.broker.store.end_position
            size, found = last_records(front.broker.store, end, LAST_BYTES)
            told(session, accept(session, cut_to=end, written=master.end_position, block_size=size, block_sum=found))
            return session

        def fails(session: SlaveSession, queue_id: int) -> tuple[SlaveSession, bytes]:
            files.allocate = no_room
            told(session, data(queue_id=queue_id))  # into room that was there, but for its queue, which has no file yet
            block = data()
            told(session, block)
            assert session.closing
            session.lost()
            del files.allocate
            return connected(), block

        files: Any = front.broker.files
        session = connected()
        told(session, data())
        for n in range(1, 6):
            session, block = fails(session, n)
            told(session, block)
            assert not session.closing
        assert lines() == (1, 2)
        session, block = fails(session, 6)
        assert lines() == (1, 2)
        assert sum("is not in its queue yet" in record.getMessage() for record in caplog.records) == 1
        monkeypatch.setattr("penstock.faults.TOLD_AGAIN_MS", 0)  # a minute later
        files.allocate = no_room
        told(session, block)
        assert session.closing
        assert lines() == (2, 2)  # what is so now, though it began within the minute

    def lines() -> tuple[int, int]:
        said = [record.getMessage() for record in caplog.records]
        return sum("the log cannot be copied now" in words for words in said), sum(
            "following" in words for words in said
        )

    in_slave(slave, run)
    master.close()


def test_people_are_told_that_a_new_one_has_no_room_for_the_first_record(slave: Broker) -> None:
    def run(front: HaFront) -> None:
        def no_room(fd: int, at: int, length: int) -> None:
            raise DiskFull("no room for a test")

        def why() -> object:
            session = SlaveSession(front, "127.0.0.1:9", lambda: None)
            told(session, ha.greeting(b"n" * 16, False))
            with suppress(WireError):
                told(session, accept(session, cut_to=front.broker.store.log.file.size))  # none was made ahead for there
            session.lost()
            return next(iter(front.broker.copies.rows(front.broker.mono_ms)))["why_not"]

        files: Any = front.broker.files
        files.allocate = no_room
        assert "disk is full" in str(why())
        del files.allocate
        assert "disk" not in str(why())

    in_slave(slave, run)


def test_one_that_asks_copies_nothing_and_hears_of_a_newer_master(slave: Broker) -> None:
    def run(front: HaFront) -> None:
        front.replica.join(SET, (ha.Epoch(2, b"8 bytes.", 0),))
        session = AskingSession(front, "127.0.0.1:9", lambda: None)
        told(session, ha.greeting(b"n" * 16, False))
        said = session.take()[len(ha.OPENER) :]
        head, _ = haframe.read_head(said, 0, len(said))
        assert head is not None
        asked = ha.read_hello(said[head.fixed :], head.entries)
        assert (asked.written, asked.about["asks"]) == (0, True)
        told(session, accept(session))
        assert session.closing
        assert not session.running
        assert front.newer == ("a", "127.0.0.1:9", 3)
        assert front.replica.epoch == 2

    in_slave(slave, run)


def test_one_that_asks_hears_nothing_of_another_set(slave: Broker) -> None:
    def run(front: HaFront) -> None:
        front.replica.join(SET, (ha.Epoch(2, b"8 bytes.", 0),))
        session = AskingSession(front, "127.0.0.1:9", lambda: None)
        told(session, ha.greeting(b"n" * 16, False))
        told(session, accept(session, set_id=b"x" * 16))
        assert session.closing
        assert front.newer is None

    in_slave(slave, run)


def test_an_ack_that_nobody_waits_for_waits_for_more(slave: Broker, tmp_path: Path) -> None:
    master, data = feeding(tmp_path / "a")

    def run(front: HaFront) -> None:
        session = SlaveSession(front, "127.0.0.1:9", lambda: None)
        told(session, ha.greeting(b"n" * 16, False))
        told(session, accept(session))
        session.take()
        ms = front.broker.mono_ms

        def acked(after_ms: int) -> list[int]:
            session.end_turn(ms + after_ms)
            said = session.take()
            return [haframe.read_ack(said, hawords.HEAD_BYTES).written] if said else []

        told(session, data(0))
        assert acked(0) == [master.end_position]
        told(session, data(hawords.NO_HURRY))
        assert acked(PACE_MS - 1) == []
        told(session, data(hawords.NO_HURRY))
        front.broker.copies.rest()
        assert acked(PACE_MS - 1) == []
        assert front.broker.copies.due_ms == ms + PACE_MS  # a turn comes, whether anything happens or not
        assert acked(PACE_MS) == [master.end_position]
        told(session, data(0))  # somebody waits: what follows in the same turn does not keep him waiting
        told(session, data(hawords.NO_HURRY))
        assert acked(PACE_MS) == [master.end_position]
        told(session, data(hawords.NO_HURRY))
        assert acked(PACE_MS) == []
        told(session, data(hawords.NO_HURRY, UNSAID_BYTES_MAX))
        assert acked(PACE_MS) == [master.end_position]
        assert front.broker.store.end_position == master.end_position
        session.lost()

    in_slave(slave, run)
    master.close()
