"""LogStore: what goes in comes out, in order, with the right status."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest
from store_parts import SMALL, bodies, contents, make, put, work

from penstock.clock import FakeClock
from penstock.disk.files import Files
from penstock.errors import Locked, StoreError
from penstock.log import status
from penstock.log.consumequeue import TagCodes
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.reading import ReadResult
from penstock.log.store import LogStore
from penstock.wire.record import BatchItem, encode_batch, iter_records, tags_code


def test_messages_come_back_in_order_over_many_segments(tmp_path: Path) -> None:
    store: LogStore = make(tmp_path)
    store.open()
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for n in range(600):
        body = b"%d " % n * (n % 40)
        put(store, body, queue_id=n % 3)
        sent[n % 3].append(body)
        if n % 50 == 0:
            work(store, 1)
    assert len(store.log.file.segments) > 5
    for queue_id in range(3):
        found = contents(store, store.queue(b"T", queue_id))
        assert [offset for offset, _ in found] == list(range(200))
        assert [body for _, body in found] == sent[queue_id]
    store.close()


def test_a_clean_stop_opens_without_a_scan(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for n in range(300):
        put(store, b"m%d" % n, properties=b"KEYS\x01k%d" % n)
    end = store.end_position
    store.close()
    report = store.open()
    assert (report.clean, report.start, report.end, report.records) == (True, end, end, 0)
    assert bodies(store) == [b"m%d" % n for n in range(300)]
    assert len(store.query(b"T", b"k7", 10, 0, 1 << 50)) == 1
    assert put(store, b"next").queue_offset == 300
    store.close()


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [(-1, status.OFFSET_TOO_SMALL, 0), (3, status.OFFSET_OVERFLOW_ONE, 3), (9, status.OFFSET_OVERFLOW_BADLY, 3)],
)
def test_statuses_at_the_ends(tmp_path: Path, offset: int, code: int, next_offset: int) -> None:
    store = make(tmp_path)
    store.open()
    result = ReadResult()
    queue = store.queue(b"T", 0)
    assert store.read(queue, 5, 32, 1 << 18, -1, None, result) == status.NO_MESSAGE_IN_QUEUE
    for n in range(3):
        put(store, b"%d" % n)
    assert store.read(queue, offset, 32, 1 << 18, -1, None, result) == code
    assert (result.next_offset, result.min_offset, result.max_offset) == (next_offset, 0, 3)
    store.close()


def test_limits_of_a_read(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for n in range(20):
        put(store, bytes(100), properties=b"TAGS\x01" + (b"even" if n % 2 == 0 else b"odd"))
    queue, result = store.queue(b"T", 0), ReadResult()
    assert store.read(queue, 0, 0, 0, -1, None, result) == status.FOUND
    assert result.count == 1  # at least one, whatever the limits
    store.read(queue, 0, 5, 1 << 20, -1, None, result)
    assert (result.count, result.next_offset, result.run_count) == (5, 5, 1)
    store.read(queue, 0, 99, 500, -1, None, result)
    assert result.bytes_ <= 500
    assert store.read(queue, 0, 99, 1 << 20, 4, None, result) == status.FOUND
    assert (result.count, result.max_offset) == (4, 4)
    assert store.read(queue, 0, 99, 1 << 20, 0, None, result) == status.NO_MESSAGE_IN_QUEUE
    odd = TagCodes([tags_code("odd")])
    store.read(queue, 0, 99, 1 << 20, -1, odd, result)
    assert [record.queue_offset for record in iter_records(result.body())] == list(range(1, 20, 2))
    assert result.next_offset == 20
    none = TagCodes([1, 2])
    assert store.read(queue, 0, 99, 1 << 20, -1, none, result) == status.NO_MATCHED_MESSAGE
    assert result.next_offset == 20
    store.close()


def test_a_batch_is_one_after_another_in_one_segment(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    put(store, bytes(12_000))
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.set_tail(b"CLUSTER\x01c")
    items = [BatchItem(b"body %d" % n, b"KEYS\x01k%d\x02TAGS\x01A" % n) for n in range(40)]
    assert store.append_batch_bytes(draft, encode_batch(items)) == 40
    assert draft.physical == 1 << 14  # did not fit behind the first message
    assert draft.queue_offset == 1
    places = store.positions(draft.physical, 40)
    assert len({place >> 14 for place in places}) == 1
    found = contents(store, draft.queue)
    assert found[1:] == [(n + 1, b"body %d" % n) for n in range(40)]
    record = next(iter_records(store.record_at(places[3]) or b""))
    assert record.properties == {"KEYS": "k3", "TAGS": "A", "CLUSTER": "c"}
    assert len(store.query(b"T", b"k3", 10, 0, 1 << 50)) == 1
    store.close()


@pytest.mark.parametrize("cut", [1, 5, 20, 21])
def test_a_batch_that_does_not_add_up_stores_nothing(tmp_path: Path, cut: int) -> None:
    store = make(tmp_path)
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    body = encode_batch([BatchItem(b"one", b""), BatchItem(b"two", b"")])
    assert store.append_batch_bytes(draft, body[:-cut]) == -status.ILLEGAL
    assert store.append_batch_bytes(draft, b"") == -status.ILLEGAL
    assert store.end_position == 0
    store.close()


def test_too_large(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.set_body(bytes(1 << 14))
    assert store.append(draft) == status.TOO_LARGE
    draft.set_body(b"")
    draft.set_properties(b"x" * 40_000)
    assert store.append(draft) == status.TOO_LARGE
    store.close()
    assert store.append(draft) == status.NOT_WRITABLE


def test_the_log_says_why_nothing_can_be_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under `ulimit -v` no segment can be mapped. Senders are told that the disk failed, and an operator looks in vain at it."""

    class Narrow(Files):
        narrow = False

        def map(self, fd: int, size: int, *, writable: bool = True, scattered: bool = False) -> mmap.mmap:
            if self.narrow:
                raise StoreError(f"cannot map {size} bytes: no memory")
            return super().map(fd, size, writable=writable, scattered=scattered)

    files = Narrow()
    store = make(tmp_path, files=files)
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    files.narrow = True
    assert [store.append(draft) for _ in range(3)] == [status.NOT_WRITABLE] * 3
    assert caplog.text.count("nothing is stored error=cannot map") == 1
    files.narrow = False
    assert store.append(draft) == status.OK
    store.close()


def test_half_and_rollback_records_stand_in_no_queue(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for sys_flag in (0, 4, 8, 12):
        draft = Draft()
        draft.queue = store.queue(b"T", 0)
        draft.sys_flag = sys_flag
        draft.set_body(b"%d" % sys_flag)
        draft.set_properties(b"UNIQ_KEY\x01u%d" % sys_flag)
        assert store.append(draft) == 0
        assert draft.queue_offset == {0: 0, 4: 0, 8: 1, 12: 0}[sys_flag]
    assert bodies(store) == [b"0", b"8"]
    assert [len(store.query(b"T", b"u%d" % n, 5, 0, 1 << 50)) for n in (0, 4, 8, 12)] == [1, 1, 1, 0]
    store.close(clean=False)
    store.open()
    assert bodies(store) == [b"0", b"8"]
    store.close()


def test_delay_levels_stand_with_their_due_time(tmp_path: Path) -> None:
    assert delay_levels("1s 5m 2h") == (1000, 300_000, 7_200_000)
    with pytest.raises(ValueError):
        delay_levels("1x")
    store = make(tmp_path)
    store.open()
    draft = put(store, b"later", topic=b"SCHEDULE_TOPIC_XXXX", queue_id=2)
    assert draft.queue.entry(0) == (0, draft.size, draft.store_ms + 10_000)
    store.close()


def test_keys_are_found_newest_first_and_compared(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    began = clock.now_ms()
    for n in range(200):  # over several index files
        put(store, b"%d" % n, properties=b"KEYS\x01a%d b%d\x02UNIQ_KEY\x01u%d" % (n % 10, n, n))
        clock.advance(1000)
    assert len(store.index.index_files) > 5
    newest = [record.body for record in iter_records(b"".join(store.query(b"T", b"a3", 5, 0, 1 << 50)))]
    assert newest == [b"193", b"183", b"173", b"163", b"153"]
    assert [r.body for r in iter_records(b"".join(store.query(b"T", b"u42", 5, 0, 1 << 50)))] == [b"42"]
    assert store.query(b"Other", b"u42", 5, 0, 1 << 50) == []
    assert store.query(b"T", b"nothing", 5, 0, 1 << 50) == []
    within = store.query(b"T", b"a3", 64, began + 50_000, began + 80_000)
    assert [r.body for r in iter_records(b"".join(within))] == [b"73", b"63", b"53"]
    store.close()


def test_offsets_by_time(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    queue, t = store.queue(b"T", 0), clock.now_ms()
    assert (store.offset_by_time(queue, t), store.offset_by_time(queue, t, True)) == (0, 0)
    for _ in range(5):
        put(store, b"x")
        clock.advance(100)
    by = [
        (store.offset_by_time(queue, t + d), store.offset_by_time(queue, t + d, True))
        for d in (-9, 0, 40, 50, 60, 400, 9999)
    ]
    assert by == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (4, 4), (4, 5)]
    assert store.store_time(queue, 2) == t + 200
    assert store.store_time(queue, 5) == -1
    store.close()


def test_store_times_never_decrease(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    first = put(store, b"1").store_ms
    clock.jump(-3_600_000)
    assert put(store, b"2").store_ms == first
    store.close()
    store.open()
    assert put(store, b"3").store_ms == first
    store.begin_turn(first + 5)
    assert put(store, b"4").store_ms == first + 5
    store.end_turn()
    store.close()


def test_durable_end_follows_the_flush(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    queue = put(store, b"1").queue
    put(store, b"2")
    assert queue.durable_end(store.flushed_position) == 0
    work(store)
    assert store.flushed_position == store.end_position
    assert queue.durable_end(store.flushed_position) == 2
    put(store, b"3")
    assert queue.durable_end(store.flushed_position) == 2
    store.close()


def test_arrivals_are_noted_once(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    queue = store.queue(b"T", 0)
    put(store, b"1")
    assert store.arrived == []
    queue.watched = True
    put(store, b"2")
    put(store, b"3")
    assert store.arrived == [queue]
    store.close()


def test_one_broker_at_a_time(tmp_path: Path) -> None:
    store, other = make(tmp_path), make(tmp_path)
    store.open()
    with pytest.raises(Locked, match="pid"):
        other.open()
    store.close()
    other.open()
    other.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    make(tmp_path).folder.joinpath("store.json").write_text('{"formatVersion": 99, "storeId": "x"}')
    store = make(tmp_path)
    with pytest.raises(StoreError, match="99"):
        store.open()


def test_names_of_queues_are_checked(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for topic in (b"", b"..", b"a/b", b"x" * 128, b"a\0"):
        with pytest.raises(StoreError):
            store.queue(topic, 0)
    store.close()


def test_an_empty_folder_opens_without_touching_its_first_segment(tmp_path: Path) -> None:
    store = make(tmp_path, options=StoreOptions())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    store.open()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 16_384  # of 262,144 pages of 1 GiB
    store.close()


def test_the_first_message_of_many_queues(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for n in range(100):
        store.queue(b"Many", n)
    assert not (tmp_path / "consumequeue" / "Many").exists()
    put(store, b"x", topic=b"Many", queue_id=5)
    assert [p.name for p in (tmp_path / "consumequeue" / "Many").iterdir()] == ["5"]
    store.close()


def test_small_is_small() -> None:
    assert SMALL.mapped_file_size_consume_queue % 20 == 0
