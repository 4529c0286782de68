"""A store that is written to as fast as it goes, flushing, marking and dropping segments all the time, until its input ends.

As a program: `spark_writer.py FOLDER KEPT_MS`; 0 keeps everything.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from penstock.disk.job import run_now
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.store import LogStore


def main(folder: str, kept_ms: int) -> None:
    sizes = {"mapped_file_size_commit_log": 1 << 18, "mapped_file_size_consume_queue": 20_000}
    index = {"max_hash_slot_num": 500, "max_index_num": 2_000, "prefault_bytes": 0}
    often = {"flush_interval_ms": 1, "checkpoint_interval_ms": 1}
    full = {"file_reserved_time_ms": kept_ms, "disk_max_used_ratio": 0.0, "disk_forced_clean_ratio": 1.0,
            "disk_refuse_ratio": 1.0, "clean_interval_ms": 50}  # fmt: skip
    store = LogStore(Path(folder), StoreOptions(**sizes, **index, **often, **(full if kept_ms else {})))  # type: ignore[arg-type]
    store.open()
    print("ready", flush=True)
    n = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(50):
            n += 1
            draft = Draft()
            draft.queue = store.queue(b"busy", n % 3)
            draft.set_body(b"body %d " % n * (n % 9 + 1))
            draft.set_properties(b"KEYS\1k%d all\2TAGS\1%d" % (n, n % 7))
            assert store.append(draft) == 0
        now_ms, mono_ms = store.clock.now_ms(), store.clock.monotonic_ms()
        store.tick(now_ms, mono_ms)
        run_now(store.take_jobs(mono_ms), mono_ms)
        time.sleep(0.001)
    store.close()
    print(n, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
