"""What opening a store takes: lock, checkpoint, repair of the tail, and everything derived brought up to the log's end.

    clean stop     positions and counts agree: nothing is scanned but the last record of each queue
    otherwise      from the derived position forward, record by record, with all checks:
                   bad beyond the durable position   torn tail: cut there, zeros behind, later segments aside
                   bad below it                      damage: note it, go on at the next record that stands at its own
                   place
    no checkpoint  (or a RocketMQ broker wrote since) from the first segment; there a bad record is damage if a good one
                   follows
    queues, index  cut back to the derived position, below which they are durable; what lies below is not looked at while
                   their ends and counts are those of the checkpoint. Else every entry of a queue is, and what cannot
                   be right is derived again from the first segment on

Nothing that may hold a record is deleted: it moves to ``lost+found/``. Run twice, it ends in the same state.
"""

from __future__ import annotations

import logging
import time
from functools import partial

import msgspec

from penstock.disk import unwritten
from penstock.disk.folderlock import FolderLock
from penstock.errors import Locked, StoreError
from penstock.log import checkpoint as marks
from penstock.log import cutting, lostend
from penstock.log.contents import Contents, Recovery
from penstock.log.derived import Derived
from penstock.log.state import LogState
from penstock.log.tail import Tail, resync
from penstock.log.upkeep import Upkeep

log = logging.getLogger("penstock.log")


def recover(store: LogState, upkeep: Upkeep) -> Recovery:
    """Open everything of the store; afterwards it can append at `end`."""
    return _Recoverer(store, upkeep).run()


class _Recoverer:
    """The steps of an opening, in their order."""

    def __init__(self, store: LogState, upkeep: Upkeep) -> None:
        self.store = store
        self.files = store.files
        self.folder = store.folder
        self.upkeep = upkeep
        self.report = Recovery()
        self.contents = Contents(store, self.report)
        self.tail = Tail(store, self.report, self.contents)
        self.derived = Derived(store, self.report, self.contents)

    def run(self) -> Recovery:
        started = time.perf_counter()
        store, report, files = self.store, self.report, self.files
        files.make_folder(self.folder)
        self.contents.mend_names()
        self.upkeep.lock = FolderLock(self.folder / "lock", files)
        files.when_unwritten.append(partial(unwritten.note, files, self.folder))
        unwritten.write_again(files, self.folder)
        identity = self.contents.identity()
        report.epoch = self.upkeep.epoch = identity.epoch
        aborted = marks.abort_text(self.folder)
        known = self.upkeep.checkpoint.load(aborted)
        intent = self._keep_tail(identity.log_segment_size)
        self.contents.load(identity)
        self._trust_sums(known, aborted)
        if intent is not None:
            known = self._cut(known, intent.to)
        self.derived.read_blame()
        report.clean = known is not None and known.clean and aborted is None and self._agrees(known)
        if report.clean:
            assert known is not None
            self._open_clean(known)
        elif known is None and not store.log.file.segments and not store.queues:
            report.clean = True  # a new folder
            store.log.seek(0)
        else:
            self._open_unclean(known)
        log = store.log
        if store.following and log.end == 0:  # where it begins, its master says
            self.tail.drop_blank()
            log.seek(0)
        shed = store.following and self.derived.shed_fillers()
        self.upkeep.begin_queues(self.derived.begins())
        for by_id in store.queues.values():
            for queue in by_id.values():
                queue.follow(log.file.first)
                queue.reserve(queue.max_offset + store.options.reserve_offsets)
        report.power_cut = not report.clean and self._power_cut(aborted, cut=intent is not None)
        report.cut_before = aborted is not None and marks.CUT in aborted
        report.lossy = report.power_cut or lostend.noted(self.folder)
        if report.lossy and store.options.whole:
            raise StoreError(
                f"a power cut may have taken the end of the log, which is at {log.end} now, and this master's slaves may "
                "have more: start such a slave as the master (docs/replication.md), or this one with ha_accept_loss=true"
            )
        if report.power_cut:
            lostend.note(files, self.folder)
            if not store.following:  # a master gives the offsets of its copy
                self.derived.close_gaps()
        if shed or not report.clean:
            self._flush_all()
        store.entry_count = sum(queue.max_offset for by_id in store.queues.values() for queue in by_id.values())
        self.upkeep.checkpoint.write(self.upkeep.state())
        if intent is not None:
            cutting.done(files, self.folder)
        if self.derived.damaged_queues:
            files.unlink(self.folder / (marks.DAMAGED_QUEUES + ".bak"))
            files.unlink(self.folder / marks.DAMAGED_QUEUES)
        marks.write_abort(files, self.folder, cut=report.power_cut or report.cut_before)
        self.upkeep.begin(log.end)
        files.sync_folder(self.folder)
        store.trusted_from = report.start
        store.damaged += len(report.damage)
        store.appended = 0
        report.end = log.end
        report.skipped = store.skipped
        report.took_ms = int((time.perf_counter() - started) * 1000)
        return report

    def _keep_tail(self, segment_size: int) -> cutting.Intent | None:
        """Keep what a former run has decided to cut off, before anything of the log is changed."""
        intent = cutting.intended(self.files, self.folder)
        if intent is not None:
            cutting.keep_tail(self.files, self.folder, intent, segment_size, self.store.clock.now_ms())
        return intent

    def _cut(self, known: marks.Checkpoint | None, to: int) -> marks.Checkpoint | None:
        """Let the log end there; the checkpoint as it would have been."""
        store = self.store
        self.tail.cut_tail(to, kept=True)
        self.derived.end_early()
        if known is None or known.durable < to:
            return known
        derived = known.derived
        name, count, entries = known.index_file, known.index_count, known.entries
        if derived > to:
            derived, entries = to, -1  # nobody knows how many
            name, count = store.index.state_below(to) if store.index is not None else (0, 0)
        return msgspec.structs.replace(
            known, clean=False, durable=to, derived=derived, index_file=name, index_count=count, entries=entries
        )

    def _trust_sums(self, known: marks.Checkpoint | None, aborted: str | None) -> None:
        """From where on a record without a sum is none: where a power cut may have taken it, or the process its append."""
        sums = self.store.log.sums
        sums.mend = True
        newest = max(self.upkeep.live.seen(), key=lambda page: page[1], default=None)
        told = newest[2] if newest is not None and newest[0] == marks.LIVE else -1
        same_boot = aborted is not None and marks.boot_id() != "" and marks.boot_id() in aborted
        durable = known.durable if known is not None else 0
        sums.strict_from = max(durable, told) if same_boot else durable
        sums.fresh_from = sums.strict_from if known is not None else -1

    def _agrees(self, known: marks.Checkpoint) -> bool:
        """Whether a clean checkpoint describes what lies on the disk."""
        store = self.store
        file = store.log.file
        if not file.first <= known.durable <= file.end:
            return False
        last = file.at(known.durable)
        if file.end != (known.durable if last is None else last.first + last.size):
            return False  # segments behind the end, prepared by somebody
        if store.log.check(known.durable) >= 0:
            return False  # somebody has appended since: RocketMQ, on our folder
        if store.index is not None:
            if self.contents.odd_index or store.index.state() != (known.index_file, known.index_count):
                return False
            if not store.index.is_sound() or not self.derived.index_joins():
                return False
        if self.derived.damaged_queues:
            return False
        ends = self.derived.ends()
        queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
        for queue in queues:
            if queue.max_offset != ends.get((queue.topic, queue.queue_id), 0) or self.derived.headless(queue):
                return False
        return not self.derived.bad_queues(known.durable)

    def _open_clean(self, known: marks.Checkpoint) -> None:
        store = self.store
        store.log.store_ms = known.store_ms
        store.index_from = known.durable
        self.report.start = known.durable
        self._scan_for_subscribers(self._behind(known.durable), known.durable)
        store.log.seek(known.durable)

    def _scan_for_subscribers(self, behind: int, end: int) -> None:
        """Those who have not taken everything get it; entries that are there are only written over with themselves."""
        position = max(behind, self.store.log.file.first)
        while position < end:
            position = self.store.replay(position)
            if position < end:
                following = resync(self.store.log, position)
                position = end if following < 0 else following

    def _behind(self, position: int) -> int:
        """Where the scan must begin for the subscribers' sake. One that has never written a position needs the whole
        log if any of its topics has messages, and nothing otherwise."""
        store = self.store
        for subscriber in store.subscribers:
            if subscriber.position >= 0:
                position = min(position, max(subscriber.position, store.log.file.first))
            elif any(q.max_offset for topic in subscriber.topics for q in store.queues.get(topic, {}).values()):
                position = store.log.file.first
        return position

    def _open_unclean(self, known: marks.Checkpoint | None) -> None:
        store, report = self.store, self.report
        file = store.log.file
        durable = known.durable if known is not None else -1
        if not file.segments and durable > 0:
            log.error("no file of the log is there, its messages are lost durable=%d", durable)
            file.start_at(durable + file.size - 1)
        start = file.first
        if known is not None:
            store.log.note(known.store_ms, 0)  # store times do not decrease, though no record behind it be read again
            if file.first <= known.derived <= file.end:
                start = known.derived
        store.index_from = max(self.derived.prepare_index(known, start), file.first) if store.index is not None else 0
        start = self.derived.prepare_queues(start, known)
        if store.index is not None:
            start = min(start, store.index_from)
        report.start = start
        foreign = self.upkeep.checkpoint.foreign_from
        if foreign >= 0:
            store.log.sums.ignore_from(foreign)
        end = self.tail.scan(self._behind(start), durable)
        if foreign >= 0:
            self.tail.adopt(foreign, end)
        self.tail.sum_again(durable, end)
        self.tail.cut_tail(end)
        store.log.seek(end)
        for subscriber in store.subscribers:
            subscriber.cut(end)
        for (topic, queue_id), offset in self.derived.ends().items():
            queue = store.queue(topic, queue_id)
            if (
                queue.max_offset < offset and not store.following
            ):  # given out once, and not again, whatever became of the records
                self.derived.mark_dirty(queue)
                queue.fill_to(offset)
        report.records = store.appended
        for topic, queue_id, first, to in store.fillers:
            for entry in report.damage:
                entry.setdefault("queueOffsets", []).append([topic.decode(), queue_id, first, to])
        self.upkeep.write_damage(*report.damage)

    def _power_cut(self, aborted: str | None, *, cut: bool) -> bool:
        """Whether more than the process ended: the memory that told where the log ends is gone. `cut`: it ends before."""
        same_boot = aborted is not None and marks.boot_id() != "" and marks.boot_id() in aborted
        pages, here = self.upkeep.live.seen(), self.store.log.end
        told = any(state == marks.LIVE and (cut or end <= here) and here <= after for state, _, end, after in pages)
        return aborted is not None and aborted.startswith("pid") and not (same_boot and told)

    def _flush_all(self) -> None:
        store = self.store
        for segment in store.log.file.segments:
            if segment.first + segment.size > self.report.start:
                segment.datasync()
                sidecar = store.log.sums.get(segment.first)
                if sidecar is not None:
                    sidecar.datasync()
        self.upkeep.dirty_derived().flush_together(self.files)
        self.upkeep.write_offsets(ends=True)


__all__ = ["Locked", "Recovery", "recover"]
