"""ReadResult: records that lie together are one run; any number of runs fits."""

from __future__ import annotations

from pathlib import Path

from store_parts import make, put

from penstock.log.reading import ReadResult
from penstock.wire.record import iter_records


def test_neighbours_are_one_run(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"m%d" % n, queue_id=int(n == 2)) for n in range(4)]
    result = ReadResult()
    assert store.read(store.queue(b"T", 0), 0, 10, 1 << 20, -1, None, result) == 0
    assert result.runs == [
        (drafts[0].physical, drafts[0].size + drafts[1].size),
        (drafts[3].physical, drafts[3].size),
    ]
    assert (result.count, result.next_offset, result.bytes_) == (3, 3, sum(d.size for d in drafts) - drafts[2].size)
    assert [record.body for record in iter_records(result.body(), check=True)] == [b"m0", b"m1", b"m3"]
    result.begin(store.log)
    assert (result.count, result.runs, result.body()) == (0, [], b"")
    store.close()


def test_a_read_gives_no_more_than_so_many_runs(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for n in range(280):
        put(store, b"%d" % n, queue_id=n % 2)
    result = ReadResult()
    assert store.read(store.queue(b"T", 0), 0, 1_000, 1 << 20, -1, None, result) == 0
    assert (len(result.runs), result.next_offset) == (64, 64)  # a read ends there
    assert [int(record.body) for record in iter_records(result.body())] == list(range(0, 128, 2))
    store.close()
