"""Staged rows: what the rules promise, with the broker killed at every step of a publish."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.stagingside import BORN, A, B, House, named, piece
from penstock.broker.roll import Roll
from penstock.broker.runs import Run
from penstock.broker.sinks import Sink, Sinks
from penstock.broker.spool import pieces
from penstock.broker.staging import Token
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import Refused
from penstock.wire.codes import ResponseCode


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data")
    yield made
    made.broker.close()


def test_nothing_is_seen_before_and_everything_after(house: House) -> None:
    house.stage(A, [piece(named("a", 3)), piece(named("A", 2), queue_id=1)])
    house.stage(B, [piece(named("b", 2))])
    assert house.rows() == []
    assert house.publish([B, A])
    assert house.rows() == named("b", 2) + named("a", 3) + named("A", 2)
    assert not house.publish([B, A])
    assert not house.publish(["0" * 32])
    assert len(house.rows()) == 7
    house.settle()
    assert house.staging.folder.is_dir()
    assert list(house.staging.folder.iterdir()) == []
    assert house.staging.staged_bytes == 0


@pytest.mark.parametrize("run", ["run", "newer"])
@pytest.mark.parametrize("other", [False, True])
def test_a_power_cut_takes_the_sink_and_leaves_what_was_sealed(house: House, run: str, other: bool) -> None:
    """The answer to SEAL waits for the spool's flush, the record of the run for nothing. `other`: the sink was another
    query's before."""
    if other:
        house.stage(B, [piece(named("b", 2))], query="before", run="first")
        house.settle()
    begin = house.broker.store.end_position
    house.staging.open_token(Token(Run("S", "Q", "run", "broker-a", reset=other), A, 0, BORN))
    house.stage(A, [piece(named("a", 5))])
    house.kill()
    with (house.broker.folder / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(begin)
        file.write(bytes((64 << 10) - begin))
    (house.broker.folder / "abort").write_text("pid 1 boot another")
    house.open()
    if other and run == "newer":  # whose they are cannot be told: they are staged again
        with pytest.raises(Refused):
            house.publish([A], run=run, reset=other)
        return
    assert house.publish([A], run=run, reset=other)
    assert house.rows() == named("a", 5)
    assert B not in house.staging.spools


def test_killed_between_seal_and_publish(house: House) -> None:
    house.stage(A, [piece(named("a", 5))])
    house.kill()
    house.open()
    assert house.publish([A])
    assert house.rows() == named("a", 5)


def test_staging_goes_on_after_a_restart_from_the_last_whole_chunk(house: House) -> None:
    staging = house.staging
    staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    staging.append(A, 1, piece(named("a", 5)))
    staging.append(A, 1, piece(named("a", 5)))
    with pytest.raises(Refused) as refused:
        staging.append(A, 3, piece(named("c", 5)))
    assert refused.value.remoting == 77_003
    staging.append(A, 2, piece(named("b", 5)))
    path = staging.spools[A].path
    house.kill()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    house.open()
    assert house.staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))[0] == 1
    house.stage(A, [b"", piece(named("B", 5))])
    house.publish([A])
    assert house.rows() == named("a", 5) + named("B", 5)


def test_what_is_sealed_is_what_was_sent(house: House) -> None:
    house.staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    house.staging.append(A, 1, piece(named("a", 5)))
    spool = house.staging.spools[A]
    for wrong in ((6, spool.chunk_bytes, spool.sums), (5, 1, spool.sums), (5, spool.chunk_bytes, 0)):
        with pytest.raises(Refused) as refused:
            house.staging.seal(A, *wrong, None)
        assert refused.value.remoting == 77_002
    with pytest.raises(Refused):
        house.publish([A])
    assert house.rows() == []


def test_a_newer_run_ends_the_one_before_it_for_good(house: House) -> None:
    house.stage(A, [piece(named("a", 5))], run="old")
    house.stage(B, [piece(named("b", 5))], run="new")
    house.kill()
    house.open()
    for refused_call in (
        lambda: house.publish([A], run="old"),
        lambda: house.stage("c" * 32, [piece(named("c", 1))], run="old"),
        lambda: house.staging.drop("S", "old", [B]),
        lambda: house.staging.append(A, 2, piece(named("a", 1))),
    ):
        with pytest.raises(Refused) as refused:
            refused_call()
        assert refused.value.remoting == 77_001
    assert house.publish([A], run="new")  # a decision of the old run may be finished by the new one
    assert house.rows() == named("a", 5)


@pytest.mark.parametrize("others", [False, True])
def test_nobody_is_told_of_a_publish_that_can_still_be_lost(house: House, others: bool) -> None:
    """A run that heard of it would stage nothing; and if it was lost then, to a power cut or a failover, that run's batch would
    be published in its place without a row."""
    copies = house.broker.copies
    roll = Roll("a", {"a": 1, "b": 1}, 0, lambda: None)
    if others:
        copies.enroll(roll, house.broker.store.end_position)
    house.stage(A, [piece(named("a", 5))])
    assert house.publish([A])
    asking = [
        lambda: house.staging.ask("S", "Q", "newer", False),
        lambda: house.staging.open_token(Token(Run("S", "Q", "newer", "broker-a"), B, 0, BORN)),
    ]

    def refused() -> None:
        for ask in asking:
            with pytest.raises(Refused, match="ask again") as found:
                ask()
            assert found.value.remoting == ResponseCode.SERVICE_NOT_AVAILABLE

    refused()
    house.settle()
    if others:  # it is on this disk, and b may become the master
        copies.settle(house.broker.mono_ms)
        refused()
        roll.settle({"a": 1})
        copies.settle(house.broker.mono_ms)
    known = house.staging.ask("S", "Q", "newer", False)
    assert known is not None
    assert known.last == 0
    assert house.staging.open_token(Token(Run("S", "Q", "newer", "broker-a"), B, 0, BORN))[0] == -1
    assert house.rows() == named("a", 5)


def test_a_sink_belongs_to_one_query_until_it_is_reset(house: House) -> None:
    house.stage(A, [piece(named("a", 5))], batch=7)
    house.publish([A], batch=7)
    with pytest.raises(Refused) as refused:
        house.stage(B, [piece(named("b", 5))], run="r2", query="Q2")
    assert refused.value.remoting == 77_005
    assert "sinkReset" in str(refused.value)
    house.staging.open_token(Token(Run("S", "Q2", "r2", "broker-a", reset=True), B, 0, BORN))
    house.stage(B, [piece(named("b", 5))], run="r2", query="Q2")
    assert house.publish([B], run="r2", query="Q2", reset=True)
    assert house.rows() == named("a", 5) + named("b", 5)
    house.kill()
    house.open()
    assert not house.publish([B], run="r2", query="Q2", reset=True)


def test_publishing_drops_what_is_older_and_undecided(house: House) -> None:
    house.stage(A, [piece(named("a", 5))], batch=3)
    house.stage(B, [piece(named("b", 5))], batch=4)
    late = "c" * 32
    house.stage(late, [piece(named("c", 5))], batch=5)
    assert house.publish([B], batch=4)
    assert set(house.staging.spools) == {late}
    house.settle()
    assert house.staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 3, BORN))[0] == -1


def test_a_token_that_was_dropped_is_free_when_its_file_is_gone(house: House) -> None:
    """The removal waits for the flush of the log, and then for a thread: what was staged anew meanwhile went with it."""
    token = f"{7:032x}"
    house.stage(token, [piece([b"old"])])
    house.staging.drop("S", "run", [token])
    with pytest.raises(Refused, match="were dropped"):
        house.stage(token, [piece([b"new"])])
    house.settle()
    house.stage(token, [piece([b"new"])])
    house.settle()
    house.kill()
    house.open()
    assert house.publish([token])
    assert house.rows()[-1] == b"new"


def test_staged_rows_expire_unless_another_broker_may_have_decided(house: House) -> None:
    house.stage(A, [piece(named("a", 5))])
    once = Run("job", "Q", "run", "broker-z", once=True)  # its driver was killed, and no other finishes what it decided
    for token, run in ((B, Run("other", "Q", "run", "broker-z")), ("c" * 32, once)):
        house.staging.open_token(Token(run, token, 0, BORN))
        house.staging.append(token, 1, piece(named("b", 5)))
        spool = house.staging.spools[token]
        house.staging.seal(token, spool.rows, spool.chunk_bytes, spool.sums, None)
    house.clock.advance(25 * 3_600_000)
    house.settle()
    assert set(house.staging.spools) == {B}
    with pytest.raises(Refused):
        house.publish([A])


def test_limits(tmp_path: Path) -> None:
    house = House(tmp_path / "data", stage_max_bytes=400)
    staging = house.staging
    staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    staging.append(A, 1, piece([b"x" * 300]))
    with pytest.raises(Refused, match="stage_max_bytes") as refused:
        staging.append(A, 2, piece(named("a", 5)))
    assert refused.value.remoting == 77_004
    staging.drop("S", "run", list(staging.spools))
    house.settle()
    staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    house.broker.store.refuse(1)
    with pytest.raises(Refused, match="disk is full") as refused:
        staging.append(A, 1, piece(named("a", 5)))
    assert refused.value.remoting == 14
    house.broker.close()


@pytest.mark.parametrize(
    "chunk",
    [b"", b"\0" * 40, piece([b"x"])[:-1], piece([b"x"], queue_id=99), piece([b"x"], topic=b"SCHEDULE_TOPIC_XXXX"),
     piece([b"x"]).replace(b"\0\0\0\x17", b"\0\0\0\x18"), piece([b"x"], properties=b"DELAY\x01abc", delayed=True)],
)  # fmt: skip
def test_what_could_not_be_published_is_not_staged(house: House, chunk: bytes) -> None:
    house.staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    with pytest.raises(Refused):
        house.staging.append(A, 1, chunk)
    assert house.staging.spools[A].number == 0


def test_delayed_rows_go_by_way_of_the_schedule(house: House) -> None:
    due = str(house.broker.now_ms + 5_000).encode()
    house.stage(A, [piece([b"now"]) + piece([b"later"], properties=b"TIMER_DELIVER_MS\x01" + due, delayed=True)])
    house.publish([A])
    assert house.rows() == [b"now"]
    house.kill()
    house.open()
    house.settle()
    assert house.rows() == [b"now", b"later"]


def test_what_is_known_of_sinks_outlives_the_log(house: House) -> None:
    house.stage(A, [piece(named("a", 5))], batch=9)
    house.publish([A], batch=9)
    house.settle()
    table = json.loads((house.broker.folder / "config" / "sinks.json").read_text())
    assert table["sinks"]["S"]["last"] == 9
    house.broker.close()
    for folder in ("commitlog", "consumequeue", "checksums", "index"):
        for path in sorted((house.broker.folder / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (house.broker.folder / "checkpoint").unlink()
    house.open()
    assert not house.publish([A], batch=9)


def test_the_oldest_sinks_are_forgotten_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.sinks.SINKS_MAX", 3)
    for n in range(5):
        house.clock.advance(10)
        house.broker.time.update()
        house.staging.open_token(Token(Run(f"sink{n}", "Q", "run", "broker-a", once=n in (1, 2)), f"{n:032x}", 0, BORN))
    assert set(house.staging.sinks.by_name) == {"sink0", "sink3", "sink4"}


def test_pieces_are_cut_as_they_were_joined() -> None:
    found = list(pieces(piece(named("a", 2)) + piece(named("b", 1), queue_id=3, delayed=True)))
    assert [(p.topic, p.queue_id, p.count, p.delayed) for p in found] == [(b"T", 0, 2, False), (b"T", 3, 1, True)]


def test_ten_thousand_sinks_are_known_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop only takes the picture of the table: the thread makes the text of it, while the table goes on changing."""
    sinks = house.staging.sinks
    tokens = {name: [f"{n:032x}" for n in range(8)] for name in ("broker-a", "broker-b")}
    for n in range(10_000):
        about = Sink("Q", f"run-{n}", "broker-a", n, {"rows": 1, "brokers": tokens}, at_ms=n)
        sinks.by_name[f"sink-{n}"] = about
    sinks._changed_at = 0
    flushed = house.broker.store.flushed_position
    house.clock.advance(3_600_000)
    house.broker.time.update()
    with monkeypatch.context() as loop:
        loop.setattr("penstock.broker.sinks._text", None)
        job = sinks.take_job(flushed + 1, flushed + 1, house.broker.mono_ms)
    assert job is not None
    sinks.by_name["sink-1"].last = 77  # the loop goes on meanwhile
    run_now([job], house.broker.mono_ms)
    read = Sinks(sinks.path, house.broker.files)
    assert len(read.by_name) == 10_000
    assert read.by_name["sink-1"].last == 1
    assert read.by_name["sink-9999"].answer == {"rows": 1, "brokers": tokens}
    sinks.by_name.clear()


class Room(Files):
    """A disk of 1 MB with nothing on it but what is staged."""

    def usage(self, path: Path) -> tuple[int, int]:
        folder = path if path.name == "staging" else path / "staging"
        return sum(file.stat().st_size for file in folder.glob("*")), 1 << 20


def test_staged_bytes_count_against_the_disk_marks(tmp_path: Path) -> None:
    house = House(tmp_path / "data", files=Room())
    staging, chunk = house.staging, piece([b"x" * 60_000])
    staging.open_token(Token(Run("S", "Q", "run", "broker-a"), A, 0, BORN))
    with pytest.raises(Refused, match="disk is full") as refused:
        for number in range(1, 30):
            staging.append(A, number, chunk)
            house.settle()
    assert refused.value.remoting == 14
    assert 0.85 < staging.staged_bytes / (1 << 20) < 1
    assert house.broker.store.refusal  # and for whoever sends
    staging.drop("S", "run", list(staging.spools))
    for _ in range(3):
        house.settle()
    assert staging.staged_bytes == 0
    assert house.broker.store.refusal == 0
    staging.open_token(Token(Run("S", "Q", "run", "broker-a"), B, 0, BORN))
    staging.append(B, 1, chunk)
    house.broker.close()


@pytest.mark.parametrize("delayed", [True, False])
def test_the_broker_s_own_properties_are_refused_in_staged_rows(tmp_path: Path, delayed: bool) -> None:
    house = House(tmp_path)
    house.staging.open_token(Token(Run("S", "Q", "run", "broker-a"), "0" * 8, 0, BORN))
    properties = b"DELAY\x011\x02PENSTOCK_QUEUE\x01t" if delayed else b"PENSTOCK_ID\x01abc"
    with pytest.raises(Refused, match="PENSTOCK_") as caught:
        house.staging.append("0" * 8, 1, piece([b"x"], properties=properties, delayed=delayed))
    assert caught.value.remoting == 13
    assert house.staging.append("0" * 8, 1, piece([b"PENSTOCK_ID\x01abc"], properties=b"KEYS\x01PENSTOCK_ID")) == 1
    house.broker.close()


@pytest.mark.parametrize("hours", [23, 24 * 3_652])
def test_what_is_staged_is_not_given_up_by_a_clock_that_may_be_wrong(tmp_path: Path, hours: int) -> None:
    """A start ten years ahead dropped what a query was about to publish."""
    house = House(tmp_path, stage_ttl_ms=22 * 3_600_000)
    house.stage("aaaaaaaa", [piece([b"0"])])
    assert house.publish(["aaaaaaaa"])
    house.stage("bbbbbbbb", [piece([b"1"])], batch=1)
    house.settle()
    (file,) = [path for path in (tmp_path / "staging").iterdir() if path.name.startswith("bbbbbbbb")]
    os.utime(file, (house.clock.now_ms() / 1000, house.clock.now_ms() / 1000))
    house.kill()
    house.clock.jump(hours * 3_600_000)
    house.open()
    house.settle()
    assert ("bbbbbbbb" in house.staging.spools) == (hours > 24)
    house.clock.advance(24 * 3_600_000)
    house.settle()
    assert "bbbbbbbb" not in house.staging.spools
    house.kill()
