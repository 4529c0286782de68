"""Who is online, and what is passed on to them."""

from __future__ import annotations

import contextlib
from functools import partial

from penstock import msgid
from penstock.broker.clients import Member, Peer
from penstock.broker.groups import check_commits
from penstock.broker.topics import check_group_name
from penstock.errors import Refused, WireError
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import RETRY_PREFIX, LanguageCode, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand

FORWARD_MS = 10_000
STATUS_MS = 5_000  # what a member may take to say how far it is
STATUS_VERSION = 28  # of clients that can say it


class Members(Calls):
    """Producers and consumers that are connected."""

    TABLE = {
        RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumer_connections",
        RequestCode.GET_PRODUCER_CONNECTION_LIST: "producer_connections",
        RequestCode.GET_ALL_PRODUCER_INFO: "all_producers",
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "reset_offset",
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "consumer_status",
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "subscription",
        RequestCode.SET_MESSAGE_REQUEST_MODE: "request_mode",
        RequestCode.CLONE_GROUP_OFFSET: "clone_offsets",
        RequestCode.GET_CONSUMER_RUNNING_INFO: "running_info",
        RequestCode.CONSUME_MESSAGE_DIRECTLY: "consume_directly",
    }

    def consumer_connections(self, session: Peer, request: RemotingCommand) -> Answer:
        online = self.online(read_fields(request.code, request.ext)["consumerGroup"])
        body = {
            "connectionSet": [_connection(member) for member in online.members.values()],
            "consumeFromWhere": online.consume_from,
            "consumeType": online.consume_type,
            "messageModel": online.message_model,
            "subscriptionTable": {name: s.as_json() for name, s in online.subscriptions.items()},
        }
        return request.reply(body=fastjson.dumps(body))

    def producer_connections(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["producerGroup"]
        members = self.broker.clients.producers.get(name)
        if not members:
            raise Refused(f"the producer group[{name}] not exist")
        return request.reply(body=fastjson.dumps({"connectionSet": [_connection(m) for m in members.values()]}))

    def all_producers(self, session: Peer, request: RemotingCommand) -> Answer:
        behind_ms = self.broker.now_ms - self.broker.mono_ms
        data = {
            group: [
                {**_connection(m), "remoteIP": m.peer.remote, "lastUpdateTimestamp": behind_ms + m.heard_ms}
                for m in members.values()
            ]
            for group, members in self.broker.clients.producers.items()
        }  # fmt: skip
        return request.reply(body=fastjson.dumps({"data": data}))

    def reset_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        broker, name, group = self.broker, fields["topic"], fields["group"]
        topic, table = self.topic(name), fastjson.Pairs()
        moved: dict[int, int] = {}
        online = broker.clients.consumers.get(group)
        channels = broker.queueing.log_channels(name.encode(), group.encode())
        if online is None and channels is None:
            if all(broker.offsets.get(group, name, queue_id) is None for queue_id in range(len(topic.queues))):
                raise Refused(f"THe consumer group <{group}> not exist")  # as RocketMQ spells it
            raise Refused(
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {name}",
                remoting=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        for queue_id, queue in enumerate(topic.queues):
            old = broker.offsets.get(group, name, queue_id)
            if old is None:
                old = queue.visible_end() if not fields["isForce"] else 0
            at = (
                queue.visible_end()
                if fields["timestamp"] == -1
                else broker.store.offset_by_time(queue, fields["timestamp"])
            )
            moved[queue_id] = at if fields["isForce"] or at < old else old
            table.append((self.queue_key(name, queue_id), moved[queue_id]))
        ext = {key: request.ext[key] for key in ("topic", "group", "timestamp", "isForce")}
        as_list = [{**key, "offset": at} for key, at in table]
        if channels is not None:
            channels.reset(group.encode(), moved)
        if online is not None and online.message_model == "CLUSTERING":  # of a queue that no member has just now, too
            for queue_id, at in moved.items():
                broker.offsets.commit(group, name, queue_id, at)
        for member in online.members.values() if online is not None else ():
            body = {"offsetTable": as_list if member.language == "CPP" else table}
            member.peer.push(
                RemotingCommand(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    ext,
                    fastjson.dumps(body),
                    flag=FLAG_ONEWAY,
                    language=LanguageCode.JAVA,
                )
            )
        return request.reply(body=fastjson.dumps({"offsetTable": table}))

    def consumer_status(self, session: Peer, request: RemotingCommand) -> Answer:
        """How far the members of a group are, as they say: they are asked, and the answers put together."""
        fields = read_fields(request.code, request.ext)
        group, only = fields["group"], fields["clientAddr"] or ""
        online = self.broker.clients.consumers.get(group)
        if online is None:
            raise Refused(f"No Any Consumer online in the consumer group: [{group}]")
        members = [member for member in online.members.values() if only in ("", member.client_id)]
        if any(member.version < STATUS_VERSION for member in members):
            raise Refused("the client does not support this feature.")
        found: dict[str, object] = {}
        waiting = {member.client_id for member in members}

        def said(client_id: str, answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
                with contextlib.suppress(WireError):
                    body = fastjson.loads(answer.body)
                    found[client_id] = body.get("messageQueueTable") if isinstance(body, dict) else {}
            waiting.discard(client_id)
            if not waiting:
                session.push(request.reply(body=fastjson.dumps({"consumerTable": found, "messageQueueTable": {}})))

        if not members:
            return request.reply(body=fastjson.dumps({"consumerTable": {}, "messageQueueTable": {}}))
        question = {"topic": fields["topic"], "group": group}
        for member in members:
            command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, language=LanguageCode.JAVA)
            member.peer.call(command, partial(said, member.client_id), self.broker.mono_ms + STATUS_MS)
        return None

    def subscription(self, session: Peer, request: RemotingCommand) -> Answer:
        """What a group reads of a topic."""
        fields = read_fields(request.code, request.ext)
        online = self.broker.clients.consumers.get(fields["group"])
        said = None if online is None else online.subscriptions.get(fields["topic"])
        body: JsonObject = {"group": fields["group"], "topic": fields["topic"]}
        if said is not None:
            body["subscriptionData"] = said.as_json()
        return request.reply(body=fastjson.dumps(body))

    def request_mode(self, session: Peer, request: RemotingCommand) -> Answer:
        """Whether a group pulls, which it does, or pops."""
        about = self.json(request)
        topic, group = str(about.get("topic") or ""), str(about.get("consumerGroup") or "")
        if topic.startswith(RETRY_PREFIX):
            raise Refused("retry topic is not allowed to set mode", remoting=ResponseCode.NO_PERMISSION)
        self.topic(topic)
        if group not in self.broker.groups.by_name:
            raise Refused("subscription group does not exist", remoting=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        if about.get("mode", "PULL") != "PULL":
            raise Refused("messages are not popped here: mode is PULL")
        return request.reply()

    def clone_offsets(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["destGroup"])
        check_commits(fields["destGroup"])
        self.broker.offsets.clone(fields["srcGroup"], fields["destGroup"], fields["topic"])
        return request.reply()

    def _forward(
        self, session: Peer, request: RemotingCommand, group: str, client_id: str, body: bytes = b""
    ) -> Answer:
        """Pass a question on to a consumer and its answer back."""
        online = self.broker.clients.consumers.get(group)
        member = online.members.get(client_id) if online else None
        if member is None:
            raise Refused(f"The Consumer <{group}> <{client_id}> not online")
        if member.version < 62:
            raise Refused(f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it")

        def pass_back(answer: RemotingCommand | None) -> None:
            if answer is None:
                session.push(
                    request.reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"consumer <{group}> <{client_id}> timeout")
                )
            else:
                session.push(request.reply(answer.code, answer.ext, answer.body, answer.remark))

        question = RemotingCommand(request.code, dict(request.ext), body, language=LanguageCode.JAVA)
        member.peer.call(question, pass_back, self.broker.mono_ms + FORWARD_MS)
        return None

    def running_info(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        return self._forward(session, request, fields["consumerGroup"], fields["clientId"])

    def consume_directly(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        try:
            _, physical = msgid.parse_offset_msg_id(fields["msgId"] or "")
        except ValueError:
            raise Refused(f"{fields['msgId']} is no message id") from None
        data = self.broker.store.record_at(physical)
        if data is None or self.broker.staging.veils(data):
            raise Refused(f"can not find message by the offset, {physical}")
        client = fields["clientId"] or next(iter(self.online(fields["consumerGroup"]).members))
        return self._forward(session, request, fields["consumerGroup"], client, data)


def _connection(member: Member) -> JsonObject:
    return {
        "clientAddr": member.peer.remote,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }
