"""kill -9 of a real process that appends with all its jobs in threads; the store it leaves is looked at by another."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_parts import contents

from penstock.log.options import StoreOptions
from penstock.log.store import LogStore
from penstock.log.verify import verify

OPTIONS = StoreOptions(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=20_000)

WRITER = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.store import LogStore

store = LogStore(Path(sys.argv[1]), StoreOptions(
    mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=20_000, checkpoint_interval_ms=50,
    flush_interval_ms=20))
store.open()
pool, running = ThreadPoolExecutor(4), []
draft = Draft()
n = int(sys.argv[2])
while True:
    for _ in range(200):
        draft.queue = store.queue(b"T", n % 4)
        draft.set_body(b"%d " % n * (1 + n % 50))
        draft.set_properties(b"KEYS\\x01k%d" % n)
        assert store.append(draft) == 0
        n += 1
    os.write(1, b"%d\\n" % n)
    time.sleep(0.002)
    mono_ms = int(time.monotonic() * 1000)
    store.tick(int(time.time() * 1000), mono_ms)
    running += [(job, pool.submit(job.run)) for job in store.take_jobs(mono_ms)]
    for job, future in [one for one in running if one[1].done()]:
        running.remove((job, future))
        job.finish(future.exception(), mono_ms)
    assert store.healthy
"""


@pytest.mark.parametrize("seed", range(2))
def test_everything_said_is_there_after_a_kill(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    sent = 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(sent)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(noise.uniform(0.01, 0.2))
        writer.kill()
        last = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        said = int(last[-1]) if last else sent
        store = LogStore(tmp_path / "s", OPTIONS)
        report = store.open()
        assert (report.damage, report.gap_queues, report.rebuilt, report.skipped) == ([], 0, [], 0)
        found: list[tuple[int, int]] = []
        for queue_id in range(4):
            queue = store.queue(b"T", queue_id)
            inside = contents(store, queue)
            assert [offset for offset, _ in inside] == list(range(len(inside)))
            found += [(int(body.split()[0]), len(body)) for _, body in inside]
        found.sort()
        assert [n for n, _ in found] == list(range(len(found)))
        assert all(size == len(b"%d " % n) * (1 + n % 50) for n, size in found)
        assert len(found) >= said
        sent = len(found)
        for n in range(0, sent, max(1, sent // 20)):
            assert len(store.query(b"T", b"k%d" % n, 5, 0, 1 << 50)) == 1
        store.close()
        assert verify(tmp_path / "s").ok
