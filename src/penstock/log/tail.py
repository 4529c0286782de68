"""Where a log that was not closed ends: its good records found and dispatched, damage passed over, the torn end cut off."""

from __future__ import annotations

from zlib import crc32

from penstock.disk.files import last_byte, number_names, wipe
from penstock.disk.segments import Segment
from penstock.errors import StoreError
from penstock.log.commitlog import CommitLog
from penstock.log.contents import Contents, Recovery
from penstock.log.state import LogState
from penstock.wire import layout

_MAGIC = layout.MAGIC_V1.to_bytes(4)
_CHUNK = 1 << 20


def resync(log: CommitLog, position: int) -> int:
    """Where the next good record behind a position begins; -1 where there is none."""
    at = position + 1
    while at < log.file.end:
        segment = log.file.at(at)
        assert segment is not None
        offset = segment.map.find(_MAGIC, at - segment.first + layout.MAGIC)
        while offset >= 0:
            candidate = segment.first + offset - layout.MAGIC
            if log.check(candidate) > 0:
                return int(candidate)
            offset = segment.map.find(_MAGIC, offset + 1)
        at = segment.first + segment.size
        if at < log.file.end and log.check(at) > 0:
            return int(at)
    return -1


class Tail:
    """The end of one log, as far as it can be told from its bytes."""

    def __init__(self, store: LogState, report: Recovery, contents: Contents) -> None:
        self.store = store
        self.report = report
        self.contents = contents
        self.files = store.files
        self.folder = store.folder

    def scan(self, position: int, durable: int) -> int:
        """Dispatch everything from position on; returns where the log ends."""
        log = self.store.log
        while True:
            position = self.store.replay(position)
            if position >= log.file.end:
                return log.file.end
            following = resync(log, position) if position < durable or durable < 0 else -1
            if following < 0:
                if position < durable:
                    self._damage(position, durable)
                    position = durable
                    if log.check(position) < 0:
                        return position
                    continue
                return position
            if durable >= 0 and following > durable:
                following = durable if self.store.log.check(durable) >= 0 else following
                if following > durable:
                    self._damage(position, durable)
                    return durable
            self._damage(position, following)
            position = following

    def adopt(self, since: int, end: int) -> None:
        """Sums for what RocketMQ has put behind our records. Its own segments stay without."""
        log = self.store.log
        for name in number_names(self.files.names(log.sums.folder)):
            if name > since:
                self.files.unlink(log.sums.drop(name))
        segment, sidecar = log.file.at(since), log.sums.get(since - since % log.file.size)
        if segment is None or sidecar is None:
            return
        sidecar.cut(since - segment.first)
        position = since
        while position < min(end, segment.first + segment.size):
            size = log.check(position)
            if size <= 0:
                position = resync(log, position) if size < 0 else end
                position = end if position < 0 else position
                continue
            at = position - segment.first
            if sidecar.room(1):
                raise StoreError(f"no room for the sums of {segment.path.name}")
            sidecar.put(at, crc32(segment.map[at : at + size]))
            position += size
        sidecar.cover_to(segment.size)

    def sum_again(self, since: int, end: int) -> None:
        """Sums for the records behind the durable position that have none: a power cut came before they were flushed."""
        log = self.store.log
        position = max(since, log.file.first)
        while since >= 0 and position < end:
            segment, size = log.file.at(position), log.check(position)
            assert segment is not None
            if size < 0:  # damage between good ones, below the end that was told
                position = resync(log, position)
                if position < 0:
                    return
                continue
            at, sidecar = position - segment.first, log.sums.get(segment.first)
            if size == 0 or sidecar is None:
                position = segment.first + segment.size
                continue
            if sidecar.covers_from <= at < sidecar.covers_to and sidecar.find(at) >= sidecar.count:
                if sidecar.room(1):
                    raise StoreError(f"no room for the sums of {segment.path.name}")
                sidecar.put(at, crc32(segment.map[at : at + size]))
            position += size

    def _damage(self, position: int, end: int) -> None:
        self.report.damage.append({"position": position, "end": end, "bytes": end - position})

    def cut_tail(self, end: int, *, kept: bool = False) -> None:
        """Let nothing stand behind end that could be taken for a record later. `kept`: a copy of it is in lost+found."""
        log = self.store.log
        file = log.file
        last = file.at(end)
        for segment in reversed(file.drop_from(end + 1 if last is not None else end)):
            sums_path = log.sums.drop(segment.first)
            if kept or last_byte(self.files, segment.path, segment.open().map, 0, segment.size) == 0:
                self.files.unlink(segment.path)
            else:
                self.report.cut_bytes += segment.size
                self.contents.quarantine(segment.path, "behind the end of the log")
            self.files.unlink(sums_path)
            segment.close()
        if last is None:
            return
        at = end - last.first
        used = last_byte(self.files, last.path, last.map, at, last.size)
        if used > at:
            self.report.cut_bytes += used - at
            if not kept:
                self._save_tail(last, at, used)
            wipe(self.files, last.path, last.map, at, last.size)
        sidecar = log.sums.get(last.first)
        if sidecar is not None:
            sidecar.cut(at)

    def drop_blank(self) -> None:
        """Remove the segments of a log without a record."""
        log = self.store.log
        for segment in reversed(log.file.drop_from(0)):
            sums_path = log.sums.drop(segment.first)
            segment.close()
            self.files.unlink(segment.path)
            self.files.unlink(sums_path)

    def _save_tail(self, segment: Segment, at: int, used: int) -> None:
        path = self.folder / f"tail-{segment.first + at}"
        fd = self.files.open(path, create=True)
        try:
            for piece in range(at, used, _CHUNK):
                self.files.write(fd, piece - at, bytes(segment.map[piece : min(used, piece + _CHUNK)]))
        finally:
            self.files.close(fd)
        self.contents.quarantine(path, "the torn end of the log")
