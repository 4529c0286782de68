"""Consuming a queue topic: a subscription to its channel at every broker that has it.

Each broker has a task that connects, subscribes, and begins again with growing pauses when the connection is lost. The
brokers share the messages that may be in flight. While a message waits in this client, or a listener works on it, it is
touched before its time runs out; one that was handed to an iteration is its owner's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Mapping

from penstock.client import nsqframes
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.aio.delivery import Hand, Handed
from penstock.client.aio.inflight import InFlight, begin_all, close_all
from penstock.client.aio.nsqconnection import NsqConnection
from penstock.client.aio.outages import Outages
from penstock.client.nsqsending import ladder_s
from penstock.client.ready import share_ready
from penstock.client.results import Outcome, Reject
from penstock.errors import ClientError, WireError
from penstock.message import ReceivedMessage

log = logging.getLogger("penstock.client")

RECONNECT_S = 0.1  # doubled with each failure
RECONNECT_MAX_S = 15.0
TURN_S = 5.0  # with more brokers than messages in flight: when others get their turn
CLOSE_S = 2.0

Spawn = Callable[[Coroutine[object, None, None]], "asyncio.Task[None]"]


class ChannelReader:
    """One channel of one queue topic. `hand_out` receives its messages; after `attempts_max` failures one is a dead letter."""

    def __init__(
        self,
        topic: str,
        settings: ConsumerSettings,
        hand_out: Callable[[list[Hand], list[ReceivedMessage]], None],
        spawn: Spawn,
        outages: Outages,
    ) -> None:
        self.topic = topic
        self.channel = settings.group
        self._hand_out = hand_out
        self._spawn = spawn
        self._outages = outages
        self._in_flight_max = settings.in_flight_max
        self._attempts_max = settings.attempts_max
        self._timeout_s = settings.timeout_s
        self._security = settings.security
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by broker
        self._addresses: dict[str, str] = {}
        self._connections: dict[str, NsqConnection] = {}
        self._ready: dict[str, int] = {}
        self._in_flight: set[InFlight] = set()
        self._turn = 0
        self._joined = asyncio.Event()
        self._closing = False
        self._toucher = spawn(self._keep())

    def follow(self, brokers: Mapping[str, str]) -> None:
        """Read the channel at these brokers (name to address), and no others."""
        for broker in [name for name, address in self._addresses.items() if brokers.get(name) != address]:
            self._tasks.pop(broker).cancel()
            del self._addresses[broker]
        for broker, address in brokers.items():
            if broker not in self._tasks and not self._closing:
                self._addresses[broker] = address
                self._tasks[broker] = self._spawn(self._run(broker, address))

    @property
    def connected(self) -> list[str]:
        """The brokers whose channel is subscribed to now."""
        return sorted(self._connections)

    async def _run(self, broker: str, address: str) -> None:
        pause_s = RECONNECT_S
        while not self._closing:
            try:
                connection = await NsqConnection.open(
                    address, self._timeout_s, self._arrived, topic=self.topic, broker=broker, security=self._security
                )
                try:
                    await connection.call(nsqframes.subscribe(self.topic, self.channel), self._timeout_s)
                    pause_s = RECONNECT_S
                    self._outages.answered(f"broker {broker}")
                    self._connections[broker] = connection
                    self._joined.set()
                    self._share()
                    await connection.lost.wait()
                finally:
                    connection.close()
                    self._lost(broker, connection)
                log.info("channel %s of %s: the connection to %s is lost", self.channel, self.topic, address)
            except (ClientError, WireError) as error:
                self._outages.failed(f"broker {broker}", f"channel {self.channel} of {self.topic} at {address}", error)
            except Exception:  # whatever it is, nobody else would connect again
                log.exception("channel %s of %s at %s, tried again", self.channel, self.topic, address)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, RECONNECT_MAX_S)

    def _lost(self, broker: str, connection: NsqConnection) -> None:
        self._in_flight = {hand for hand in self._in_flight if hand.connection is not connection}
        self._ready.pop(broker, None)
        if self._connections.pop(broker, None) is not None and not self._closing:
            self._share()

    def _share(self) -> None:
        """Tell every broker how many messages may be in flight."""
        shares = share_ready(self._in_flight_max, sorted(self._connections), self._turn)
        for broker, count in sorted(shares.items(), key=lambda pair: pair[1]):  # those who get less first
            connection = self._connections[broker]
            count = min(count, connection.ready_max)
            if self._ready.get(broker) != count and not connection.closed:
                self._ready[broker] = count
                connection.send(nsqframes.ready(count))

    def _arrived(self, connection: NsqConnection, messages: list[ReceivedMessage]) -> None:
        now_s = asyncio.get_running_loop().time()
        hands = begin_all(self, connection, messages, now_s)
        self._in_flight.update(hands)
        self._hand_out(list(hands), messages)

    def finish(self, done: list[Handed]) -> None:
        """Tell the brokers that these messages are done with: each of them in one write."""
        for connection, message_ids in close_all(done, self._in_flight).items():
            if connection.closed:
                log.warning(
                    "channel %s: the connection of %d messages was lost: they come again",
                    self.channel,
                    len(message_ids),
                )
            else:
                connection.send(nsqframes.finish_all(message_ids))

    def settle(self, hand: InFlight, message: ReceivedMessage, outcome: Outcome) -> None:
        """Tell the broker what became of a message."""
        if hand.gone:
            log.warning("channel %s: the connection of %s was lost: it comes again", self.channel, hand.message_id)
            return
        hand.close()
        self._in_flight.discard(hand)
        spent = not isinstance(outcome, Reject) and message.attempts >= self._attempts_max
        if spent or isinstance(outcome, Reject):
            why = f"{message.attempts} attempts" if spent else getattr(outcome, "reason", "")
            log.warning("channel %s rejects %s of %s: %s", self.channel, hand.message_id, self.topic, why)
            hand.connection.send(nsqframes.reject(hand.message_id))
            return
        delay_s = getattr(outcome, "delay", None)
        delay_s = ladder_s(message.attempts) if delay_s is None else delay_s
        hand.connection.send(nsqframes.requeue(hand.message_id, round(delay_s * 1000)))

    async def _keep(self) -> None:
        """Touch what must not time out; give other brokers their turn."""
        loop = asyncio.get_running_loop()
        turn_s = loop.time() + TURN_S
        while True:
            timeouts = [connection.msg_timeout_s for connection in self._connections.values()]
            self._joined.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min([TURN_S, *(timeout_s / 5 for timeout_s in timeouts)])):
                    await self._joined.wait()
            now_s = loop.time()
            for hand in self._in_flight:
                if hand.keep_until_s > now_s and now_s - hand.touched_s > hand.connection.msg_timeout_s / 3:
                    hand.touch(now_s)
            if now_s >= turn_s and len(self._connections) > self._in_flight_max:
                turn_s = now_s + TURN_S
                self._turn += self._in_flight_max
                self._share()

    # -- leaving

    async def quiet(self) -> None:
        """Get nothing more; messages that no listener has begun go back at once."""
        self._closing = True
        await asyncio.gather(*(self._say_goodbye(connection) for connection in self._connections.values()))
        self._give_back(lambda hand: hand.keep_until_s == float("inf"))

    @staticmethod
    async def _say_goodbye(connection: NsqConnection) -> None:
        try:
            await connection.call(nsqframes.CLOSE, CLOSE_S)
        except ClientError as error:
            log.info("%s was not told goodbye: %s", connection.address, error)

    def _give_back(self, which: Callable[[InFlight], bool]) -> None:
        for hand in [hand for hand in self._in_flight if which(hand) and not hand.gone]:
            hand.close()
            self._in_flight.discard(hand)
            hand.connection.send(nsqframes.requeue(hand.message_id, 0))

    async def close(self) -> None:
        """Give back what is still in flight, and let the connections go."""
        self._closing = True
        self._give_back(lambda hand: True)
        self._toucher.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
