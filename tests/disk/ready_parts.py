"""What the tests of ready queues share."""

from __future__ import annotations

from pathlib import Path

from penstock.disk.files import Files
from penstock.disk.readyqueue import Pool, ReadyQueue

SEGMENT = 4096


def make(
    folder: Path, files: Files | None = None, size: int = SEGMENT, after_cut: bool = False, ordinal: int = 0
) -> ReadyQueue:
    files = files or Files()
    queue = ReadyQueue(folder / "t", "t", size, Pool(folder, files), files)
    queue.pool.after_cut = after_cut
    queue.open(ordinal)
    return queue


def put(queue: ReadyQueue, *bodies: bytes) -> int:
    """One batch; what `ready` said."""
    answer = queue.ready(sum(len(body) + 19 for body in bodies), len(bodies))
    if not answer:
        for body in bodies[:-1]:
            put_one(queue, body, more=True)
        put_one(queue, bodies[-1], more=False)
        queue.all_visible()
    return answer


def put_one(queue: ReadyQueue, body: bytes, more: bool) -> None:
    queue.append_bytes(queue.last_id + 1, 0, body, more)
    queue.last_id += 1


def bodies(queue: ReadyQueue) -> list[bytes]:
    found = []
    ordinal = queue.next(queue.begin())
    while ordinal < queue.end():
        if queue.find(ordinal):
            found.append(queue.body())
            ordinal += 1
        else:
            ordinal = max(ordinal + 1, queue.next(ordinal))
    return found


SENT = [b"%04d" % n + b"x" * (n % 40) for n in range(1200)]


def filled(folder: Path, clean: bool, sent: list[bytes] = SENT) -> Path:
    """A queue of one segment, stopped; the path of its sums."""
    queue = make(folder, size=1 << 17)
    for body in sent:
        assert put(queue, body) == 0
    queue.close(clean)
    return folder / "t" / "t_1.sums"


def found_again(folder: Path, ordinal: int = 0) -> list[bytes]:
    """What is served after the start, and after one more; new messages go in behind."""
    queue = make(folder, size=1 << 17, ordinal=ordinal)
    found = bodies(queue)
    assert put(queue, b"more") == 0
    queue.close(False)
    queue = make(folder, size=1 << 17)
    assert bodies(queue) == [*found, b"more"]
    queue.close(True)
    return found
