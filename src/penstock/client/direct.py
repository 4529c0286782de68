"""Sends of a thread that waits for each receipt: over a socket of its own, without the loop.

A request and its answer pass through no other thread. What is not plain (an unknown route, an error, a send that must wait
behind others) is left to the loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TypeVar

from penstock.client import nsqframes
from penstock.client.aio.attempts import Attempts
from penstock.client.gathering import Selector
from penstock.client.line import Line
from penstock.client.nsqline import NsqLine
from penstock.client.nsqsending import check_plain, defer_ms
from penstock.client.outgoing import Outgoing
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import BROKER_PORT, MessageQueue, split_address
from penstock.client.sending import RETRY_CODES, read_receipt
from penstock.errors import BrokerRefused, ConnectionLost, WireError

log = logging.getLogger("penstock.client")

IDLE_S = 30.0  # a line that was not used for longer may have been closed by its broker
T = TypeVar("T", Line, NsqLine)


class DirectSends:
    """The lines that threads take and give back: as many for each broker as ever sent at once."""

    def __init__(self, attempts: Attempts, timeout_s: float) -> None:
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._lines: dict[str, deque[tuple[float, Line]]] = {}
        self._nsq_lines: dict[str, deque[tuple[float, NsqLine]]] = {}
        self._open = True

    def send(
        self, sent: Outgoing, deadline: float, queue: MessageQueue | None, selector: Selector | None
    ) -> SendReceipt | None:
        """The receipt, or None: the loop must try. `deadline` is of the monotonic clock. BrokerRefused, TimedOut."""
        to = self._attempts.choose_now(sent.messages[0], queue, selector)
        if to is None or not self._open:
            return None
        route = self._attempts.known_route(to.topic)
        if route is None:
            return None
        try:
            if route.nsq:
                return self._publish(sent, to, route.nsq.get(to.broker), deadline)
            address = route.address(to.broker)
            if address is None:
                return None
            line = self._take(self._lines, address)
            if line is None:
                line = Line(split_address(address, BROKER_PORT), self._timeout_s)
            try:
                answer = line.call(sent.request(to), max(deadline - time.monotonic(), 0.001))
            except BaseException:  # the answer may still come: nobody else may read it
                line.close()
                raise
            self._give_back(self._lines, address, line)
            receipt = read_receipt(answer, to, sent.keys)
        except BrokerRefused as error:
            if error.code in RETRY_CODES:
                return None
            raise
        except (ConnectionLost, WireError) as error:
            log.info("send to %s: %s", to, error)
            return None
        return receipt

    def _publish(self, sent: Outgoing, to: MessageQueue, address: str | None, deadline: float) -> SendReceipt | None:
        if address is None:
            return None
        messages = sent.messages
        check_plain(messages)
        defer = defer_ms(messages[0], self._attempts.cluster.clock.now_ms())
        line = self._take(self._nsq_lines, address)
        if line is None:
            line = NsqLine(address, self._timeout_s)
        try:
            line.call(
                nsqframes.publish(to.topic, [message.body for message in messages], defer),
                max(deadline - time.monotonic(), 0.001),
            )
        except BaseException:
            line.close()
            raise
        self._give_back(self._nsq_lines, address, line)
        nothing = ("",) * len(messages)
        return SendReceipt(SendStatus.SEND_OK, to, -1, nothing, nothing)

    def _take(self, lines: dict[str, deque[tuple[float, T]]], address: str) -> T | None:
        free = lines.get(address)
        while free:
            try:
                used_s, line = free.pop()
            except IndexError:  # another thread was quicker
                return None
            if time.monotonic() - used_s < IDLE_S:
                return line
            line.close()
        return None

    def _give_back(self, lines: dict[str, deque[tuple[float, T]]], address: str, line: T) -> None:
        free = lines.get(address)
        if free is None:
            free = lines.setdefault(address, deque())
        free.append((time.monotonic(), line))
        if not self._open:
            self.close()

    def close(self) -> None:
        """Close the lines that nobody uses; one in use is closed when it is given back."""
        self._open = False
        for lines in self._lines.values():
            while lines:
                lines.pop()[1].close()
        for nsq_lines in self._nsq_lines.values():
            while nsq_lines:
                nsq_lines.pop()[1].close()
