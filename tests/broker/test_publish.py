"""Publishing a batch: killed at every step, cut off by the power, larger than what is reserved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.stagingside import A, B, House, Killed, named, piece
from penstock.broker.broker import Broker
from penstock.broker.levels import LEVEL_PAIR
from penstock.broker.publish import BatchPublish
from penstock.broker.runs import Runs
from penstock.broker.spool import Piece
from penstock.broker.staging import Staging
from penstock.broker.topics import TIMER_TOPIC
from penstock.errors import Refused, StoreError


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data")
    yield made
    made.broker.close()


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("again", [False, True])
def test_killed_at_every_step_of_a_publish(
    house: House, step: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`step` pieces are appended before the kill; 6 is before `done`, 7 behind it. `again`: killed in the repair too."""
    house.stage(A, [piece(named("a", 40)) + piece(named("A", 3), queue_id=1), piece(named("x", 30), queue_id=2)])
    house.stage(B, [piece(named("b", 20)), piece(named("B", 5), queue_id=1), piece(named("y", 1))])
    expected = named("a", 40) + named("b", 20) + named("y", 1) + named("A", 3) + named("B", 5) + named("x", 30)
    seen: list[int] = []

    def break_after(steps: int) -> None:
        real: Callable[..., None] = BatchPublish._append_piece

        def append_piece(self: BatchPublish, *args: Any) -> None:
            seen.append(len(house.rows()))
            if len(seen) > steps:
                raise Killed
            real(self, *args)

        monkeypatch.setattr(BatchPublish, "_append_piece", append_piece)
        if steps == 6:
            note = Runs.note
            monkeypatch.setattr(
                Runs, "note", lambda self, about: killed() if about["k"] == "done" else note(self, about)
            )

    def killed() -> int:
        raise Killed

    break_after(step)
    if step < 7:
        with pytest.raises(Killed):
            house.publish([A, B])
        assert house.rows() == []
    else:
        house.publish([A, B])
    assert set(seen) <= {0}
    house.kill()
    monkeypatch.undo()
    if again and step < 5:
        seen.clear()
        break_after(0)
        with pytest.raises(Killed):
            house.open()
        house.kill()
        monkeypatch.undo()
    house.open()
    assert house.rows() == expected
    assert not house.publish([A, B])
    assert house.rows() == expected
    assert house.staging.spools == {}
    house.kill()
    house.open()
    assert house.rows() == expected


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("old", [False, True])
def test_nothing_comes_between_a_publish_and_its_repair(
    house: House, step: int, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start has more to write into the log: which entries of the schedule are over. Until now (`old`) it wrote that first,
    and counted it as rows."""
    queueing = house.broker.queueing
    topic = queueing.topic(b"q", "os")
    topic.channel(b"c")
    for n in range(9):
        queueing.publish(topic, [b"deferred %d" % n], 1_000)
    house.settle()
    for _ in range(3):  # they are copied, and no flush of the queue has ended
        house.clock.advance(500)
        house.broker.time.update()
        for _, timer in house.broker.timers():
            timer()
        queueing.end_turn()
    assert len(queueing.moving)
    house.stage(A, [piece(named("a", 4)), piece(named("A", 3), queue_id=1), piece(named("x", 5), queue_id=2)])
    house.stage(B, [piece(named("b", 2)), piece(named("B", 2), queue_id=1), piece(named("y", 1))])
    expected = named("a", 4) + named("b", 2) + named("y", 1) + named("A", 3) + named("B", 2) + named("x", 5)
    real, appended = BatchPublish._append_piece, []

    def append_piece(self: BatchPublish, *args: Any) -> None:
        if len(appended) >= step:
            raise Killed
        appended.append(1)
        real(self, *args)

    monkeypatch.setattr(BatchPublish, "_append_piece", append_piece)
    if step == 6:
        note = Runs.note
        monkeypatch.setattr(Runs, "note", lambda self, about: _unless_done(note, self, about))
    with pytest.raises(Killed):
        house.publish([A, B])
    house.kill()
    monkeypatch.undo()
    if old:
        finish = Staging.open
        monkeypatch.setattr(Staging, "open", lambda self: None)
        house.open()
        house.kill()
        monkeypatch.setattr(Staging, "open", finish)
    house.open()
    assert house.rows() == expected
    assert not house.publish([A, B])
    house.settle()
    house.kill()
    house.open()
    assert house.rows() == expected


def _unless_done(note: Callable[..., int], staging: Staging, about: dict[str, Any]) -> int:
    if about["k"] == "done":
        raise Killed
    return note(staging, about)


@pytest.mark.parametrize("lost", [1, 300, 5_000])
def test_a_power_cut_takes_the_end_of_a_publish(house: House, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spools were flushed, the log was not: whatever is left of the unit is made whole again."""
    house.stage(A, [piece(named("a", 100)), piece(named("A", 50), queue_id=1)])
    begin = house.broker.store.end_position
    house.publish([A])
    end = house.broker.store.end_position
    house.kill()
    path = house.broker.folder / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        at = max(begin + 300, end - lost)
        file.seek(at)
        file.write(bytes((64 << 10) - at))
    (house.broker.folder / "abort").write_text("pid 1 boot another")
    house.open()
    assert house.rows() == named("a", 100) + named("A", 50)
    assert not house.publish([A])


@pytest.mark.parametrize(
    ("body", "properties"),
    [(b"x", b"TIMER_DELIVER_MS\x0199999999999999\x02p\x01" + b"y" * 32_730),  # where it is for comes to these
     (b"x", b"TIMER_DELIVER_MS\x0199999999999999\x02p\x01" + b"\xff" * 12_000),  # three bytes for each of these
     (b"x", b"TIMER_DELAY_MS\x01SOON"), (b"y" * (70 << 10), b"")],
)  # fmt: skip
def test_what_could_not_be_appended_is_not_staged(house: House, body: bytes, properties: bytes) -> None:
    """Found out in the middle of the batch, it would end all writing, and the next start as well."""
    soon = 10**18 - 1 - house.broker.now_ms  # too far ahead a moment later
    chunk = piece([body], properties=properties.replace(b"SOON", b"%d" % soon), delayed=bool(properties))
    with pytest.raises(Refused) as refused:
        house.stage(A, [piece([b"first"]) + chunk])
    assert refused.value.remoting == 13
    house.stage(B, [piece([b"other"])])
    assert house.publish([B])
    house.kill()
    house.open()
    assert house.rows() == [b"other"]


TOO_LONG = piece([b"x"], properties=b"TIMER_DELIVER_MS\x0199999999999999\x02p\x01" + b"y" * 32_730, delayed=True)


def _stage_unchecked(house: House, chunks: list[bytes], batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a version did that checked less."""
    with monkeypatch.context() as patched:
        patched.setattr(BatchPublish, "check", lambda self, piece: None)
        house.stage(A, chunks, batch=batch)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_former_run_has_staged_is_checked_before_it_is_published(
    house: House, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stage_unchecked(house, [piece([b"first"]) + (piece([b"last"]) if damaged else TOO_LONG)], 0, monkeypatch)
    house.kill()
    house.open()
    if damaged:
        path = house.staging.spools[A].path
        path.write_bytes(path.read_bytes().replace(b"last", b"lust"))
    end = house.broker.store.end_position
    with pytest.raises(Refused) as refused:
        house.publish([A])
    assert refused.value.remoting == (77002 if damaged else 13)
    assert house.broker.store.end_position == end
    house.stage(B, [piece([b"other"])])
    assert house.publish([B])
    assert house.rows() == [b"other"]


@pytest.mark.parametrize("why", ["too long", "damaged", "closed"])
@pytest.mark.parametrize("killed", [False, True])
def test_what_was_begun_and_cannot_be_finished_is_taken_back(
    house: House, why: str, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was seen; what comes behind it finds a broker that starts, with all that stood before it."""
    house.stage(B, [piece([b"before"])])
    assert house.publish([B])
    house.settle()
    bad = TOO_LONG if why == "too long" else piece([b"last"], queue_id=1)
    _stage_unchecked(house, [piece(named("a", 3)) + bad], 1, monkeypatch)
    house.stage("c" * 32, [piece([b"after"])], batch=1)
    if killed or why != "too long":
        real = BatchPublish._append_piece

        def append_piece(self: BatchPublish, found: Piece, *more: Any) -> None:
            if found.messages == bad[-len(found.messages) :]:
                raise Killed if killed else Refused("the disk failed", remoting=14)
            real(self, found, *more)

        monkeypatch.setattr(BatchPublish, "_append_piece", append_piece)
    with pytest.raises((Refused, Killed)):
        house.publish([A], batch=1)
    assert house.rows() == [b"before"]
    if why == "damaged":
        path = house.staging.spools[A].path
        path.write_bytes(path.read_bytes().replace(b"last", b"lust"))
    elif why == "closed":
        house.broker.topics.create(b"T", 4, 4, perm=4)
        house.broker.tables.write()
    house.kill()
    monkeypatch.undo()
    with pytest.raises(StoreError, match=r"cannot be finished.*start again"):
        house.open()
    for _ in range(2):
        house.open()
        assert house.rows() == [b"before"]
        house.kill()
    house.open()
    with pytest.raises(Refused):
        house.publish([A], batch=1)
    if why != "closed":
        assert house.publish(["c" * 32], batch=1)
        assert house.rows() == [b"before", b"after"]


def _publish_without_its_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.stage(A, [piece(named("a", 3))])
    with monkeypatch.context() as patched:
        note = Runs.note
        patched.setattr(Runs, "note", lambda self, about: _unless_done(note, self, about))
        with pytest.raises(Killed):
            house.publish([A])


def test_a_publish_that_lacks_its_end_alone_needs_no_staged_rows(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish_without_its_end(house, monkeypatch)
    path = house.staging.spools[A].path
    house.kill()
    path.unlink()
    house.open()
    assert house.rows() == named("a", 3)
    assert not house.publish([A])


def test_what_a_start_appends_has_the_time_of_the_broker_it_goes_on_with(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store times do not decrease: those of a clock ten years ahead would have stood still for ten years."""
    _publish_without_its_end(house, monkeypatch)
    house.kill()
    house.clock.jump(10 * 365 * 86_400_000)
    before = house.broker.store.log.end
    house.broker = Broker(house.config, clock=house.clock, time=house.broker.time)
    house.broker.open()
    assert house.broker.store.log.end > before
    assert house.broker.store.log.store_ms == house.broker.now_ms


def test_what_is_delayed_is_published_whoever_is_in_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not delayed is, too: the answer waits for the slaves, and the next start has none yet."""
    house = House(tmp_path / "data", min_in_sync=2)
    house.broker.topics.create(b"T", 4, 4, level=LEVEL_PAIR)
    due = b"TIMER_DELIVER_MS\x01%d" % (house.broker.now_ms + 5_000)
    assert house.broker.copies.short
    house.stage(A, [piece([b"now"]) + piece([b"later"], properties=due, delayed=True)])
    house.stage(B, [piece([b"last"], properties=due, delayed=True)], batch=1)
    assert house.publish([A])
    monkeypatch.setattr(BatchPublish, "_append_piece", lambda *args: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        house.publish([B], batch=1)
    house.kill()
    monkeypatch.undo()
    house.open()
    assert not house.publish([B], batch=1)
    assert house.broker.topics.by_name[TIMER_TOPIC].queues[0].max_offset == 2
    house.broker.close()


def test_an_error_in_the_middle_hides_the_batch_and_ends_writing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.stage(A, [piece(named("a", 5)), piece(named("b", 5), queue_id=1)])
    real = BatchPublish._append_piece

    def fails(self: BatchPublish, found: Piece, *more: Any) -> None:
        if found.queue_id:
            raise Refused("no room", remoting=14)
        real(self, found, *more)

    monkeypatch.setattr(BatchPublish, "_append_piece", fails)
    with pytest.raises(Refused, match="restart"):
        house.publish([A])
    assert house.rows() == []
    assert not house.broker.store.healthy
    monkeypatch.undo()
    house.kill()
    house.open()
    assert house.rows() == named("a", 5) + named("b", 5)


def test_a_batch_larger_than_what_is_reserved_is_seen_when_all_of_it_is(house: House) -> None:
    """Readers see an offset when its number is reserved durably, 4,096 ahead: of a batch never only these."""
    house.stage(A, [piece([b"%d" % n]) for n in range(10)] + [piece(named("a", 100)) for _ in range(50)])
    house.publish([A])
    told: list[str] = []
    house.staging.when_visible(lambda: told.append("seen"))
    assert (house.rows(), told) == ([], [])
    house.stage(B, [piece(named("b", 3))], batch=1)
    house.publish([B], batch=1)
    house.settle()
    assert len(house.rows()) == 5_013
    assert told == ["seen"]
    house.stage("c" * 32, [piece(named("c", 100)) for _ in range(45)], batch=2)
    house.publish(["c" * 32], batch=2)
    seen = len(house.rows())
    assert seen in (5_013, 9_513)
    house.kill()
    house.open()
    house.settle()
    assert len(house.rows()) == 9_513


def test_staged_rows_that_are_gone_are_given_up_when_a_person_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.stage(B, [piece([b"before"])])
    assert house.publish([B])
    house.settle()
    house.stage(A, [piece(named("a", 2)), piece([b"last"], queue_id=1)], batch=1)
    real = BatchPublish._append_piece

    def append_piece(self: BatchPublish, found: Piece, *more: Any) -> None:
        if b"last" in found.messages:
            raise Killed
        real(self, found, *more)

    with monkeypatch.context() as patched:
        patched.setattr(BatchPublish, "_append_piece", append_piece)
        with pytest.raises(Killed):
            house.publish([A], batch=1)
    path = house.staging.spools[A].path
    house.kill()
    staged = path.read_bytes()
    path.unlink()
    for _ in range(2):  # nothing is decided, or changed, by a start
        with pytest.raises(StoreError, match=r"2 of 3 rows.*stage_accept_loss=true"):
            house.open()
    folder, config = Path(house.config.data), house.config
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    house.config = replace(config, stage_accept_loss=True)
    with pytest.raises(StoreError, match=r"are gone.*start again"):
        house.open()
    house.config = config
    house.open()
    assert house.rows() == [b"before"]
    assert any(name != "manifest.jsonl" for name in os.listdir(folder / "lost+found"))
    house.stage("c" * 32, [piece([b"once more"])], batch=1)
    assert house.publish(["c" * 32], batch=1)
    assert house.rows() == [b"before", b"once more"]
    house.kill()
    house.config = replace(config, data=str(saved))  # the file is found again
    (saved / "staging" / A).write_bytes(staged)
    house.open()
    assert house.rows() == [b"before", b"a0", b"a1", b"last"]
