"""Offsets, heartbeats, locks, and messages that come back: what consumers and producers say while they work."""

from __future__ import annotations

import itertools
import logging
from contextlib import ExitStack

from penstock.access.needs import publish
from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import ConsumerGroup, Member, Peer, Subscription
from penstock.broker.groups import check_commits
from penstock.broker.topics import check_group_name, check_topic_name
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.limits import Limits
from penstock.wire import fastjson, names, record
from penstock.wire.codes import LanguageCode, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand

log = logging.getLogger("penstock.remoting")

GROUPS_PER_HEARTBEAT_MAX = 64
SUBSCRIPTIONS_MAX = 1024
HEARTBEAT_BYTES_MAX = 512 << 10
CLIENT_ID_BYTES_MAX = 255


class Consuming(Calls):
    """Offsets, heartbeats and locks of one broker."""

    TABLE = {
        RequestCode.QUERY_CONSUMER_OFFSET: "query_consumer_offset",
        RequestCode.UPDATE_CONSUMER_OFFSET: "update_consumer_offset",
        RequestCode.HEART_BEAT: "heartbeat",
        RequestCode.UNREGISTER_CLIENT: "unregister",
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumer_ids",
        RequestCode.CONSUMER_SEND_MSG_BACK: "send_back",
        RequestCode.END_TRANSACTION: "end_transaction",
        RequestCode.LOCK_BATCH_MQ: "lock_queues",
        RequestCode.UNLOCK_BATCH_MQ: "unlock_queues",
        RequestCode.CHECK_CLIENT_CONFIG: "check_client_config",
    }

    def __init__(self, broker: Broker, rights: Rights) -> None:
        Calls.__init__(self, broker)
        self.rights = rights
        self._turns = itertools.count()

    def query_consumer_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        offset = self.broker.offsets.get(fields["consumerGroup"], fields["topic"], fields["queueId"])
        if offset is None:
            queue = self.queue(fields)
            # A young queue is read from its start; in an old one the client's own policy decides (rocketmq.md §9.6).
            if queue is None or not self.broker.is_new(queue):
                return request.reply(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return request.reply(ext={"offset": str(offset)})

    def update_consumer_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["consumerGroup"])
        if fields["queueId"] < 0 or fields["commitOffset"] < 0:
            raise Refused("queueId and commitOffset must not be negative")
        check_topic_name(fields["topic"].encode())
        group, topic, queue_id = fields["consumerGroup"], fields["topic"], fields["queueId"]
        check_commits(group)
        if queue_id >= self.topic(topic).queue_count:  # else a client could fill the table of offsets
            raise Refused(f"topic[{topic}] has no queue {queue_id}")
        self.broker.groups.find(group, self.broker.now_ms)
        self.broker.offsets.commit(group, topic, queue_id, fields["commitOffset"])
        channels = self.broker.queueing.log_channels(topic.encode(), group.encode())
        # An NSQ channel of that name goes where its group is told to; a slave's is where its master's is.
        if channels is not None and not self.broker.copies.following:
            channels.reset(group.encode(), {queue_id: fields["commitOffset"]})
        return request.reply()

    def heartbeat(self, session: Peer, request: RemotingCommand) -> Answer:
        if len(request.body) > HEARTBEAT_BYTES_MAX:  # what it says is kept
            raise Refused(f"a heartbeat has at most {HEARTBEAT_BYTES_MAX} bytes")
        data = self.json(request)
        client_id = _check_length("clientID", data.get("clientID"))
        producers, consumers = _tables(data.get("producerDataSet")), _tables(data.get("consumerDataSet"))
        if len(producers) + len(consumers) > GROUPS_PER_HEARTBEAT_MAX:
            raise Refused(f"a heartbeat names at most {GROUPS_PER_HEARTBEAT_MAX} groups")
        broker = self.broker
        taken: list[tuple[str, JsonObject, dict[str, Subscription]]] = []
        for about in consumers:
            name = str(about.get("groupName") or "")
            check_group_name(name)
            wanted = _tables(about.get("subscriptionDataSet"))
            if len(wanted) > SUBSCRIPTIONS_MAX:
                raise Refused(f"a group subscribes to at most {SUBSCRIPTIONS_MAX} topics")
            taken.append((name, about, dict(_subscription(s, self.broker.limits) for s in wanted)))
        self._demand_own(client_id, session)
        member = Member(
            client_id, session, _language(request.language), request.version, broker.mono_ms, session.acting
        )
        produced = [str(producer.get("groupName") or "") for producer in producers]
        for name in produced:
            check_group_name(name)
        broker.clients.demand_room(session, client_id, produced, [name for name, _, _ in taken])
        for name in produced:
            broker.clients.producer_heard(name, member)
        for name, about, subscriptions in taken:
            broker.groups.find(name, broker.now_ms)
            if about.get("messageModel") != "BROADCASTING":
                broker.retry_topic_of(name)
            broker.clients.consumer_heard(name, member, about, subscriptions)
        return request.reply()

    def _demand_own(self, client_id: str, session: Peer) -> None:
        """Replies and questions go to the client of an id: no other user may take it. Refused."""
        if not self.rights.on:
            return
        holder = self.broker.clients.producer(client_id)
        if holder is None or holder.user is None:
            return
        if session.acting is None or session.acting.name != holder.user.name:
            raise Refused(f"clientID {client_id} is that of another user", remoting=ResponseCode.NO_PERMISSION)

    def share(self, mono_ms: int) -> None:
        """Ask the members of groups that have changed to share the queues anew (code 40). What telling one of them raises comes
        behind that: the groups are not taken a second time.
        """
        with ExitStack() as steps:
            for name in self.broker.clients.sharing.take(mono_ms):
                online, known = self.broker.clients.consumers.get(name), self.broker.groups.by_name.get(name)
                if online is None or (known is not None and not known.notify_changes):
                    continue
                for member in online.members.values():
                    changed = RemotingCommand(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": name},
                        flag=FLAG_ONEWAY,
                        language=LanguageCode.JAVA,
                    )
                    steps.callback(member.peer.push, changed)

    def unregister(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        self.broker.clients.leave(
            session, fields["clientID"], fields["producerGroup"] or "", fields["consumerGroup"] or ""
        )
        return request.reply()

    def consumer_ids(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["consumerGroup"]
        online = self.broker.clients.consumers.get(name)
        if online is None:
            raise Refused(f"no consumer for this group, {name}")
        return request.reply(body=fastjson.dumps({"consumerIdList": sorted(online.members)}))

    def send_back(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["group"])
        retry_max = fields["maxReconsumeTimes"] if request.version >= 121 else None
        placed = self.broker.send_back(
            fields["offset"],
            fields["group"],
            fields["delayLevel"],
            retry_max,
            fields["originMsgId"] or "",
            fields["delayMillis"],
            _client(self.broker.clients.consumers.get(fields["group"]), session),
            fields["reason"] or "",
        )
        reply = request.reply()
        if placed is None:
            return reply
        session.answer_when_stored(self.broker.retry_topic_of(fields["group"]), reply)
        return None

    def end_transaction(self, session: Peer, request: RemotingCommand) -> Answer:
        topic = self.broker.transactions.end(read_fields(request.code, request.ext))
        if topic is None or request.oneway:
            return request.reply()
        session.answer_when_stored(topic, request.reply())
        return None

    def ask_producer(self, group: str, data: bytes, fields: dict[str, str]) -> bool:
        """Ask one producer of a group what became of a transaction (code 39); False when none is online.

        The question carries the message: it goes to nobody who may not publish to its topic.
        """
        members = list(self.broker.clients.producers.get(group, {}).values())
        if self.rights.on:  # those of now: a right may be gone since the last heartbeat
            half = record.decode_record(data, 0, decompress=False)
            topic = "" if half is None else half.properties.get(names.REAL_TOPIC, half.topic)
            members = [
                one for one in members if not self.rights.missing(self.rights.as_now(one.user), (publish(topic),))
            ]
        if not members:
            return False
        member = members[next(self._turns) % len(members)]
        member.peer.push(
            RemotingCommand(
                RequestCode.CHECK_TRANSACTION_STATE, fields, data, flag=FLAG_ONEWAY, language=LanguageCode.JAVA
            )
        )
        return True

    def _lock_request(self, request: RemotingCommand) -> tuple[str, str, list[tuple[str, str, int]]]:
        data = self.json(request)
        queues, told = [], data.get("mqSet") or []
        if not isinstance(told, list):
            raise Refused("mqSet holds no message queues")
        checked: set[tuple[str, str]] = set()  # a name has many queues, and a request may have tens of thousands
        for q in told:
            if not isinstance(q, dict) or not isinstance(q.get("queueId"), int):
                raise Refused("mqSet holds no message queues")
            names = topic, broker = str(q.get("topic")), str(q.get("brokerName"))
            if names not in checked:
                check_topic_name(topic.encode())
                _check_length("brokerName", broker)
                checked.add(names)
            queues.append((topic, broker, q["queueId"]))
        group, client_id = str(data.get("consumerGroup")), str(data.get("clientId"))
        check_group_name(group)
        _check_length("clientId", client_id)
        return group, client_id, queues

    def lock_queues(self, session: Peer, request: RemotingCommand) -> Answer:
        group, client, queues = self._lock_request(request)
        held = self.broker.locks.lock(group, client, self._that_are_here(queues), self.broker.mono_ms)
        body = {"lockOKMQSet": [{"brokerName": b, "queueId": q, "topic": t} for t, b, q in held]}
        return request.reply(body=fastjson.dumps(body))

    def _that_are_here(self, queues: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        """Each of these that there is, once: others would fill the table of locks, which is for all groups."""
        here, topics = self.broker.config.broker_name, self.broker.topics
        known = {name: topics.get(name.encode()) for name in {topic for topic, _, _ in queues}}
        counts = {name: 0 if topic is None else topic.queue_count for name, topic in known.items()}
        return [q for q in dict.fromkeys(queues) if q[1] == here and 0 <= q[2] < counts[q[0]]]

    def unlock_queues(self, session: Peer, request: RemotingCommand) -> Answer:
        self.broker.locks.unlock(*self._lock_request(request))
        return request.reply()

    def check_client_config(self, session: Peer, request: RemotingCommand) -> Answer:
        about = self.json(request).get("subscriptionData") or {}
        if isinstance(about, dict) and about.get("expressionType"):
            _, said = _subscription({"topic": "", **about}, self.broker.limits)
            said.compile(self.broker.limits)
        return request.reply()


def _tables(value: object) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _check_length(what: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name.encode()) <= CLIENT_ID_BYTES_MAX:
        raise Refused(f"{what} must have 1 to {CLIENT_ID_BYTES_MAX} bytes")
    return name


def _client(online: ConsumerGroup | None, session: Peer) -> str:
    """Which member of a group speaks, and from where."""
    ids = [] if online is None else [member.client_id for member in online.members.values() if member.peer is session]
    return " ".join([*ids, session.remote])


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return "OTHER"


def _subscription(data: JsonObject, limits: Limits) -> tuple[str, Subscription]:
    topic = data.get("topic")
    if not isinstance(topic, str):
        raise Refused("a subscription names no topic")
    kind = data.get("expressionType") or "TAG"
    expression = data.get("subString")
    expression = expression if isinstance(expression, str) else "*"
    version = data.get("subVersion")
    said = Subscription(topic, expression, str(kind), version if isinstance(version, int) else 0)
    try:
        said.compile(limits)
    except Refused as refused:
        if said.kind == "TAG":
            raise
        # As RocketMQ has it: a heartbeat goes on, and pulls are told (27) that there is no such filter.
        log.warning("filter not compiled topic=%s error=%s", topic, refused)
    return topic, said
