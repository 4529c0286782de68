"""One message queue in a push consumer's hands: its window, its pull loop's state, its lock."""

from __future__ import annotations

import asyncio

from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription
from penstock.client.window import Window
from penstock.message import ReceivedMessage
from penstock.wire.codes import MASTER_ID


class Assigned:
    """A queue that this consumer reads until `dropped`."""

    def __init__(self, queue: MessageQueue, subscription: Subscription, offset: int) -> None:
        self.queue = queue
        self.subscription = subscription
        self.window = Window(offset)
        self.sent_offset = -1  # last committed offset told to the broker or written to the file
        self.broker_id = MASTER_ID  # which member of the broker to pull from next
        self.dropped = False
        self.locked_s = 0.0  # loop time of the last successful lock, orderly consumption only
        self.pulled_s = 0.0
        self.consumed_s = 0.0
        self.inbox: asyncio.Queue[ReceivedMessage] = asyncio.Queue()  # orderly consumption only
        self.idle = asyncio.Event()  # no message of the inbox is in hand
        self.idle.set()
        self.tasks: list[asyncio.Task[None]] = []
        self.room = asyncio.Event()
        self.room.set()

    def settle(self, queue_offset: int) -> None:
        """A message is done with."""
        self.window.settle(queue_offset)
        self.room.set()
