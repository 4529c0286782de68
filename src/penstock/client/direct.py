"""Sends of a thread that waits for each receipt: over a socket of its own, without the loop.

A request and its answer pass through no other thread. What is not plain (an unknown route, an error, a send that must wait
behind others) is left to the loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import cython

from penstock.client.aio.attempts import Attempts
from penstock.client.aio.doubts import Doubts
from penstock.client.gathering import Selector
from penstock.client.line import Doubt, Line, TimedSocket
from penstock.client.nsqline import NsqLine
from penstock.client.nsqsending import check_plain, defer_ms
from penstock.client.outgoing import Outgoing
from penstock.client.plainsend import PlainSend, PlainSends
from penstock.client.portal import portal
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import BROKER_PORT, MessageQueue, Route
from penstock.client.sending import is_tried_again, read_receipt
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, WireError
from penstock.wire.addresses import split_address
from penstock.wire.remoting import RemotingCommand

if cython.compiled:
    from cython.cimports.penstock.client.nsqframes import publish
    from cython.cimports.penstock.octets import monotonic_s
else:
    from penstock.client.nsqframes import publish
    from penstock.octets import monotonic_s

log = logging.getLogger("penstock.client")

_LEAST_S = 0.001  # a time that is over still has a length
QUEUES_MAX = 4_096  # whose requests are kept half made
CONNECT_S = 1.5  # a broker that takes longer is left to the loop, which meanwhile asks whether it is the master still
IDLE_S = 30.0  # a line that was not used for longer may have been closed by its broker
T = TypeVar("T", Line, NsqLine)


def _ask(doubts: Doubts, address: str, queue: MessageQueue) -> Future[bool] | None:
    """Whether another node has the place of the one at this address: it comes while the thread waits on."""
    loop = portal()
    return None if loop.is_here() else loop.begin(doubts.is_replaced(queue, address))


class DirectSends:
    """The lines that threads take and give back: as many for each broker as ever sent at once."""

    def __init__(self, attempts: Attempts, timeout_s: float) -> None:
        self._attempts = attempts
        self._choosing = attempts.choosing
        # Only the loop gives a send its number, or tells of it.
        self._by_loop = attempts.settings.idempotent or attempts.tracing is not None
        self._timeout_s = timeout_s
        self._lines: dict[str, deque[Line]] = {}
        self._nsq_lines: dict[str, deque[NsqLine]] = {}
        self._plain: dict[MessageQueue, PlainSends] = {}
        self._clock = attempts.cluster.clock
        self._signs = False
        self.is_open = False

    def start(self) -> None:
        """The client is connected."""
        self._signs = bool(self._attempts.cluster.security.user)
        self.is_open = True

    def send(
        self, sent: Outgoing, deadline: float, queue: MessageQueue | None, selector: Selector | None
    ) -> SendReceipt | None:
        """The receipt, or None: the loop must try. `deadline` is of the monotonic clock. BrokerRefused, TimedOut."""
        route = self._route(sent)
        to = None if route is None else self._choosing.choose(route, sent.messages[0], queue, selector)
        if route is None or to is None:
            return None
        receipt = self._try(sent, route, to, deadline, queue is None)
        if receipt is None:
            sent.failed_at(to.broker)
        return receipt

    def _try(
        self, sent: Outgoing, route: Route, to: MessageQueue, deadline: float, any_queue: bool
    ) -> SendReceipt | None:
        try:
            address = self._choosing.address(route, to)
            if address is None:
                return None
            if route.nsq:
                return self._publish(sent, to, address, deadline)
            return self._store(sent, to, address, deadline)
        except BrokerRefused as error:
            if is_tried_again(error, any_queue=any_queue):
                return None
            raise
        except (ConnectionLost, WireError) as error:
            if sent.unsure > self._attempts.settings.retries:
                raise
            log.info("send to %s: %s", to, error)
            return None

    def _store(self, sent: Outgoing, to: MessageQueue, address: str, deadline: float) -> SendReceipt | None:
        request = self._request(sent, to)
        line = self._line(address, deadline)
        if line is None:
            return None
        answer: SendReceipt | RemotingCommand
        left_s = max(deadline - monotonic_s(), _LEAST_S)
        try:
            if isinstance(request, PlainSend):
                answer = line.store(request, left_s, to)
            else:
                answer = line.call(request, left_s, to)
        except BaseException as error:
            self._broken(line, sent, error)
            raise
        self._give_back(self._lines, address, line)
        return answer if isinstance(answer, SendReceipt) else read_receipt(answer, to, sent.keys)

    def _request(self, sent: Outgoing, to: MessageQueue) -> PlainSend | RemotingCommand:
        """What stores it in a message queue: an object of the protocol where it must be one."""
        if self._signs or not sent.is_plain():  # a signature is over the fields of an object
            return sent.request(to)
        sends = self._plain.get(to)
        if sends is None:
            if len(self._plain) >= QUEUES_MAX:
                self._plain.clear()
            sends = self._plain[to] = PlainSends(self._attempts.settings.group, to)
        return sends.request(sent.messages[0], sent.keys[0], self._clock.now_ms())

    def send_oneway(self, sent: Outgoing, queue: MessageQueue | None, selector: Selector | None) -> bool:
        """Write a request that is not answered. False: no broker can have read it, the loop must try. TimedOut."""
        route = self._route(sent)
        if route is None or route.nsq:  # NSQ answers whoever publishes
            return False
        to = self._choosing.choose(route, sent.messages[0], queue, selector)
        address = None if to is None else self._choosing.address(route, to)
        if to is None or address is None:
            return False
        request = sent.request(to)
        request.ask_nothing()
        deadline = monotonic_s() + self._timeout_s
        line = self._line(address, deadline)
        if line is None:
            return False
        try:
            line.call(request, max(deadline - monotonic_s(), _LEAST_S))
        except BaseException as error:
            self._broken(line, sent, error)
            if not isinstance(error, ConnectionLost):
                raise
            log.info("send to %s: %s", to, error)
            return False
        self._give_back(self._lines, address, line)
        return True

    def _route(self, sent: Outgoing) -> Route | None:
        """Where its topic is; None where the loop must send it. Asked before a queue is chosen: the loop chooses one, too, and of
        two queues that take turns one would get nothing.
        """
        if not self.is_open or self._by_loop:
            return None
        return self._choosing.route(sent.messages[0].topic)

    def _line(self, address: str, deadline: float) -> Line | None:
        """A line to a broker, one that lay idle if there is one."""
        return self._take(self._lines, address) or self._connect(partial(self._new_line, address), deadline)

    def _new_line(self, address: str, left_s: float) -> Line:
        to, security = split_address(address, BROKER_PORT), self._attempts.cluster.security
        return Line(to, left_s, short=True, security=security, doubt=self._doubt(address))

    def _doubt(self, address: str) -> Doubt | None:
        """How it is asked whether another node has the place of a broker."""
        if self._attempts.settings.nsqd:
            return None
        return partial(_ask, self._attempts.doubts, address)

    def _connect(self, connect: Callable[[float], T], deadline: float) -> T | None:
        """A new line; None when there is none to be had soon, which is certainly no send."""
        try:
            return connect(min(CONNECT_S, max(deadline - monotonic_s(), _LEAST_S)))
        except (ClientError, WireError) as error:
            log.info("%s", error)
            return None

    def _broken(self, line: TimedSocket, sent: Outgoing, error: BaseException) -> None:
        """An error leaves a line closed: its answer may still come, and nobody else may read that."""
        line.close()
        if isinstance(error, (ConnectionLost, WireError)):
            sent.lost()

    def _publish(self, sent: Outgoing, to: MessageQueue, address: str, deadline: float) -> SendReceipt | None:
        messages = sent.messages
        check_plain(messages)
        defer = defer_ms(messages[0], self._clock.now_ms())
        command = publish(to.topic, [message.body for message in messages], defer)
        line = self._take(self._nsq_lines, address)
        if line is None:
            line = self._connect(partial(self._new_nsq_line, address), deadline)
        if line is None:
            return None
        try:
            line.call(command, max(deadline - monotonic_s(), _LEAST_S), to)
        except BaseException as error:
            self._broken(line, sent, error)
            raise
        self._give_back(self._nsq_lines, address, line)
        nothing = ("",) * len(messages)
        return SendReceipt(SendStatus.SEND_OK, to, -1, nothing, nothing)

    def _new_nsq_line(self, address: str, left_s: float) -> NsqLine:
        return NsqLine(address, left_s, self._attempts.cluster.security, self._doubt(address))

    def _take(self, lines: dict[str, deque[T]], address: str) -> T | None:
        free = lines.get(address)
        while free:
            try:
                line = free.pop()
            except IndexError:  # another thread was quicker
                return None
            if line.has_rested() < IDLE_S and line.is_quiet():
                return line
            line.close()
        return None

    def _give_back(self, lines: dict[str, deque[T]], address: str, line: T) -> None:
        free = lines.get(address)
        if free is None:
            free = lines.setdefault(address, deque())
        line.rest()
        free.append(line)
        if not self.is_open:
            self.close()

    def close(self) -> None:
        """Close the lines that nobody uses; one in use is closed when it is given back."""
        self.is_open = False
        for lines in self._lines.values():
            while lines:
                lines.pop().close()
        for nsq_lines in self._nsq_lines.values():
            while nsq_lines:
                nsq_lines.pop().close()
