"""One message queue in a push consumer's hands: its window, its pull loop's state, its lock."""

from __future__ import annotations

import asyncio

from penstock.client.aio.delivery import Handed
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription
from penstock.client.window import Window
from penstock.message import ReceivedMessage
from penstock.wire.codes import MASTER_ID


class Assigned:
    """A queue that this consumer reads until `dropped`."""

    def __init__(
        self, queue: MessageQueue, subscription: Subscription, offset: int, locked_s: float | None = None
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.window = Window(offset)
        self.broker_id = MASTER_ID  # which member of the broker to pull from next
        self.dropped = False
        # When the lock was asked for that was granted last, orderly consumption only.
        self.locked_s = asyncio.get_running_loop().time() if locked_s is None else locked_s
        self.pulled_s = 0.0
        self.consumed_s = 0.0
        self.inbox: asyncio.Queue[ReceivedMessage] = asyncio.Queue()  # orderly consumption only
        self.idle = asyncio.Event()  # no message of the inbox is in hand
        self.idle.set()
        self.room = asyncio.Event()
        self.room.set()
        self._sent_offset = -1  # last committed offset told to the broker or written to the file
        self._puller: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None

    def settle(self, queue_offset: int) -> None:
        """The consumer is done with a message: the window moves on and the pull loop may have room again."""
        self.consumed_s = asyncio.get_running_loop().time()
        self.window.settle(queue_offset)
        self.room.set()

    def settle_all(self, handed: list[Handed]) -> None:
        """The consumer is done with these messages."""
        self.consumed_s = asyncio.get_running_loop().time()
        self.window.settle_all(handed)
        self.room.set()

    # -- its tasks

    def pull_by(self, task: asyncio.Task[None]) -> None:
        """This task pulls the queue."""
        self._puller = task

    def work_by(self, task: asyncio.Task[None]) -> None:
        """This task hands the messages out in order."""
        self._worker = task

    def resubscribe(self, subscription: Subscription) -> None:
        """Stop the pull under way, which would pass over what only the new expression wants; `pull_by` starts the next."""
        self._stop_pulling()
        self.subscription = subscription

    def stop(self) -> None:
        """Drop the queue: nothing more is pulled; the message in hand may be finished."""
        self.dropped = True
        self.room.set()
        self._stop_pulling()

    def cancel(self, but: asyncio.Task[object] | None = None) -> None:
        """Stop the work in order, too, unless this task does it: its listener is the one that closes the consumer."""
        self._stop_pulling()
        if self._worker is not None and self._worker is not but:
            self._worker.cancel()

    def _stop_pulling(self) -> None:
        if self._puller is not None:
            self._puller.cancel()

    # -- what happened to it

    def pulls_now(self) -> float:
        """Remember that a pull begins; its loop time."""
        self.pulled_s = asyncio.get_running_loop().time()
        return self.pulled_s

    def pull_next_from(self, broker_id: int) -> None:
        """The broker suggested this member for the next pull."""
        self.broker_id = broker_id

    def lock_since(self, asked_s: float) -> None:
        """The broker granted, or renewed, the lock, which it was asked for then."""
        self.locked_s = asked_s

    # -- its committed offset

    @property
    def uncommitted(self) -> int | None:
        """The offset to commit; None when the last one that was sent still holds."""
        return None if self.window.committed == self._sent_offset else self.window.committed

    def committed(self, offset: int) -> None:
        """This offset was sent."""
        self._sent_offset = offset

    def forget_position(self) -> None:
        """The position was set elsewhere: what stands here must not be committed again."""
        self._sent_offset = self.window.committed
