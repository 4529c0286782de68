"""A topic changes its kind, queue to log or back, when nothing would be lost: channels keep their names and pauses.

A queue topic holds what a channel has not finished, a log topic what is stored; neither can become the other with its
messages, their ids and places. So it is done when there are none: nothing unfinished, nothing delayed, nothing stored (a purge
says that what is stored may go), and nobody reading, who would be told of the change by an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.broker.broker import Broker
from penstock.broker.delayed import Delayed, Wanted
from penstock.broker.nsq.names import valid_nsq_name
from penstock.broker.nsq.topics import Topic
from penstock.broker.replica import of_a_set
from penstock.broker.topics import LogTopic, TopicDetails, check_topic_name
from penstock.errors import Refused
from penstock.wire.codes import ResponseCode

QUEUES = 8
KINDS = ("log", "queue")
_GONE, _CONFLICT = 404, 409


class Convert:
    """`topic` becomes of this kind. Refused when there is no such topic, or it is of that kind."""

    def __init__(self, broker: Broker, name: str, to: str) -> None:
        self._broker = broker
        self._name = name
        self._to = to
        self._log: LogTopic | None = broker.topics.get(name.encode())
        self._nsq: Topic | None = broker.queueing.find(name.encode())
        if to not in KINDS:
            raise Refused(f"kind {to} is none of {', '.join(KINDS)}")
        if self._log is None and self._nsq is None:
            raise Refused(f"no topic {name}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=_GONE)
        if broker.is_system_topic(name):
            raise Refused(f"topic {name} is the broker's own", http=_CONFLICT)
        if (self._log is not None) == (to == "log"):
            raise Refused(f"{name} is a {to} topic", http=_CONFLICT)

    def losses(self) -> list[str]:
        """What stands against it: each a sentence; none, and it can be done."""
        return [*self._of_names(), *self._of_messages(), *self._of_readers()]

    def _of_names(self) -> Iterator[str]:
        rule = self._broker.topics.rule(self._name.encode())
        if rule.get("kind", self._to) != self._to:
            yield f"a rule says that it is a {rule['kind']} topic: change the rule first"
        if self._to == "log":
            try:
                check_topic_name(self._name.encode())
            except Refused as refused:
                yield f"a log topic cannot have this name: {refused}"
        elif not valid_nsq_name(self._name.encode()):
            yield "a queue topic cannot have this name"
        if self._nsq is not None and (self._nsq.ephemeral or any(one.ephemeral for one in self._nsq.channels.values())):
            yield "it, or a channel of it, is ephemeral"

    def _of_messages(self) -> Iterator[str]:
        if self._log is not None:
            stored = sum(queue.max_offset - queue.min_offset for queue in self._log.queues)
            if stored:
                yield f"it holds {stored} messages: purge it, if they may go"
        if self._nsq is not None:
            if self._log is None and self._nsq.depth():
                yield f"it holds {self._nsq.depth()} messages that no channel has"
            for name, channel in sorted(self._nsq.channels.items()):
                count = channel.depth() + channel.in_flight_count + channel.deferred_count
                if (count and self._log is None) or channel.in_flight_count + channel.deferred_count:
                    yield f"channel {name.decode()} has {count} messages that are not finished"
        rows, more = Delayed(self._broker).page(Wanted(self._name), None, 1)
        if rows or more is not None:
            yield "messages of it are delayed, or there are too many delayed ones to say that none is"

    def _of_readers(self) -> Iterator[str]:
        for name, channel in sorted(self._nsq.channels.items() if self._nsq is not None else ()):
            if channel.consumers:
                yield f"channel {name.decode()} has consumers: stop them"
        for group, online in sorted(self._broker.clients.consumers.items()):
            if self._name in online.subscriptions:
                yield f"group {group} reads it: stop its members"

    def run(self) -> Callable[[], None]:
        """Do it; what takes it back when `topics.json` cannot be written. Refused, with what stands against it."""
        losses = self.losses()
        if losses:
            raise Refused("; ".join(losses), http=_CONFLICT)
        broker, name = self._broker, self._name.encode()
        channels = {} if self._nsq is None else {one: bool(of.paused) for one, of in self._nsq.channels.items()}
        rests = self._nsq is not None and bool(self._nsq.paused)
        if self._nsq is not None:
            broker.queueing.delete(self._nsq)
        if self._log is not None:
            broker.topics.delete(name, broker.now_ms)
        if self._to == "log":
            owed = bool(channels) or of_a_set(broker.config)  # a queue topic keeps what its channels have not finished
            broker.topics.create(name, QUEUES, QUEUES, now_ms=broker.now_ms, more=TopicDetails(owed=owed))
            topic = broker.queueing.find(name)
        else:
            broker.save_tables()  # a start must not find both: until nsqd.dat says queue it is a log topic still
            topic = broker.queueing.topic(name, queue=True)
        assert topic is not None
        for one, paused in channels.items():
            topic.pause_channel(topic.channel(one), paused)
        if rests:
            topic.pause()
        broker.queueing.write_table()

        def undo() -> None:
            if self._to == "log":
                broker.topics.delete(name, broker.now_ms)

        return undo
