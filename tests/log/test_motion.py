"""A log in use, looked at: a write under way is no torn end, and a torn end is none that is waited for without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put

from penstock.log import motion
from penstock.log.commitlog import CommitLog
from penstock.log.verify import _Verifier, verify

LOG = "commitlog/00000000000000000000"


class HalfWritten:
    """The folder of a killed broker with some records, of which one is written to its half."""

    def __init__(self, folder: Path, which: int) -> None:
        store = make(folder)
        store.open()
        ends = [store.end_position]
        for n in range(10):
            put(store, b"m%d" % n * 50)
            ends.append(store.end_position)
        store.close(False)
        self.path = folder / LOG
        self.whole = self.path.read_bytes()
        self.begin, end = ends[which : which + 2]
        self.middle = (self.begin + end) // 2
        self.cut(self.middle, end)

    def cut(self, begin: int, end: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))

    def finish(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.begin)
            file.write(self.whole[self.begin : self.middle + 4096])


@pytest.mark.parametrize("which", [9, 4])
def test_a_record_that_is_being_written_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The last one was called a torn tail; with others behind it, all that followed was left out."""
    torn = HalfWritten(tmp_path / "s", which)
    waited = 0

    def wait(seconds: float) -> None:
        nonlocal waited
        waited += 1
        if waited == 3:
            torn.finish()

    monkeypatch.setattr(motion.time, "sleep", wait)
    report = verify(tmp_path / "s")
    assert (report.findings, report.records, waited) == ([], 10, 3)


def test_a_torn_tail_is_said_when_it_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = HalfWritten(tmp_path / "s", 9)
    waited: list[float] = []
    monkeypatch.setattr(motion.time, "sleep", waited.append)
    report = verify(tmp_path / "s")
    (tail,) = [one for one in report.findings if one.level == "note" and one.file == LOG]
    assert (tail.why, tail.position) == ("a torn tail behind the last record", torn.begin)
    assert sum(waited) <= 1


def test_what_is_stored_behind_the_end_meanwhile_is_no_torn_tail(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    store.open()
    put(store, b"before")

    class Meanwhile(_Verifier):
        def _tail(self, log: CommitLog, end: int) -> None:
            put(store, b"between the last look and the one at the tail")
            super()._tail(log, end)

    assert Meanwhile(tmp_path / "s", lambda done, total: None).run().findings == []
    store.close()


def test_nothing_behind_the_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "s")
    store.open()
    put(store, b"before")
    monkeypatch.setattr(motion.time, "sleep", lambda seconds: pytest.fail("waits"))
    assert verify(tmp_path / "s").findings == []
    store.close()


def test_what_is_stored_while_the_end_is_looked_at_is_not_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record was looked for where none stood yet, then others behind it, which came in between."""
    torn = HalfWritten(tmp_path / "s", 8)
    torn.cut(torn.begin, len(torn.whole))
    is_begun = motion.is_begun

    def look(log: CommitLog, position: int) -> bool:
        found = is_begun(log, position)
        torn.finish()
        return found

    monkeypatch.setattr(motion, "is_begun", look)
    report = verify(tmp_path / "s")
    assert (report.findings, report.records) == ([], 8)


def test_an_entry_that_is_there_before_its_record_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a turn gather, and are handed over behind their entries."""
    torn = HalfWritten(tmp_path / "s", 7)
    torn.cut(torn.begin, len(torn.whole))
    monkeypatch.setattr(motion.time, "sleep", lambda seconds: torn.finish())
    report = verify(tmp_path / "s")
    assert (report.findings, report.records) == ([], 7)


def test_entries_whose_records_do_not_come_are_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed broker may have left thousands."""
    torn = HalfWritten(tmp_path / "s", 7)
    torn.cut(torn.begin, len(torn.whole))
    waited: list[float] = []
    monkeypatch.setattr(motion.time, "sleep", waited.append)
    report = verify(tmp_path / "s")
    assert [one.why for one in report.findings] == ["3 entries lead to no record"]
    assert sum(waited) <= 1
