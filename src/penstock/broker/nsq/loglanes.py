"""LogLanes: where the channels of a log topic read. Each has a lane for every message queue, whose number is the queue's, and
behind those one of the messages that were deferred for it alone, once there were any.

The group of a channel's name shows what its lanes have committed.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.core import Core
from penstock.broker.nsq.folder import QueueFolder
from penstock.broker.nsq.holding import Holding
from penstock.broker.topics import LogTopic
from penstock.delivery.cursor import Lane
from penstock.disk.cursorfile import CursorFile
from penstock.disk.readyqueue import ReadyQueue
from penstock.log.stream import LogStream


class LogLanes:
    """See the module."""

    def __init__(self, stored: LogTopic, core: Core, folder: QueueFolder, holding: Holding) -> None:
        self._stored = stored
        self._core = core
        self._folder = folder
        self._holding = holding

    def _file(self, name: bytes, part: str) -> CursorFile:
        return CursorFile(self._folder.cursor_path(self._stored.name, name, part), self._folder.files)

    def forget(self, name: bytes) -> None:
        """What a channel of this name finished, which may have been another, is of no meaning any more."""
        for number in range(len(self._stored.queues)):
            self._file(name, f".{number}").remove()

    def of_queue(self, name: bytes, number: int, begin: int) -> Lane:
        """A channel's place in one queue: where its file says, or `begin`."""
        queue = self._stored.queues[number]
        stream = LogStream(self._core.store, queue, self._stored.level)
        stream.hold(self._holding.limit(number))
        file = self._file(name, f".{number}")
        file.open(begin)
        file.settle(queue.max_offset, stream)
        return Lane(stream, file, number)

    def of_deferred(self, name: bytes, number: int) -> tuple[Lane, ReadyQueue]:
        """The lane of messages that were deferred for this channel alone, and the queue that they come to."""
        file = self._file(name, ".again")
        file.open(0)
        stream = self._folder.channel_stream(self._stored.name, name, file.reach())
        file.settle(stream.total, stream)
        return Lane(stream, file, number), stream

    def committed_by(self, name: bytes) -> Callable[[Lane], None]:
        """What a lane of this channel tells the group of its name."""
        offsets = self._core.offsets
        topic, group = self._stored.name.decode(), name.decode()

        def commit(lane: Lane) -> None:
            if isinstance(lane.stream, LogStream):
                offsets.commit(group, topic, lane.number, lane.file.committed)

        return commit
