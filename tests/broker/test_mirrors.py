"""Copies of staged rows at slaves: what is sent and written, who is waited for, and what a slave does not believe."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.stagingside import House, piece
from penstock.broker.mirrors import LATE_MS, PIECE_BYTES, RETRY_MS, TURN_BYTES, WINDOW_BYTES, Mirror, Mirrors, Sender
from penstock.broker.spool import Spools
from penstock.disk.files import Files
from penstock.errors import DiskFull, Refused, StoreError, WireError
from penstock.log import cutting
from penstock.wire import ha, haframe

TOKENS = ["aaaaaaaa", "bbbbbbbb"]


class Side:
    """A master with a slave that does as it is told, by frames."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.house = House(folder / "a")
        self.copies: Any = SimpleNamespace(confirmed_flushed=0, members={}, roll=None, available=False)
        self.said: list[bytes] = []
        self.spools: Spools = self.house.staging.spool_files
        self.sender = Sender(self.spools, self.copies, self.said.append)
        (folder / "b").mkdir(exist_ok=True)
        self.folder = folder / "b"
        self.files = files or Files()
        self.mirror = Mirror(self.files, self.folder)
        self.end = self.ms = 0

    def turn(self) -> list[ha.Spool]:
        """What the master says in one turn."""
        self.ms += 10
        self.sender.turn(1, self.ms, self.end)
        found = []
        for data in self.said:
            head, _ = haframe.read_head(data, 0, len(data))
            assert head is not None
            found.append(ha.read_spool(head, data[head.fixed :]))
        self.said.clear()
        return found

    def take(self, told: list[ha.Spool]) -> None:
        """What the slave does with it."""
        for one in told:
            if one.there:
                self.mirror.keep_only(one.data.decode().split())
            elif one.gone:
                self.mirror.drop(one.token)
            else:
                self.mirror.take(one)
                self.sender.heard(ha.Spooled(one.token, one.at + len(one.data), False, False), self.ms)

    def flush(self) -> None:
        job = self.mirror.take_job()
        if job is not None:
            job.run()
            job.finish(None, self.ms)
        for token, size in self.mirror.take_flushed():
            self.sender.heard(ha.Spooled(token, size, True, False), self.ms)

    def copy(self) -> None:
        for _ in range(20):
            self.take(self.turn())
            self.flush()

    def same(self) -> bool:
        names = sorted(path.name for path in self.folder.iterdir())
        mine = sorted(self.house.staging.spools)
        return names == mine and all(
            (self.folder / name).read_bytes() == self.house.staging.spools[name].path.read_bytes() for name in mine
        )


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


def rows(count: int, size: int = 100) -> list[bytes]:
    return [piece([b"%d" % n + b"x" * size for n in range(count)])]


def test_spools_are_copied_as_they_grow_and_a_slave_is_complete_with_all_that_are_sealed(side: Side) -> None:
    side.copy()
    assert side.sender.lacks == ""
    side.house.stage(TOKENS[0], rows(3))
    told = side.turn()
    assert side.sender.lacks == "its staged rows are not complete"
    assert [(one.token, one.at, one.sealed) for one in told] == [(TOKENS[0], 0, True)]
    side.take(told)
    assert not side.sender.has(TOKENS[0])  # written is not flushed
    side.flush()
    side.turn()
    assert side.sender.has(TOKENS[0])
    assert side.sender.lacks == ""
    assert side.same()


def test_what_was_published_goes_when_that_is_confirmed(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    side.house.stage(TOKENS[1], rows(4), batch=1)
    side.copy()
    side.house.publish([TOKENS[0]])
    side.end = side.house.broker.store.end_position
    side.copy()
    assert (side.folder / TOKENS[0]).exists()
    side.copies.confirmed_flushed = side.end
    side.copy()
    assert side.same()
    assert sorted(side.house.staging.spools) == [TOKENS[1]]


@pytest.mark.parametrize("again", [False, True])
def test_a_connection_anew_takes_nothing_that_was_published_before_that_is_confirmed(side: Side, again: bool) -> None:
    """The slave may become the master without the publish, which is done there then. `again`: the master has restarted."""
    side.house.stage(TOKENS[0], rows(3))
    side.copy()
    side.house.publish([TOKENS[0]])
    side.house.settle()
    side.end = side.house.broker.store.end_position
    if again:
        side.house.kill()
        side.house.open()
        side.spools = side.house.staging.spool_files
    side.sender = Sender(side.spools, side.copies, side.said.append)
    side.house.stage(TOKENS[1], rows(4), batch=1)
    side.copy()
    assert sorted(path.name for path in side.folder.iterdir()) == TOKENS
    side.copies.confirmed_flushed = side.end
    side.house.staging.drop("S", "run", [TOKENS[1]])
    side.end += 100
    side.copy()
    assert [path.name for path in side.folder.iterdir()] == [TOKENS[1]]
    side.copies.confirmed_flushed = side.end
    side.copy()
    assert side.same()


def test_a_large_one_in_pieces_and_a_window(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(200, 30_000))  # each fits a segment
    size = side.house.staging.spools[TOKENS[0]].size
    assert size > WINDOW_BYTES
    first = [one for one in side.turn() if one.token]
    assert {len(one.data) for one in first} == {PIECE_BYTES}
    assert sum(len(one.data) for one in first) == TURN_BYTES
    sent = list(first)
    for _ in range(9):
        sent += side.turn()
    assert sum(len(one.data) for one in sent) == WINDOW_BYTES  # more when it is acknowledged
    side.take(sent)
    side.copy()
    assert side.same()
    assert side.sender.has(TOKENS[0])


def test_a_connection_anew_writes_nothing_that_is_there_and_drops_what_is_not(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(30))
    side.copy()
    (side.folder / "cccccccc").write_bytes(b"PSTG, of a batch that is over")
    data = bytearray((side.folder / TOKENS[0]).read_bytes())
    written: list[int] = []

    class Watched(Files):
        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            written.append(len(data))
            super().write(fd, at, data)

    side.mirror = Mirror(Watched(), side.folder)
    side.sender = Sender(side.spools, side.copies, side.said.append)
    side.copy()
    assert (written, side.same(), side.sender.has(TOKENS[0])) == ([], True, True)
    data[50] ^= 1  # damaged, and longer than the master's
    (side.folder / TOKENS[0]).write_bytes(bytes(data) + b"more")
    side.sender = Sender(side.spools, side.copies, side.said.append)
    side.copy()
    assert side.same()


def test_what_is_another_s_stays_whatever_its_name(side: Side) -> None:
    """Any file whose name was of 8 to 64 hexadecimal digits was deleted."""
    side.house.stage(TOKENS[0], rows(3))
    (side.folder / "deadbeef").write_bytes(b"a sum of somebody")
    (side.folder / "deadbeee").symlink_to(side.house.staging.spools[TOKENS[0]].path)
    (side.folder / "deadbeed").mkdir()
    (side.folder / "cccccccc").write_bytes(b"PS")  # a kill has cut it short
    (side.folder / "dddddddd").write_bytes(b"")
    side.copy()
    assert sorted(path.name for path in side.folder.iterdir()) == [TOKENS[0], "deadbeed", "deadbeee", "deadbeef"]
    assert (side.folder / "deadbeef").read_bytes() == b"a sum of somebody"


def test_what_a_master_that_was_started_again_has_is_sent(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    side.house.settle()
    side.house.kill()
    side.house.open()
    side.spools = side.house.staging.spool_files
    side.sender = Sender(side.spools, side.copies, side.said.append)
    side.copy()
    assert side.same()
    assert side.sender.has(TOKENS[0])


@pytest.mark.parametrize("token", ["../../evil", "", "short", "A" * 8, "a" * 65, "aaaaaaa/"])
def test_a_name_that_is_none(side: Side, token: str) -> None:
    with pytest.raises(WireError):
        side.mirror.take(ha.Spool(token, 0, b"x", False, False, False))
    side.mirror.drop(token)
    assert list(side.folder.iterdir()) == []


@pytest.mark.parametrize(("at", "error"), [(-1, WireError), (1, StoreError), (1 << 62, StoreError)])
def test_a_piece_that_has_no_place(side: Side, at: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        side.mirror.take(ha.Spool(TOKENS[0], at, b"x", True, False, False))
    assert not side.mirror.wants_job


def test_an_acknowledgement_of_nothing_and_of_too_much(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    with pytest.raises(WireError):
        side.sender.heard(ha.Spooled(TOKENS[0], 5, False, False), 0)
    size = side.house.staging.spools[TOKENS[0]].size
    for wrong in (ha.Spooled(TOKENS[0], size, True, False), ha.Spooled("dddddddd", size, True, False)):
        side.sender.heard(wrong, 0)  # it was not sent
    side.take(side.turn())
    side.sender.heard(ha.Spooled(TOKENS[0], size - 1, True, False), 0)
    assert not side.sender.has(TOKENS[0])
    side.flush()
    assert side.sender.has(TOKENS[0])


def test_a_slave_whose_disk_is_full(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    told = [one for one in side.turn() if one.token]
    side.sender.heard(ha.Spooled(told[0].token, 0, False, True), side.ms)
    assert side.turn() == []
    assert (side.sender.failed, side.sender.lacks) == (True, "it cannot keep staged rows")
    side.ms += RETRY_MS
    side.copy()
    assert (side.sender.failed, side.sender.lacks) == (False, "")
    assert side.same()


def test_a_flush_that_failed_is_not_told(tmp_path: Path) -> None:
    class Failing(Files):
        def datasync(self, fd: int) -> None:
            raise DiskFull("no")

    side = Side(tmp_path, Failing())
    side.house.stage(TOKENS[0], rows(3))
    side.take(side.turn())
    job = side.mirror.take_job()
    assert job is not None
    with pytest.raises(DiskFull) as failed:
        job.run()
    job.finish(failed.value, 0)
    assert side.mirror.take_flushed() == []
    assert side.mirror.take_lost() == [TOKENS[0]]
    assert not (side.folder / TOKENS[0]).exists()  # written anew, or never
    side.sender.heard(ha.Spooled(TOKENS[0], 0, True, True), side.ms)
    assert (side.sender.failed, side.sender.has(TOKENS[0])) == (True, False)


def test_one_that_is_dropped_during_the_flush_costs_the_others_nothing(side: Side) -> None:
    for token in TOKENS:
        side.house.stage(token, rows(3))
    side.take(side.turn())
    job = side.mirror.take_job()
    assert job is not None
    side.mirror.drop(TOKENS[0])
    job.run()
    job.finish(None, side.ms)
    assert side.mirror.take_lost() == []
    assert TOKENS[1] in dict(side.mirror.take_flushed())


def test_a_slave_that_says_nothing_is_not_waited_for_for_ever(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    side.turn()
    side.ms += LATE_MS
    side.turn()
    assert side.sender.failed


def test_a_slave_has_its_time_from_its_connection_on_however_long_the_machine_has_run(side: Side) -> None:
    side.house.stage(TOKENS[0], rows(3))
    side.ms = 3 * LATE_MS
    told = side.turn()
    assert not side.sender.failed
    side.take(told)
    side.flush()
    side.turn()
    assert side.sender.lacks == ""


class Waiting:
    """Mirrors with nodes that have what they are told to have."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.mirrors = Mirrors(side.copies, side.spools)
        self.answers: list[object] = []

    def member(self, node: str, *, in_sync: bool = True, keeps: bool = True) -> Sender | None:
        self.side.copies.members[node] = SimpleNamespace(in_sync=in_sync)
        return self.mirrors.follow(node, lambda data: None) if keeps else None

    def wait(self, *tokens: str) -> None:
        self.mirrors.when_copied(tokens, self.answers.append)
        self.mirrors.settle()


@pytest.fixture
def waiting(side: Side) -> Waiting:
    side.house.stage(TOKENS[0], rows(3))
    return Waiting(side)


def has(sender: Sender | None) -> None:
    assert sender is not None
    sender._flushed.add(TOKENS[0])


def test_nobody_is_waited_for_who_cannot_be_the_master(waiting: Waiting) -> None:
    waiting.wait(TOKENS[0])
    waiting.member("out", in_sync=False)
    waiting.member("old", keeps=False)
    waiting.wait(TOKENS[0])
    assert waiting.answers == [None, None]


def test_all_in_sync_are_waited_for_and_none_that_leaves(waiting: Waiting) -> None:
    one, other = waiting.member("b"), waiting.member("c")
    waiting.wait(TOKENS[0])
    has(one)
    waiting.mirrors.settle()
    assert waiting.answers == []
    del waiting.side.copies.members["c"]
    assert other is not None
    waiting.mirrors.leave("c", other)
    waiting.mirrors.settle()
    assert waiting.answers == [None]


def test_with_an_engine_one_that_is_away_is_waited_for_until_it_is_out_of_the_set(waiting: Waiting) -> None:
    waiting.side.copies.roll = SimpleNamespace(counted={"b"})
    waiting.wait(TOKENS[0])
    assert (waiting.answers, waiting.mirrors.others) == ([], True)
    has(waiting.member("b", in_sync=False))  # here again, not yet judged
    waiting.mirrors.settle()
    assert waiting.answers == [None]
    waiting.side.copies.members.clear()
    waiting.side.copies.roll.counted.clear()
    waiting.wait(TOKENS[0])
    assert (len(waiting.answers), waiting.mirrors.others) == (2, False)


def test_rows_that_are_dropped_while_somebody_waits(waiting: Waiting) -> None:
    waiting.member("b")
    waiting.wait(TOKENS[0])
    waiting.side.house.staging.drop("S", "run", [])
    waiting.mirrors.settle()
    assert isinstance(waiting.answers[0], Refused)


def test_a_slave_sweeps_nothing(side: Side) -> None:
    """What it has of its master's rows does not expire by its own clock."""
    staging: Any = side.house.staging
    side.house.stage(TOKENS[0], rows(3))
    side.house.broker.store.follow(True)
    side.house.clock.advance(side.house.config.stage_ttl_ms + 120_000)
    side.house.broker.time.update()
    staging.tick(side.house.broker.mono_ms)
    assert TOKENS[0] in staging.spools
    side.house.broker.store.follow(False)
    staging.tick(side.house.broker.mono_ms + 120_000)
    assert TOKENS[0] not in staging.spools


def test_a_log_that_is_cut_below_what_the_sinks_file_tells(side: Side) -> None:
    """The batch is not there any more: it can be published again, after this start and the next."""
    house = side.house
    house.stage(TOKENS[0], rows(3))
    before = house.broker.store.end_position
    house.publish([TOKENS[0]])
    house.settle()
    assert house.staging.sinks.position > before
    end = house.broker.store.end_position
    house.kill()
    cutting.intend(Files(), house.broker.folder, before, end, 1, "for the test")
    for _ in range(2):
        house.open()
        assert house.broker.store.end_position == before
        assert house.staging.sinks.by_name["S"].last == -1
        house.kill()
    house.open()
    house.stage(TOKENS[1], rows(3))
    assert house.publish([TOKENS[1]])
