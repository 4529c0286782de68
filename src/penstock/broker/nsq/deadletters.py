"""Dead letters of channels: what was given back too often, or rejected, moves to where somebody can look at it."""

from __future__ import annotations

import logging

from penstock.broker.levels import LEVEL_MEMORY, LEVEL_NAMES, LEVEL_PAIR
from penstock.broker.nsq.deathnotes import DeathNotes
from penstock.broker.nsq.flush import GroupFlush
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.names import printable
from penstock.broker.nsq.publishing import Publishing
from penstock.broker.nsq.registry import Registry
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.broker.retry import Death, Retry, dead_letter_name
from penstock.delivery.channel import Channel
from penstock.errors import Refused
from penstock.wire import names

log = logging.getLogger("penstock.queueing")


class DeadLetters:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        publishing: Publishing,
        flush: GroupFlush,
        moving: Moving,
        retry: Retry,
        notes: DeathNotes,
    ) -> None:
        self._registry = registry
        self._publishing = publishing
        self._flush = flush
        self._moving = moving
        self._retry = retry
        self._notes = notes

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        """Store a message with the dead letters of its channel; False when it cannot be now."""
        slots = channel.slots
        source = channel.source
        lane, place = slots.lane[slot], slots.place[slot]
        if not source.point_at(lane, place):
            return True  # damaged: there is nothing to keep
        origin = self._registry.topics.get(channel.topic_name)
        death = Death(why, channel.name.decode(), slots.attempts[slot], _client(channel, slot))
        try:
            if isinstance(origin, LogChannels):
                message = None if origin.is_again(channel, lane) else origin.message(lane, place)
                self._retry.bury(channel.name, origin.name, message, source.body(), death)
                self._moving.leave(channel, lane, place, position=self._publishing.log_end())
                return True
            dead = self._dead_letters_of(dead_letter_name(channel.topic_name, channel.name), origin)
            if dead.name == channel.topic_name:
                return False
            self._publishing.publish(dead, [source.body()])
            self._note(dead, death, channel.topic_name, slots.id[slot])
        except Refused as refused:
            log.warning("dead letter not stored topic=%s error=%s", printable(channel.topic_name), refused)
            return False
        if dead.level != LEVEL_MEMORY:
            if dead.kind == "log":
                self._moving.leave(channel, lane, place, position=self._publishing.log_end())
            else:
                self._moving.leave(channel, lane, place, flush=self._flush.want(dead))
        return True

    def _dead_letters_of(self, name: bytes, origin: Topic | None) -> Topic:
        """A queue topic, as their own is; at its level where new topics have one that queue topics cannot have. Refused."""
        level = None
        if origin is not None and self._registry.level_of(name) >= LEVEL_PAIR:
            level = LEVEL_NAMES[origin.level]
        return self._registry.topic(name, level, queue=True)

    def _note(self, dead: Topic, death: Death, origin: bytes, id_: int) -> None:
        """Why the last message of the dead-letter topic is there: a queue topic's messages have no properties."""
        if isinstance(dead, QueueTopic) and dead.stream.find(dead.stream.total - 1):
            about = {names.RETRY_TOPIC: origin.decode(), names.ORIGIN_ID: f"{id_:016x}"}
            told = death.mark(about, self._registry.time.now_ms)
            self._notes.add(dead, dead.stream.total - 1, f"{dead.stream.message_id:016x}", told)


def _client(channel: Channel, slot: int) -> str:
    """Who had the message last, if that one is still there."""
    consumer = channel.by_number.get(channel.slots.owner[slot])
    if consumer is None:
        return ""
    told = consumer.describe(0)
    return " ".join(str(told[name]) for name in ("client_id", "remote_address") if told[name])
