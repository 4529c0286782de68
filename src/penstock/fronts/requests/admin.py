"""Topics, groups and settings: made, changed, deleted, listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock import msgid
from penstock.broker import shapes
from penstock.broker.clients import Peer
from penstock.broker.groups import check_commits, group_of
from penstock.broker.levels import LEVELS, LOG_LEVELS
from penstock.broker.topics import (
    HALF_TOPIC,
    PERM_BOTH,
    PERM_MAX,
    PLAIN,
    SYS_FLAG_MAX,
    LogTopic,
    TopicSettings,
    check_group_name,
    check_topic_name,
)
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import Fields, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

_QUEUES: Final = 16  # of a TopicConfig that does not say


class Administration(Calls):
    """Topics, groups and settings of one broker."""

    TABLE = {
        RequestCode.UPDATE_AND_CREATE_TOPIC: "update_topic",
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "update_topics",
        RequestCode.DELETE_TOPIC_IN_BROKER: "delete_topic",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "update_group",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "update_groups",
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "group_forbidden",
        RequestCode.RESUME_CHECK_HALF_MESSAGE: "resume_half",
        RequestCode.DELETE_SUBSCRIPTIONGROUP: "delete_group",
        RequestCode.GET_ALL_TOPIC_CONFIG: "all_topics",
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "all_groups",
        RequestCode.GET_ALL_CONSUMER_OFFSET: "all_offsets",
        RequestCode.GET_ALL_DELAY_OFFSET: "all_delay_offsets",
        RequestCode.GET_TOPIC_CONFIG: "topic_config",
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "group_config",
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "system_topics",
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "clean_up",
        RequestCode.CLEAN_UNUSED_TOPIC: "clean_up",
        RequestCode.DELETE_EXPIRED_COMMITLOG: "clean_up",
    }

    def update_topic(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        fields["topicName"] = fields["topic"]
        fields |= {name: request.ext.get(name) for name in ("level", "force")}
        return self._update(session, request, [fields])

    def update_topics(self, session: Peer, request: RemotingCommand) -> Answer:
        """Several topics, all or none."""
        configs = self.json(request).get("topicConfigList")
        if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
            raise Refused("topicConfigList is no list of topics")
        return self._update(session, request, [_topic_fields(config) for config in configs])

    def _update(self, session: Peer, request: RemotingCommand, wanted: list[Fields]) -> Answer:
        """Make topics, or change those there are, and answer when that is on disk."""
        for fields in wanted:
            self._check_topic(fields)
        topics = self.broker.topics
        made: list[tuple[LogTopic, TopicSettings | None]] = []

        def undo() -> None:
            for topic, before in reversed(made):
                topics.undo(topic, before)

        try:
            for fields in wanted:
                name, level = fields["topicName"].encode(), fields["level"]
                known = topics.get(name)
                before = None if known is None else known.settings()
                topic = topics.create(
                    name,
                    fields["readQueueNums"],
                    fields["writeQueueNums"],
                    fields["perm"],
                    now_ms=self.broker.now_ms,
                    more=(PLAIN if before is None else before.more)._replace(
                        filter_type=fields["topicFilterType"], sys_flag=fields["topicSysFlag"] or 0
                    ),
                    level=None if level is None else LEVELS[level],
                )
                made.append((topic, before))
        except Refused:
            undo()
            raise
        return self.when_saved(session, request, undo)

    def _check_topic(self, fields: Fields) -> None:
        """Refused when no topic can be made, or changed, as the fields say."""
        name, level = fields["topicName"], fields["level"]
        check_topic_name(name.encode())
        if name in (self.broker.config.cluster_name, self.broker.config.broker_name):
            raise Refused(f"the topic[{name}] is conflict with system reserved words.")
        if self.broker.is_system_topic(name):  # without its queues no broker starts
            raise Refused(f"The topic[{name}] is conflict with system topic.")
        if not 0 <= fields["perm"] <= PERM_MAX:
            raise Refused(f"perm {fields['perm']} is none")
        if not 0 <= (fields["topicSysFlag"] or 0) <= SYS_FLAG_MAX:
            raise Refused(f"topicSysFlag {fields['topicSysFlag']} is none")
        if level is not None and level not in LOG_LEVELS:  # ours
            raise Refused(f"level {level} is none of {', '.join(LOG_LEVELS)}")
        known = self.broker.topics.get(name.encode())
        if known is not None and fields["force"] != "true":
            hidden = known.queues[max(0, fields["readQueueNums"]) : known.read_queues]
            stored = [queue.queue_id for queue in hidden if queue.min_offset < queue.max_offset]
            if stored:
                raise Refused(
                    f"queue {stored[-1]} of topic[{name}] holds messages: with {fields['readQueueNums']} queues to be read "
                    "no consumer would find them. Lower the write queues alone until they are consumed, or force it."
                )

    def delete_topic(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["topic"]
        check_topic_name(name.encode())
        if self.broker.is_system_topic(name):
            raise Refused(f"The topic[{name}] is conflict with system topic.")
        self.broker.topics.delete(name.encode(), self.broker.now_ms)
        self.broker.queueing.write_table()  # before the table of topics: a start would make it anew for its channels
        return self.when_saved(session, request)

    def update_group(self, session: Peer, request: RemotingCommand) -> Answer:
        config = self.json(request)
        self._update_groups([config])
        return self.when_saved(session, request)

    def update_groups(self, session: Peer, request: RemotingCommand) -> Answer:
        configs = self.json(request).get("groupConfigList")
        if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
            raise Refused("groupConfigList is no list of groups")
        self._update_groups(configs)
        return self.when_saved(session, request)

    def _update_groups(self, configs: Sequence[JsonObject]) -> None:
        """All of them, or none. Refused."""
        groups = self.broker.groups
        groups.demand_room([group_of(config).name for config in configs])
        for config in configs:
            groups.update(config, self.broker.now_ms)

    def group_forbidden(self, session: Peer, request: RemotingCommand) -> Answer:
        """Whether a group may read a topic; with `readable` said anew."""
        fields = read_fields(request.code, request.ext)
        name, topic = fields["group"], fields["topic"]
        check_group_name(name)
        if fields["readable"] is not None:
            self.broker.groups.forbid(name, topic, not fields["readable"], self.broker.now_ms)
        group = self.broker.groups.by_name.get(name)
        body = {"group": name, "readable": group is None or topic not in group.forbidden, "topic": topic}
        answer = request.reply(body=fastjson.dumps(body))
        return answer if fields["readable"] is None else self.when_saved(session, request, answer=answer)

    def resume_half(self, session: Peer, request: RemotingCommand) -> Answer:
        """Ask again about a half message that was given up."""
        msg_id = read_fields(request.code, request.ext)["msgId"]
        try:
            _, physical = msgid.parse_offset_msg_id(msg_id)
        except ValueError:
            raise Refused(f"{msg_id} is no message id") from None
        self.broker.transactions.resume(physical)
        session.answer_when_stored(self.broker.topics.by_name[HALF_TOPIC], request.reply())
        return None

    def delete_group(self, session: Peer, request: RemotingCommand) -> Answer:
        fields = read_fields(request.code, request.ext)
        if fields["removeOffset"]:
            check_commits(fields["groupName"])
        self.broker.groups.delete(fields["groupName"], self.broker.now_ms)
        if fields["removeOffset"]:
            self.broker.offsets.drop_group(fields["groupName"])
        return self.when_saved(session, request)

    def all_topics(self, session: Peer, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.topics.as_table()))

    def all_groups(self, session: Peer, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.groups.as_table()))

    def all_offsets(self, session: Peer, request: RemotingCommand) -> Answer:
        return request.reply(body=fastjson.dumps(self.broker.offsets.as_table()))

    def all_delay_offsets(self, session: Peer, request: RemotingCommand) -> Answer:
        levels = self.broker.level_offsets()
        if levels is None:
            raise Refused(
                "it is not known yet how far the delay levels are delivered: ask again",
                remoting=ResponseCode.SYSTEM_BUSY,
            )
        return request.reply(body=fastjson.dumps({"offsetTable": levels}))

    def topic_config(self, session: Peer, request: RemotingCommand) -> Answer:
        return request.reply(
            body=fastjson.dumps(self.topic(read_fields(request.code, request.ext)["topic"]).as_config())
        )

    def group_config(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["group"]
        group = self.broker.groups.by_name.get(name)
        if group is None:
            raise Refused(f"No group in this broker: {name}", remoting=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return request.reply(body=fastjson.dumps(group.as_config()))

    def system_topics(self, session: Peer, request: RemotingCommand) -> Answer:
        names = [n for n in (t.decode() for t in self.broker.topics.by_name) if self.broker.is_system_topic(n)]
        return request.reply(body=fastjson.dumps({"topicList": sorted(names)}))

    def clean_up(self, session: Peer, request: RemotingCommand) -> Answer:
        retention = self.broker.store.upkeep.retention
        assert retention is not None  # there is one as long as the store is open
        retention.ask()
        return request.reply()


def _topic_fields(config: JsonObject) -> Fields:
    """A TopicConfig as the fields of a single change. Refused when a number is none."""
    try:
        return {
            "topicName": str(config.get("topicName") or ""),
            "readQueueNums": shapes.number(config, "readQueueNums", _QUEUES),
            "writeQueueNums": shapes.number(config, "writeQueueNums", _QUEUES),
            "perm": shapes.number(config, "perm", PERM_BOTH),
            "topicFilterType": str(config.get("topicFilterType") or "SINGLE_TAG"),
            "topicSysFlag": shapes.number(config, "topicSysFlag", 0),
            "level": config.get("level"),
            "force": None,
        }
    except (TypeError, ValueError):
        raise Refused(f"a number of the settings of topic {config.get('topicName')} is not a number") from None
