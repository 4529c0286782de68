"""Requests of ours about queue topics and delayed messages: what `penstock topic | channel | delayed` ask a broker."""

from __future__ import annotations

from penstock.broker.browse import Browse, browse_wanted
from penstock.broker.clients import Peer
from penstock.broker.convert import Convert
from penstock.broker.delayed import Delayed, Key, Wanted
from penstock.broker.levels import LEVEL_NAMES, QUEUE_LEVELS
from penstock.broker.nsq.redrive import AT_ONCE
from penstock.broker.nsq.redrive import Wanted as WantedDead
from penstock.broker.nsq.sources import lag_ms
from penstock.broker.nsq.topics import Topic
from penstock.broker.purge import Purge
from penstock.broker.topics import DONE_TOPIC
from penstock.delivery.channel import Channel
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import Fields, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

PAGE_MAX = 1_000
ROWS_MAX = 200  # topics and channels of one answer: a few ms
EDGES_MAX = 1_000


class QueueCalls(Calls):
    """The part of the requests' table that is about queue topics and what waits for its time."""

    TABLE = {
        RequestCode.DELAYED_LIST: "delayed_list",
        RequestCode.DELAYED_COUNT: "delayed_count",
        RequestCode.DELAYED_CANCEL: "delayed_cancel",
        RequestCode.DELAYED_FIRE: "delayed_fire",
        RequestCode.QUEUE_TOPICS: "queue_topics",
        RequestCode.QUEUE_CHANGE: "queue_change",
        RequestCode.BROWSE: "browse",
        RequestCode.TOPIC_PURGE: "topic_purge",
        RequestCode.DEAD_REDRIVE: "dead_redrive",
        RequestCode.TOPIC_KEEP: "topic_keep",
        RequestCode.TOPIC_CONVERT: "topic_convert",
    }

    # -- delayed messages

    def delayed_list(self, session: Peer, request: RemotingCommand) -> Answer:
        """A page of the delayed messages, by due time."""
        fields = read_fields(request.code, request.ext)
        limit = PAGE_MAX if fields["limit"] is None else max(1, min(PAGE_MAX, fields["limit"]))
        rows, following = Delayed(self.broker).page(_wanted(fields), _key(fields["after"]), limit)
        return request.reply(body=fastjson.dumps({"rows": rows, "next": _text(following)}))

    def delayed_count(self, session: Peer, request: RemotingCommand) -> Answer:
        """How many are due between moments; without any, how many there are."""
        fields = read_fields(request.code, request.ext)
        words = fields["edges"].split(",") if fields["edges"] else []
        if len(words) > EDGES_MAX or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise Refused("edges are moments in ms, separated by commas")
        edges = sorted(map(int, words))
        counts, following = Delayed(self.broker).counts(_wanted(fields), edges, _key(fields["after"]))
        return request.reply(body=fastjson.dumps({"counts": counts, "next": _text(following)}))

    def delayed_cancel(self, session: Peer, request: RemotingCommand) -> Answer:
        """One of them is not to be delivered."""
        row = Delayed(self.broker).cancel(read_fields(request.code, request.ext)["id"])
        self._answer_when_stored(session, request, row)
        return None

    def delayed_fire(self, session: Peer, request: RemotingCommand) -> Answer:
        """One of them is to be delivered now, or at another time."""
        fields = read_fields(request.code, request.ext)
        id_, due_ms = fields["id"] if fields["move"] is None else fields["move"], fields["due"]
        if id_ is None or (due_ms is None and fields["move"] is not None):
            raise Refused(f"the custom field <{'id' if id_ is None else 'due'}> is null")
        if due_ms is not None:
            self._answer_when_stored(session, request, Delayed(self.broker).move(id_, due_ms))
            return None
        row = Delayed(self.broker).fire(id_)
        self.broker.queueing.when_copied(id_, lambda: self._answer_when_stored(session, request, row))
        return None

    def _answer_when_stored(self, session: Peer, request: RemotingCommand, row: JsonObject) -> None:
        """Answer what was done to a delayed message at its topic's level: a master that dies now must not undo it."""
        if not request.oneway:
            topic = self.broker.topics.get(str(row["topic"]).encode()) or self.broker.topics.by_name[DONE_TOPIC]
            session.answer_when_stored(topic, request.reply(body=fastjson.dumps(row)))

    # -- queue topics and channels

    def queue_topics(self, session: Peer, request: RemotingCommand) -> Answer:
        """A page of the topics that NSQ sees, with their channels, by name; or one of them."""
        fields = read_fields(request.code, request.ext)
        known = self.broker.queueing.topics
        if fields["topic"]:
            names = [name for name in [fields["topic"].encode()] if name in known]
        else:
            names = sorted(name for name in known if name > (fields["after"] or "").encode())
        rows: list[JsonObject] = []
        count = 0
        for name in names:
            if count >= ROWS_MAX:
                return request.reply(body=fastjson.dumps({"topics": rows, "next": rows[-1]["topic"]}))
            known[name].refresh()
            rows.append(_topic_row(known[name], self.broker.now_ms))
            count += 1 + len(known[name].channels)
        return request.reply(body=fastjson.dumps({"topics": rows, "next": None}))

    def queue_change(self, session: Peer, request: RemotingCommand) -> Answer:
        """Add, rm, pause, unpause or empty a queue topic; or a channel of a topic of either kind."""
        fields = read_fields(request.code, request.ext)
        name, channel, action = fields["topic"].encode(), (fields["channel"] or "").encode(), fields["action"]
        queueing = self.broker.queueing
        if action == "add" and not channel:
            level = fields["level"]
            if level is not None and level not in QUEUE_LEVELS:
                raise Refused(f"level {level} is none of {', '.join(QUEUE_LEVELS)}: queue topics have no copies")
            if queueing.topic(name, level, queue=True).kind != "queue":
                raise Refused(
                    f"{fields['topic']} is a log topic, or a rule says so",
                    remoting=ResponseCode.TOPIC_EXIST_ALREADY,
                    http=409,
                )
            queueing.write_table()
            return request.reply()
        topic = queueing.find(name)
        if topic is None or (topic.kind != "queue" and not channel):
            raise Refused(f"no queue topic {fields['topic']}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=404)
        if channel:
            _change_channel(topic, channel, action)
        elif action == "rm":
            queueing.delete(topic)
        elif action in ("pause", "unpause", "empty"):
            getattr(topic, action)()
        else:
            raise Refused(f"action {action} is none of add, rm, pause, unpause and empty")
        queueing.write_table()
        return request.reply()

    def topic_purge(self, session: Peer, request: RemotingCommand) -> Answer:
        """What lies below a place of a topic of either kind is gone for groups and channels; `dryRun`: say so only."""
        fields = read_fields(request.code, request.ext)
        purge = Purge(self.broker, fields["topic"], fields["to"], fields["queue"])
        if fields["dryRun"]:
            return request.reply(body=fastjson.dumps({"queues": [step.row() for step in purge.plan()]}))
        steps, undo = purge.run()
        self.broker.queueing.write_table()
        answer = request.reply(body=fastjson.dumps({"queues": [step.row() for step in steps]}))
        return self.when_saved(session, request, undo, answer)

    def topic_keep(self, session: Peer, request: RemotingCommand) -> Answer:
        """How long, and how many bytes, a log topic keeps, and whether it is traced; what is not named stays as it is."""
        fields = read_fields(request.code, request.ext)
        topic = self.topic(fields["topic"])
        if self.broker.is_system_topic(fields["topic"]):
            raise Refused(f"topic {fields['topic']} is the broker's own")
        keep_ms = topic.keep_ms if fields["retentionMs"] is None else fields["retentionMs"]
        keep_bytes = topic.keep_bytes if fields["retentionBytes"] is None else fields["retentionBytes"]
        if keep_ms < 0 or keep_bytes < 0:
            raise Refused("a retention is 0, as the broker's, or more")
        traced = bool(topic.traced) if fields["trace"] is None else fields["trace"]
        more = topic.settings().more._replace(keep_ms=keep_ms, keep_bytes=keep_bytes, traced=traced)
        undo = self.broker.topics.keep(topic, more, self.broker.now_ms)
        return self.when_saved(session, request, undo)

    def topic_convert(self, session: Peer, request: RemotingCommand) -> Answer:
        """A topic becomes of the other kind, if nothing would be lost; `dryRun`: what stands against it."""
        fields = read_fields(request.code, request.ext)
        convert = Convert(self.broker, fields["topic"], fields["kind"])
        answer = request.reply(body=fastjson.dumps({"against": convert.losses()}))
        return answer if fields["dryRun"] else self.when_saved(session, request, convert.run(), answer)

    def dead_redrive(self, session: Peer, request: RemotingCommand) -> Answer:
        """Some dead letters of a queue topic go to the topics they came from; `dryRun`: say which."""
        fields = read_fields(request.code, request.ext)
        limit = AT_ONCE if fields["limit"] is None else max(1, fields["limit"])
        wanted = WantedDead(
            fields["topic"].encode(), (fields["channel"] or "").encode(), (fields["to"] or "").encode(),
            (fields["text"] or "").encode(), fields["id"] or "", limit, fields["after"] or "", bool(fields["dryRun"]),
        )  # fmt: skip
        return request.reply(body=fastjson.dumps(self.broker.queueing.redrive.page(wanted)))

    # -- messages

    def browse(self, session: Peer, request: RemotingCommand) -> Answer:
        """A page of the messages of a topic or channel of either kind, for people who look."""
        wanted = browse_wanted(read_fields(request.code, request.ext))
        return request.reply(body=fastjson.dumps(Browse(self.broker).page(wanted)))


def _change_channel(topic: Topic, name: bytes, action: str) -> None:
    if action == "add":
        topic.channel(name)
        return
    channel = topic.channels.get(name)
    if channel is None:
        raise Refused(
            f"topic {topic.name.decode()} has no channel {name.decode()}",
            remoting=ResponseCode.TOPIC_NOT_EXIST,
            http=404,
        )
    if action == "rm":
        topic.delete_channel(name)
    elif action == "empty":
        topic.empty_channel(channel)
    elif action in ("pause", "unpause"):
        topic.pause_channel(channel, action == "pause")
    else:
        raise Refused(f"action {action} is none of add, rm, pause, unpause and empty")


def _topic_row(topic: Topic, now_ms: int) -> JsonObject:
    return {
        "topic": topic.name.decode(),
        "kind": topic.kind,
        "level": LEVEL_NAMES[topic.level],
        "paused": bool(topic.paused),
        "depth": topic.depth(),
        "onDisk": topic.backend_depth(),
        "messages": topic.message_count,
        "bytes": topic.message_bytes,
        "channels": [_channel_row(channel, now_ms) for _, channel in sorted(topic.channels.items())],
    }


def _channel_row(channel: Channel, now_ms: int) -> JsonObject:
    return {
        "channel": channel.name.decode(),
        "paused": bool(channel.paused),
        "depth": channel.depth(),
        "lagMillis": lag_ms(channel, now_ms),
        "onDisk": channel.backend_depth(),
        "inFlight": channel.in_flight_count,
        "deferred": channel.deferred_count,
        "messages": channel.message_count,
        "requeued": channel.requeue_count,
        "timedOut": channel.timeout_count,
        "rejected": channel.buried_count,
        "consumers": len(channel.consumers),
    }


def _wanted(fields: Fields) -> Wanted:
    return Wanted(fields["topic"] or "", fields["channel"] or "", fields.get("text") or "", fields.get("key") or "")


def _key(text: str | None) -> Key | None:
    """``due:id`` of an answer's `next`."""
    if not text:
        return None
    due, _, id_ = text.partition(":")
    if not (due.isascii() and due.isdigit() and id_.isascii() and id_.isdigit()) or len(text) > 40:
        raise Refused("after is what next was in the answer before")
    return int(due), int(id_)


def _text(key: Key | None) -> str | None:
    return None if key is None else f"{key[0]}:{key[1]}"
