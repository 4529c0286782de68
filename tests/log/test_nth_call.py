"""Every call to the operating system fails once: what was accepted is there after a restart, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lying_disk import LyingFiles
from store_parts import contents, make, work

from penstock.errors import DiskFull, PenstockError, StoreError
from penstock.log.draft import Draft
from penstock.log.store import LogStore

CALLS = (
    "open",
    "allocate",
    "grow",
    "map",
    "read",
    "write",
    "datasync",
    "sync_folder",
    "rename",
    "unlink",
    "make_folder",
)


class NthFails(LyingFiles):
    """The n-th call raises; the ones before and after do not."""

    def __init__(self, root: Path, n: int, error: type[StoreError]) -> None:
        super().__init__(root)
        self.left = n
        self.error = error
        self.failed = ""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in CALLS:
            self.left -= 1
            if self.left == 0:
                self.failed = name

                def fail(*args: object, **more: object) -> None:
                    raise self.error(f"{name}: by order of the test")

                return fail
        return found


def run(store: LogStore) -> tuple[list[bytes], list[bytes]]:
    """Append and let time go on; returns what was accepted and, of that, what was said to be on the disk."""
    accepted: list[tuple[bytes, int]] = []
    flushed = 0
    gathered: list[tuple[bytes, int]] = []
    draft = Draft()
    try:
        store.open()
        store.log.write_bytes_min = 100
        for n in range(60):
            draft.queue = store.queue(b"T", n % 2)
            draft.set_body(b"%d " % n * 40)
            draft.set_properties(b"KEYS\x01k%d" % n)
            if store.gather(draft) == 0:
                gathered.append((b"%d " % n * 40, store.end_position))
            if n % 3 == 2:
                store.settle()
                accepted += gathered
                gathered.clear()
            if n % 15 == 14:
                work(store, 2)
                flushed = store.flushed_position
        store.close()
    except PenstockError:
        store.close(clean=False)
    return [body for body, _ in accepted], [body for body, end in accepted if end <= flushed]


@pytest.mark.parametrize("error", [StoreError, DiskFull])
@pytest.mark.parametrize("part", range(6))
def test_any_call_may_fail(tmp_path: Path, error: type[StoreError], part: int) -> None:
    n = 1 + part
    while True:
        folder = tmp_path / f"{n}"
        folder.mkdir()
        files = NthFails(folder, n, error)
        accepted, flushed = run(make(folder, files=files))
        store = make(folder)
        report = store.open()
        found = [body for queue_id in range(2) for _, body in contents(store, store.queue(b"T", queue_id))]
        assert sorted(found) == sorted(accepted), (n, files.failed)
        assert set(flushed) <= set(found)
        assert report.damage == [], (n, files.failed)
        store.close()
        if not files.failed:
            break
        n += 6
    assert n > 100
