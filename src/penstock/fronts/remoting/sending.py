"""SEND: from the bytes of a request to a record in the log and an answer, without an object for a message.

What asks for more than storing (a delay, a transaction, a retry, a sequence) goes through `storing`, as objects.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import random

import cython

from penstock.access.needs import publish
from penstock.broker.sending import APPEND_REFUSALS, SHORT
from penstock.broker.topics import check_topic_name
from penstock.fronts.remoting import storing
from penstock.octets import Readable
from penstock.wire import remoting
from penstock.wire.codes import ResponseCode
from penstock.wire.outbox import Outbox
from penstock.wire.slots import NAMES

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.topics import LogTopic
    from cython.cimports.penstock.fronts.remoting.session import RemotingSession
    from cython.cimports.penstock.fronts.remoting.shared import Shared
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.octets import address, copy, find, java_hash, same, ube32
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.broker.topics import LogTopic
    from penstock.fronts.remoting.session import RemotingSession
    from penstock.fronts.remoting.shared import Shared
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.octets import address, copy, find, java_hash, same, ube32
    from penstock.wire import fields, layout


class Sender:
    """The sends of one session. The topic of the last one is kept: the next is nearly always of the same."""

    def __init__(self, shared: Shared, born: bytes) -> None:
        self.shared = shared
        self.broker = shared.broker
        self.store = shared.store
        self.answers = shared.answers
        self.draft = shared.draft
        self.text = shared.text
        self.waiting = Outbox()  # answers that wait for a flush, until the turn ends
        self.copied = Outbox()  # and those that wait for the copies of slaves
        self.copied_disk = False  # on their disks
        self.born_host = born
        self.born = address(born)
        self.born_len = len(born)
        self.topic: LogTopic | None = None
        self.topic_at = self.born
        self.topic_len = 0
        self.special = False  # a property asks for more than storing
        self.reserved = False  # a property is the broker's own

    def send(self, asker: RemotingSession, batch: bool, body: int, body_len: int) -> None:
        """Store the message, or the batch, whose header `asker` has scanned, and answer."""
        scan = asker.scan
        base = asker.base
        for slot in range(fields.SEND_REQUIRED):
            if scan.kind[slot] == words.ABSENT:
                asker.refuse(ResponseCode.SYSTEM_ERROR, f"the custom field <{NAMES[slot]}> is null")
                return
        queue_id = scan.number(fields.QUEUE_ID, 0)
        sys_flag = scan.number(fields.SYS_FLAG, 0)
        born_ms = scan.number(fields.BORN_TIMESTAMP, 0)
        flag = scan.number(fields.FLAG, 0)
        reconsume = scan.number(fields.RECONSUME_TIMES, 0)
        if scan.bad >= 0:
            asker.refuse(ResponseCode.SYSTEM_ERROR, f"{NAMES[scan.bad]} is not a number")
            return
        topic = self.topic
        n = scan.length[fields.TOPIC]
        if (
            topic is None
            or not topic.open
            or not topic.writable()
            or scan.kind[fields.TOPIC] != words.PLAIN
            or n != self.topic_len
            or not same(base, scan.at[fields.TOPIC], self.topic_at, 0, n)
        ):
            topic = self._find_topic(asker)
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        if queue_id >= topic.read_queues and queue_id >= topic.write_queues:
            remark = f"request queueId[{queue_id}] is illegal, {topic.described()} Producer: {asker.remote}"
            asker.refuse(ResponseCode.SYSTEM_ERROR, remark)
            return
        if topic.level >= words.LEVEL_PAIR and self.shared.picky and self.broker.copies.short:
            asker.refuse(SHORT[0], SHORT[1])
            return
        if body_len > self.shared.body_max:
            self._too_large(asker, "body")
            return
        if self._long_properties(asker):
            self._too_large(asker, "properties")
            return
        draft = self.draft
        text = self.text
        wait = self._properties(asker, batch)
        batch = batch or scan.true(fields.BATCH)
        if self.reserved or (batch and self._reserved_within(base, body, body + body_len)):
            remark = "the message is illegal, properties that begin with PENSTOCK_ are the broker's own"
            asker.refuse(ResponseCode.MESSAGE_ILLEGAL, remark)
            return
        if text.size >= self.shared.properties_max:
            self._too_large(asker, "properties")
            return
        draft.flag = flag
        draft.sys_flag = sys_flag
        draft.born_ms = born_ms
        draft.reconsume_times = reconsume
        draft.prepared = 0
        draft.born = self.born
        draft.born_len = self.born_len
        queue: ConsumeQueue = topic.queues[queue_id]
        draft.queue = queue
        draft.body = base
        draft.body_pos = body
        draft.body_len = body_len
        draft.props = text.base
        draft.props_pos = 0
        draft.props_len = text.size
        if draft.seq_len > 0:
            self._send_sequenced(asker, topic, queue_id, asker.cut(body, body_len), wait, batch)
        elif batch:
            self._send_batch(asker, topic, queue_id, wait, body, body_len)
        elif self.special or topic.is_retry or sys_flag & layout.SYS_TRANSACTION:
            self._send_special(asker, topic, queue_id, asker.cut(body, body_len), wait)
        else:
            self._send_one(asker, topic, queue_id, wait)

    def _send_one(self, asker: RemotingSession, topic: LogTopic, queue_id: int, wait: bool) -> None:
        draft = self.draft
        draft.indexed = True
        outcome = self.store.gather(draft)
        if outcome:
            code, remark = APPEND_REFUSALS[outcome]
            asker.refuse(code, remark)
            return
        topic.count(1, draft.size)
        if not asker.oneway:
            self.answers.sent(
                self.outbox(asker, topic, wait), asker.serialize, asker.opaque_now, draft.physical, queue_id, draft.queue_offset
            )  # fmt: skip

    def outbox(self, asker: RemotingSession, topic: LogTopic, wait: bool) -> Outbox:
        """Where the answer to a stored message goes: out now, or held until the next flush, or until slaves have it."""
        if topic.level >= words.LEVEL_PAIR and wait:
            return self._copied_outbox(asker, topic)
        if (topic.level == words.LEVEL_DISK and wait) or self.shared.blocked:
            if not self.waiting.size and not self.copied.size:
                self.shared.holding.append(asker)  # type: ignore[arg-type]
            return self.waiting
        return asker.out

    def _copied_outbox(self, asker: RemotingSession, topic: LogTopic) -> Outbox:
        if not self.waiting.size and not self.copied.size:
            self.shared.holding.append(asker)  # type: ignore[arg-type]
        if topic.level == words.LEVEL_PAIR_DISK or self.shared.blocked:
            self.copied_disk = True
        return self.copied

    def take_copied(self) -> tuple[bytes, bool]:
        """The answers that wait for slaves, and whether for their disks."""
        answers, on_disk = self.copied.take(), self.copied_disk
        self.copied_disk = False
        return answers, on_disk

    def _too_large(self, asker: RemotingSession, limit: str) -> None:
        self.shared.limits.count(limit)
        most = self.shared.properties_max
        said = "32KB" if most == layout.PROPERTIES_BYTES_MAX else f"{most}B"
        asker.refuse(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self.shared.body_max}B, msg properties length limit {said}.",
        )

    def forget(self) -> None:
        """The next send may be another user's: its topic is looked at anew."""
        self.topic = None

    def _find_topic(self, asker: RemotingSession) -> LogTopic:
        """The topic of a send, checked and made if need be; remembered for the next. Refused."""
        scan = asker.scan
        name = scan.text(fields.TOPIC)
        check_topic_name(name)
        asker.rights.demand(asker.acting, (publish(name.decode()),))
        template, queues = scan.text(fields.DEFAULT_TOPIC), scan.number(fields.DEFAULT_TOPIC_QUEUES, 0)
        topic = self.broker.sending.open_to_senders(name, template, queues)
        self.topic = topic
        self.topic_at = address(topic.name)
        self.topic_len = len(topic.name)
        return topic

    # -- properties ----------------------------------------------------------------------------------------------

    def _long_properties(self, asker: RemotingSession) -> bool:
        """Whether the properties text cannot be stored, however it is escaped."""
        scan = asker.scan
        n = scan.length[fields.PROPERTIES]
        if scan.kind[fields.PROPERTIES] == words.ESCAPED:
            return n >= self.shared.properties_max * words.UNICODE_ESCAPE_BYTES
        return scan.kind[fields.PROPERTIES] != words.ABSENT and n >= self.shared.properties_max

    def _properties(self, asker: RemotingSession, batch: bool) -> bool:
        """Write the properties text to be stored into `text`; find tag and keys for the draft.

        WAIT is taken out (its value is the answer) and CLUSTER put in; `special` is set when a property asks for more
        than storing. A batch's own properties are not stored.
        """
        scan = asker.scan
        shared = self.shared
        draft = self.draft
        text = self.text
        text.cut(0)
        draft.tags_code = 0
        draft.uniq_len = 0
        draft.keys_len = 0
        draft.seq_len = 0
        self.special = False
        self.reserved = False
        wait = True
        b = asker.base
        p = scan.at[fields.PROPERTIES]
        end = p
        if scan.kind[fields.PROPERTIES] == words.PLAIN:
            end = p + scan.length[fields.PROPERTIES]
        elif scan.kind[fields.PROPERTIES] == words.ESCAPED:
            shared.raw.cut(0)
            shared.raw.room(scan.length[fields.PROPERTIES])
            b = shared.raw.base
            end = scan.unescape(fields.PROPERTIES, b, 0)
            p = 0
        text.room(end - p + 1 + shared.cluster_len)
        while p < end:
            stop = find(b, p, end, words.PROPERTY_END)
            if stop < 0:
                stop = end
            eq = find(b, p, stop, words.NAME_END)
            if eq > p:
                if self._is(b, p, eq - p, fields.WAIT_AT, fields.WAIT_BYTES):
                    wait = not self._false(b, eq + 1, stop)
                    p = stop + 1
                    continue
                if text.size:
                    text.base[text.size] = words.PROPERTY_END
                    text.size += 1
                self._note(b, p, eq, stop)
                copy(text.base, text.size, b, p, stop - p)
                text.size += stop - p
            p = stop + 1
        if not batch:
            if text.size:
                text.base[text.size] = words.PROPERTY_END
                text.size += 1
            copy(text.base, text.size, shared.cluster, 0, shared.cluster_len)
            text.size += shared.cluster_len
        return wait

    def _is(self, b: Readable, p: int, n: int, at: int, size: int) -> bool:
        """Whether the name of n bytes at p is the searched one."""
        return n == size and same(b, p, self.shared.searched, at, size)

    def _false(self, b: Readable, p: int, stop: int) -> bool:
        """Whether a value of five letters begins with F: false."""
        return stop - p == words.FALSE_BYTES and (b[p] | words.LOWER_CASE) == 102

    def _note(self, b: Readable, p: int, eq: int, stop: int) -> None:
        """Remember what a property means; it is about to be copied to the end of `text`."""
        draft = self.draft
        n = eq - p
        c = b[p]
        value = self.text.size + n + 1
        if c == 84 and self._is(b, p, n, fields.TAGS_AT, fields.TAGS_BYTES):
            draft.tags_code = java_hash(b, eq + 1, stop - eq - 1, 0)
        elif c == 75 and self._is(b, p, n, fields.KEYS_AT, fields.KEYS_BYTES):
            draft.keys_pos = value
            draft.keys_len = stop - eq - 1
        elif c == 80 and self._is(b, p, n, fields.SEQUENCE_AT, fields.SEQUENCE_BYTES):
            draft.seq_pos = value
            draft.seq_len = stop - eq - 1
        elif c == 80 and self._begins(b, p, n, fields.RESERVED_AT, fields.RESERVED_BYTES):
            self.reserved = True
        elif c == 85 and self._is(b, p, n, fields.UNIQUE_AT, fields.UNIQUE_BYTES):
            draft.uniq_pos = value
            draft.uniq_len = stop - eq - 1
        elif (c == 68 and self._is(b, p, n, fields.DELAY_AT, fields.DELAY_BYTES)) or (
            c == 84
            and (
                self._is(b, p, n, fields.HALF_AT, fields.HALF_BYTES)
                or (n > fields.TIMER_BYTES and self._begins(b, p, n, fields.TIMER_AT, fields.TIMER_BYTES))
            )
        ):
            self.special = True

    def _begins(self, b: Readable, p: int, n: int, at: int, size: int) -> bool:
        return n >= size and same(b, p, self.shared.searched, at, size)

    def _reserved_within(self, b: Readable, p: int, end: int) -> bool:
        """Whether a message of the batch b[p:end] has a property that only the broker may set."""
        while end - p >= layout.BATCH_FIXED_BYTES:
            total = ube32(b, p)
            size = ube32(b, p + layout.BATCH_BODY_LENGTH)
            if total < layout.BATCH_FIXED_BYTES or total > end - p or size > total - layout.BATCH_FIXED_BYTES:
                return False  # refused when it is appended
            at = p + layout.BATCH_FIXED_BYTES + size
            p += total
            while p - at >= fields.RESERVED_BYTES:
                if self._begins(b, at, p - at, fields.RESERVED_AT, fields.RESERVED_BYTES):
                    return True
                at = find(b, at, p, words.PROPERTY_END) + 1
                if at == 0:
                    break
        return False

    # -- more than one plain message -----------------------------------------------------------------------------

    def _send_batch(
        self, asker: RemotingSession, topic: LogTopic, queue_id: int, wait: bool, body: int, body_len: int
    ) -> None:
        if topic.is_retry or self.special:
            asker.refuse(ResponseCode.MESSAGE_ILLEGAL, "batch messages can be neither delayed nor retried")
            return
        draft = self.draft
        count = self.store.gather_batch(draft, asker.base, body, body + body_len)
        if count < 0:
            code, remark = APPEND_REFUSALS[-count]
            asker.refuse(code, remark)
            return
        topic.count(count, draft.size)
        if asker.oneway:
            return
        out = self.outbox(asker, topic, wait)
        physical = draft.physical
        self.answers.begin_batch(out, asker.serialize, asker.opaque_now, physical, count)
        while count > 1:
            physical += self.store.log.size_of(physical)
            self.answers.next_id(out, physical)
            count -= 1
        self.answers.end_batch(out, queue_id, draft.queue_offset)

    def _send_special(self, asker: RemotingSession, topic: LogTopic, queue_id: int, body: bytes, wait: bool) -> None:
        limit = asker.scan.number(fields.RECONSUME_TIMES_MAX, -1)
        placed, half = storing.put_special(
            self.broker, self.draft, topic, queue_id, body, self.text_bytes(), self.born_host, limit
        )
        if asker.oneway:
            return
        out = self.outbox(asker, topic, wait)
        if half is None:
            self.answers.sent(
                out, asker.serialize, asker.opaque_now, placed.physical, placed.queue_id, placed.queue_offset
            )
        else:
            out.put(remoting.encode(asker.answer(ResponseCode.SUCCESS, None, half)))

    def _send_sequenced(
        self, asker: RemotingSession, topic: LogTopic, queue_id: int, body: bytes, wait: bool, batch: bool
    ) -> None:
        text = self.text_bytes()
        if batch:
            stored = storing.put_sequenced_batch(self.broker, self.draft, topic, queue_id, body, self.special)
        else:
            stored = storing.put_sequenced(self.broker, self.draft, topic, queue_id, body, text, self.born_host)
        if asker.oneway:
            return
        waits = topic.level >= words.LEVEL_PAIR or self.store.flushed_position < self.store.end_position
        out = self.outbox(asker, topic, wait and waits)
        ext = storing.stored_fields(self.broker, stored)
        out.put(remoting.encode(asker.answer(ResponseCode.SUCCESS, None, ext)))

    def text_bytes(self) -> bytes:
        """The properties text as an object."""
        return bytes(self.text.base[: self.text.size])
