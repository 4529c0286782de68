"""What a log says its queues and indexes must hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_logs import write_log
from spark_records import Record

from penstock.octets import java_hash
from penstock.spark.log.derive import key_hash, segment_files, windows
from penstock.spark.log.files import cut, find
from penstock.wire.record import tags_code


@pytest.mark.parametrize(("topic", "key"), [("T", "k"), ("orders", "é😀"), ("", ""), ("polygene", "lubricants")])
def test_the_hash_of_a_key_is_rocketmqs(topic: str, key: str) -> None:
    text = f"{topic}#{key}".encode()
    value = abs(java_hash(text, 0, len(text), 0))
    assert key_hash(topic, key) == (0 if value > 0x7FFFFFFF else value)


def test_windows_have_every_record(tmp_path: Path) -> None:
    write_log(tmp_path, [Record(n, b"x" * n, properties=b"TAGS\1t%d\2KEYS\1a b" % (n % 2)) for n in range(40)])
    ((piece, *rest), *more) = cut(find(str(tmp_path)), 1 << 30, None)
    found = [window for one in (piece, *rest, *(p for pieces in more for p in pieces)) for window in windows(one)]
    offsets = [offset for window in found for offset in window.offset.tolist()]  # type: ignore[union-attr]
    assert sorted(offsets) == list(range(40))
    codes = {code for window in found for code in window.code.tolist()}  # type: ignore[union-attr]
    assert codes == {tags_code("t0"), tags_code("t1")}


def test_segments_by_their_names(tmp_path: Path) -> None:
    for name in (f"{400:020d}", f"{0:020d}", "odd"):
        (tmp_path / name).write_bytes(b"")
    assert [first for first, _ in segment_files(str(tmp_path))] == [0, 400]
