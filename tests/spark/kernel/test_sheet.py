"""Sheets: the quick way for plain columns gives what the ordinary way gives."""

from __future__ import annotations

import pytest
from spark_records import Record

from penstock.spark import schema
from penstock.spark.kernel import batches, sheet

NAMES = ("value", "partition", "offset", "timestamp", "timestampType")
DATA = b"".join(Record(n, b"v%d" % n, n % 4).encode() for n in range(500))


@pytest.mark.skipif(not sheet.COMPILED, reason="an uncompiled build has no sheets")
def test_both_ways_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = schema.arrow_of(NAMES)
    quick = [batch.to_pylist() for batch in batches.Batches(columns, rows_max=97).of(DATA, 0, 1 << 60)]
    monkeypatch.setattr(batches, "SHEETS", False)
    plain = [batch.to_pylist() for batch in batches.Batches(columns, rows_max=97).of(DATA, 0, 1 << 60)]
    assert [row for rows in quick for row in rows] == [row for rows in plain for row in rows]
    assert sum(map(len, quick)) == 500


def test_only_a_compiled_build_has_them() -> None:
    assert sheet.__file__.endswith(".so") == sheet.COMPILED
