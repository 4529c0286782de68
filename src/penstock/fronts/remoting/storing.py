"""Sends that ask for more than storing: a delay, half of a transaction, a retry, a sequence. By way of objects.

Each takes the draft that the send has filled in, and gives what its answer names.
"""

from __future__ import annotations

from penstock import msgid
from penstock.broker.broker import Broker
from penstock.broker.retry import BY_ATTEMPTS, Death, is_dead
from penstock.broker.sending import APPEND_REFUSALS, Marks, Placed
from penstock.broker.topics import LogTopic
from penstock.errors import Refused
from penstock.log.draft import Draft
from penstock.log.sequences import Stored
from penstock.log.sequences import parse as parse_sequence
from penstock.wire import names, record
from penstock.wire.codes import SYS_ROLLBACK, ResponseCode
from penstock.words import LENGTH_BYTES

_WAITING = (names.SCHEDULE_TOPIC.decode(), names.TIMER_TOPIC.decode())
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def put_special(
    broker: Broker, draft: Draft, topic: LogTopic, queue_id: int, body: bytes, text: bytes, born_host: bytes, limit: int
) -> tuple[Placed, dict[str, str] | None]:
    """Store a message that is delayed, half of a transaction, or a retry; the fields of a half's answer.

    `limit` is how often the sender lets it be retried; less than nothing: as its group says.
    """
    properties = record.parse_properties(text.decode("utf-8", "replace"))
    if properties.get(names.HALF, "").lower() == "true" and not topic.is_retry:
        return _put_half(broker, draft, topic, queue_id, body, properties, born_host)
    if topic.is_retry:
        # A consumer that could not send back sends anew; the dead-letter rule is the same (rocketmq.md §13).
        group_name = topic.name[len(names.RETRY_PREFIX) :].decode()
        group = broker.groups.find(group_name, broker.now_ms)
        if is_dead(group, draft.reconsume_times, limit):
            topic = broker.retry.dead_letters_of(group_name.encode())
            queue_id = 0
            properties.pop(names.DELAY, None)
            death = Death(BY_ATTEMPTS, group_name, draft.reconsume_times, msgid.unpack_host(born_host))
            properties = death.mark(properties, broker.now_ms)
    else:
        broker.sending.demand_delay(properties)
    placed = broker.put(
        topic, queue_id, body, properties, born_host=born_host, born_ms=draft.born_ms,
        marks=Marks(draft.flag, draft.sys_flag, draft.reconsume_times),
    )  # fmt: skip
    return placed, None


def _put_half(
    broker: Broker, draft: Draft, topic: LogTopic, queue_id: int, body: bytes, properties: dict[str, str], born_host: bytes
) -> tuple[Placed, dict[str, str]]:  # fmt: skip
    properties[names.REAL_TOPIC], properties[names.REAL_QUEUE] = topic.name.decode(), str(queue_id)
    born_ms = draft.born_ms
    placed = broker.put(
        broker.topics.by_name[names.HALF_TOPIC], 0, body, properties, born_host=born_host, born_ms=born_ms,
        marks=Marks(draft.flag, draft.sys_flag & ~SYS_ROLLBACK, draft.reconsume_times), half=True,
    )  # fmt: skip
    broker.transactions.begun(placed.queue_offset, placed.physical, born_ms, properties)
    return placed, REGION | {
        "msgId": msgid.offset_msg_id(broker.store_host, placed.physical),
        "queueId": str(queue_id),
        "queueOffset": str(placed.queue_offset),
    }


def _found(broker: Broker, topic: LogTopic, producer: str, number: int) -> Stored | None:
    """Where this send is already. Refused where it went to another topic: somebody else says to be this producer, and what is not
    stored must not be answered as if it were. One that is delayed is known by where it waits, after a start.
    """
    stored: Stored | None = broker.sequences.find(producer, number)
    if stored is not None and stored.topic not in (topic.name.decode(), *_WAITING):
        raise Refused(
            f"send {number} of producer {producer} went to another topic", remoting=ResponseCode.MESSAGE_ILLEGAL
        )
    return stored


def put_sequenced(
    broker: Broker, draft: Draft, topic: LogTopic, queue_id: int, body: bytes, text: bytes, born_host: bytes
) -> Stored:
    """Store a message of an idempotent producer once, however often it comes. Refused."""
    sequences = broker.sequences
    producer, number, count = parse_sequence(draft.sequence())
    stored = _found(broker, topic, producer, number)
    if stored is not None and stored.there >= stored.messages:
        sequences.count_repeat()
        return stored
    properties = record.parse_properties(text.decode("utf-8", "replace"))
    if topic.is_retry or draft.sys_flag & SYS_ROLLBACK or names.HALF in properties or count != 1:
        raise Refused("an idempotent send is a plain message or a batch of them", remoting=ResponseCode.MESSAGE_ILLEGAL)
    broker.sending.demand_delay(properties)
    placed = broker.put(
        topic, queue_id, body, properties, born_host=born_host, born_ms=draft.born_ms,
        marks=Marks(draft.flag, draft.sys_flag, draft.reconsume_times),
    )  # fmt: skip
    parts = ((placed.physical, 1),)
    name = topic.name.decode()
    stored = Stored(broker.store.end_position, name, placed.queue_id, placed.queue_offset, 1, parts)
    sequences.took(producer, number, stored)
    return stored


def put_sequenced_batch(
    broker: Broker, draft: Draft, topic: LogTopic, queue_id: int, body: bytes, special: bool
) -> Stored:
    """As `put_sequenced`, for a batch; the sequence is stored with each message. Refused."""
    sequences = broker.sequences
    value = draft.sequence()
    producer, number, count = parse_sequence(value)
    stored = _found(broker, topic, producer, number)
    if stored is not None and stored.there >= stored.messages:
        sequences.count_repeat()
        return stored
    if topic.is_retry or special:
        raise Refused("batch messages can be neither delayed nor retried", remoting=ResponseCode.MESSAGE_ILLEGAL)
    stored = _append_sequenced(broker, draft, topic, queue_id, body, value, count, stored)
    sequences.took(producer, number, stored)
    return stored


def _append_sequenced(
    broker: Broker, draft: Draft, topic: LogTopic, queue_id: int, body: bytes, value: bytes, count: int, part: Stored | None
) -> Stored:  # fmt: skip
    """Append a batch with its sequence in each message; of one that a crash has cut, what is missing. Refused."""
    store = broker.store
    at = 0
    there = 0 if part is None else part.there
    for _ in range(there):
        at += int.from_bytes(body[at : at + LENGTH_BYTES], "big")
    draft.set_tail(f"{names.SEQUENCE}\x01".encode() + value)
    try:
        found = store.weigh_batch(draft, body)
        if found > 0 and found != count:
            raise Refused(f"PSEQ says {count} messages, the batch has {found}", remoting=ResponseCode.MESSAGE_ILLEGAL)
        done = store.append_batch_bytes(draft, body[at:]) if found > 0 else found
    finally:
        draft.set_tail(b"")
    if done < 0:
        code, remark = APPEND_REFUSALS[-done]
        raise Refused(remark, remoting=code)
    topic.count(done, draft.size)
    end = store.end_position
    if part is not None:
        return part._replace(end=end, parts=(*part.parts, (draft.physical, done)))
    return Stored(end, topic.name.decode(), queue_id, draft.queue_offset, count, ((draft.physical, done),))


def stored_fields(broker: Broker, stored: Stored) -> dict[str, str]:
    """What the answer to an idempotent send names: every place, in order."""
    places = [at for physical, n in stored.parts for at in broker.store.positions(physical, n)]
    ids = ",".join(msgid.offset_msg_id(broker.store_host, at) for at in places)
    return REGION | {"msgId": ids, "queueId": str(stored.queue_id), "queueOffset": str(stored.queue_offset)}
