"""Log folders: which files are segments, and pieces of them that no record is lost between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from spark_logs import write_log
from spark_records import Record

from penstock.errors import ConfigError, PenstockError
from penstock.spark.kernel.decode import Decoder
from penstock.spark.log.files import Damage, LogSegment, cut, find, store_of, walk


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_log(tmp_path, [Record(n, b"x" * 50) for n in range(100)])
    return tmp_path


@pytest.mark.parametrize("where", ["", "/commitlog", "/commitlog/0*"])
def test_a_store_its_log_or_a_pattern(store: Path, where: str) -> None:
    segments = find(f"{store}{where}")
    assert [segment.base for segment in segments] == [n * 4096 for n in range(len(segments))]
    assert len(segments) > 3
    assert store_of(segments[0]) in (store, None)


def test_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, PenstockError)):
        find(str(tmp_path / "nothing"))


@pytest.mark.parametrize("piece_bytes", [500, 4096, 1 << 30])
def test_every_record_lies_in_one_piece(store: Path, piece_bytes: int) -> None:
    count = 0
    for pieces in cut(find(str(store)), piece_bytes, None):
        for piece in pieces:
            decoder = Decoder()
            decoder.choose((), 0, 1 << 62, False, False)
            for part in walk(piece, decoder):
                assert not isinstance(part, Damage)
                count += decoder.count
    assert count == 100


def test_more_partitions_than_a_driver_can_hold_are_refused(store: Path) -> None:
    assert len(cut(find(str(store)), 1 << 30, 10**18)) == sum(segment.end for segment in find(str(store)))
    huge = [segment._replace(end=1 << 30) for segment in find(str(store))]
    for piece_bytes, least in ((1, None), (1 << 20, 10**18)):
        with pytest.raises(ConfigError, match="Spark partitions: 1000000 at most"):
            cut(huge, piece_bytes, least)


class Counted(tuple[LogSegment, ...]):
    """Segments that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[LogSegment]:
        for at in range(len(self)):
            yield self[at]


def test_many_pieces_of_many_segments_are_cut_in_one_walk() -> None:
    """Each piece looked through all segments: a million of a thousand were minutes of the driver's time."""
    segments = Counted(LogSegment(f"{n}", n * 1000, 1000, 1000 - n % 3) for n in range(100))
    Counted.looks = 0
    runs = cut(segments, 1 << 30, 5_000)
    assert Counted.looks < 6_000
    assert len(runs) == 5_000
    pieces = [piece for run in runs for piece in run]
    for n, segment in enumerate(segments):
        mine = [piece for piece in pieces if piece.segment == segment]
        assert (mine[0].begin, mine[-1].end) == (0, 1000 - n % 3)
        assert all(a.end == b.begin for a, b in pairwise(mine))
