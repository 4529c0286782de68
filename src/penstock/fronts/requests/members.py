"""Who is online, and what is passed on to them."""

from __future__ import annotations

from penstock import msgid
from penstock.broker.clients import Member, Peer
from penstock.broker.topics import check_group_name
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import LanguageCode, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand

FORWARD_MS = 10_000


class Members(Calls):
    """Producers and consumers that are connected."""

    TABLE = {
        RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumer_connections",
        RequestCode.GET_PRODUCER_CONNECTION_LIST: "producer_connections",
        RequestCode.GET_ALL_PRODUCER_INFO: "all_producers",
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "reset_offset",
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

    def clone_offsets(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["destGroup"])
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
