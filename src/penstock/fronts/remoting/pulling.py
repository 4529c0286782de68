"""PULL: from the bytes of a request to records that go from the mapped log into the outbox.

A pull that finds nothing waits in `Broker.held_pulls` for news of its queue, and is run again by `resume`.
"""

from __future__ import annotations

from collections.abc import Callable

import cython

from penstock.access.needs import group as group_need
from penstock.access.needs import subscribe
from penstock.broker.clients import ConsumerGroup, Subscription
from penstock.broker.groups import Group, check_commits
from penstock.delivery.waiters import Waiter
from penstock.errors import Refused
from penstock.fronts.remoting.selecting import LOOKED_AT_MAX, keep_selected
from penstock.log.consumequeue import TagCodes
from penstock.log.status import READ_NAMES
from penstock.wire import remoting
from penstock.wire.codes import ResponseCode
from penstock.wire.slots import NAMES
from penstock.wire.sql92 import Selector

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.topics import LogTopic
    from cython.cimports.penstock.fronts.remoting.session import RemotingSession
    from cython.cimports.penstock.fronts.remoting.shared import Shared
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.octets import be64, same
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.broker.topics import LogTopic
    from penstock.fronts.remoting.session import RemotingSession
    from penstock.fronts.remoting.shared import Shared
    from penstock.log import status
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.octets import be64, same
    from penstock.wire import fields, layout

# Fields of a pull that must be there, in the order in which a missing one is reported.
_REQUIRED = (
    fields.CONSUMER_GROUP, fields.TOPIC, fields.QUEUE_ID, fields.QUEUE_OFFSET, fields.MESSAGES_MAX, fields.SYS_FLAG,
    fields.COMMIT_OFFSET, fields.SUSPEND_MS, fields.SUBSCRIPTION_VERSION,
)  # fmt: skip

_CODES = {
    status.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    status.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    status.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    status.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    status.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    status.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    status.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}

_HITS, _MISSES = 2, 3  # of a group's counts


class Hold(Waiter):
    """A pull that waits: all that is needed to run it again."""

    def __init__(
        self, asker: RemotingSession, deadline_ms: int, topic: LogTopic, queue: ConsumeQueue, offset: int,
        limits: tuple[int, int], gate: int
    ) -> None:  # fmt: skip
        super().__init__(queue, asker, deadline_ms)
        self.opaque = asker.opaque_now
        self.kind = asker.serialize
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.max_count, self.max_bytes = limits
        self.gate = gate
        self.codes: TagCodes | None = None
        self.selector: Selector | None = None
        self.counts = [0, 0, 0, 0]
        self.group = ""


class Puller:
    """The pulls of one session. What the last one named is kept: the next is nearly always the same."""

    def __init__(self, shared: Shared, park: Callable[[Hold], bool]) -> None:
        self.shared = shared
        self.broker = shared.broker
        self.store = shared.store
        self.answers = shared.answers
        self.result = shared.result
        self.park = park
        self.topic: LogTopic | None = None
        self.group = b""
        self.expression = b""
        self.flags = 0
        self.version = -1
        self.online: ConsumerGroup | None = None
        self.revision = -1
        self.config: Group | None = None
        self.codes: TagCodes | None = None
        self.selector: Selector | None = None
        self.counts = [0, 0, 0, 0]
        self.pulled: dict[int, int] = {}
        self.names = ("", "")
        self.guide = self.broker.guide
        self.far = self.guide.far
        self.slave_reads = self.guide.reads

    def pull(self, asker: RemotingSession) -> None:
        """Answer the pull whose header `asker` has scanned, or let it wait for news."""
        scan = asker.scan
        for slot in _REQUIRED:
            if not scan.kind[slot]:
                asker.refuse(ResponseCode.SYSTEM_ERROR, f"the custom field <{NAMES[slot]}> is null")
                return
        queue_id = scan.number(fields.QUEUE_ID, 0)
        offset = scan.number(fields.QUEUE_OFFSET, 0)
        max_count = scan.number(fields.MESSAGES_MAX, 0)
        flags = scan.number(fields.SYS_FLAG, 0)
        commit = scan.number(fields.COMMIT_OFFSET, 0)
        suspend_ms = scan.number(fields.SUSPEND_MS, 0)
        version = scan.number(fields.SUBSCRIPTION_VERSION, 0)
        max_bytes = scan.number(fields.BYTES_MAX, 0)
        if scan.bad >= 0:
            asker.refuse(ResponseCode.SYSTEM_ERROR, f"{NAMES[scan.bad]} is not a number")
            return
        if max_count < 0:
            asker.refuse(ResponseCode.SYSTEM_ERROR, f"maxMsgNums {max_count} is negative")
            return
        topic = self.topic
        if (
            topic is None
            or not topic.open
            or not topic.perm & words.PERM_READ
            or not self._same(asker, flags & words.PULL_SUBSCRIPTION, version)
        ):
            topic = self._find(asker, flags & words.PULL_SUBSCRIPTION, version)
        if queue_id < 0 or (queue_id >= topic.read_queues and not topic.keeps(queue_id)):
            asker.refuse(
                ResponseCode.SYSTEM_ERROR, f"queueId[{queue_id}] is illegal, topic:[{topic.name.decode()}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{asker.remote}]",
            )  # fmt: skip
            return
        if max_bytes > 0:
            max_bytes = min(max_bytes, words.PULL_BYTES_MAX)
            max_count = min(max_count, words.PULL_COUNT_MAX)
        else:
            max_bytes = words.PULL_BYTES
            max_count = min(max_count, words.PULL_COUNT)
        gate = _gate(topic, scan.true(fields.DURABLE), self.store.following)
        queue: ConsumeQueue = topic.queues[queue_id]
        if flags & words.PULL_COMMIT_OFFSET and commit >= 0:
            check_commits(self.names[0])
            self.broker.offsets.commit(self.names[0], self.names[1], queue_id, commit)
        self.pulled[queue_id] = offset
        outcome = self._read(queue, offset, max_count, max_bytes, gate, self.codes, self.selector)
        if asker.oneway:
            return
        if outcome == status.FOUND:
            self._found(asker, topic, self.names[0], self.counts)
            return
        suspend = flags & words.PULL_SUSPEND and self.shared.hold_enabled and suspend_ms > 0
        empty = outcome == status.OFFSET_OVERFLOW_ONE or (outcome == status.NO_MESSAGE_IN_QUEUE and offset == 0)
        if suspend and not empty and self._lacks(outcome):
            empty = True
            suspend_ms = min(suspend_ms, words.LACK_MS)
        if suspend and empty:
            deadline_ms = self.broker.mono_ms + min(suspend_ms, words.HOLD_MS_MAX)
            hold = Hold(asker, deadline_ms, topic, queue, offset, (max_count, max_bytes), gate)
            hold.codes, hold.selector, hold.counts = self.codes, self.selector, self.counts
            hold.group = self.names[0]
            if self.park(hold):
                return
        self._not_found(asker, outcome, offset, self.counts, queue, self.names[0])

    def _shows_less(self) -> bool:
        """Whether readers may have been shown more than this node may show: by the master, or by the one before this one."""
        if self.store.following:
            return True
        copies = self.broker.copies
        less: bool = copies.confirmed_flushed < copies.inherited
        return less

    def _lacks(self, outcome: int) -> bool:
        """Whether a slave, or a new master, cannot tell a wrong offset from one that it has not got, or may not show yet: it
        corrects nobody.
        """
        if outcome == status.OFFSET_TOO_SMALL:  # where its log begins a master knows
            return self.store.following
        return (outcome == status.OFFSET_OVERFLOW_BADLY or outcome == status.NO_MESSAGE_IN_QUEUE) and self._shows_less()

    def _read(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        gate: int,
        codes: TagCodes | None,
        selector: Selector | None,
    ) -> int:
        if not self.slave_reads and self.store.following:
            self.result.begin(self.store.log)
            return status.OFFSET_OVERFLOW_BADLY  # whatever it is, not here
        end = queue.max_offset
        if gate:
            durable: cython.bint = (gate - 1) & 1 == 1
            position = self.store.flushed_position
            if self.store.confirmed >= 0:
                position = self.broker.copies.visible((gate - 1) >> 1, durable)
            end = queue.durable_end(position)
            if end < queue.shown and not durable:
                end = queue.shown
        outcome: int = self.store.read(queue, offset, max_count, max_bytes, end, codes, self.result)
        if selector is not None:
            looked_at = 0
            while outcome == status.FOUND:
                looked_at += self.result.count
                if keep_selected(self.result, selector):
                    return outcome
                if looked_at >= LOOKED_AT_MAX:
                    break
                outcome = self.store.read(queue, self.result.next_offset, max_count, max_bytes, end, codes, self.result)
            if looked_at:
                return status.NO_MATCHED_MESSAGE
        return outcome

    # -- what it names -------------------------------------------------------------------------------------------

    def _same(self, asker: RemotingSession, has_expression: int, version: int) -> bool:
        """Whether this pull is of the group, topic and subscription of the last one."""
        scan = asker.scan
        if scan.kind[fields.CONSUMER_GROUP] != words.PLAIN or scan.kind[fields.TOPIC] != words.PLAIN:
            return False
        if (
            has_expression != self.flags
            or self.config is None
            or not self.config.consume_enable
            or self.config.forbidden
        ):
            return False
        n = scan.length[fields.CONSUMER_GROUP]
        if n != len(self.group) or not same(asker.base, scan.at[fields.CONSUMER_GROUP], self.group, 0, n):
            return False
        name: bytes = self.topic.name  # type: ignore[union-attr]
        n = scan.length[fields.TOPIC]
        if n != len(name) or not same(asker.base, scan.at[fields.TOPIC], name, 0, n):
            return False
        if has_expression:
            if scan.text(fields.SUBSCRIPTION) != self.expression:
                return False
            kind = scan.text(fields.EXPRESSION_TYPE) if scan.kind[fields.EXPRESSION_TYPE] else b""
            return kind == (b"SQL92" if self.selector is not None else b"TAG") or (self.selector is None and not kind)
        online = self.online
        return online is not None and online.revision == self.revision and version == self.version

    def forget(self) -> None:
        """The next pull may be another user's: what it names is looked at anew."""
        self.config = None

    def _find(self, asker: RemotingSession, has_expression: int, version: int) -> LogTopic:
        """Check what a pull names and find its subscription; remembered for the next. Refused."""
        scan = asker.scan
        broker = self.broker
        group = scan.text(fields.CONSUMER_GROUP)
        group_name = group.decode("utf-8", "replace")
        name = scan.text(fields.TOPIC)
        asker.rights.demand(asker.acting, (group_need(group_name), subscribe(name.decode("utf-8", "replace"))))
        config = broker.groups.find(group_name, broker.now_ms)
        if not config.consume_enable:
            raise Refused(f"subscription group no permission, {group_name}", remoting=ResponseCode.NO_PERMISSION)
        topic = broker.topics.get(name)
        text = name.decode("utf-8", "replace")
        if topic is None:
            raise Refused(
                f"topic[{text}] not exist, apply first please! "
                "See http://rocketmq.apache.org/docs/faq/ for further details.", remoting=ResponseCode.TOPIC_NOT_EXIST
            )  # fmt: skip
        if not topic.perm & words.PERM_READ:
            raise Refused(f"the topic[{text}] pulling message is forbidden", remoting=ResponseCode.NO_PERMISSION)
        if text in config.forbidden:
            raise Refused(
                f"the consumer group[{group_name}] is forbidden for topic[{text}]", remoting=ResponseCode.NO_PERMISSION
            )
        online = broker.clients.consumers.get(group_name)
        expression = b""
        if has_expression:
            expression = scan.text(fields.SUBSCRIPTION)
            said = Subscription(
                text, expression.decode("utf-8", "replace"), scan.text(fields.EXPRESSION_TYPE).decode() or "TAG"
            )
            said.compile(broker.limits)
        else:
            said = _subscribed(online, config, group_name, text, version)
        self.topic = topic
        self.codes = TagCodes(said.codes) if said.codes else None
        self.selector = said.selector
        self.group = group
        self.expression = expression
        self.flags = has_expression
        self.version = version
        self.online = online
        self.revision = online.revision if online is not None else -1
        self.config = config
        self.counts = config.get_counts.setdefault(name, [0, 0, 0, 0])
        self.pulled = config.pulled.setdefault(name, {})
        self.names = (group_name, text)
        return topic

    # -- answers -------------------------------------------------------------------------------------------------

    def _found(self, asker: RemotingSession, topic: LogTopic, group: str, counts: list[int]) -> None:
        """Answer with the records of `result`, which go from the mapped log into the outbox."""
        out = asker.out
        result = self.result
        suggested = self._goes_on_at(result.place(), group) if self.store.confirmed >= 0 else 0
        self.answers.found(
            out, asker.serialize, asker.opaque_now, result.max_offset, result.min_offset, result.next_offset,
            result.bytes_, suggested
        )  # fmt: skip
        out.room(result.bytes_)
        result.copy_out(out.base, out.size)
        self.shared.hand(be64(out.base, out.size + layout.STORE_MS))
        out.size += result.bytes_
        counts[0] += result.count
        counts[1] += result.bytes_
        counts[_HITS] += 1
        if topic.traced:
            self.broker.tracing.handed(topic, group, asker.id, bytes(out.base[out.size - result.bytes_ : out.size]))

    def _goes_on_at(self, place: int, group: str) -> int:
        """The id of the broker to be asked next by a reader that stands at a place in the log."""
        behind = self.store.end_position - place
        if behind <= self.far and not self.store.following:
            return 0
        return int(self.guide.next_id(behind, self.broker.groups.by_name.get(group)))

    def _not_found(
        self, asker: RemotingSession, outcome: int, offset: int, counts: list[int], queue: ConsumeQueue, group: str
    ) -> None:
        result = self.result
        counts[_MISSES] += 1
        code = _CODES[outcome]
        if outcome == status.NO_MESSAGE_IN_QUEUE and offset != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        if outcome == status.OFFSET_FOUND_NULL and result.next_offset != offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # a gap: go on behind it at once
        suggested = 0
        if self.store.confirmed >= 0:
            entry = queue.entry(result.next_offset - 1) if outcome == status.NO_MATCHED_MESSAGE else None
            suggested = self._goes_on_at(
                entry[0] if entry is not None and entry[0] > 0 else self.store.end_position, group
            )
        if self._lacks(outcome) and (offset != 0 or outcome != status.NO_MESSAGE_IN_QUEUE):
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            self.result.next_offset = offset
        max_offset = result.max_offset
        if self._shows_less():  # who was shown more waits for it, and takes nothing for lost
            max_offset = max(max_offset, queue.max_offset)
        ext = {
            "maxOffset": str(max_offset),
            "minOffset": str(result.min_offset),
            "nextBeginOffset": str(result.next_offset),
            "suggestWhichBrokerId": str(suggested),
        }
        asker.out.put(remoting.encode(asker.answer(code, READ_NAMES[outcome], ext)))

    def resume(self, asker: RemotingSession, hold: Hold, expired: bool, behind: bool) -> bool:
        """News for a held pull, or its time is over: answer it (True), or let it wait on. `behind`: the peer does not read
        its answers.
        """
        asker.answer_to(hold.opaque, hold.kind)
        # The topic may have another level since it was asked, and this broker another role.
        hold.gate = _gate(hold.topic, hold.gate != 0 and (hold.gate - 1) & 1 == 1, self.store.following)
        outcome = self._read(
            hold.queue, hold.offset, hold.max_count, hold.max_bytes, hold.gate, hold.codes, hold.selector
        )
        if behind or asker.out.size > asker.answers_max:  # it may ask again
            self.result.next_offset = hold.offset
            self._not_found(asker, status.OFFSET_OVERFLOW_ONE, hold.offset, hold.counts, hold.queue, hold.group)
            return True
        if outcome == status.FOUND:
            self._found(asker, hold.topic, hold.group, hold.counts)
            return True
        nothing = outcome == status.OFFSET_OVERFLOW_ONE or outcome == status.NO_MESSAGE_IN_QUEUE or self._lacks(outcome)
        if not expired and hold.topic.open and (nothing or outcome == status.NO_MATCHED_MESSAGE):
            if outcome == status.NO_MATCHED_MESSAGE:
                hold.offset = self.result.next_offset
            if self.park(hold):
                return False
        self._not_found(asker, outcome, hold.offset, hold.counts, hold.queue, hold.group)
        return True


def _gate(topic: LogTopic, durable: bool, following: bool) -> int:
    """What must have happened to a record before this reader sees it: 0 for nothing, else 1 and twice the level, and 1 more
    where it asks for what is durable.
    """
    if topic.level == words.LEVEL_OS and not durable and not following:
        return 0
    return 1 + 2 * topic.level + (1 if durable else 0)


def _subscribed(online: ConsumerGroup | None, config: Group, group: str, topic: str, version: int) -> Subscription:
    """What the group has subscribed to on the topic. Refused."""
    if online is None:
        raise Refused(
            f"the consumer's group info not exist, group: {group}", remoting=ResponseCode.SUBSCRIPTION_NOT_EXIST
        )
    if not config.consume_broadcast_enable and online.message_model == "BROADCASTING":
        raise Refused(
            f"the consumer group[{group}] can not consume by broadcast way", remoting=ResponseCode.NO_PERMISSION
        )
    subscription = online.subscriptions.get(topic)
    if subscription is None:
        raise Refused("the consumer's subscription not exist", remoting=ResponseCode.SUBSCRIPTION_NOT_EXIST)
    if subscription.version < version:
        raise Refused("the consumer's subscription not latest", remoting=ResponseCode.SUBSCRIPTION_NOT_LATEST)
    if subscription.kind != "TAG" and subscription.selector is None:
        raise Refused(
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
            remoting=ResponseCode.FILTER_DATA_NOT_EXIST,
        )
    return subscription
