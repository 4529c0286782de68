"""LogStore beside a list: appends, batches, flushes, kills, clean stops and power cuts in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lying_disk import Killed, LyingFiles
from store_parts import contents, make, put, work

from penstock.clock import FakeClock
from penstock.log import checkpoint
from penstock.log.draft import Draft
from penstock.log.verify import verify
from penstock.wire.record import BatchItem, encode_batch, iter_records

QUEUES = [(b"A", 0), (b"A", 1), (b"%RETRY%g", 0)]


class StoreMachine(RuleBasedStateMachine):
    """The model: every message ever appended and still owed, in the order of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.messages: list[tuple[int, int, bytes, int]] = []  # queue, offset, body, end of record
        self.keys: dict[bytes, int] = {}
        self.cuts = 0
        self.boots = 0

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        self.folder = self.root / "0"
        self.folder.mkdir()
        self.files = LyingFiles(self.folder, seed)
        self._open()

    def _open(self) -> None:
        self.store = make(self.folder, files=self.files, clock=self.clock)
        boot, checkpoint.boot_id = checkpoint.boot_id, lambda: f"boot {self.boots}"
        try:
            self.report = self.store.open()
        finally:
            checkpoint.boot_id = boot
        self.store.log.write_bytes_min = 400

    @rule(queue=st.integers(0, 2), body=st.binary(max_size=600), count=st.integers(1, 30))
    def append(self, queue: int, body: bytes, count: int) -> None:
        for n in range(count):
            key = b"k%d.%d" % (len(self.messages), n)
            draft = put(self.store, body, *QUEUES[queue], properties=b"TAGS\x01t\x02KEYS\x01" + key)
            self.messages.append((queue, draft.queue_offset, body, self.store.end_position))
            self.keys[key] = draft.physical
            self.clock.advance(n)

    def _gather(self, bodies: list[tuple[int, bytes]]) -> list[tuple[int, int, bytes, int]]:
        gathered = []
        for queue, body in bodies:
            draft = Draft()
            draft.queue = self.store.queue(*QUEUES[queue])
            draft.set_body(body)
            draft.set_properties(b"")
            assert self.store.gather(draft) == 0
            gathered.append((queue, draft.queue_offset, body, self.store.end_position))
        return gathered

    @rule(bodies=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=3000)), max_size=20))
    def turn(self, bodies: list[tuple[int, bytes]]) -> None:
        self.messages += self._gather(bodies)
        self.store.settle()

    @rule(
        bodies=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=300)), max_size=20),
        written=st.integers(0, 5000),
    )
    def kill_in_a_turn(self, bodies: list[tuple[int, bytes]], written: int) -> None:
        gathered = self._gather(bodies)
        self.files.written_at_most = written
        try:
            self.store.settle()
        except Killed:
            end = -1
        else:
            end = self.store.end_position
        self.files.written_at_most = None
        self.store.close(clean=False)
        self._open()
        assert (self.report.gap_queues, self.report.power_cut, self.report.damage) == (0, False, [])
        there = self.store.end_position
        assert end < 0 or there == end
        self.messages += [one for one in gathered if one[3] <= there]

    @rule(queue=st.integers(0, 2), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=20))
    def batch(self, queue: int, sizes: list[int]) -> None:
        draft = Draft()
        draft.queue = self.store.queue(*QUEUES[queue])
        items = [BatchItem(bytes([n]) * n, b"") if n < 256 else BatchItem(bytes(n), b"") for n in sizes]
        assert self.store.append_batch_bytes(draft, encode_batch(items)) == len(sizes)
        at = draft.physical
        for n, item in enumerate(items):
            at += len(self.store.record_at(at) or b"")
            self.messages.append((queue, draft.queue_offset + n, item.body, at))

    @rule(rounds=st.integers(2, 3))
    def time_goes_on(self, rounds: int) -> None:
        work(self.store, rounds)
        assert self.store.flushed_position == self.store.end_position

    @rule()
    def clean_stop(self) -> None:
        self.store.close()
        self._open()
        assert self.report.clean
        assert self.report.records == 0

    @rule()
    def kill(self) -> None:
        self.store.close(clean=False)
        self._open()
        assert self.report.gap_queues == 0
        assert self.report.cut_bytes == 0

    @precondition(lambda self: self.cuts < 3)
    @rule()
    def power_cut(self) -> None:
        self.cuts += 1
        self.boots += 1
        flushed = self.store.flushed_position
        self.files.power_cut(self.root / str(self.cuts))
        self.store.close(clean=False)
        shutil.rmtree(self.folder)
        self.folder = self.root / str(self.cuts)
        self.files = LyingFiles(self.folder, self.cuts)
        for path in [self.folder, *self.folder.rglob("*")]:
            if path.is_dir():
                self.files.sync_folder(path)
            else:
                fd = self.files.open(path)
                self.files.datasync(fd)
                self.files.close(fd)
        self._open()
        end = self.store.end_position
        assert end >= flushed
        assert self.report.damage == []
        self.messages = [one for one in self.messages if one[3] <= end]
        self.keys = {key: at for key, at in self.keys.items() if at < end}

    @invariant()
    def everything_is_there_and_nothing_else(self) -> None:
        if not hasattr(self, "store"):
            return
        for n, (topic, queue_id) in enumerate(QUEUES):
            queue = self.store.queue(topic, queue_id)
            found = contents(self.store, queue)
            expected = [(offset, body) for which, offset, body, _ in self.messages if which == n]
            if queue.visible_end() < queue.max_offset:
                expected = expected[: len(found)]
            assert found == expected

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        if self.keys:
            key = data.draw(st.sampled_from(sorted(self.keys)))
            found = self.store.query(b"A", key, 10, 0, 1 << 50) + self.store.query(b"%RETRY%g", key, 10, 0, 1 << 50)
            assert [record.physical_offset for record in iter_records(b"".join(found))] == [self.keys[key]]

    @rule()
    def verify_finds_nothing(self) -> None:
        report = verify(self.folder)
        assert report.ok, report.findings

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.root)


StoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreMachine = StoreMachine.TestCase
