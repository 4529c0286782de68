"""A disk that writes down what is written to it: `python -m chaos.blocklog MOUNT MIB JOURNAL`, until MOUNT is unmounted.

Two files, by FUSE: MOUNT/disk, a block device to be (loop-mounted), and MOUNT/mark, where the clients write how much they
have been told. The journal holds, in order, each write, each flush and each mark, with its moment:

    kind 1   offset 8   size 4   moment 8   data of `size` bytes        little-endian; kind: 1 write, 2 flush, 3 mark

One thread, nothing cached: what the journal holds before an answer is what the disk had been given before it.
"""

from __future__ import annotations

import errno
import mmap
import stat
import struct
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<BQId")
WRITE, FLUSH, MARK = 1, 2, 3


def serve(mountpoint: str, mib: int, journal: str) -> None:
    """Mount, and answer until it is unmounted."""
    from fuse import FUSE, FuseOSError, Operations

    size = mib << 20
    disk = mmap.mmap(-1, size)

    with Path(journal).open("wb", buffering=1 << 20) as log:

        class Disk(Operations):  # type: ignore[misc]
            def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
                modes = {"/": (stat.S_IFDIR | 0o755, 0), "/disk": (stat.S_IFREG | 0o600, size)}
                modes["/mark"] = (stat.S_IFREG | 0o600, 0)
                if path not in modes:
                    raise FuseOSError(errno.ENOENT)
                mode, length = modes[path]
                return {"st_mode": mode, "st_nlink": 1, "st_size": length}

            def open(self, path: str, flags: int) -> int:
                return 1

            def read(self, path: str, length: int, offset: int, fh: int) -> bytes:
                return disk[offset : offset + length]

            def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
                kind = MARK
                if path == "/disk":
                    kind = WRITE
                    disk[offset : offset + len(data)] = data
                log.write(HEAD.pack(kind, offset, len(data), time.monotonic()) + data)
                return len(data)

            def fsync(self, path: str, datasync: int, fh: int) -> int:
                log.write(HEAD.pack(FLUSH, 0, 0, time.monotonic()))
                return 0

            def truncate(self, path: str, length: int, fh: int | None = None) -> int:
                return 0

        FUSE(
            Disk(), mountpoint,
            foreground=True, nothreads=True, direct_io=True, big_writes=True, max_write=131072, fsname="penstock-chaos",
        )  # fmt: skip


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
