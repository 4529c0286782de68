"""Everything a RocketMQ client, tool or dashboard asks of a broker besides sending and pulling.

One method per request code; `TABLE` names them. A method takes the session and the request and returns the answer,
or None when there is none (yet). What is refused is raised as `Refused` and answered by the session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.broker.clients import ConsumerGroup, Member, Subscription
from penstock.broker.topics import LogTopic, check_group_name, check_topic_name
from penstock.errors import Refused, WireError
from penstock.fronts.queuecalls import QUEUE_TABLE, QueueCalls
from penstock.fronts.stagecalls import STAGE_TABLE, StageCalls
from penstock.wire import fastjson, record
from penstock.wire.codes import LanguageCode, RequestCode, ResponseCode, read_fields
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand

GROUPS_PER_HEARTBEAT_MAX = 64
SUBSCRIPTIONS_MAX = 1024
CLIENT_ID_BYTES_MAX = 255
FORWARD_MS = 10_000
QUERY_MAX = 64

Answer = RemotingCommand | None


def parse_tags(expression: str) -> tuple[list[str], list[int]]:
    """The tags of a TAG expression and their hashes; both empty for all messages."""
    if not expression or expression.strip() == "*":
        return [], []
    tags = [tag for tag in (part.strip() for part in expression.split("||")) if tag]
    if not tags:
        raise Refused("parse the consumer's subscription failed", remoting=23)
    return tags, [record.java_hash(tag) for tag in tags]


class Requests(StageCalls, QueueCalls):
    """The cold side of the remoting front of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._turns = itertools.count()
        broker.transactions.ask = self.ask_producer
        self.table: dict[int, Callable[[Any, RemotingCommand], Answer]] = {
            int(code): getattr(self, name) for code, name in TABLE.items()
        }

    def handle(self, session: Any, request: RemotingCommand) -> Answer:
        """The answer to a request. Refused when it is not done; code 3 for what nobody knows."""
        method = self.table.get(request.code)
        if method is None:
            return request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        return method(session, request)

    # -- small steps ---------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> LogTopic:
        topic = self.broker.topics.get(name.encode())
        if topic is None:
            raise Refused(f"topic[{name}] not exist", remoting=17, http=404)
        return topic

    def _queue(self, fields: dict[str, Any]) -> Any:
        """The consume queue a request names, or None when there is none such."""
        topic = self.broker.topics.get(fields["topic"].encode())
        queue_id = fields["queueId"]
        if topic is None or not 0 <= queue_id < topic.queue_count:
            return None
        return topic.queues[queue_id]

    def _json(self, request: RemotingCommand) -> dict[str, Any]:
        try:
            value = fastjson.loads(request.body)
        except WireError as error:
            raise Refused(f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise Refused("the body is no JSON object")
        return value

    def _queue_key(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self.broker.config.broker_name, "queueId": queue_id, "topic": topic}

    def _online(self, name: str) -> ConsumerGroup:
        online = self.broker.clients.consumers.get(name)
        if online is None:
            raise Refused(f"the consumer group[{name}] not online", remoting=206)
        return online

    # -- consuming -----------------------------------------------------------------------------------------------

    def query_consumer_offset(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        offset = self.broker.offsets.get(fields["consumerGroup"], fields["topic"], fields["queueId"])
        if offset is None:
            queue = self._queue(fields)
            # A young queue is read from its start; in an old one the client's own policy decides (rocketmq.md 9.6).
            if queue is None or not self.broker.young(queue):
                return request.reply(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return request.reply(ext={"offset": str(offset)})

    def update_consumer_offset(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["consumerGroup"])
        if fields["queueId"] < 0 or fields["commitOffset"] < 0:
            raise Refused("queueId and commitOffset must not be negative")
        check_topic_name(fields["topic"].encode())
        group, topic, queue_id = fields["consumerGroup"], fields["topic"], fields["queueId"]
        self.broker.offsets.commit(group, topic, queue_id, fields["commitOffset"])
        channels = self.broker.queueing.log_channels(topic.encode(), group.encode())
        if channels is not None:  # an NSQ channel of that name goes where its group is told to
            channels.reset(group.encode(), {queue_id: fields["commitOffset"]})
        return request.reply()

    def search_offset(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        queue = self._queue(fields)
        lower = (fields.get("boundaryType") or "").upper() == "LOWER"
        offset = 0 if queue is None else self.broker.store.offset_by_time(queue, fields["timestamp"], lower)
        return request.reply(ext={"offset": str(offset)})

    def max_offset(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        queue = self._queue(fields)
        if queue is None:
            offset = 0
        elif fields.get("durable"):
            offset = min(queue.durable_end(self.broker.store.flushed_position), queue.visible_end())
        else:
            offset = queue.visible_end()
        return request.reply(ext={"offset": str(offset)})

    def min_offset(self, session: Any, request: RemotingCommand) -> Answer:
        queue = self._queue(read_fields(request.code, request.ext))
        return request.reply(ext={"offset": str(0 if queue is None else queue.min_offset)})

    def earliest_store_time(self, session: Any, request: RemotingCommand) -> Answer:
        queue = self._queue(read_fields(request.code, request.ext))
        found = -1 if queue is None else self.broker.store.store_time(queue, queue.min_offset)
        return request.reply(ext={"timestamp": str(found)})

    def heartbeat(self, session: Any, request: RemotingCommand) -> Answer:
        data = self._json(request)
        client_id = data.get("clientID")
        if not isinstance(client_id, str) or not 0 < len(client_id.encode()) <= CLIENT_ID_BYTES_MAX:
            raise Refused(f"clientID must have 1 to {CLIENT_ID_BYTES_MAX} bytes")
        producers = [p for p in data.get("producerDataSet") or [] if isinstance(p, dict)]
        consumers = [c for c in data.get("consumerDataSet") or [] if isinstance(c, dict)]
        if len(producers) + len(consumers) > GROUPS_PER_HEARTBEAT_MAX:
            raise Refused(f"a heartbeat names at most {GROUPS_PER_HEARTBEAT_MAX} groups")
        broker = self.broker
        taken: list[tuple[str, dict[str, Any], dict[str, Subscription]]] = []
        for about in consumers:
            name = str(about.get("groupName") or "")
            check_group_name(name)
            wanted = [s for s in about.get("subscriptionDataSet") or [] if isinstance(s, dict)]
            if len(wanted) > SUBSCRIPTIONS_MAX:
                raise Refused(f"a group subscribes to at most {SUBSCRIPTIONS_MAX} topics")
            taken.append((name, about, dict(_subscription(s) for s in wanted)))
        member = Member(client_id, session, _language(request.language), request.version, broker.mono_ms)
        for producer in producers:
            name = str(producer.get("groupName") or "")
            check_group_name(name)
            broker.clients.producer_heard(name, member)
        for name, about, subscriptions in taken:
            group = broker.groups.find(name, broker.now_ms)
            if about.get("messageModel") != "BROADCASTING":
                broker.retry_topic_of(name)
            changed = broker.clients.consumer_heard(name, member, about, subscriptions)
            if changed and group.notify_changes:
                self.tell(broker.clients.consumers[name])
        return request.reply()

    def tell(self, online: ConsumerGroup) -> None:
        """Ask the members of a group to share the queues anew (code 40)."""
        for member in online.members.values():
            member.peer.push(  # type: ignore[attr-defined]
                RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    {"consumerGroup": online.name},
                    flag=FLAG_ONEWAY,
                    language=LanguageCode.JAVA,
                )
            )

    def unregister(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        for online in self.broker.clients.leave(
            fields["clientID"], fields["producerGroup"] or "", fields["consumerGroup"] or ""
        ):
            self.tell(online)
        return request.reply()

    def consumer_ids(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["consumerGroup"]
        online = self.broker.clients.consumers.get(name)
        if online is None:
            raise Refused(f"no consumer for this group, {name}")
        return request.reply(body=fastjson.dumps({"consumerIdList": sorted(online.members)}))

    def send_back(self, session: Any, request: RemotingCommand) -> Answer:
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
        )
        reply = request.reply()
        if placed is None:
            return reply
        return session.answer_when_stored(self.broker.retry_topic_of(fields["group"]), reply)  # type: ignore[no-any-return]

    def end_transaction(self, session: Any, request: RemotingCommand) -> Answer:
        self.broker.transactions.end(read_fields(request.code, request.ext))
        return request.reply()

    def ask_producer(self, group: str, data: bytes, fields: dict[str, str]) -> bool:
        """Ask one producer of a group what became of a transaction (code 39); False when none is online."""
        members = list(self.broker.clients.producers.get(group, {}).values())
        if not members:
            return False
        member = members[next(self._turns) % len(members)]
        member.peer.push(  # type: ignore[attr-defined]
            RemotingCommand(
                RequestCode.CHECK_TRANSACTION_STATE, fields, data, flag=FLAG_ONEWAY, language=LanguageCode.JAVA
            )
        )
        return True

    def _lock_request(self, request: RemotingCommand) -> tuple[str, str, list[tuple[str, str, int]]]:
        data = self._json(request)
        queues = []
        for q in data.get("mqSet") or []:
            if not isinstance(q, dict) or not isinstance(q.get("queueId"), int):
                raise Refused("mqSet holds no message queues")
            queues.append((str(q.get("topic")), str(q.get("brokerName")), q["queueId"]))
        return str(data.get("consumerGroup")), str(data.get("clientId")), queues

    def lock_queues(self, session: Any, request: RemotingCommand) -> Answer:
        group, client, queues = self._lock_request(request)
        held = self.broker.locks.lock(group, client, queues, self.broker.mono_ms)
        body = {"lockOKMQSet": [{"brokerName": b, "queueId": q, "topic": t} for t, b, q in held]}
        return request.reply(body=fastjson.dumps(body))

    def unlock_queues(self, session: Any, request: RemotingCommand) -> Answer:
        self.broker.locks.unlock(*self._lock_request(request))
        return request.reply()

    def check_client_config(self, session: Any, request: RemotingCommand) -> Answer:
        about = self._json(request).get("subscriptionData") or {}
        if isinstance(about, dict) and about.get("expressionType", "TAG") not in ("TAG", None):
            raise Refused("The broker does not support consumer to filter message by SQL92")
        return request.reply()

    # -- looking up ----------------------------------------------------------------------------------------------

    def query_message(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        count = 32 if fields.get("_UNIQUE_KEY_QUERY") else max(0, min(QUERY_MAX, fields["maxNum"]))
        store = self.broker.store
        found = store.query(
            fields["topic"].encode(), fields["key"].encode(), count, fields["beginTimestamp"], fields["endTimestamp"]
        )
        found = [data for data in found if not self.broker.staging.veils(data)]
        if not found:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark="can not find message, maybe time range not correct"
            )
        ext = {"indexLastUpdateTimestamp": str(self.broker.now_ms), "indexLastUpdatePhyoffset": str(store.end_position)}
        return request.reply(ext=ext, body=b"".join(found))

    def view_message(self, session: Any, request: RemotingCommand) -> Answer:
        offset = read_fields(request.code, request.ext)["offset"]
        data = self.broker.store.record_at(offset) if offset >= 0 else None
        if data is None or self.broker.staging.veils(data):
            raise Refused(f"can not find message by the offset, {offset}")
        return request.reply(body=data)

    # -- topics and groups ---------------------------------------------------------------------------------------

    def update_topic(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        name = fields["topic"]
        check_topic_name(name.encode())
        if name in (self.broker.config.cluster_name, self.broker.config.broker_name):
            raise Refused(f"the topic[{name}] is conflict with system reserved words.")
        if not 0 <= fields["perm"] <= 15:
            raise Refused(f"perm {fields['perm']} is none")
        level = request.ext.get("level")  # ours: os or disk
        if level is not None and level not in ("os", "disk"):
            raise Refused(f"level {level} is neither os nor disk")
        self.broker.topics.create(
            name.encode(),
            fields["readQueueNums"],
            fields["writeQueueNums"],
            fields["perm"],
            now_ms=self.broker.now_ms,
            filter_type=fields["topicFilterType"],
            sys_flag=fields["topicSysFlag"] or 0,
            level=None if level is None else {"os": 0, "disk": 1}[level],
        )
        return request.reply()

    def delete_topic(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        check_topic_name(name.encode())
        if self.broker.is_system_topic(name):
            raise Refused(f"The topic[{name}] is conflict with system topic.")
        self.broker.topics.delete(name.encode(), self.broker.now_ms)
        return request.reply()

    def update_group(self, session: Any, request: RemotingCommand) -> Answer:
        self.broker.groups.update(self._json(request), self.broker.now_ms)
        return request.reply()

    def delete_group(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        self.broker.groups.delete(fields["groupName"], self.broker.now_ms)
        if fields["removeOffset"]:
            self.broker.offsets.drop_group(fields["groupName"])
        return request.reply()

    def all_topics(self, session: Any, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.topics.as_table()))

    def all_groups(self, session: Any, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.groups.as_table()))

    def all_offsets(self, session: Any, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.offsets.as_table()))

    def all_delay_offsets(self, session: Any, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.delay_offsets()))

    def topic_config(self, session: Any, request: RemotingCommand) -> Answer:
        return request.reply(
            body=fastjson.dumps(self._topic(read_fields(request.code, request.ext)["topic"]).as_config())
        )

    def group_config(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["group"]
        group = self.broker.groups.by_name.get(name)
        if group is None:
            raise Refused(f"No group in this broker: {name}", remoting=26)
        return request.reply(body=fastjson.dumps(group.as_config()))

    def system_topics(self, session: Any, request: RemotingCommand) -> Answer:
        names = [n for n in (t.decode() for t in self.broker.topics.by_name) if self.broker.is_system_topic(n)]
        return request.reply(body=fastjson.dumps({"topicList": sorted(names)}))

    def broker_config(self, session: Any, request: RemotingCommand) -> Answer:
        config = self.broker.config
        values = {
            "brokerName": config.broker_name, "brokerClusterName": config.cluster_name, "brokerId": config.broker_id,
            "listenPort": config.remoting_port, "brokerPermission": 6, "defaultTopicQueueNums": config.default_topic_queue_nums,
            "autoCreateTopicEnable": str(config.auto_create_topic_enable).lower(),
            "autoCreateSubscriptionGroup": str(config.auto_create_subscription_group).lower(),
            "maxMessageSize": config.max_message_size, "messageDelayLevel": config.message_delay_level,
            "flushDiskType": "SYNC_FLUSH" if config.level == "disk" else "ASYNC_FLUSH", "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            "storePathRootDir": str(self.broker.folder.absolute()),
            "fileReservedTime": config.file_reserved_time_hours, "deleteWhen": f"{config.delete_when:02d}",
        }  # fmt: skip
        body = "".join(f"{key}={value}\n" for key, value in values.items())
        version = fastjson.dumps(dict(self.broker.topics.version)).decode()
        return request.reply(ext={"version": version}, body=body.encode())

    def update_broker_config(self, session: Any, request: RemotingCommand) -> Answer:
        raise Refused("Can not update config from the network: change the configuration file and restart.", remoting=16)

    def clean_up(self, session: Any, request: RemotingCommand) -> Answer:
        self.broker.store.upkeep.retention.ask()
        return request.reply()

    # -- statistics ----------------------------------------------------------------------------------------------

    def topic_stats(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        store, table = self.broker.store, fastjson.Pairs()
        for queue_id, queue in enumerate(self._topic(name).queues):
            last = store.store_time(queue, queue.visible_end() - 1) if queue.visible_end() > queue.min_offset else 0
            figures = {"lastUpdateTimestamp": last, "maxOffset": queue.visible_end(), "minOffset": queue.min_offset}
            table.append((self._queue_key(name, queue_id), figures))
        return request.reply(body=fastjson.dumps({"offsetTable": table}))

    def consume_stats(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        return request.reply(body=fastjson.dumps(self._consume_stats(fields["consumerGroup"], fields["topic"] or "")))

    def _consume_stats(self, group: str, only: str) -> dict[str, Any]:
        broker, table, rate = self.broker, fastjson.Pairs(), 0.0
        online = broker.clients.consumers.get(group)
        for name in [only] if only else broker.offsets.topics_of(group):
            topic = broker.topics.get(name.encode())
            if topic is None or (online is not None and not only and name not in online.subscriptions):
                continue
            for queue_id, queue in enumerate(topic.queues[: topic.read_queues]):
                at = broker.offsets.get(group, name, queue_id) or 0
                last = broker.store.store_time(queue, at - 1) if at > queue.min_offset else 0
                figures = {"brokerOffset": queue.visible_end(), "consumerOffset": at, "lastTimestamp": max(0, last)}
                table.append((self._queue_key(name, queue_id), figures))
            rates = broker.stats.rates("GROUP_GET_NUMS", f"{name}@{group}")
            rate += rates[0].per_second if rates else 0.0
        return {"consumeTps": rate, "offsetTable": table}

    def broker_consume_stats(self, session: Any, request: RemotingCommand) -> Answer:
        found, lag = [], 0
        for group in sorted({group for _, group in self.broker.offsets.table}):
            stats = self._consume_stats(group, "")
            lag += sum(figures["brokerOffset"] - figures["consumerOffset"] for _, figures in stats["offsetTable"])
            found.append({group: [stats]})
        body = {"brokerAddr": self.broker_address, "consumeStatsList": found, "totalDiff": lag}
        return request.reply(body=fastjson.dumps(body))

    @property
    def broker_address(self) -> str:
        return record.unpack_host(self.broker.store_host)

    def stats_data(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        rates = self.broker.stats.rates(fields["statsName"], fields["statsKey"])
        if rates is None:
            raise Refused(f"The stats <{fields['statsName']}> <{fields['statsKey']}> not exist")
        body = {
            name: {"avgpt": 0.0, "sum": rate.sum, "tps": rate.per_second}
            for name, rate in zip(("statsMinute", "statsHour", "statsDay"), rates, strict=True)
        }
        return request.reply(body=fastjson.dumps(body))

    def consumer_connections(self, session: Any, request: RemotingCommand) -> Answer:
        online = self._online(read_fields(request.code, request.ext)["consumerGroup"])
        body = {
            "connectionSet": [_connection(member) for member in online.members.values()],
            "consumeFromWhere": online.consume_from,
            "consumeType": online.consume_type,
            "messageModel": online.message_model,
            "subscriptionTable": {name: s.as_json() for name, s in online.subscriptions.items()},
        }
        return request.reply(body=fastjson.dumps(body))

    def producer_connections(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["producerGroup"]
        members = self.broker.clients.producers.get(name)
        if not members:
            raise Refused(f"the producer group[{name}] not exist")
        return request.reply(body=fastjson.dumps({"connectionSet": [_connection(m) for m in members.values()]}))

    def all_producers(self, session: Any, request: RemotingCommand) -> Answer:
        behind_ms = self.broker.now_ms - self.broker.mono_ms
        data = {
            group: [
                {**_connection(m), "remoteIP": m.peer.remote, "lastUpdateTimestamp": behind_ms + m.heard_ms}
                for m in members.values()
            ]
            for group, members in self.broker.clients.producers.items()
        }  # fmt: skip
        return request.reply(body=fastjson.dumps({"data": data}))

    def groups_of_topic(self, session: Any, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        groups = set(self.broker.offsets.groups_of(name))
        groups |= {o.name for o in self.broker.clients.consumers.values() if name in o.subscriptions}
        return request.reply(body=fastjson.dumps({"groupList": sorted(groups)}))

    def topics_of_group(self, session: Any, request: RemotingCommand) -> Answer:
        group = read_fields(request.code, request.ext)["group"]
        return request.reply(body=fastjson.dumps({"topicList": sorted(self.broker.offsets.topics_of(group))}))

    def consume_time_span(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        store, name, spans = self.broker.store, fields["topic"], []
        for queue_id, queue in enumerate(self._topic(name).queues):
            if queue.visible_end() == queue.min_offset:
                continue
            at = self.broker.offsets.get(fields["group"], name, queue_id) or 0
            newest = store.store_time(queue, queue.visible_end() - 1)
            read = (
                store.store_time(queue, at - 1) if at > queue.min_offset else store.store_time(queue, queue.min_offset)
            )
            spans.append(
                {
                    "consumeTimeStamp": read,
                    "delayTime": 0 if at >= queue.visible_end() else max(0, self.broker.now_ms - read),
                    "maxTimeStamp": newest,
                    "messageQueue": self._queue_key(name, queue_id),
                    "minTimeStamp": store.store_time(queue, queue.min_offset),
                }
            )
        return request.reply(body=fastjson.dumps({"consumeTimeSpanSet": spans}))

    def runtime_info(self, session: Any, request: RemotingCommand) -> Answer:
        broker, store = self.broker, self.broker.store
        used, total = broker.files.usage(broker.folder)
        puts = broker.stats.value("BROKER_PUT_NUMS", broker.config.cluster_name)
        gets = broker.stats.value("BROKER_GET_NUMS", broker.config.cluster_name)
        put_rate = broker.stats.rates("BROKER_PUT_NUMS", broker.config.cluster_name)
        get_rate = broker.stats.rates("BROKER_GET_NUMS", broker.config.cluster_name)
        put_text = " ".join([f"{put_rate[0].per_second if put_rate else 0.0}"] * 3)
        get_text = " ".join([f"{get_rate[0].per_second if get_rate else 0.0}"] * 3)
        up_s = (broker.clock.now_ms() - broker.started_ms) // 1000
        ratio = str(round(used / max(1, total), 4))
        table: dict[str, Any] = {
            "brokerVersionDesc": "V4_9_8", "brokerVersion": 409, "penstockVersion": __version__,
            "bootTimestamp": broker.started_ms, "startAcceptSendRequestTimeStamp": broker.started_ms,
            "runtime": f"[ {up_s // 86400} days, {up_s // 3600 % 24} hours, {up_s // 60 % 60} minutes, {up_s % 60} seconds ]",
            "putTps": put_text, "getTransferedTps": get_text, "getFoundTps": get_text, "getMissTps": "0.0 0.0 0.0",
            "getTotalTps": get_text,
            "msgPutTotalYesterdayMorning": 0, "msgPutTotalTodayMorning": 0, "msgPutTotalTodayNow": puts,
            "msgGetTotalYesterdayMorning": 0, "msgGetTotalTodayMorning": 0, "msgGetTotalTodayNow": gets,
            "pageCacheLockTimeMills": 0, "earliestMessageTimeStamp": -1,
            "commitLogDiskRatio": ratio, "consumeQueueDiskRatio": ratio, "dispatchBehindBytes": 0,
            "remainTransientStoreBufferNumbs": 0, "remainHowManyDataToCommit": "0 B",
            "remainHowManyDataToFlush": f"{store.end_position - store.flushed_position} B",
            "commitLogDirCapacity": f"Total : {total}, Free : {total - used}.",
            "commitLogMinOffset": store.min_position, "commitLogMaxOffset": store.end_position,
            "putMessageEntireTimeMax": 0, "putMessageTimesTotal": puts, "putMessageFailedTimes": 0,
            "putMessageSizeTotal": store.end_position - store.min_position, "putMessageDistributeTime": "",
            "putMessageAverageSize": 0.0, "getMessageEntireTimeMax": 0, "dispatchMaxBuffer": 0,
            "putLatency99": 0, "putLatency999": 0,
        }  # fmt: skip
        for name in ("send", "pull", "query"):
            table |= {f"{name}ThreadPoolQueueSize": 0, f"{name}ThreadPoolQueueCapacity": 10_000}
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
        table |= {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 100_000}
        for level, offset in broker.delay_offsets()["offsetTable"].items():
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{offset}"
        return request.reply(body=fastjson.dumps({"table": {key: str(value) for key, value in table.items()}}))

    # -- moving consumers ----------------------------------------------------------------------------------------

    def reset_offset(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        broker, name, group = self.broker, fields["topic"], fields["group"]
        topic, table = self._topic(name), fastjson.Pairs()
        online = broker.clients.consumers.get(group)
        channels = broker.queueing.log_channels(name.encode(), group.encode())
        if online is None and channels is None:
            raise Refused(f"Consumer not online, so can not reset offset, Group: {group} Topic: {name}", remoting=206)
        for queue_id, queue in enumerate(topic.queues):
            old = broker.offsets.get(group, name, queue_id)
            if old is None:
                old = queue.visible_end() if not fields["isForce"] else 0
            at = (
                queue.visible_end()
                if fields["timestamp"] == -1
                else broker.store.offset_by_time(queue, fields["timestamp"])
            )
            table.append((self._queue_key(name, queue_id), at if fields["isForce"] or at < old else old))
        ext = {key: request.ext[key] for key in ("topic", "group", "timestamp", "isForce")}
        as_list = [{**key, "offset": at} for key, at in table]
        if channels is not None:
            channels.reset(group.encode(), {key["queueId"]: at for key, at in table})
        for member in online.members.values() if online is not None else ():
            body = {"offsetTable": as_list if member.language == "CPP" else table}
            member.peer.push(  # type: ignore[attr-defined]
                RemotingCommand(220, ext, fastjson.dumps(body), flag=FLAG_ONEWAY, language=LanguageCode.JAVA)
            )
        return request.reply(body=fastjson.dumps({"offsetTable": table}))

    def clone_offsets(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        check_group_name(fields["destGroup"])
        self.broker.offsets.clone(fields["srcGroup"], fields["destGroup"], fields["topic"])
        return request.reply()

    def _forward(self, session: Any, request: RemotingCommand, group: str, client_id: str, body: bytes = b"") -> Answer:
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
        member.peer.call(question, pass_back, self.broker.mono_ms + FORWARD_MS)  # type: ignore[attr-defined]
        return None

    def running_info(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        return self._forward(session, request, fields["consumerGroup"], fields["clientId"])

    def consume_directly(self, session: Any, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        try:
            _, physical = record.parse_offset_msg_id(fields["msgId"] or "")
        except ValueError:
            raise Refused(f"{fields['msgId']} is no message id") from None
        data = self.broker.store.record_at(physical)
        if data is None or self.broker.staging.veils(data):
            raise Refused(f"can not find message by the offset, {physical}")
        client = fields["clientId"] or next(iter(self._online(fields["consumerGroup"]).members))
        return self._forward(session, request, fields["consumerGroup"], client, data)


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return "OTHER"


def _connection(member: Member) -> dict[str, Any]:
    return {
        "clientAddr": member.peer.remote,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }


def _subscription(data: dict[str, Any]) -> tuple[str, Subscription]:
    topic = data.get("topic")
    if not isinstance(topic, str):
        raise Refused("a subscription names no topic")
    kind = data.get("expressionType") or "TAG"
    expression = data.get("subString")
    expression = expression if isinstance(expression, str) else "*"
    # Foreign clients leave tagsSet and codeSet out, or wrong: both follow from the expression.
    tags, codes = parse_tags(expression) if kind == "TAG" else ([], [])
    version = data.get("subVersion")
    return topic, Subscription(topic, expression, str(kind), version if isinstance(version, int) else 0, tags, codes)


TABLE = {
    RequestCode.QUERY_CONSUMER_OFFSET: "query_consumer_offset",
    RequestCode.UPDATE_CONSUMER_OFFSET: "update_consumer_offset",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "search_offset",
    RequestCode.GET_MAX_OFFSET: "max_offset",
    RequestCode.GET_MIN_OFFSET: "min_offset",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "earliest_store_time",
    RequestCode.HEART_BEAT: "heartbeat",
    RequestCode.UNREGISTER_CLIENT: "unregister",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumer_ids",
    RequestCode.CONSUMER_SEND_MSG_BACK: "send_back",
    RequestCode.END_TRANSACTION: "end_transaction",
    RequestCode.LOCK_BATCH_MQ: "lock_queues",
    RequestCode.UNLOCK_BATCH_MQ: "unlock_queues",
    RequestCode.CHECK_CLIENT_CONFIG: "check_client_config",
    RequestCode.QUERY_MESSAGE: "query_message",
    RequestCode.VIEW_MESSAGE_BY_ID: "view_message",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "update_topic",
    RequestCode.DELETE_TOPIC_IN_BROKER: "delete_topic",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "update_group",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "delete_group",
    RequestCode.GET_ALL_TOPIC_CONFIG: "all_topics",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "all_groups",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "all_offsets",
    RequestCode.GET_ALL_DELAY_OFFSET: "all_delay_offsets",
    RequestCode.GET_TOPIC_CONFIG: "topic_config",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "group_config",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "system_topics",
    RequestCode.GET_BROKER_CONFIG: "broker_config",
    RequestCode.UPDATE_BROKER_CONFIG: "update_broker_config",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "clean_up",
    RequestCode.CLEAN_UNUSED_TOPIC: "clean_up",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "clean_up",
    RequestCode.GET_TOPIC_STATS_INFO: "topic_stats",
    RequestCode.GET_CONSUME_STATS: "consume_stats",
    RequestCode.GET_BROKER_CONSUME_STATS: "broker_consume_stats",
    RequestCode.VIEW_BROKER_STATS_DATA: "stats_data",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumer_connections",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "producer_connections",
    RequestCode.GET_ALL_PRODUCER_INFO: "all_producers",
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "groups_of_topic",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "topics_of_group",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "consume_time_span",
    RequestCode.GET_BROKER_RUNTIME_INFO: "runtime_info",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "reset_offset",
    RequestCode.CLONE_GROUP_OFFSET: "clone_offsets",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "running_info",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consume_directly",
    **STAGE_TABLE,
    **QUEUE_TABLE,
}
