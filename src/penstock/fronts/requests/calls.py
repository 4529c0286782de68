"""What every table of requests has in common: the broker, and the small steps that answer a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from penstock.broker.broker import Broker
from penstock.broker.clients import ConsumerGroup, Peer
from penstock.broker.topics import LogTopic
from penstock.errors import Refused, StoreError, WireError
from penstock.log.consumequeue import ConsumeQueue
from penstock.wire import fastjson
from penstock.wire.codes import Fields, RequestCode, ResponseCode
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

Answer = RemotingCommand | None


class Calls:
    """One table of requests: `TABLE` names the method of each code.

    A method takes the peer and the request and returns the answer, or None when there is none (yet). What is refused is
    raised as `Refused` and answered by the session.
    """

    TABLE: ClassVar[Mapping[RequestCode, str]] = {}

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def topic(self, name: str) -> LogTopic:
        topic = self.broker.topics.get(name.encode())
        if topic is None:
            raise Refused(f"topic[{name}] not exist", remoting=ResponseCode.TOPIC_NOT_EXIST, http=404)
        return topic

    def queue(self, fields: Fields) -> ConsumeQueue | None:
        """The consume queue a request names, or None when there is none such."""
        topic = self.broker.topics.get(fields["topic"].encode())
        queue_id = fields["queueId"]
        if topic is None or not 0 <= queue_id < len(topic.queues):
            return None
        found: ConsumeQueue = topic.queues[queue_id]
        return found

    def json(self, request: RemotingCommand) -> JsonObject:
        try:
            value = fastjson.loads(request.body)
        except WireError as error:
            raise Refused(f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise Refused("the body is no JSON object")
        return value

    def queue_key(self, topic: str, queue_id: int) -> JsonObject:
        return {"brokerName": self.broker.config.broker_name, "queueId": queue_id, "topic": topic}

    def online(self, name: str) -> ConsumerGroup:
        online = self.broker.clients.consumers.get(name)
        if online is None:
            raise Refused(f"the consumer group[{name}] not online", remoting=ResponseCode.CONSUMER_NOT_ONLINE)
        return online

    def when_saved(
        self,
        session: Peer,
        request: RemotingCommand,
        undo: Callable[[], None] = lambda: None,
        answer: RemotingCommand | None = None,
    ) -> Answer:
        """Answer a change when the table that has it is on disk, or refuse it: at the end of the turn."""
        done = request.reply() if answer is None else answer

        def saved(error: StoreError | None) -> None:
            if error is not None:
                undo()
            if not request.oneway:
                remark = f"service not available now: {error}"
                session.push(done if error is None else request.reply(14, remark=remark))

        self.broker.when_saved(saved)
        return None
