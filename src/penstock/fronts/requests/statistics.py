"""Figures of topics, groups and the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from penstock import msgid
from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.broker.counters import earliest_ms
from penstock.broker.groups import lag_ms
from penstock.errors import Refused
from penstock.fronts.remoting.session import failure
from penstock.fronts.requests.calls import Answer, Calls
from penstock.version import __version__
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

NO_BOUND: Final = (1 << 63) - 1
TOPICS_A_PIECE: Final = 50  # of all groups, before others have the loop


class Statistics(Calls):
    """Figures in the words of RocketMQ's tools."""

    TABLE = {
        RequestCode.GET_TOPIC_STATS_INFO: "topic_stats",
        RequestCode.GET_CONSUME_STATS: "consume_stats",
        RequestCode.GET_BROKER_CONSUME_STATS: "broker_consume_stats",
        RequestCode.VIEW_BROKER_STATS_DATA: "stats_data",
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "groups_of_topic",
        RequestCode.QUERY_TOPICS_BY_CONSUMER: "topics_of_group",
        RequestCode.QUERY_CONSUME_TIME_SPAN: "consume_time_span",
        RequestCode.QUERY_CORRECTION_OFFSET: "correction_offset",
        RequestCode.GET_BROKER_RUNTIME_INFO: "runtime_info",
    }

    def __init__(self, broker: Broker) -> None:
        Calls.__init__(self, broker)
        self._asked: deque[tuple[Peer, RemotingCommand, Iterator[bytes]]] = deque()  # the first is under way

    def topic_stats(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        store, table = self.broker.store, fastjson.Pairs()
        for queue_id, queue in enumerate(self.topic(name).queues):
            last = store.store_time(queue, queue.visible_end() - 1) if queue.visible_end() > queue.min_offset else 0
            figures = {"lastUpdateTimestamp": last, "maxOffset": queue.visible_end(), "minOffset": queue.min_offset}
            table.append((self.queue_key(name, queue_id), figures))
        return request.reply(body=fastjson.dumps({"offsetTable": table}))

    def consume_stats(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        group, only = fields["consumerGroup"], fields["topic"] or ""
        return request.reply(
            body=fastjson.dumps(self._consume_stats(group, only, self.broker.offsets.topics_of(group)))
        )

    def _consume_stats(self, group: str, only: str, read: Iterable[str]) -> JsonObject:
        """Of one topic, or of all that the group has read."""
        table, rate = fastjson.Pairs(), 0.0
        for name in [only] if only else read:
            rows, per_second = self._topic_consumed(group, name, asked=bool(only))
            table += rows
            rate += per_second
        return {"consumeTps": rate, "offsetTable": table}

    def _topic_consumed(self, group: str, name: str, *, asked: bool = False) -> tuple[fastjson.Pairs, float]:
        """How far a group is in each queue of a topic, and what it reads of it in a second. Nothing of a topic that it does not
        subscribe to any more, unless it is `asked` for.
        """
        broker, table = self.broker, fastjson.Pairs()
        online = broker.clients.consumers.get(group)
        topic = broker.topics.get(name.encode())
        if topic is None or (online is not None and not asked and name not in online.subscriptions):
            return table, 0.0
        settings = broker.groups.by_name.get(group)
        pulled = {} if settings is None else settings.pulled.get(topic.name, {})
        for queue_id, queue in enumerate(topic.queues[: topic.read_queues]):
            at = broker.offsets.get(group, name, queue_id) or 0
            last = broker.store.store_time(queue, at - 1) if at > queue.min_offset else 0
            figures = {
                "brokerOffset": queue.visible_end(),
                "consumerOffset": max(at, queue.min_offset),  # what is gone is owed to nobody
                "lastTimestamp": max(0, last),
                "lagMillis": lag_ms(broker.store, queue, at, broker.now_ms),  # ours
                "pullOffset": max(at, pulled.get(queue_id, at)),  # of RocketMQ 5
            }
            table.append((self.queue_key(name, queue_id), figures))
        rates = broker.stats.rates("GROUP_GET_NUMS", f"{name}@{group}")
        return table, rates[0].per_second if rates else 0.0

    def broker_consume_stats(self, session: Peer, request: RemotingCommand) -> Answer:
        """Of all groups, a piece a turn: of 40,000 pairs of group and topic others waited for a second. Each topic's rows are of
        one moment, and not of the same.
        """
        self._asked.append((session, request, self._all_consume_stats()))
        if len(self._asked) == 1:
            self.go_on()
        return None

    def go_on(self) -> bool:
        """Do a piece of what was asked for; whether there is more. The clock is asked to call again."""
        if not self._asked:
            return False
        asked = session, request, pieces = self._asked.popleft()
        answer = None
        try:
            if body := next((piece for piece in islice(pieces, TOPICS_A_PIECE) if piece), b""):
                answer = request.reply(body=body)
        except Exception as error:  # as of a request that is answered at once
            answer = failure(request, error, session.remote)
        if session.closed:
            pass
        elif answer is None:
            self._asked.appendleft(asked)
        elif not request.oneway:
            session.push(answer)
        if self._asked:
            self.broker.core.alarm.at_latest(self.broker.mono_ms)
        return bool(self._asked)

    def _all_consume_stats(self) -> Iterator[bytes]:
        """Steps of the way, and behind them the answer."""
        lag, read, found = 0, dict[str, list[str]](), list[bytes]()
        for topic, group in self.broker.offsets.table:
            read.setdefault(group, []).append(topic)
        for group in sorted(read):
            tables, rate = list[bytes](), 0.0
            for topic in read[group]:
                rows, per_second = self._topic_consumed(group, topic)
                lag += sum(figures["brokerOffset"] - figures["consumerOffset"] for _, figures in rows)  # type: ignore[index]
                rate += per_second
                if rows:
                    tables.append(fastjson.dumps(rows)[1:-1])
                yield b""
            stats = b'{"consumeTps":%s,"offsetTable":{%s}}' % (fastjson.dumps(rate), b",".join(tables))
            found.append(b"{%s:[%s]}" % (fastjson.dumps(group), stats))
        head = b'{"brokerAddr":%s,"consumeStatsList":[' % fastjson.dumps(self.broker_address)
        yield head + b",".join(found) + b'],"totalDiff":%d}' % lag

    @property
    def broker_address(self) -> str:
        return msgid.unpack_host(self.broker.store_host)

    def stats_data(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        rates = self.broker.stats.rates(fields["statsName"], fields["statsKey"])
        if rates is None:
            raise Refused(f"The stats <{fields['statsName']}> <{fields['statsKey']}> not exist")
        body = {
            name: {"avgpt": 0.0, "sum": rate.sum, "tps": rate.per_second}
            for name, rate in zip(("statsMinute", "statsHour", "statsDay"), rates, strict=True)
        }
        return request.reply(body=fastjson.dumps(body))

    def groups_of_topic(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        groups = set(self.broker.offsets.groups_of(name))
        groups |= {o.name for o in self.broker.clients.consumers.values() if name in o.subscriptions}
        return request.reply(body=fastjson.dumps({"groupList": sorted(groups)}))

    def topics_of_group(self, session: Peer, request: RemotingCommand) -> Answer:
        group = read_fields(request.code, request.ext)["group"]
        return request.reply(body=fastjson.dumps({"topicList": sorted(self.broker.offsets.topics_of(group))}))

    def consume_time_span(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        store, name, spans = self.broker.store, fields["topic"], []
        for queue_id, queue in enumerate(self.topic(name).queues):
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
                    "messageQueue": self.queue_key(name, queue_id),
                    "minTimeStamp": store.store_time(queue, queue.min_offset),
                }
            )
        return request.reply(body=fastjson.dumps({"consumeTimeSpanSet": spans}))

    def correction_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        """By queue, how far the slowest group of a topic is; where the group compared with is slower still, no bound."""
        fields = read_fields(request.code, request.ext)
        offsets, topic = self.broker.offsets, fields["topic"]
        left_out = set((fields["filterGroups"] or "").split(","))
        found: dict[int, int] = {}
        log_topic = self.broker.topics.get(topic.encode())
        for group in offsets.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in offsets.queues(group, topic).items():
                oldest = 0
                if log_topic is not None and 0 <= queue_id < len(log_topic.queues):
                    oldest = log_topic.queues[queue_id].min_offset
                if offset >= oldest:
                    found[queue_id] = min(offset, found.get(queue_id, offset))
        for queue_id, offset in offsets.queues(fields["compareGroup"], topic).items():
            if found.get(queue_id, NO_BOUND) > offset:
                found[queue_id] = NO_BOUND
        return request.reply(
            body=fastjson.dumps({"correctionOffsets": {str(q): at for q, at in sorted(found.items())}})
        )

    def runtime_info(self, session: Peer, request: RemotingCommand) -> Answer:
        broker, store = self.broker, self.broker.store
        used, total = broker.files.usage(broker.folder)
        capacity = f"Total : {_size(total)}, Free : {_size(total - used)}."
        up_s = (broker.now_ms - broker.started_ms) // 1000
        ratio = -(-used * 100 // max(1, total)) / 100
        table: JsonObject = {
            "brokerVersionDesc": "V4_9_8", "brokerVersion": 409, "penstockVersion": __version__,
            "bootTimestamp": broker.started_ms, "startAcceptSendRequestTimeStamp": 0,
            "runtime": f"[ {up_s // 86400} days, {up_s // 3600 % 24} hours, {up_s // 60 % 60} minutes, {up_s % 60} seconds ]",
            "pageCacheLockTimeMills": 0, "earliestMessageTimeStamp": earliest_ms(self.broker.store),
            "commitLogDiskRatio": ratio, f"commitLogDiskRatio_{broker.folder.absolute() / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio, "dispatchBehindBytes": 0,
            "remainTransientStoreBufferNumbs": 2**31 - 1,  # as RocketMQ without such a pool
            "remainHowManyDataToFlush": _size(store.end_position - store.flushed_position),
            "commitLogDirCapacity": capacity,
            "commitLogMinOffset": store.min_position, "commitLogMaxOffset": store.end_position,
            "putMessageEntireTimeMax": 0, "putMessageFailedTimes": 0, "putMessageDistributeTime": "null",
            "getMessageEntireTimeMax": 0, "dispatchMaxBuffer": 0, "putLatency99": "0.00", "putLatency999": "0.00",
        }  # fmt: skip
        table |= self._rates() | self._totals()
        for name, size in (("send", 10_000), ("pull", 100_000), ("query", 20_000)):
            table |= {f"{name}ThreadPoolQueueSize": 0, f"{name}ThreadPoolQueueCapacity": size}
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
        table |= {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 100_000}
        config = broker.config
        if config.http_port > 0:  # these are ours
            table["httpPort"] = config.http_port
        if config.https_port > 0 and config.tls_cert:
            table["httpsPort"] = config.https_port
        if rows := list(broker.copies.rows(broker.mono_ms)):
            table["replicaSet"] = fastjson.dumps(rows).decode()
        for level, offset in (broker.level_offsets() or {}).items():
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{offset}"
        return request.reply(body=fastjson.dumps({"table": {key: str(value) for key, value in table.items()}}))

    def _rates(self) -> JsonObject:
        """A second, in the last 10 s, minute and 10 minutes: messages in, messages out, pulls with and without any."""
        stats, cluster = self.broker.stats, self.broker.config.cluster_name
        found, missed = (stats.recent(f"BROKER_{name}_TIMES", cluster) for name in ("FOUND", "MISS"))
        every = [None if a is None or b is None else a + b for a, b in zip(found, missed, strict=True)]
        transferred = _rates_text(stats.recent("BROKER_GET_NUMS", cluster))
        return {
            "putTps": _rates_text(stats.recent("BROKER_PUT_NUMS", cluster)),
            "getTransferedTps": transferred,  # as RocketMQ 4 spells it
            "getTransferredTps": transferred,  # as RocketMQ 5 does, whose tools read no other
            "getFoundTps": _rates_text(found),
            "getMissTps": _rates_text(missed),
            "getTotalTps": _rates_text(every),
        }

    def _totals(self) -> JsonObject:
        """Messages in and out since the start, and when the last two days began."""
        broker, cluster = self.broker, self.broker.config.cluster_name
        topics = broker.topics.by_name.values()
        count, size = sum(topic.put_count for topic in topics), sum(topic.put_bytes for topic in topics)
        table: JsonObject = {
            "putMessageTimesTotal": count,
            "putMessageSizeTotal": size,
            "putMessageAverageSize": size / count if count else 0.0,
        }
        for name, key in (("Put", ("BROKER_PUT_NUMS", cluster)), ("Get", ("BROKER_GET_NUMS", cluster))):
            table |= {
                f"msg{name}TotalYesterdayMorning": broker.stats.mornings.yesterday.get(key, 0),
                f"msg{name}TotalTodayMorning": broker.stats.mornings.today.get(key, 0),
                f"msg{name}TotalTodayNow": broker.stats.value(*key),
            }
        return table


def _rates_text(rates: Iterable[float | None]) -> str:
    return " ".join("" if rate is None else str(rate) for rate in rates)


def _size(count: int) -> str:
    """As RocketMQ writes sizes."""
    if count < 1024:
        return f"{count} B"
    power = (count.bit_length() - 1) // 10
    return f"{count / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"
