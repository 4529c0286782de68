"""Runs: records one behind the other, read from the front, put at the end, shared by several."""

from __future__ import annotations

import pytest

from penstock.disk.runs import Run, RunQueue, RunWriter, framed

PAYLOADS = [b"%d" % n * (n * 37 % 300 + 1) for n in range(50)]


def test_a_run_is_read_from_its_front_and_grows_at_its_end() -> None:
    buffer = framed(PAYLOADS).buffer
    tenth = sum(len(payload) + 4 for payload in PAYLOADS[:10])
    run = Run(buffer, 0, tenth, 10)
    assert run.payload() == PAYLOADS[0]
    assert [run.advance(), run.advance()] == [0, 4 + len(PAYLOADS[0])]
    assert (run.payloads(), run.number) == (PAYLOADS[2:10], -1)
    run.grow(len(buffer), 40)
    assert run.payloads() == PAYLOADS[2:]
    run.stand_for(100)
    first = run.split(8)
    assert (first.payloads(), first.number, first.count) == (PAYLOADS[2:10], 100, 8)
    assert (run.payloads(), run.number, run.count, run.at) == (PAYLOADS[10:], 108, 40, tenth)
    run.advance()
    assert run.number == 109


def taken(queue: RunQueue) -> list[bytes]:
    found = []
    while (at := queue.take()) >= 0:
        length = int.from_bytes(queue.buffer[at : at + 4])
        found.append(bytes(queue.buffer[at + 4 : at + 4 + length]))
    return found


def test_a_queue_is_first_in_first_out_whatever_lies_where() -> None:
    queue = RunQueue()
    assert (queue.take(), queue.runs(), queue.count, queue.size) == (-1, [], 0, 0)
    first, rest = framed(PAYLOADS[:30]), framed(PAYLOADS[30:40])
    for run in (first.split(10), first.split(10), first):
        queue.add(run.buffer, run.at, run.end, run.count)
    assert len(queue.runs()) == 1  # they lie one behind the other
    queue.add_run(rest)
    assert (queue.count, queue.size) == (40, sum(4 + len(payload) for payload in PAYLOADS[:40]))
    assert queue.payloads() == PAYLOADS[:40]
    assert taken(queue) == PAYLOADS[:40]
    assert (queue.count, queue.size, queue.runs()) == (0, 0, [])
    last = framed(PAYLOADS[40:])
    last.stand_for(7)
    queue.add_run(last)
    queue.add(last.buffer, last.end, last.end, 0)  # not of the same kind: a run of its own
    numbers = []
    while queue.take() >= 0:
        numbers.append(queue.number)
    assert numbers == list(range(7, 17))
    queue.add_run(framed(PAYLOADS))
    queue.take()
    queue.clear()
    assert (queue.take(), queue.count, queue.size, queue.payloads()) == (-1, 0, 0, [])


def write(writer: RunWriter, *payloads: bytes) -> Run:
    writer.ready(sum(4 + len(payload) for payload in payloads))
    for payload in payloads:
        at = writer.record(len(payload))
        assert at == writer.end - len(payload)
    return Run(writer.buffer, writer.begin, writer.end, writer.count)


def test_batches_lie_one_behind_the_other_in_buffers_that_fit_their_use() -> None:
    writer = RunWriter()
    write(writer, b"a" * 300)
    one = write(writer, b"a" * 10, b"b" * 20)
    writer.place()
    other = write(writer, b"c" * 30)
    assert (one.buffer is other.buffer, one.at, one.end, other.at, other.end) == (True, 0, 38, 38, 72)
    again = write(writer, b"d")  # the one before was not placed
    assert (again.at, again.end, again.count) == (38, 43, 1)
    with pytest.raises(ValueError, match="more is put than"):
        for _ in range(1000):
            writer.record(100)
    assert write(writer, b"e").at == 38
    sizes = set()
    for _ in range(1000):
        sizes.add(len(write(writer, b"x" * 100).buffer))
        writer.place()
    assert max(sizes) == 32768
    assert len(write(writer, b"x" * 100_000).buffer) == 100_004
    writer.leave()
    for _ in range(2):  # where one comes a turn, none keeps more than itself
        assert len(writer.buffer) == 0
        write(writer, b"x" * 60)
        writer.place()
        writer.leave()
    assert len(write(writer, b"x" * 60).buffer) == 64


def test_batches_that_are_kept_are_placed_together() -> None:
    writer = RunWriter()
    write(writer, b"a" * 300)  # and is dropped

    def follow(payload: bytes) -> bool:
        if not writer.follow(4 + len(payload)):
            return False
        writer.record(len(payload))
        return True

    for number, payload in enumerate((b"b" * 6, b"c", b"d" * 10), 1):
        assert follow(payload)
        assert follow(b"never kept")
        assert follow(payload)
        assert writer.keep() == 4 + len(payload)
        assert writer.kept == number
    assert not follow(b"e" * 300)
    assert (writer.begin, writer.kept_end, writer.kept) == (0, 29, 3)
    follow(b"neither")
    writer.place()
    assert (writer.kept, writer.begin, writer.kept_end) == (0, 40, 40)
    assert follow(b"f")
    writer.keep()
    writer.ready(1)
    assert (writer.kept, writer.begin, writer.end) == (0, 40, 40)


def test_the_first_run_is_seen_before_it_goes() -> None:
    queue = RunQueue()
    assert queue.first(5) is None
    run = framed(PAYLOADS[:10])
    run.stand_for(3)
    queue.add_run(run)
    more = framed(PAYLOADS[10:])
    queue.add(more.buffer, 0, more.end, more.count)
    found: list[bytes] = []
    numbers = []
    while (first := queue.first(7)) is not None:
        assert queue.first(7).payloads() == first.payloads()  # type: ignore[union-attr]
        found += first.payloads()
        numbers.append((first.number, first.count))
        queue.drop(first)
        if len(found) == 7:
            assert taken_one(queue) == PAYLOADS[7]
            found.append(PAYLOADS[7])
    assert found == PAYLOADS
    assert numbers == [(3, 7), (11, 2), *[(-1, 7)] * 5, (-1, 5)]
    assert (queue.count, queue.size, queue.take()) == (0, 0, -1)


def taken_one(queue: RunQueue) -> bytes:
    at = queue.take()
    return bytes(queue.buffer[at + 4 : at + 4 + int.from_bytes(queue.buffer[at : at + 4])])
