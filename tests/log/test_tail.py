"""The end of a log that was not closed: found behind the last good record, damage passed over, the torn end kept aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import bodies, make, put

from penstock.log.contents import Contents, Recovery
from penstock.log.store import LogStore
from penstock.log.tail import Tail, resync


def opened(folder: Path, count: int) -> tuple[LogStore, list[int]]:
    store = make(folder)
    store.open()
    return store, [put(store, b"m%d" % n).physical for n in range(count)]


def tail(store: LogStore) -> Tail:
    report = Recovery()
    return Tail(store, report, Contents(store, report))


@pytest.mark.parametrize("hole", [1, 4])
def test_the_next_good_record_behind_damage(tmp_path: Path, hole: int) -> None:
    store, places = opened(tmp_path, 6)
    segment = store.log.file.at(0)
    assert segment is not None
    for place in places[1 : 1 + hole]:
        segment.map[place + 4 : place + 8] = b"????"
    assert resync(store.log, places[1]) == places[1 + hole]
    assert resync(store.log, places[5]) == -1
    store.close(False)


def test_what_is_torn_off_is_kept_aside(tmp_path: Path) -> None:
    store, places = opened(tmp_path, 6)
    segment = store.log.file.at(0)
    assert segment is not None
    torn = bytes(segment.map[places[4] : store.log.end]).rstrip(b"\0")
    cutter = tail(store)
    cutter.cut_tail(places[4])
    assert cutter.report.cut_bytes == len(torn)
    (kept,) = (path for path in (tmp_path / "lost+found").iterdir() if path.name.startswith("tail-"))
    assert kept.read_bytes() == torn
    assert segment.map[places[4] : places[4] + len(torn)].count(0) == len(torn)
    store.close(False)
    again = make(tmp_path)
    again.open()
    assert bodies(again) == [b"m0", b"m1", b"m2", b"m3"]
    again.close()
