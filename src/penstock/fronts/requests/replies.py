"""Request-reply: the answer to a request goes to the producer that waits for it, by way of the broker (rocketmq.md §14.1).

A requester sends an ordinary message with CORRELATION_ID and REPLY_TO_CLIENT. Whoever consumes it sends the reply with code
324 or 325; the broker pushes it to the requester's connection (326), stores it, and answers when the requester has it.
"""

from __future__ import annotations

import random
from typing import Final

from penstock import msgid
from penstock.broker.clients import Peer
from penstock.broker.retry import without_delay
from penstock.broker.sending import Marks
from penstock.broker.topics import LogTopic, check_topic_name
from penstock.errors import Refused, StoreError
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import layout, names, record
from penstock.wire.codes import (
    SEND_V2_NAMES,
    SYS_ROLLBACK,
    Fields,
    LanguageCode,
    RequestCode,
    ResponseCode,
    read_fields,
)
from penstock.wire.remoting import RemotingCommand

PUSH_MS: Final = 10_000  # what a requester may take to answer
_PUSHED: Final = (  # fields that the requester is told as the responder wrote them
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes",
    "unitMode",
)  # fmt: skip

_NOT_STORED: Final = (names.SEQUENCE, names.HALF)  # a reply is neither


class Replies(Calls):
    """What responders send."""

    TABLE = {RequestCode.SEND_REPLY_MESSAGE: "reply", RequestCode.SEND_REPLY_MESSAGE_V2: "reply"}

    def reply(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = _long_names(request)
        topic, queue_id = self._place(session, fields)
        properties = self._properties(request, fields)
        requester = properties.get(names.REPLY_TO)
        if requester is None:
            self._store(session, request, fields, topic, queue_id, properties)
            raise Refused(f"reply message properties[{names.REPLY_TO}] is null")
        member = self.broker.clients.producer(requester)
        if member is None:
            self._store(session, request, fields, topic, queue_id, properties)
            raise Refused(f"push reply message fail, channel of <{requester}> not found.")

        def pushed(answer: RemotingCommand | None) -> None:
            placed = self._store(session, request, fields, topic, queue_id, properties)
            if request.oneway:
                return
            if answer is None or answer.code != ResponseCode.SUCCESS:
                session.push(request.reply(ResponseCode.SYSTEM_ERROR, remark=f"push reply message to {requester}fail."))
            else:
                session.answer_when_stored(topic, request.reply(ext=placed))

        properties[names.PUSH_REPLY_TIME] = str(self.broker.now_ms)
        member.peer.call(
            self._push(session, request, fields, queue_id, properties), pushed, self.broker.mono_ms + PUSH_MS
        )
        return None

    def _place(self, session: Peer, fields: Fields) -> tuple[LogTopic, int]:
        name = fields["topic"].encode()
        check_topic_name(name)
        topic = self.broker.sending.open_to_senders(
            name, fields["defaultTopic"].encode(), fields["defaultTopicQueueNums"]
        )
        queue_id = fields["queueId"]
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        if queue_id >= topic.queue_count:
            raise Refused(f"request queueId[{queue_id}] is illegal, {topic.described()} Producer: {session.remote}")
        return topic, queue_id

    def _properties(self, request: RemotingCommand, fields: Fields) -> dict[str, str]:
        text = fields["properties"] or ""
        too_large = len(request.body) > self.broker.config.max_message_size
        if too_large or len(text.encode()) >= layout.PROPERTIES_BYTES_MAX:
            raise Refused("the message is illegal, it is too large", remoting=ResponseCode.MESSAGE_ILLEGAL)
        properties = record.parse_properties(text)
        if any(name.startswith(names.RESERVED_PREFIX) for name in properties):
            raise Refused(
                f"the message is illegal, properties that begin with {names.RESERVED_PREFIX} are the broker's own",
                remoting=ResponseCode.MESSAGE_ILLEGAL,
            )
        try:
            record.format_properties(properties)
        except ValueError as error:
            raise Refused(f"the message is illegal, {error}", remoting=ResponseCode.MESSAGE_ILLEGAL) from None
        return properties

    def _push(
        self, session: Peer, request: RemotingCommand, fields: Fields, queue_id: int, properties: dict[str, str]
    ) -> RemotingCommand:
        ext = {name: _text(fields[name]) for name in _PUSHED if fields[name] is not None}
        ext |= {
            "queueId": str(queue_id),
            "properties": record.format_properties(properties),
            "bornHost": session.remote,
            "storeHost": msgid.unpack_host(self.broker.store_host),
            "storeTimestamp": str(self.broker.now_ms),
        }
        return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, request.body, language=LanguageCode.JAVA)

    def _store(
        self, session: Peer, request: RemotingCommand, fields: Fields, topic: LogTopic, queue_id: int,
        properties: dict[str, str],
    ) -> dict[str, str]:  # fmt: skip
        """Store the reply, too, and say where. One that cannot be stored has reached its requester all the same."""
        plain = {name: value for name, value in without_delay(properties).items() if name not in _NOT_STORED}
        marks = Marks(fields["flag"], fields["sysFlag"] & ~SYS_ROLLBACK, fields["reconsumeTimes"] or 0)
        try:
            placed = self.broker.put(
                topic, queue_id, request.body, plain, born_host=msgid.pack_host(session.remote),
                born_ms=fields["bornTimestamp"], marks=marks,
            )  # fmt: skip
        except (Refused, StoreError):
            return {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        return {
            "msgId": msgid.offset_msg_id(self.broker.store_host, placed.physical),
            "queueId": str(placed.queue_id),
            "queueOffset": str(placed.queue_offset),
        }


def _long_names(request: RemotingCommand) -> Fields:
    """The fields of a send, whichever of its two headers it has."""
    if request.code == RequestCode.SEND_REPLY_MESSAGE_V2:
        ext = {SEND_V2_NAMES.get(letter, letter): value for letter, value in request.ext.items()}
        return read_fields(RequestCode.SEND_REPLY_MESSAGE, ext)
    return read_fields(request.code, request.ext)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
