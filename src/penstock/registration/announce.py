"""Tells nsqlookupds which topics and channels a broker has, and asks them which channels a new topic should have.

A peer is told the difference between what there is and what it was told, of the topics that changed, and pinged every
15 s; a lost one is dialled again and told everything. The registry of the same process is told without a socket, before
the client that made the change gets its answer, and forgets the name of what was deleted.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.nsq.topics import Topic
from penstock.errors import Refused
from penstock.fronts.site import valid_name
from penstock.security import PLAIN, Security
from penstock.wire.names import EPHEMERAL_TEXTS

if TYPE_CHECKING:
    from penstock.fronts.lookupd import Lookupd

log = logging.getLogger("penstock.announce")

PING_MS = 15_000
ANSWER_S = 1.0  # to connect, and for each batch of answers
ANSWER_BYTES_MAX = 1 << 20
RETRY_S = (0.25, 15.0)  # doubled from the first up to the second

Name = tuple[bytes, bytes]  # topic, channel; channel empty: the topic itself


class Told:
    """What one registry was told, topic by topic, and which topics have changed since."""

    def __init__(self, announcer: Announcer) -> None:
        self.announcer = announcer
        self._told: dict[bytes, set[Name]] = {}
        self._changed: set[bytes] = set()
        self.again()

    def again(self) -> None:
        """It knows nothing any more."""
        self._told = {}
        self._changed = set(self.announcer.queueing.topics)

    def changed(self, topic: bytes) -> None:
        """A topic is another one now."""
        self._changed.add(topic)

    def take(self) -> tuple[set[Name], set[Name]]:
        """(told, wanted) of the topics that have changed; what is wanted counts as told from now on."""
        told: set[Name] = set()
        wanted: set[Name] = set()
        for topic in self._changed:
            now = self.announcer.names(topic)
            told |= self._told.pop(topic, set())
            if now:
                wanted |= now
                self._told[topic] = now
        self._changed.clear()
        return told, wanted


def commands(told: set[Name], wanted: set[Name]) -> list[bytes]:
    """What makes a registry that was told `told` know `wanted`. A channel's line names its topic too."""
    gone, new = told - wanted, wanted - told
    found = [b"UNREGISTER %s\n" % topic for topic, channel in sorted(gone) if not channel]
    found += [
        b"UNREGISTER %s %s\n" % name for name in sorted(gone) if name[1] and (name[0], b"") not in gone
    ]  # fmt: skip
    with_channel = {topic for topic, channel in new if channel}
    found += [b"REGISTER %s\n" % topic for topic, channel in sorted(new) if not channel and topic not in with_channel]
    found += [b"REGISTER %s %s\n" % name for name in sorted(new) if name[1]]
    return found


class Announcer:
    """Keeps the nsqlookupds of one broker informed. `identity` is what IDENTIFY says, once the ports are known."""

    def __init__(
        self,
        broker: Broker,
        identity: Mapping[str, object],
        *,
        neighbour: Lookupd | None = None,
        remote: str = "",
        security: Security = PLAIN,
    ) -> None:
        self.broker = broker
        self.security = security
        self.queueing = broker.queueing
        self._identity = dict(identity)
        self.greeting = b"  V1" + _identify(identity)
        self.peers: dict[str, LookupPeer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.neighbour = None if neighbour is None else LookupNeighbour(self, neighbour, remote)
        self.queueing.announce.append(self.changed)
        self.queueing.fresh_topic.append(self.fresh)

    def names(self, name: bytes) -> set[Name]:
        """A topic and its channels, if there is one."""
        topic = self.queueing.topics.get(name)
        if self.broker.config.role == "slave":  # consumers and producers are refused here: they look for the master
            return set()
        return set() if topic is None else {(name, b""), *((name, channel) for channel in topic.channels)}

    def lead(self, replica_set: str, epoch: int) -> None:
        """This broker is the master of a set, and says so to those that it is told to tell from now on: a registry of ours then
        leaves out a former master of whose end it knows nothing.
        """
        self.greeting = b"  V1" + _identify({**self._identity, "replica_set": replica_set, "epoch": epoch})
        if self.neighbour is not None:
            self.neighbour.lead(replica_set, epoch)

    def changed(self, topic: bytes) -> None:
        """It, or a channel of it, came or went."""
        for peer in self.peers.values():
            peer.told.changed(topic)
            peer.news.set()
        if self.neighbour is not None:
            self.neighbour.told.changed(topic)
            self.neighbour.change()

    def set_peers(self, addresses: Iterable[str]) -> None:
        """Tell these from now on, and no others."""
        wanted = list(addresses)
        for address in [known for known in self.peers if known not in wanted]:
            self.peers.pop(address).stop()
        for address in wanted:
            if address not in self.peers:
                self.peers[address] = LookupPeer(self, address)

    async def close(self) -> None:
        """Stop; the closed connections say goodbye."""
        tasks = [peer.stop() for peer in self.peers.values()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)

    # -- a new topic -----------------------------------------------------------------------------------------------

    def fresh(self, topic: Topic) -> None:
        """A topic is new: it gets the channels that the registries know, so that none misses its first messages."""
        if self.neighbour is not None:
            self.give(topic.name, self.neighbour.lookupd.tables.channels_of(topic.name.decode()))
        for peer in self.peers.values():
            if peer.http is not None:
                task = asyncio.ensure_future(self._ask_channels(peer.http, topic.name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask_channels(self, http: tuple[str, int], topic: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            channels = await loop.run_in_executor(None, self._get_channels, http, topic.decode())
        except (OSError, ValueError) as error:
            log.warning(
                "channels of a new topic not known topic=%s registry=%s:%d error=%s", topic.decode(), *http, error
            )
            return
        self.give(topic, channels)

    def _get_channels(self, http: tuple[str, int], topic: str) -> list[str]:
        """In a thread. OSError or ValueError when there is no proper answer."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import quote

        config = self.broker.config
        timeout_s, context = config.http_client_connect_timeout_ms / 1000, self.security.context
        if context is None:
            connection = HTTPConnection(*http, timeout_s)
        else:
            connection = HTTPSConnection(*http, timeout=timeout_s, context=context)
        try:
            connection.connect()
            connection.sock.settimeout(config.http_client_request_timeout_ms / 1000)
            connection.request("GET", f"/channels?topic={quote(topic, safe='')}", headers=self.security.http_headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
        except HTTPException as error:
            raise ValueError(f"no HTTP: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        found = json.loads(data).get("channels", [])
        return [name for name in found if isinstance(name, str)]

    def give(self, name: bytes, channels: Iterable[str]) -> None:
        """Make channels of a topic, except ephemeral ones."""
        topic = self.queueing.find(name)
        for channel in channels:
            if topic is not None and valid_name(channel) and not channel.endswith(EPHEMERAL_TEXTS):
                try:
                    topic.channel(channel.encode())
                except Refused as refused:
                    log.warning("channel not made topic=%s channel=%s reason=%s", name.decode(), channel, refused)


def _identify(identity: Mapping[str, object]) -> bytes:
    body = json.dumps(identity).encode()
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


class LookupPeer:
    """One nsqlookupd, and the task that keeps it informed."""

    def __init__(self, announcer: Announcer, address: str) -> None:
        self.announcer = announcer
        self.address = address
        host, _, port = address.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port) if port.isdecimal() else -1
        self.http: tuple[str, int] | None = None  # where it answers clients
        self.told = Told(announcer)
        self.news = asyncio.Event()
        self._complained = False
        self._retry_s = RETRY_S[0]
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> asyncio.Task[None]:
        """End the task and with it the connection."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._talk()
            except (OSError, TimeoutError, EOFError, ValueError, msgspec.DecodeError) as error:
                if not self._complained:
                    log.warning(
                        "nsqlookupd not reached registry=%s error=%s", self.address, error or type(error).__name__
                    )
                    self._complained = True
            self.news.clear()
            pause, self._retry_s = self._retry_s, min(self._retry_s * 2, RETRY_S[1])
            await self._wait(pause)

    async def _wait(self, seconds: float) -> bool:
        """Whether there is news within the time."""
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            return False
        return True

    async def _talk(self) -> None:
        if not self.host or not 0 < self.port < 65_536:
            raise ValueError("an address is host:port")
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.announcer.security.context)
        try:
            (answer,) = await self._ask(reader, writer, [self.announcer.greeting])
            info = msgspec.json.decode(answer, type=dict)
            if isinstance(info.get("http_port"), int) and info.get("broadcast_address"):
                self.http = str(info["broadcast_address"]), info["http_port"]
            log.info("registered registry=%s broadcast_address=%s", self.address, ascii(info.get("broadcast_address")))
            self._complained = False
            self.told.again()
            while True:
                self.news.clear()
                await self._ask(reader, writer, commands(*self.told.take()) or [b"PING\n"])
                await self._wait_connected(reader)
                self._retry_s = RETRY_S[0]  # one that hangs up as soon as it was told all is dialled ever later
        finally:
            writer.close()

    async def _wait_connected(self, reader: asyncio.StreamReader) -> None:
        """Until there is news, or it is time to ping. EOFError at the end of the connection: a registry that was started anew
        knows nothing, and tells consumers so until it is told.
        """
        heard = asyncio.ensure_future(reader.read(1))
        news = asyncio.ensure_future(self.news.wait())
        try:
            await asyncio.wait((heard, news), timeout=PING_MS / 1000, return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                raise EOFError("the connection ended" if not heard.result() else "it says what nobody asked for")
        finally:
            for waiting in (heard, news):
                waiting.cancel()
            await asyncio.gather(heard, news, return_exceptions=True)  # only then may another read

    @staticmethod
    async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: list[bytes]) -> list[bytes]:
        """Send commands, wait for all the answers. OSError for an error among them."""
        answers = []
        for at in range(0, len(lines), 100):  # few enough for the buffers between us
            batch = lines[at : at + 100]
            async with asyncio.timeout(ANSWER_S):
                writer.write(b"".join(batch))
                for _ in batch:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    if size > ANSWER_BYTES_MAX:
                        raise ValueError(f"an answer of {size} bytes")
                    answer = await reader.readexactly(size)
                    if answer.startswith(b"E_"):
                        raise ConnectionRefusedError(ascii(answer)[:200])
                    answers.append(answer)
        return answers


class LookupNeighbour:
    """The nsqlookupd of the same process."""

    def __init__(self, announcer: Announcer, lookupd: Lookupd, remote: str) -> None:
        self.announcer = announcer
        self.lookupd = lookupd
        self.told = Told(announcer)
        self.changed = True
        self._due_ms = 0
        self._session = lookupd.session(remote, lambda: None)
        self._session.trust()
        self._feed([announcer.greeting])

    def lead(self, replica_set: str, epoch: int) -> None:
        """The broker is the master of a set."""
        if self._session.producer is not None:
            self.lookupd.tables.lead(self._session.producer, replica_set, epoch)

    def change(self) -> None:
        """A topic or channel came or went: the next tick says so."""
        self.changed = True

    def tick(self, mono_ms: int) -> int:
        """Tell what is new, or that we are alive when it is time; when it is time again."""
        if self.changed:
            self.changed = False
            self._tell(*self.told.take())
        if mono_ms >= self._due_ms:
            self._due_ms = mono_ms + PING_MS
            self._feed([b"PING\n"])
        return self._due_ms

    def _tell(self, told: set[Name], wanted: set[Name]) -> None:
        """What the session would do with the `commands`, without their text: that costs more than a first message may."""
        tables, producer = self.lookupd.tables, self._session.producer
        if producer is None:
            log.error("the registry of this process refused the broker")
            return
        gone = told - wanted
        for topic, channel in gone:
            if not channel or (topic, b"") not in gone:
                tables.unregister(producer, topic.decode(), channel.decode())
        for topic, channel in wanted - told:
            try:
                tables.register(producer, topic.decode(), channel.decode())
            except Refused as refused:
                log.error("the registry of this process refused topic=%s error=%s", topic.decode(), refused)
        for topic, channel in sorted(gone, reverse=True):  # channels before their topic
            tables.forget(topic.decode(), channel.decode())

    def _feed(self, lines: list[bytes]) -> None:
        data = bytearray(b"".join(lines))
        if data:
            self._session.feed(data, len(data))
            self._session.take()
        if self._session.closing:
            log.error("the registry of this process refused the broker")
