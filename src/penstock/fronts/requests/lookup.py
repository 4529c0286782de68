"""Where messages are: by time, by key, by id."""

from __future__ import annotations

from penstock.broker.clients import Peer, Subscription
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

QUERY_MAX = 64
UNIQUE_QUERY_MAX = 32  # asked for by unique key
ENTRIES_MAX = 1_024


class Lookup(Calls):
    """Messages found otherwise than by pulling."""

    TABLE = {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "search_offset",
        RequestCode.GET_MAX_OFFSET: "max_offset",
        RequestCode.GET_MIN_OFFSET: "min_offset",
        RequestCode.GET_EARLIEST_MSG_STORETIME: "earliest_store_time",
        RequestCode.QUERY_MESSAGE: "query_message",
        RequestCode.VIEW_MESSAGE_BY_ID: "view_message",
        RequestCode.QUERY_CONSUME_QUEUE: "consume_queue",
    }

    def search_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        queue = self.queue(fields)
        lower = (fields.get("boundaryType") or "").upper() == "LOWER"
        offset = 0 if queue is None else self.broker.store.offset_by_time(queue, fields["timestamp"], lower)
        return request.reply(ext={"offset": str(offset)})

    def max_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        queue = self.queue(fields)
        if queue is None:
            offset = 0
        elif fields.get("durable"):
            offset = min(queue.durable_end(self.broker.store.flushed_position), queue.visible_end())
        else:
            offset = queue.visible_end()
        return request.reply(ext={"offset": str(offset)})

    def min_offset(self, session: Peer, request: RemotingCommand) -> Answer:
        queue = self.queue(read_fields(request.code, request.ext))
        return request.reply(ext={"offset": str(0 if queue is None else queue.min_offset)})

    def earliest_store_time(self, session: Peer, request: RemotingCommand) -> Answer:
        queue = self.queue(read_fields(request.code, request.ext))
        found = -1 if queue is None else self.broker.store.store_time(queue, queue.min_offset)
        return request.reply(ext={"timestamp": str(found)})

    def query_message(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        count = UNIQUE_QUERY_MAX if fields.get("_UNIQUE_KEY_QUERY") else max(0, min(QUERY_MAX, fields["maxNum"]))
        store = self.broker.store
        found = store.query(
            fields["topic"].encode(), fields["key"].encode(), count, fields["beginTimestamp"], fields["endTimestamp"]
        )
        found = [
            data for data in reversed(found) if not self.broker.hides(data)
        ]  # in the order of the log, as RocketMQ
        if not found:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark="can not find message, maybe time range not correct"
            )
        ext = {"indexLastUpdateTimestamp": str(self.broker.now_ms), "indexLastUpdatePhyoffset": str(store.end_position)}
        return request.reply(ext=ext, body=b"".join(found))

    def view_message(self, session: Peer, request: RemotingCommand) -> Answer:
        offset = read_fields(request.code, request.ext)["offset"]
        data = self.broker.store.record_at(offset) if offset >= 0 else None
        if data is None or self.broker.hides(data):
            raise Refused(f"can not find message by the offset, {offset}")
        return request.reply(body=data)

    def consume_queue(self, session: Peer, request: RemotingCommand) -> Answer:
        """Entries of a consume queue, as they stand there."""
        fields = read_fields(request.code, request.ext)
        queue = self.queue(fields)
        place = f"{fields['queueId']}@{fields['topic']}"
        if queue is None:
            raise Refused(f"{place} is not exist!")
        end, index = queue.visible_end(), fields["index"]
        body: JsonObject = {"maxQueueIndex": end, "minQueueIndex": queue.min_offset, "queueData": []}
        group = fields["consumerGroup"]
        if group is not None:
            online = self.broker.clients.consumers.get(group)
            said = None if online is None else online.subscriptions.get(fields["topic"])
            body["filterData"] = f"{group}@{fields['topic']} is not online!" if said is None else _filter(group, said)
            if said is not None:
                body["subscriptionData"] = said.as_json()
        if not queue.min_offset <= index < end:
            return request.reply(remark=f"Index {index} of {place} is not exist!", body=fastjson.dumps(body))
        for offset in range(index, min(end, index + max(0, min(ENTRIES_MAX, fields["count"])))):
            entry = queue.entry(offset)
            if entry is not None:  # one that was reserved and never used is none
                physical, size, code = entry
                one = {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": code}
                body["queueData"].append(one)
        return request.reply(body=fastjson.dumps(body))


def _filter(group: str, said: Subscription) -> str:
    """ConsumerFilterData as a text, of an expression; of tags there is none."""
    if said.kind == "TAG":
        return "null"
    about = {
        "bornTime": said.version,
        "clientVersion": said.version,
        "consumerGroup": group,
        "expression": said.expression,
        "expressionType": said.kind,
        "topic": said.topic,
    }
    return fastjson.dumps(about).decode()
