"""Request-reply from both ends (rocketmq.md §14.1): who asks waits for the broker's push; who answers sends the reply."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os

import msgspec

from penstock.client.aio.cluster import Cluster
from penstock.errors import BrokerRefused, ClientError, Closed, TimedOut, WireError
from penstock.message import Message, ReceivedMessage
from penstock.wire import names, record
from penstock.wire.codes import DEFAULT_TOPIC, RequestCode, ResponseCode, read_fields
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

REPLY_TIMEOUT_S = 3.0  # what a replier waits for the answer to its reply


class Requester:
    """The requests of a producer that wait for their replies."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._numbers = itertools.count()
        self._prefix = os.urandom(8).hex()

    async def prepare(self, message: Message, timeout_s: float) -> tuple[Message, asyncio.Future[ReceivedMessage]]:
        """The message as it is to be sent, and what its reply will be found in. NoRoute when nobody serves its topic.

        Every broker of the topic must know this producer before: any of them may have to push the reply.
        """
        if not all(map(self._cluster.is_connected, self._cluster.broker_addresses())):
            await self._cluster.send_heartbeats()
        number = f"{self._prefix}{next(self._numbers):x}"
        about = {
            names.CORRELATION_ID: number,
            names.REPLY_TO: self._cluster.client_id,
            names.TTL: str(round(timeout_s * 1000)),
        }
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        return msgspec.structs.replace(message, properties={**message.properties, **about}), future

    async def wait(self, future: asyncio.Future[ReceivedMessage], deadline: float, topic: str) -> ReceivedMessage:
        """The reply. TimedOut at the deadline, by the loop's clock."""
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise TimedOut(f"no reply to the request to {topic} in time") from None

    async def pushed(self, command: RemotingCommand) -> RemotingCommand:
        """A broker brings a reply. One that nobody waits for any more is taken, too."""
        fields = read_fields(command.code, command.ext)
        properties = record.parse_properties(fields["properties"] or "")
        future = self._waiting.get(properties.get(names.CORRELATION_ID, ""))
        if future is None or future.done():
            log.info("a reply came too late, or twice, correlation id %s", properties.get(names.CORRELATION_ID))
            return command.reply()
        body, undecodable = command.body, None
        try:
            body = record.open_body(fields["sysFlag"], body)
        except ValueError as error:
            undecodable = str(error)
        future.set_result(
            ReceivedMessage(
                fields["topic"], body, fields["queueId"], -1, -1, properties, fields["flag"], fields["sysFlag"],
                fields["bornTimestamp"], fields["bornHost"], fields["storeTimestamp"], fields["storeHost"],
                undecodable=undecodable,
            )
        )  # fmt: skip
        return command.reply()

    def close(self) -> None:
        """Who still waits is told that no reply comes."""
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(Closed("the client was closed before the reply came"))


class Replier:
    """The replies of a consumer's listeners: what a listener returns as bytes goes to whoever asked."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def reply(self, message: ReceivedMessage, body: bytes) -> None:
        """Send a reply to a request; a message that is none is left alone. Nothing is raised: the request is done."""
        requester = message.properties.get(names.REPLY_TO)
        number = message.properties.get(names.CORRELATION_ID)
        cluster = message.properties.get(names.CLUSTER)
        if requester is None or number is None or cluster is None:
            return
        try:
            answer = await self._cluster.call(
                await self._address(message), self._request(cluster, requester, number, message, body), REPLY_TIMEOUT_S
            )
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerRefused(answer.code, answer.remark or "")
        except (ClientError, WireError) as error:
            log.warning("group %s: no reply to %s, correlation id %s: %s", self._group, requester, number, error)

    async def _address(self, message: ReceivedMessage) -> str:
        """The master of the broker that the request came from: its requester's heartbeats reach it."""
        route = await self._cluster.route(message.topic)
        address = route.address(message.broker)
        if address is None:
            raise ClientError(f"broker {message.broker!r} has no master now")
        return address

    def _request(
        self, cluster: str, requester: str, number: str, message: ReceivedMessage, body: bytes
    ) -> RemotingCommand:
        properties = {
            names.CORRELATION_ID: number,
            names.REPLY_TO: requester,
            names.TTL: message.properties.get(names.TTL, "0"),
            names.MSG_TYPE: "reply",
        }
        ext = {
            "producerGroup": self._group, "topic": cluster + names.REPLY_SUFFIX, "defaultTopic": DEFAULT_TOPIC,
            "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "flag": "0", "reconsumeTimes": "0",
            "bornTimestamp": str(self._cluster.clock.now_ms()), "properties": record.format_properties(properties),
            "unitMode": "false", "batch": "false",
        }  # fmt: skip
        return RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, ext, body)
