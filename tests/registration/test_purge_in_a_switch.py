"""A purge while master and slave change places: what was taken out of sight stays so on the new master."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from ha_parts import eventually
from penstock.client.reader import LogReader
from penstock.errors import PenstockError
from registration.test_roles import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made.start()
    finally:
        made.stop()


def test_what_was_purged_does_not_come_again(pair: Pair) -> None:
    with penstock.Admin(pair.name_server) as admin, penstock.Producer(pair.name_server) as producer:
        admin.create_topic("orders", 1)
        for n in range(300):
            producer.send(penstock.Message("orders", b"%d" % n))
    over = threading.Event()
    done: list[int] = []
    refused: list[str] = []

    def purge() -> None:
        with penstock.Admin(pair.name_server) as admin:
            for place in range(1, 300):
                if over.is_set():
                    return
                try:
                    if admin.purge_topic("orders", place):
                        done.append(place)
                except PenstockError as error:  # there is no master for a moment
                    refused.append(str(error))
                over.wait(0.01)

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        eventually(lambda: len(done) > 5, 60)
        told = pair.ha("switch", "--to", "b")
        assert told.returncode == 0, told.stderr
        pair.in_sync("b", "a")
        known = len(done)
        eventually(lambda: len(done) > known or not thread.is_alive(), 60)
    finally:
        over.set()
        thread.join()
    with LogReader(pair.name_server) as reader:
        (queue,) = reader.queues("orders")
        first, last = reader.offsets(queue)
    assert (first, last) == (done[-1], 300), (done[-5:], refused)
    assert pair.bodies() == [b"%d" % n for n in range(first, 300)]
    told = pair.ha("switch", "--to", "a")
    assert told.returncode == 0, told.stderr
    pair.in_sync("a", "b")
    with LogReader(pair.name_server) as reader:
        assert reader.offsets(queue) == (first, last)
