"""From a `Message` to the request that sends it, and from the answer to a receipt. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

from isal import isal_zlib

from penstock.client.results import SEND_STATUSES, SendReceipt
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, Refused, WireError
from penstock.message import Message
from penstock.wire import names
from penstock.wire.codes import DEFAULT_TOPIC, SYS_COMPRESSED, RequestCode, ResponseCode, read_int
from penstock.wire.record import (
    BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    format_properties,
    java_hash,
)
from penstock.wire.remoting import RemotingCommand
from penstock.words import INT32_MAX

COMPRESS_OVER_BYTES = 4096
QUEUES_PER_NEW_TOPIC = 4
_UTF8_BYTES_MAX = 4  # of a character

# Answers that say: nothing was stored, and another broker, or the same one later, may store it.
_RETRY_CODES = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)


def is_tried_again(refusal: BrokerRefused, *, any_queue: bool = False) -> bool:
    """Whether a send that was refused so may go through later, or at another broker; or in another queue, where `any_queue` of
    the topic will do: a new one may have fewer than was thought.
    """
    if refusal.code == ResponseCode.SYSTEM_ERROR and not refusal.retryable:  # what it says of a name will be so again
        return any_queue and refusal.remark.startswith("request queueId[")
    return refusal.code in _RETRY_CODES and not refusal.denied


def is_bare(message: Message) -> bool:
    """Whether its id is the only property that it has."""
    return not (
        message.keys
        or message.tags
        or message.properties
        or message.delay_level
        or message.deliver_at_ms is not None
        or message.sharding_key is not None
    )


def properties_text(message: Message, uniq_key: str) -> str:
    """The properties as they travel. ValueError when they hold a separator or are too long."""
    if is_bare(message):
        return f"{names.UNIQUE_KEY}\x01{uniq_key}"
    found: dict[str, str] = {}
    if message.keys:
        found[names.KEYS] = " ".join(message.keys)
    found[names.UNIQUE_KEY] = uniq_key
    if message.tags:
        found[names.TAGS] = message.tags
    if message.delay_level:
        found[names.DELAY] = str(message.delay_level)
    if message.deliver_at_ms is not None:
        found[names.TIMER_DELIVER_MS] = str(message.deliver_at_ms)
    if message.sharding_key is not None:
        found[names.SHARDING_KEY] = message.sharding_key
    if message.properties:
        found = {**message.properties, **found}
    text = format_properties(found)
    if len(text) * _UTF8_BYTES_MAX > PROPERTIES_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties longer than {PROPERTIES_BYTES_MAX} bytes")
    return text


def check(message: Message) -> None:
    """ValueError where a message cannot travel: for its flag or its properties."""
    _check_flag(message.flag)
    properties_text(message, "").encode()


def _check_flag(flag: int) -> None:
    if flag > INT32_MAX or flag < -INT32_MAX - 1:
        raise ValueError(f"a flag of 32 bits, not {flag}")


def send_request(
    group: str,
    message: Message,
    queue: MessageQueue,
    uniq_key: str,
    now_ms: int,
    *,
    compress_over: int = COMPRESS_OVER_BYTES,
) -> RemotingCommand:
    """The request for one message. ValueError when it is larger than a broker takes."""
    _check_flag(message.flag)
    body, sys_flag = message.body, 0
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"body of {len(body)} bytes, at most {BODY_BYTES_MAX}")
    if len(body) > compress_over:
        packed: bytes = isal_zlib.compress(body)
        if len(packed) < len(body):
            body, sys_flag = packed, SYS_COMPRESSED
    ext = send_header(group, queue, sys_flag, now_ms, message.flag, properties_text(message, uniq_key))
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, body)


def send_header(
    group: str, queue: MessageQueue, sys_flag: int, now_ms: int, flag: int, properties: str
) -> dict[str, str]:
    """The header of a send, in its short form."""
    return {
        "a": group,
        "b": queue.topic,
        "c": DEFAULT_TOPIC,
        "d": str(QUEUES_PER_NEW_TOPIC),
        "e": str(queue.queue_id),
        "f": str(sys_flag),
        "g": str(now_ms),
        "h": str(flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": queue.broker,
    }


def add_sequence(command: RemotingCommand, producer: str, number: int, count: int) -> None:
    """Let a send carry its number, so that a Penstock broker stores it once however often it comes."""
    sequence = f"{names.SEQUENCE}\x01{producer}.{number}.{count}"
    command.ext["i"] = f"{command.ext['i']}\x02{sequence}" if command.ext.get("i") else sequence


def read_receipt(answer: RemotingCommand, queue: MessageQueue, uniq_keys: Sequence[str]) -> SendReceipt:
    """The receipt in an answer. BrokerRefused when the message was not stored."""
    status = SEND_STATUSES.get(answer.code)  # type: ignore[call-overload]
    if status is None:
        raise BrokerRefused(answer.code, answer.remark or "")
    ext = answer.ext
    try:
        stored = MessageQueue(queue.topic, queue.broker, read_int("queueId", ext.get("queueId", "")))
        offset = read_int("queueOffset", ext.get("queueOffset", ""))
    except Refused as error:
        raise WireError(f"not an answer to a send: {error}") from None
    ids = tuple(ext.get("msgId", "").split(","))
    return SendReceipt(status, stored, offset, tuple(uniq_keys), ids, ext.get("transactionId"))


def check_batch(messages: Sequence[Message], placed: bool) -> None:
    """ValueError for no message, and for several sharding keys where nothing else says in which queue they are `placed`: a batch
    is stored in one, so all but one key would be out of the order that it is for.
    """
    if not messages:
        raise ValueError("a batch holds at least one message, all of one topic")
    key = messages[0].sharding_key
    if not placed and any(message.sharding_key != key for message in messages):
        raise ValueError("a batch is stored in one message queue: its messages have one sharding key, or none has one")


def by_sharding_key(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue of a sharding key: Java's hash selector, so that all clients choose the same."""
    value = java_hash(key)
    return queues[abs(value) % len(queues)]  # Java's remainder has the sign of the dividend, then takes abs
