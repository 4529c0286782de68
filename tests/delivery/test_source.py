"""MemorySource: first in, first out over memory and disk, and what a clean stop writes down."""

from __future__ import annotations

import random
import weakref
from pathlib import Path

import pytest

from delivery.source_parts import Refusing, data, taken
from disk.queue_parts import drain, make
from penstock.delivery.source import MemorySource
from penstock.disk.runs import Run, framed
from penstock.errors import DiskFull
from penstock.wire.nsq import message_data


def test_what_a_message_shows() -> None:
    source = MemorySource(5, None)
    source.put([data(7, attempts=2)])
    assert source.take() == 1
    assert (source.body(), source.message_id, source.stamp_ns, source.attempts) == (b"m7", 7, 70, 2)
    place = source.place
    assert source.take() == 0
    assert source.point_at(0, place) == 1
    source.done(0, place)
    assert source.point_at(0, place) == 0


def test_without_a_disk_the_overflow_is_dropped_and_counted() -> None:
    source = MemorySource(3, None)
    source.put([data(n) for n in range(5)])
    source.put([data(5)])
    assert (source.depth(), source.dropped) == (3, 3)
    assert taken(source) == [b"m0", b"m1", b"m2"]
    source.put([data(6)])
    source.empty()
    assert (source.depth(), source.take()) == (0, 0)


def test_order_holds_over_memory_and_disk(tmp_path: Path) -> None:
    backend = make(tmp_path)
    source = MemorySource(3, backend)
    for n in range(10):
        source.put([data(n)])
    assert (source.depth(), source.backend_depth()) == (10, 7)
    assert taken(source) == [b"m%d" % n for n in range(10)]
    assert source.depth() == 0
    backend.close()


def test_what_is_too_much_is_written_together(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(100, backend)
    for n in range(110):
        source.put([data(n)])
    assert (source.depth(), source.backend_depth(), backend.writes) == (110, 10, [])
    source.put([data(n) for n in range(110, 113)])
    assert (source.depth(), source.backend_depth(), backend.writes) == (113, 13, [13])
    for n in range(113, 120):
        source.put([data(n)])
    assert (source.depth(), source.backend_depth(), backend.depth) == (120, 20, 13)
    assert taken(source) == [b"m%d" % n for n in range(120)]
    source.put([data(7)])
    assert taken(source) == [b"m7"]
    big = message_data(1, 0, 1, bytes(200_000))
    source.put([data(n) for n in range(100)])
    source.put([big])
    assert len(backend.writes) == 1
    source.put([big])
    assert backend.writes == [13, 2]  # so many bytes are enough
    backend.close()


def test_a_disk_that_takes_nothing_refuses_and_nothing_is_lost(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(20, backend)
    for n in range(22):
        source.put([data(n)])
    backend.full = True
    for _ in range(3):
        with pytest.raises(DiskFull):
            source.put([data(99)])
    assert source.depth() == 22
    backend.full = False
    source.put([data(22), data(23)])
    assert (source.backend_depth(), taken(source)) == (4, [b"m%d" % n for n in range(24)])
    empty = MemorySource(20, backend)
    backend.full = True
    with pytest.raises(DiskFull):
        empty.put([data(n) for n in range(30)])
    assert empty.depth() == 0  # all or none
    backend.close()


def test_a_clean_stop_writes_down_what_was_gathered(tmp_path: Path) -> None:
    backend = make(tmp_path)
    source = MemorySource(100, backend)
    for n in range(108):
        source.put([data(n)])
    source.save(())
    assert source.depth() == 108
    backend.close()
    again = make(tmp_path)
    assert [payload[26:] for payload in drain(again)] == [b"m%d" % n for n in range(108)]
    again.close()


def test_the_files_are_told_of_what_is_done_when_nothing_of_them_is_in_hand(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(1, backend)
    source.put([data(n) for n in range(4)])
    places = []
    for _ in range(4):
        source.take()
        places.append(source.place)
    source.done(0, places[0])
    source.done(0, places[3])
    source.done(0, places[2])
    assert backend.told == []
    assert not backend.broken
    source.done(0, places[1])
    assert [sorted(numbers) for numbers in backend.told] == [[0, 1, 2]]
    source.done(0, places[1])  # twice is once
    backend.close()
    again = make(tmp_path)
    assert list(drain(again)) == []
    again.close()


def test_places_are_used_again() -> None:
    source = MemorySource(1000, None)
    source.put([data(n) for n in range(300)])
    places = []
    for n in range(300):
        source.take()
        assert source.body() == b"m%d" % n
        places.append(source.place)
    assert len(set(places)) == 300
    for place in places[::3]:
        source.done(0, place)
    assert [source.point_at(0, place) for place in places] == [0, 1, 1] * 100
    held = {source.keep(data(1000 + n)): b"m%d" % (1000 + n) for n in range(50)}
    assert set(held) <= set(places[::3])
    assert all(source.point_at(0, place) and source.body() == body for place, body in held.items())
    assert [source.point_at(0, place) for place in (-1, 10_000)] == [0, 0]
    source.empty()
    assert [source.point_at(0, place) for place in places] == [0] * 300


def records(*bounds: int) -> Run:
    return framed([data(n) for n in range(*bounds)])


def test_a_buffer_is_shared_and_a_turn_makes_one_run(tmp_path: Path) -> None:
    """Of a topic with several channels each goes its own way through the same bytes."""
    run = records(10)
    ends = [Run(run.buffer, 0, run.end, 10).split(n).end for n in range(11)]
    one, other = MemorySource(100, None), MemorySource(4, backend := make(tmp_path))
    for n in range(10):
        for source in (one, other):
            source.put_run(run.buffer, ends[n], ends[n + 1], 1)
    assert (one.depth(), other.depth(), other.backend_depth()) == (10, 10, 6)
    assert taken(one) == taken(other) == [b"m%d" % n for n in range(10)]
    one.put_run(run.buffer, ends[2], ends[4], 2)
    one.put_run(run.buffer, ends[6], ends[7], 1)  # what lies between is not meant
    assert (taken(one), one.depth()) == ([b"m2", b"m3", b"m6"], 0)
    one.put([])
    assert (one.take(), one.oldest(), one.queue, one.over) == (0, b"", [], [])
    backend.close()


@pytest.mark.parametrize("room", [0, 1, 3, 7])
def test_what_does_not_fit_is_cut_off_at_a_record(tmp_path: Path, room: int) -> None:
    run = records(7)
    dropping, spilling = MemorySource(room, None), MemorySource(room, backend := make(tmp_path))
    for source in (dropping, spilling):
        source.put_run(run.buffer, 0, run.end, 7)
    assert (dropping.depth(), dropping.dropped, spilling.depth()) == (room, 7 - room, 7)
    assert spilling.queue == [data(n) for n in range(room)]
    assert (taken(dropping), taken(spilling)) == ([b"m%d" % n for n in range(room)], [b"m%d" % n for n in range(7)])
    backend.close()


def test_what_is_detached_keeps_nothing_but_itself() -> None:
    run = records(500)
    held = weakref.ref(keeper := Buffer(run.buffer))
    own = MemorySource(10, None)
    own.put_run(keeper, 0, len(data(0)) + 4, 1)
    own.take()
    del keeper
    place = own.place
    assert (held() is not None, own.take(), own.point_at(0, place)) == (True, 0, 1)
    own.detach(0, place)
    assert (own.point_at(0, place), own.body(), own.data()) == (1, b"m0", data(0))
    assert held() is None
    own.detach(0, place)
    own.detach(0, 77)
    own.done(0, place)
    assert own.point_at(0, place) == 0


class Buffer(bytearray):
    """A buffer of which one sees that it is gone."""


def test_a_body_is_lent_as_long_as_its_view_lives() -> None:
    source = MemorySource(10, None)
    source.put([message_data(1, 0, n, b"%d" % n * 5000) for n in range(2)])
    source.take()
    view = source.lend()
    source.done(0, source.place)
    source.take()
    source.empty()
    assert view == b"0" * 5000


def test_numbers_out_of_order_are_told_as_well(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(0, backend)
    source.put([data(n) for n in range(12)])
    places = []
    while source.take():
        places.append(source.place)
    for n in (3, 4, 5, 0, 1, 2, 7):
        source.done(0, places[n])
    source.save([(places[n], 2) for n in (6, 8, 9, 10, 11)])
    assert sorted(backend.told[0]) == [0, 1, 2, 3, 4, 5, 7]
    backend.close()
    again = make(tmp_path)
    assert {payload[26:] for payload in drain(again)} == {b"m%d" % n for n in (6, 8, 9, 10, 11)}
    again.close()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"0000000000000007", 7),
        (b"00000000000000AB", 0xAB),
        (b"ffffffffffffffff", (1 << 63) - 1),
        (b"not a hex number", 0),
    ],
)
def test_an_id_of_another_library(name: bytes, number: int) -> None:
    payload = bytes(10) + name + b"body"
    source = MemorySource(5, None)
    source.put([payload])
    source.take()
    assert source.message_id == number or (
        not number and source.message_id == int.from_bytes(name[8:]) & ((1 << 63) - 1)
    )
    assert (source.data(), source.body()) == (payload, b"body")


@pytest.mark.parametrize("finished", [0, 1, 4])
def test_a_clean_stop_keeps_what_is_not_done(tmp_path: Path, finished: int) -> None:
    backend = make(tmp_path)
    source = MemorySource(3, backend)
    source.put([data(n) for n in range(6)])
    in_hand = []
    for number in range(4):
        source.take()
        if number < finished:
            source.done(0, source.place)
        else:
            in_hand.append((source.place, 1))
    source.save(in_hand)
    backend.close()
    again = make(tmp_path)
    assert {payload[26:] for payload in drain(again)} == {b"m%d" % n for n in range(finished, 6)}
    again.close()


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_calls_gives_what_a_list_would(tmp_path: Path, seed: int) -> None:
    """Two channels of a topic over memory and disk queues, through clean stops: each message once, oldest first."""
    rng, stock, number = random.Random(seed), framed([]), 0
    backends = [make(tmp_path, name, max_bytes_per_file=3000) for name in ("one", "two")]
    sources = [MemorySource(rng.choice((0, 3, 30, 200)), backend) for backend in backends]
    due: list[list[bytes]] = [[], []]  # what each is to give next
    held: list[dict[int, bytes]] = [{}, {}]  # what it gave, by place
    for _ in range(400):
        n, what = rng.randrange(2), rng.random()
        source, hand = sources[n], held[n]
        if what < 0.35:
            if not stock.count or what < 0.05:  # another buffer
                size = rng.choice((1, 10, 60))
                stock = framed([data(number + k) + bytes(rng.choice((0, 5, 300))) for k in range(size)])
                number += size
            batch = stock.split(rng.randint(1, min(9, stock.count)))
            for each, list_ in zip(sources, due, strict=True):
                each.put_run(batch.buffer, batch.at, batch.end, batch.count)
                list_ += batch.payloads()
        elif what < 0.7:
            for _ in range(rng.choice((1, 5, 40))):
                if source.take():
                    assert source.data() == due[n].pop(0)
                    assert source.place not in hand
                    hand[source.place] = source.data()
                else:
                    assert due[n] == []
        elif what < 0.75:
            source.overflow.spill()
        elif what < 0.95:
            for place in rng.sample(sorted(hand), min(len(hand), rng.choice((1, 3, 20)))):
                if rng.random() < 0.3:
                    source.detach(0, place)
                assert (source.point_at(0, place), source.data()) == (1, hand[place])
                if rng.random() < 0.8:
                    source.done(0, place)
                    del hand[place]
        elif what < 0.96:
            source.empty()
            due[n], held[n] = [], {}
        elif what < 0.98:
            source.save([(place, 0) for place in hand])
            backends[n].close()
            backends[n] = make(tmp_path, ("one", "two")[n], max_bytes_per_file=3000)
            sources[n] = MemorySource(source.limit, backends[n])
            again = sorted([*due[n], *hand.values()])
            held[n], found = {}, []
            while sources[n].take():  # a clean stop keeps all; what was in hand may come behind
                found.append(sources[n].data())
                held[n][sources[n].place] = found[-1]
            assert sorted(found) == again
            due[n] = []
        assert sources[n].depth() == len(due[n])
    for backend in backends:
        backend.close()


def test_what_one_of_several_refused_is_passed_on_once(tmp_path: Path) -> None:
    """A full disk is tried again every second: those that have a message must not get it each time."""
    source, first = MemorySource(10, None), MemorySource(10, None)
    queue = make(tmp_path)
    refusing = Refusing(queue)
    second, third = MemorySource(0, refusing), MemorySource(10, None)
    source.put([data(n) for n in range(4)])
    refusing.full = True
    for _ in range(3):
        with pytest.raises(DiskFull):
            source.pass_on([first, second, third], 3)
    assert (source.depth(), first.depth(), third.depth()) == (4, 3, 0)
    source.put([data(4)])
    refusing.full = False
    assert [source.pass_on([first, second, third], 3) for _ in range(4)] == [3, 1, 1, 0]  # a put is a run
    assert [taken(one) for one in (first, second, third)] == [[b"m%d" % n for n in range(5)]] * 3
    refusing.full = True
    source.put([data(5)])
    with pytest.raises(DiskFull):
        source.pass_on([second], 3)
    source.empty()
    refusing.full = False
    assert source.pass_on([second], 3) == 0
