"""Dead letters of queue topics, sent again by the broker: each leaves its topic when the log has it for another one.

A channel of the dead letters' topic is what is taken from: the one named, or `redrive`, or the only one there is. Where
there is none it is made, and as the first one it is owed all there are. So what another channel has stays there. What a
consumer has in hand is not taken, nor anything while one is connected.
"""

from __future__ import annotations

import msgspec

from penstock.broker.core import Core
from penstock.broker.nsq.deathnotes import DeathNotes
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.entry import Left
from penstock.broker.nsq.looking import Place, Seen, Steps, read_place, ready, ready_in_topic
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.registry import Registry
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.delivery.channel import Channel
from penstock.errors import Refused, StoreError
from penstock.wire import names
from penstock.wire.codes import ResponseCode
from penstock.wire.names import dead_letter_name

CHANNEL = b"redrive"
AT_ONCE = 100  # of one call
BYTES_MAX = 1 << 20  # of their bodies: the next call takes the others
STEPS_MAX = 5_000  # places looked at by one call
_GONE, _CONFLICT, _BUSY = 404, 409, 503


class Wanted(msgspec.Struct, frozen=True):
    """Which dead letters of `topic`: all, those with this text in the body or in why they died or as their id, or the one with
    this `id`; so many. `to`: where to, if not to where each came from. `after`: where the answer before ended.
    """

    topic: bytes
    channel: bytes = b""
    to: bytes = b""
    text: bytes = b""
    id: str = ""
    limit: int = AT_ONCE
    after: str = ""
    dry_run: bool = False


class Redrive:
    """See the module."""

    def __init__(self, core: Core, registry: Registry, deferral: Deferral, notes: DeathNotes) -> None:
        self._core = core
        self._registry = registry
        self._deferral = deferral
        self._notes = notes

    def origins(self, dead: bytes) -> list[bytes]:
        """The topics whose dead letters this topic has, by its name."""
        topics = self._registry.topics
        if len(dead) >= names.DEAD_NAME_BYTES:  # cut off: any topic may be it
            found = list(topics.values())
        else:
            words = dead.removesuffix(names.DEAD_SUFFIX).split(b".")
            parts = [b".".join(words[:n]) for n in range(1, len(words))]
            found = [topics[name] for name in parts if name in topics]
        return [one.name for one in found if any(dead_letter_name(one.name, name) == dead for name in one.channels)]

    def page(self, wanted: Wanted) -> dict[str, object]:
        """Send some again, or say which: `rows`, and `next` to go on at, or None. Refused."""
        dead = self._dead(wanted.topic)
        channel = self._channel(dead, wanted)
        origins = self.origins(wanted.topic)
        begin = read_place(wanted.after) if wanted.after else Place("q" if channel is None else "w")
        steps = ready_in_topic(dead, begin) if channel is None else ready(channel, begin)
        rows: list[dict[str, object]] = []
        taken = 0
        chosen: list[tuple[Seen, Topic]] = []
        following: Place | None = None
        for looked, (behind, seen) in enumerate(steps, 1):
            if seen is not None and self._fits(wanted, channel, seen):
                target = self._target(wanted, origins, seen)
                chosen.append((seen, target))
                taken += len(seen.body)
                rows.append({"id": seen.id, "offset": seen.more["offset"], "to": target.name.decode()})
            if len(rows) >= min(wanted.limit, AT_ONCE) or taken >= BYTES_MAX or looked >= STEPS_MAX:
                following = behind
                break
        if not wanted.dry_run:
            assert channel is not None
            for seen, target in chosen:
                self._send(channel, seen, target)
        return {"rows": rows, "next": None if following is None else following.text()}

    def _dead(self, name: bytes) -> QueueTopic:
        topic = self._registry.topics.get(name)
        if topic is None or not name.endswith(names.DEAD_SUFFIX):
            raise Refused(f"no dead letters in {name.decode()}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=_GONE)
        if not isinstance(topic, QueueTopic):
            raise Refused(
                f"{name.decode()} is not of level os or disk: a consumer of it takes its messages, and sends them on",
                http=_CONFLICT,
            )
        return topic

    def _channel(self, dead: QueueTopic, wanted: Wanted) -> Channel | None:
        """Where from; None for a dry run in a topic that has none. Refused."""
        if not dead.channels and not wanted.channel:
            return None if wanted.dry_run else self._made(dead)
        only = next(iter(dead.channels)) if len(dead.channels) == 1 else CHANNEL
        name = wanted.channel or (CHANNEL if CHANNEL in dead.channels else only)
        channel = dead.channels.get(name)
        if channel is None and wanted.channel:
            raise Refused(
                f"topic {dead.name.decode()} has no channel {name.decode()}",
                remoting=ResponseCode.TOPIC_NOT_EXIST, http=_GONE,
            )  # fmt: skip
        if channel is None:
            known = ", ".join(sorted(one.decode() for one in dead.channels))
            raise Refused(f"{dead.name.decode()} has the channels {known}: say from which", http=_CONFLICT)
        if channel.ephemeral:
            raise Refused(f"channel {name.decode()} is ephemeral: nothing is kept for it", http=_CONFLICT)
        if channel.consumers and not wanted.dry_run:
            raise Refused(
                f"channel {name.decode()} of {dead.name.decode()} has consumers: stop them first", http=_CONFLICT
            )
        return channel

    def _made(self, dead: QueueTopic) -> Channel:
        """The channel `redrive`, known to the next start, too: what left it must not be found again. Refused."""
        channel = dead.channel(CHANNEL)
        try:
            self._registry.write_table()
        except StoreError as error:
            raise Refused(
                f"channel not stored: {error}", remoting=ResponseCode.SERVICE_NOT_AVAILABLE, http=_BUSY
            ) from error
        return channel

    def _fits(self, wanted: Wanted, channel: Channel | None, seen: Seen) -> bool:
        if wanted.id:
            if seen.id != wanted.id:
                return False
        elif wanted.text not in seen.body and wanted.text != seen.id.encode() and not self._told(wanted, seen):
            return False
        return channel is None or self._left(channel, seen) not in self._deferral.leaving

    def _told(self, wanted: Wanted, seen: Seen) -> bool:
        """Whether the text is in what is noted of why it died."""
        place, text = seen.more["offset"], wanted.text.decode("utf-8", "replace")
        assert isinstance(place, int)
        noted = self._notes.find(wanted.topic, place, seen.id) or {}
        return any(text in noted.get(name, "") for name in (names.DEAD_REASON, names.DEAD_DETAIL))

    @staticmethod
    def _left(channel: Channel, seen: Seen) -> Left:
        place = seen.more["offset"]
        assert isinstance(place, int)
        return Left(channel.topic_name, channel.name, int(seen.id, 16), place)

    def _target(self, wanted: Wanted, origins: list[bytes], seen: Seen) -> Topic:
        """Where this one goes. Refused."""
        name = wanted.to
        if not name:
            place = seen.more["offset"]
            assert isinstance(place, int)
            noted = self._notes.find(wanted.topic, place, seen.id) or {}
            said = noted.get(names.RETRY_TOPIC, "").encode()
            if said in origins or not origins:
                name = said
            elif len(origins) == 1:
                name = origins[0]
        if not name:
            raise Refused("a dead letter does not say which topic it came from: say where to", http=_CONFLICT)
        topic = self._registry.topics.get(name)
        if topic is None and name not in self._core.topics.by_name:
            raise Refused(f"no topic {name.decode()}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=_GONE)
        if topic is None or topic.kind != "queue" or name == wanted.topic:
            raise Refused(f"{name.decode()} is not another queue topic", http=_CONFLICT)
        return topic

    def _send(self, channel: Channel, seen: Seen, target: Topic) -> None:
        left = self._left(channel, seen)
        if isinstance(target, QueueTopic):
            self._deferral.take_out(left, seen.body, target)
            return
        assert isinstance(target, MemoryTopic)  # whose messages a kill takes anyway
        answer = target.ready(len(seen.body), 1)
        if answer:
            raise Refused(f"{target.name.decode()} takes nothing now", http=_BUSY)
        target.put_bytes(self._core.time.now_ns, seen.body, False)
        target.placed()
        self._deferral.finish_left(left)


def with_notes(notes: DeathNotes, topic: bytes, steps: Steps) -> Steps:
    """Steps through a topic of dead letters, each with the properties that say why."""
    for behind, seen in steps:
        place = None if seen is None else seen.more.get("offset")
        if seen is not None and isinstance(place, int):
            found = notes.find(topic, place, seen.id)
            if found is not None:
                seen.more["properties"] = found
        yield behind, seen
