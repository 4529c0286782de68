"""Batches: as many rows and bytes as allowed, whatever the columns."""

from __future__ import annotations

import pytest
from spark_records import Record

from penstock.errors import Corrupt
from penstock.spark import schema
from penstock.spark.kernel.batches import Batches

DATA = b"".join(Record(n, b"%d" % n * 10, properties=b"KEYS\1k%d" % n).encode() for n in range(50))


@pytest.mark.parametrize("names", [("value",), ("value", "offset", "keys"), ("properties", "msgId", "timestamp")])
@pytest.mark.parametrize("rows_max", [1, 7, 1_000])
def test_rows_are_cut_into_batches(names: tuple[str, ...], rows_max: int) -> None:
    found = list(Batches(schema.arrow_of(names), rows_max=rows_max).of(DATA, 0, 1 << 60))
    assert sum(batch.num_rows for batch in found) == 50
    assert max(batch.num_rows for batch in found) <= rows_max
    assert all(batch.schema.names == list(names) for batch in found)


def test_a_row_larger_than_a_batch_is_one() -> None:
    found = list(Batches(schema.arrow_of(("value",)), bytes_max=1).of(DATA, 10, 13))
    assert [batch.column(0).to_pylist() for batch in found] == [[b"%d" % n * 10] for n in (10, 11, 12)]


def test_bytes_that_are_no_records() -> None:
    with pytest.raises(Corrupt):
        list(Batches(schema.arrow_of(("value",))).of(b"junk" * 40, 0, 9))
