"""Mirror: the channels of log topics at the slaves of a master: which there are, whether they are paused, and where each is.

    master   a channel came, went, or was paused ─▶ those of its topic (all there are: CHANNELS), in the same turn and before what
                                                    is published behind
             a place is another one              ─▶ CURSORS: committed, and what is finished beyond, once a second, behind the log
    slave    keeps both in its own files, as if its channels had come there: a promotion is a start that finds them

Ephemeral channels are nobody else's. What is in hand is not told, so it comes again; what was finished in the last second, too.
What was given back with a delay is an entry of the schedule, which every node derives from the log, until it is finished
(`Moving.owed`); the queue in which it comes again is its master's alone. A place beyond the end of the slave's log is taken as
it is: the start that makes it the master cuts it (`CursorFile.settle`).
"""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import Iterator

from penstock.broker.core import Core
from penstock.broker.nsq.holding import places
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.names import printable, valid_nsq_name
from penstock.broker.nsq.registry import Registry
from penstock.broker.nsq.sources import cursors, lanes, queue_lanes
from penstock.disk.cursorfile import WINDOW_MAX, CursorFile
from penstock.errors import Refused, StoreError
from penstock.log.store import LogStore
from penstock.wire import fastjson, ha
from penstock.wire.fastjson import JsonObject

log = logging.getLogger("penstock.broker")

EVERY_MS = 1_000
FRAME_BYTES = 256 << 10
BITS_BYTES_MAX = WINDOW_MAX // 8 + 1
_DEFLATE = 1


class ChannelNews:
    """What one slave has been told of the channels."""

    def __init__(self, registry: Registry, store: LogStore) -> None:
        self._registry = registry
        self._store = store
        self._known = -1  # how many changes it was told of
        self._by_row = False
        self._due_ms = 0
        self._seen: dict[bytes, int] = {}  # the `changes` of topics
        self._places: dict[bytes, dict[CursorFile, tuple[int, int]]] = {}  # by topic
        self._ready: list[bytes] = []  # frames of places
        self._position = 0  # and where the log ended when they were made

    @property
    def fresh(self) -> bool:
        """Whether a channel came, went, or was paused since."""
        return self._registry.lately.count != self._known

    def tell_changes(self) -> None:
        """This slave understands what is told of single topics; a former version gets all of them each time."""
        self._by_row = True

    def due(self, mono_ms: int) -> bool:
        """Whether there is something to tell, or may be."""
        return bool(self._ready) or mono_ms >= self._due_ms or self.fresh

    def news(self, mono_ms: int, sent: int, at_once: bool = False) -> Iterator[tuple[int, bytes]]:
        """(kind, body) of the frames that say what has changed to a slave that was sent the log up to `sent`. `at_once`: the
        places, too, whenever they were told last.

        A place may be finished because the message stands elsewhere in the log, in the schedule or with the dead letters: so it
        is told once the slave was sent the log up to where it ended then.
        """
        if not (at_once or self.due(mono_ms)):
            return
        fresh = self.fresh
        if fresh:
            yield self._changed()
        faces = [face for face in map(self._face, self._registry.topics) if face is not None]
        if not self._ready and (fresh or at_once or mono_ms >= self._due_ms):
            self._due_ms = mono_ms + EVERY_MS
            self._position = self._store.end_position
            self._ready = list(self._cursors([face for face in faces if self._seen.get(face.name) != face.changes]))
        if self._ready and sent >= self._position:
            ready, self._ready = self._ready, []
            for body in ready:
                yield ha.CURSORS, body

    def _about(self, face: LogChannels) -> JsonObject:
        channels: JsonObject = {
            channel.name.decode(): {
                "paused": bool(channel.paused), "since": self._registry.since(face, channel),
                "at": [lane.file.committed for lane in queue_lanes(channel)],
            }
            for channel in face.channels.values() if not channel.ephemeral
        }  # fmt: skip
        return {"paused": bool(face.paused), **face.holding.about(), "channels": channels}

    def _face(self, name: bytes) -> LogChannels | None:
        face = self._registry.topics.get(name)
        return face if isinstance(face, LogChannels) and face.stored.open else None

    def _changed(self) -> tuple[int, bytes]:
        """(kind, body) of the frame that says what became of topics and their channels."""
        lately, known = self._registry.lately, self._known
        self._known = lately.count
        names = lately.since(known) if self._by_row else None
        found = {name: self._face(name) for name in (self._registry.topics if names is None else names)}
        told = {"channels": {name.decode(): self._about(face) for name, face in found.items() if face is not None}}
        for name in {*self._places, *self._seen, *found} if names is None else names:
            self._forget(name, found.get(name))
        if names is None:
            return ha.CHANNELS, fastjson.dumps(told)
        gone = [name.decode() for name, face in found.items() if face is None]
        return ha.CHANNEL_CHANGES, fastjson.dumps({**told, "gone": gone})

    def _forget(self, name: bytes, face: LogChannels | None) -> None:
        """Channels that are gone; whatever is told of one of the same name is told anew."""
        there = {lane.file for channel in face.channels.values() for lane in lanes(channel)} if face is not None else ()
        places = {file: place for file, place in self._places.pop(name, {}).items() if file in there}
        if places:
            self._places[name] = places
        self._seen.pop(name, None)

    def _cursors(self, faces: list[LogChannels]) -> Iterator[bytes]:
        rows: list[list[object]] = []
        size = 0
        for face in faces:
            self._seen[face.name] = face.changes
            places = self._places.setdefault(face.name, {})
            for channel in face.channels.values():
                for lane in [] if channel.ephemeral else queue_lanes(channel):
                    file = lane.file
                    place = file.turn, file.beyond
                    if places.get(file) == place:
                        continue
                    places[file] = place
                    bits = base64.b64encode(zlib.compress(file.told(), _DEFLATE)).decode() if file.beyond else ""
                    rows.append([face.name.decode(), channel.name.decode(), lane.number, file.committed, bits])
                    size += len(bits) + len(face.name) + len(channel.name) + 32
                    if size >= FRAME_BYTES:
                        yield fastjson.dumps({"cursors": rows})
                        rows, size = [], 0
        if rows:
            yield fastjson.dumps({"cursors": rows})


class Mirror:
    """Makes the channels of a slave those of its master."""

    def __init__(self, core: Core, registry: Registry) -> None:
        self._core = core
        self._registry = registry
        self._left_out: set[str] = set()  # topics that were complained of
        self._owed: dict[str, dict[str, object]] = {}  # topics still to be taken: the disk was full, say

    def take(self, kind: int, told: JsonObject) -> None:
        """What one frame says. ValueError, TypeError or AttributeError when it makes no sense."""
        if kind == ha.CHANNELS:
            self._take_channels(told["channels"])  # type: ignore[arg-type]
        elif kind == ha.CHANNEL_CHANGES:
            for name in told["gone"]:  # type: ignore[union-attr]
                self._owed.pop(name, None)
                self._drop(name.encode())
            self._take_topics({**self._owed, **told["channels"]})  # type: ignore[dict-item]
        else:
            self._take_topics(self._owed)
            for topic, channel, number, committed, bits in told["cursors"]:  # type: ignore[misc, union-attr]
                self._take_place(topic, channel, int(number), committed, bits)

    def _take_channels(self, table: dict[str, dict[str, object]]) -> None:
        registry = self._registry
        for face in [face for face in registry.topics.values() if isinstance(face, LogChannels)]:
            if not face.stored.open or face.name.decode() not in table:
                self._drop(face.name)
        self._owed = {}
        self._take_topics(table)

    def _drop(self, topic: bytes) -> None:
        """The master has no channels of this topic, nor is it paused: it may have been deleted, and made again since."""
        face = self._registry.topics.get(topic)
        if isinstance(face, LogChannels):
            self._registry.let_go(face)

    def _take_topics(self, table: dict[str, dict[str, object]]) -> None:
        for topic, about in list(table.items()):
            self._owed.pop(topic, None)
            try:
                self._take_topic(topic.encode(), about)
                self._left_out.discard(topic)
            except (Refused, StoreError) as error:
                self._owed[topic] = about
                if topic not in self._left_out:
                    log.error("channels of the master not taken topic=%s error=%s", printable(topic.encode()), error)
                self._left_out.add(topic)

    def _take_topic(self, name: bytes, about: dict[str, object]) -> None:
        registry = self._registry
        if not valid_nsq_name(name):  # a master of a former version tells of those that NSQ cannot have
            return
        if registry.has_queue(name):
            raise Refused("it is a queue topic here")
        face = registry.log_face(name) if name in self._core.topics.by_name else None
        if not isinstance(face, LogChannels):
            raise Refused("there is no such log topic here")
        told: dict[str, dict[str, object]] = about["channels"]  # type: ignore[assignment]
        for gone in [known for known, channel in face.channels.items() if known.decode() not in told]:
            face.delete_channel(gone)
        for channel_name, one in told.items():
            fresh = channel_name.encode() not in face.channels
            registry.owe_since(face, channel_name.encode(), int(one["since"]))  # type: ignore[call-overload]
            channel = face.channel(channel_name.encode())
            if fresh:  # not where it would begin here, though it is told anew soon
                for number, committed in enumerate(one["at"]):  # type: ignore[arg-type, var-annotated]
                    self._take_place(name.decode(), channel_name, number, committed, "")
            face.pause_channel(channel, bool(one["paused"]))
            face.forget_again(channel.name)
        if about["paused"]:
            face.pause()
        else:
            face.unpause()
        held, floors = (places(about.get(key, [])) for key in ("held", "floors"))  # a former version says neither
        known = face.holding
        if floors != known.floors or (held and held != known.held):
            face.restore(held, floors)
            registry.changed(face, True)

    def _take_place(self, topic: str, channel: str, number: int, committed: int, bits: str) -> None:
        face = self._registry.topics.get(topic.encode())
        found = face.channels.get(channel.encode()) if isinstance(face, LogChannels) else None
        if found is None or face is None or not 0 <= number < len(queue_lanes(found)):
            return  # of a topic that could not be taken, or with fewer queues here: it comes again from where it was
        if not isinstance(committed, int) or not 0 <= committed < 1 << 62:
            raise ValueError(f"a channel that has committed {committed}")
        data = b""
        if bits:
            inflated = zlib.decompressobj()
            data = inflated.decompress(base64.b64decode(bits, validate=True), BITS_BYTES_MAX)
            if inflated.unconsumed_tail:
                raise ValueError("a cursor with more bits than a window has")
        cursors(found).take_over(number, committed, data)
        face.mark()  # it is flushed as any other
