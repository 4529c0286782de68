"""The numpy twin beside the kernel, record by record of a large log."""

from __future__ import annotations

import pytest
from spark_records import Record

from penstock.errors import Corrupt
from penstock.spark.kernel.decode import Decoder as Kernel
from penstock.spark.kernel.numpydecode import Decoder

RECORDS = [Record(n, b"x" * (n % 50), n % 3, b"orders" if n % 2 else b"bills", b"KEYS\1k%d" % n) for n in range(300)]
DATA = b"".join(record.encode() for record in RECORDS)


@pytest.mark.parametrize(("first", "until"), [(0, 1 << 60), (100, 110), (299, 300), (300, 400)])
def test_both_want_the_same_rows(first: int, until: int) -> None:
    counts = []
    for decoder in (Kernel(), Decoder()):
        decoder.choose((b"orders",), 0, 1 << 62, False, False)
        counts.append((decoder.load(DATA, first, until), decoder.count, decoder.last))
    assert counts[0] == counts[1]
    assert counts[0][0] == sum(first <= n < until and n % 2 for n in range(300))


def test_both_refuse_the_same_damage() -> None:
    broken = DATA[:4] + b"????" + DATA[8:]  # the first record's magic
    for decoder in (Kernel(), Decoder()):
        decoder.choose((), 0, 1 << 62, False, False)
        with pytest.raises(Corrupt):
            decoder.load(broken, 0, 1 << 60)
