"""The disk queue beside a list: puts, takes, finishes, stops, kills and power cuts in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from disk.queue_parts import KeepingFiles, make, put
from penstock.disk.diskqueue import DiskQueue
from penstock.disk.job import Job
from penstock.errors import DiskFull, StoreError


def _no_failure(error: StoreError) -> None:
    raise AssertionError(f"a flush failed: {error}")


class QueueMachine(RuleBasedStateMachine):
    """The model: all messages since the queue was last empty by order, and of them what is finished."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.calls: list[list[bytes]] = []  # the messages of each call that is still of interest
        self.finished: set[bytes] = set()
        self.hand: list[bytes] = []
        self.numbers: dict[bytes, int] = {}
        self.taken = 0  # of the model's messages, in order
        self.synced = 0  # that many calls are on the disk
        self.count = 0
        self.cuts = 0
        self.now = 0

    @initialize(seed=st.integers(0, 1 << 30), sync_every=st.sampled_from([1, 5, 40]), threads=st.booleans())
    def start(self, seed: int, sync_every: int, threads: bool) -> None:
        self.sync_every = sync_every
        self.threads = threads
        self.folder = self.root / "0"
        self.folder.mkdir()
        self.files = KeepingFiles(self.folder, seed)
        self.queue = self._make()

    def _make(self) -> DiskQueue:
        self.job: Job | None = None  # the flush of a thread that has not ended
        self.job_ran = False
        queue = make(self.folder, files=self.files, max_bytes_per_file=5000, sync_every=self.sync_every)
        if self.threads:
            queue.syncing.beside(set())
        return queue

    def _all(self) -> list[bytes]:
        return [message for call in self.calls for message in call]

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=6))
    def put(self, sizes: list[int]) -> None:
        messages = []
        for size in sizes:
            self.count += 1
            messages.append(b"%026d" % self.count + bytes([self.count % 256]) * size)
        before = self.queue.syncing.operations
        put(self.queue, *messages)
        if self.queue.syncing.operations != before + len(messages):
            self.synced = len(self.calls)
        self.calls.append(messages)

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=6))
    def put_on_a_full_disk(self, sizes: list[int]) -> None:
        self.files.full = True
        try:
            put(self.queue, *(b"%026d" % 0 + bytes(size) for size in sizes))
            raise AssertionError("there was room")
        except DiskFull:
            pass
        finally:
            self.files.full = False

    @rule(limit=st.integers(1, 12))
    def take(self, limit: int) -> None:
        expected = self._all()[self.taken : self.taken + limit]
        first = self.queue.taken
        assert self.queue.take_payloads(limit) == expected
        self.numbers |= {message: first + n for n, message in enumerate(expected)}
        self.hand += expected
        self.taken += len(expected)

    @precondition(lambda self: self.hand)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        for message in data.draw(st.lists(st.sampled_from(self.hand), max_size=5, unique=True)):
            self.queue.finish([self.numbers[message]])
            self.hand.remove(message)
            self.finished.add(message)

    @precondition(lambda self: self.hand)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        """The oldest in hand, with what was finished between them."""
        count = data.draw(st.integers(1, len(self.hand)))
        last = self.numbers[self.hand[count - 1]]
        self.queue.done(last + 1 - self.queue._first)
        self.finished.update(self.hand[:count])
        del self.hand[:count]

    @rule()
    def time_goes_on(self) -> None:
        for _ in range(2):
            self.now += 2000
            self.queue.tick(self.now)
            while self.job is not None or self._begin_flush():
                if not self.job_ran:
                    self.thread_flushes()
                self.thread_ends()
        self.synced = len(self.calls)

    def _begin_flush(self) -> bool:
        if self.threads:
            self.job, self.job_ran, self.asked = (
                self.queue.syncing.take_job(_no_failure),
                False,
                self.queue.syncing._number,
            )
        return self.job is not None

    @precondition(lambda self: self.threads and self.job is None)
    @rule()
    def thread_begins(self) -> None:
        self._begin_flush()

    @precondition(lambda self: self.job is not None and not self.job_ran)
    @rule()
    def thread_flushes(self) -> None:
        """It flushes all there is by now, unless the owner has done so since it was asked."""
        assert self.job is not None
        late = self.queue.syncing._number != self.asked
        self.job.run()
        self.job_ran = True
        if not late:
            self.synced = len(self.calls)

    @precondition(lambda self: self.job_ran and self.job is not None)
    @rule()
    def thread_ends(self) -> None:
        assert self.job is not None
        self.job.finish(None, self.now)
        self.job = None

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        self._forget()

    def _forget(self) -> None:
        self.calls, self.hand, self.numbers, self.taken, self.synced = [], [], {}, 0, 0
        self.finished = set()

    def _adopt(self, found: list[bytes]) -> None:
        """What is in the queue after a restart is the model from now on."""
        there = set(found)
        kept = [[message for message in call if message in there] for call in self.calls]
        self._forget()
        self.calls = [call for call in kept if call]
        assert found == self._all()

    def _found(self) -> list[bytes]:
        """What is in the queue, by a look from outside."""
        queue = make(self.folder, files=self.files, max_bytes_per_file=5000)
        found = []
        while queue.depth:
            found += queue.take_payloads(7)
        assert queue.damaged == 0
        return found

    @rule()
    def stop(self) -> None:
        """Nothing comes twice but what lies behind the oldest that is not finished."""
        self.queue.close()
        owed = self._all()
        while owed and owed[0] in self.finished:
            owed.pop(0)
        self.queue = self._make()
        assert self.queue.depth == len(owed)
        found = self._found()
        assert found == owed
        self._adopt(found)
        self.synced = len(self.calls)

    @rule()
    def kill(self) -> None:
        """Nothing that was put is lost, nothing else is there, and the order holds."""
        self.queue = self._make()
        found = self._found()
        everything = self._all()
        assert found == everything[len(everything) - len(found) :]
        assert set(everything) - set(found) <= self.finished
        assert self.queue.depth == len(found)
        self._adopt(found)
        self.synced = len(self.calls)

    @precondition(lambda self: self.cuts < 4)
    @rule()
    def power_cut(self) -> None:
        """What was flushed is there; of the rest each call as a whole or not at all."""
        self.cuts += 1
        after = self.root / str(self.cuts)
        self.files.power_cut(after)
        self.folder = after
        self.files.let_go()
        self.files = KeepingFiles(after, self.cuts)
        for path in filter(Path.is_file, after.iterdir()):  # lost+found is a folder
            fd = self.files.open(path)
            self.files.datasync(fd)
            self.files.close(fd)
        self.files.sync_folder(after)
        self.queue = self._make()
        found = self._found()
        there = set(found)
        everything = self._all()
        assert found == [message for message in everything if message in there]
        for n, call in enumerate(self.calls):
            here = [message for message in call if message in there]
            if n < self.synced:
                assert set(call) - set(here) <= self.finished
            elif here != call:  # a part of the call may have been finished, and gone for good
                assert set(call) - set(here) <= self.finished or not here
        self._adopt(found)
        self.synced = len(self.calls)

    @invariant()
    def the_depth_is_true(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.depth == len(self._all()) - self.taken
            assert not list(self.folder.glob("*.bad")) or self.cuts

    def teardown(self) -> None:
        self.files.let_go()
        shutil.rmtree(self.root)


QueueMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestQueueMachine = QueueMachine.TestCase
