"""What each request of the remoting protocol needs (docs/rights.md): one row for each code, at a broker and at a registry.

A request about a message, by its place or id, needs what the topic of that message needs: the record is looked at, not
what the request says of it. Rows are functions of the request; a code without one would need an administrator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from penstock import msgid
from penstock.access.audit import audit
from penstock.access.needs import (
    ADMIN,
    MONITOR,
    REGISTER,
    USER,
    Need,
    group,
    know,
    look_at_group,
    publish,
    subscribe,
)
from penstock.access.rights import Rights
from penstock.access.users import User
from penstock.broker.broker import Broker
from penstock.broker.delayed import Delayed, Wanted
from penstock.broker.spool import pieces
from penstock.errors import Refused, StoreError, WireError
from penstock.wire import fastjson, names, record
from penstock.wire.codes import RequestCode, read_int
from penstock.wire.fastjson import JsonObject
from penstock.wire.remoting import RemotingCommand

Needs = Iterable[Need]
_BrokerRow = Callable[[Broker, RemotingCommand], Needs]
_RegistryRow = Callable[[RemotingCommand], Needs]
Code = RequestCode


# -- fields --------------------------------------------------------------------------------------------------------


def _of(request: RemotingCommand, name: str) -> str:
    return request.ext.get(name) or ""


def _send(request: RemotingCommand) -> Needs:
    """Its topic, under whichever of its two names, or under both: a request could have two."""
    told = [request.ext[name] for name in ("b", "topic") if name in request.ext]
    return [publish(name) for name in told or [""]]


def _reply(request: RemotingCommand) -> Needs:
    """A topic of replies, as every client names it: with the right for any other one, anybody could be told anything."""
    needs = _send(request)
    return [need if need.name.endswith(names.REPLY_SUFFIX) else Need(ADMIN.verbs, need.name) for need in needs]


def _know(request: RemotingCommand) -> Needs:
    return (know(_of(request, "topic")),)


def _read(request: RemotingCommand, group_field: str) -> Needs:
    return (group(_of(request, group_field)), subscribe(_of(request, "topic")))


def _look_at(request: RemotingCommand, group_field: str) -> Needs:
    return (look_at_group(_of(request, group_field)),)


def _json(request: RemotingCommand) -> JsonObject:
    try:
        value = fastjson.loads(request.body)
    except WireError as error:
        raise Refused(f"the body is no JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# -- records -------------------------------------------------------------------------------------------------------


def _unnamed(need: Need) -> Need:
    """What a message needs that the request names by a place or id alone: a refusal does not tell where it belongs."""
    return need._replace(told="what that message belongs to")


def _record(broker: Broker, physical: int) -> Needs:
    """To be given the message that lies there."""
    data = broker.store.record_at(physical) if physical >= 0 else None
    message = None if data is None else record.decode_record(data, 0, decompress=False)
    return (USER,) if message is None else (_unnamed(subscribe(message.topic)),)


def _number(request: RemotingCommand, name: str) -> int:
    """As it is read when the request is carried out: the rights asked for are those of what is done. Refused when it is none."""
    text = request.ext.get(name)
    return -1 if text is None else read_int(name, text)


def _send_back(broker: Broker, request: RemotingCommand) -> Needs:
    return (group(_of(request, "group")), *_record(broker, _number(request, "offset")))


def _end_transaction(broker: Broker, request: RemotingCommand) -> Needs:
    physical = _number(request, "commitLogOffset")
    data = broker.store.record_at(physical) if physical >= 0 else None
    half = None if data is None else record.decode_record(data, 0, decompress=False)
    return (USER,) if half is None else (_unnamed(publish(half.properties.get(names.REAL_TOPIC, half.topic))),)


def _consume_directly(broker: Broker, request: RemotingCommand) -> Needs:
    try:
        _, physical = msgid.parse_offset_msg_id(_of(request, "msgId"))
    except ValueError:
        physical = -1
    return (group(_of(request, "consumerGroup")), *_record(broker, physical))


def _delayed(broker: Broker, request: RemotingCommand) -> Needs:
    """To cancel or fire a delayed message: what its sender needed, and, where it waits for one channel, that one."""
    moved = request.code == Code.DELAYED_FIRE and "move" in request.ext
    due = broker.schedule.get(_number(request, "move" if moved else "id"))
    row = None if due is None else Delayed(broker).row(due, Wanted())
    if row is None:
        return (USER,)
    channel = str(row["channel"] or "")
    topic = str(row["topic"])
    return map(_unnamed, (subscribe(topic), group(channel)) if channel else (publish(topic),))


def _redrive(broker: Broker, request: RemotingCommand) -> Needs:
    """To send dead letters of a queue topic again: to take them, and to publish where they go."""
    dead, to = _of(request, "topic"), _of(request, "to")
    targets = [to] if to else [name.decode() for name in broker.queueing.redrive.origins(dead.encode())]
    return (subscribe(dead), *map(publish, targets))


def _delayed_pages(request: RemotingCommand) -> Needs:
    topic = _of(request, "topic")
    return (subscribe(topic),) if topic else (ADMIN,)


# -- bodies --------------------------------------------------------------------------------------------------------


def _heartbeat(request: RemotingCommand) -> Needs:
    yield USER
    for consumer in _tables(_json(request).get("consumerDataSet")):
        yield group(str(consumer.get("groupName") or ""))
        for subscription in _tables(consumer.get("subscriptionDataSet")):
            yield subscribe(str(subscription.get("topic") or ""))


def _locks(request: RemotingCommand) -> Needs:
    told = _json(request)
    yield group(str(told.get("consumerGroup")))
    for queue in _tables(told.get("mqSet")):
        yield subscribe(str(queue.get("topic")))


def _client_config(request: RemotingCommand) -> Needs:
    told = _json(request)
    yield group(str(told.get("group") or ""))
    about = told.get("subscriptionData")
    if isinstance(about, dict):
        yield subscribe(str(about.get("topic") or ""))


def _unregister(request: RemotingCommand) -> Needs:
    consumer = _of(request, "consumerGroup")
    return (group(consumer),) if consumer else (USER,)


def _stage_append(request: RemotingCommand) -> Needs:
    yield USER
    for name in {piece.topic for piece in pieces(request.body)}:
        yield publish(name.decode("utf-8", "replace"))


def _sink(request: RemotingCommand) -> Needs:
    return (group(_of(request, "sink")),)


def _queue_topics(request: RemotingCommand) -> Needs:
    return _know(request) if _of(request, "topic") else (MONITOR,)


def _all(*needs: Need) -> _BrokerRow:
    return lambda broker, request: needs


def _by(row: Callable[[RemotingCommand], Needs]) -> _BrokerRow:
    return lambda broker, request: row(request)


BROKER: Mapping[int, _BrokerRow] = {
    Code.SEND_MESSAGE: _by(_send),
    Code.SEND_MESSAGE_V2: _by(_send),
    Code.SEND_BATCH_MESSAGE: _by(_send),
    Code.SEND_REPLY_MESSAGE: _by(_reply),
    Code.SEND_REPLY_MESSAGE_V2: _by(_reply),
    Code.PULL_MESSAGE: _by(lambda r: _read(r, "consumerGroup")),
    Code.LITE_PULL_MESSAGE: _by(lambda r: _read(r, "consumerGroup")),
    # consuming
    Code.QUERY_CONSUMER_OFFSET: _by(lambda r: _read(r, "consumerGroup")),
    Code.UPDATE_CONSUMER_OFFSET: _by(lambda r: _read(r, "consumerGroup")),
    Code.HEART_BEAT: _by(_heartbeat),
    Code.UNREGISTER_CLIENT: _by(_unregister),
    Code.GET_CONSUMER_LIST_BY_GROUP: _by(lambda r: _look_at(r, "consumerGroup")),
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.END_TRANSACTION: _end_transaction,
    Code.LOCK_BATCH_MQ: _by(_locks),
    Code.UNLOCK_BATCH_MQ: _by(_locks),
    Code.CHECK_CLIENT_CONFIG: _by(_client_config),
    # looking up
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _by(_know),
    Code.GET_MAX_OFFSET: _by(_know),
    Code.GET_MIN_OFFSET: _by(_know),
    Code.GET_EARLIEST_MSG_STORETIME: _by(_know),
    Code.QUERY_MESSAGE: _by(lambda r: (subscribe(_of(r, "topic")),)),
    Code.VIEW_MESSAGE_BY_ID: lambda broker, r: _record(broker, _number(r, "offset")),
    Code.QUERY_CONSUME_QUEUE: _by(_know),
    # members
    Code.GET_CONSUMER_CONNECTION_LIST: _by(lambda r: _look_at(r, "consumerGroup")),
    Code.GET_PRODUCER_CONNECTION_LIST: _all(MONITOR),
    Code.GET_ALL_PRODUCER_INFO: _all(MONITOR),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _by(lambda r: _read(r, "group")),
    Code.CLONE_GROUP_OFFSET: _by(lambda r: (group(_of(r, "srcGroup")), group(_of(r, "destGroup")))),
    Code.GET_CONSUMER_RUNNING_INFO: _by(lambda r: _look_at(r, "consumerGroup")),
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _by(lambda r: (look_at_group(_of(r, "group")), *_know(r))),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _by(lambda r: (look_at_group(_of(r, "group")), *_know(r))),
    Code.SET_MESSAGE_REQUEST_MODE: _all(ADMIN),
    # statistics
    Code.GET_TOPIC_STATS_INFO: _by(_know),
    Code.GET_CONSUME_STATS: _by(lambda r: _look_at(r, "consumerGroup")),
    Code.GET_BROKER_CONSUME_STATS: _all(MONITOR),
    Code.VIEW_BROKER_STATS_DATA: _all(MONITOR),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _by(_know),
    Code.QUERY_TOPICS_BY_CONSUMER: _by(lambda r: _look_at(r, "group")),
    Code.QUERY_CONSUME_TIME_SPAN: _by(lambda r: (look_at_group(_of(r, "group")), *_know(r))),
    Code.QUERY_CORRECTION_OFFSET: _by(lambda r: (look_at_group(_of(r, "compareGroup")), *_know(r))),
    Code.GET_BROKER_RUNTIME_INFO: _all(MONITOR),
    # administration
    Code.UPDATE_AND_CREATE_TOPIC: _all(ADMIN),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _all(ADMIN),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _all(ADMIN),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _all(ADMIN),
    Code.RESUME_CHECK_HALF_MESSAGE: _all(ADMIN),
    Code.DELETE_TOPIC_IN_BROKER: _all(ADMIN),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _all(ADMIN),
    Code.DELETE_SUBSCRIPTIONGROUP: _all(ADMIN),
    Code.GET_ALL_TOPIC_CONFIG: _all(MONITOR),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _all(MONITOR),
    Code.GET_ALL_CONSUMER_OFFSET: _all(MONITOR),
    Code.GET_ALL_DELAY_OFFSET: _all(MONITOR),
    Code.GET_TOPIC_CONFIG: _by(_know),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _by(lambda r: _look_at(r, "group")),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _all(USER),
    Code.GET_BROKER_CONFIG: _all(MONITOR),
    Code.UPDATE_BROKER_CONFIG: _all(ADMIN),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _all(ADMIN),
    Code.CLEAN_UNUSED_TOPIC: _all(ADMIN),
    Code.DELETE_EXPIRED_COMMITLOG: _all(ADMIN),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _all(ADMIN),
    Code.DELETE_ACL_CONFIG: _all(ADMIN),
    Code.GET_BROKER_CLUSTER_ACL_INFO: _all(MONITOR),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _all(ADMIN),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _all(ADMIN),
    # queue topics, delayed messages
    Code.DELAYED_LIST: _by(_delayed_pages),
    Code.DELAYED_COUNT: _by(lambda r: _know(r) if _of(r, "topic") else (MONITOR,)),
    Code.DELAYED_CANCEL: _delayed,
    Code.DELAYED_FIRE: _delayed,
    Code.QUEUE_TOPICS: _by(_queue_topics),
    Code.QUEUE_CHANGE: _all(ADMIN),
    Code.TOPIC_PURGE: _all(ADMIN),
    Code.TOPIC_KEEP: _all(ADMIN),
    Code.TOPIC_CONVERT: _all(ADMIN),
    Code.DEAD_REDRIVE: _redrive,
    Code.CLIENTS: _all(MONITOR),
    Code.CLIENT_DISCONNECT: _all(ADMIN),
    Code.CONFIG_RELOAD: _all(ADMIN),
    Code.BROWSE: _by(lambda r: (subscribe(_of(r, "topic")),)),
    Code.HA_PROMOTE: _all(ADMIN),
    Code.HA_SWITCH: _all(ADMIN),
    Code.HA_PAUSE: _all(ADMIN),
    Code.HA_FORGET: _all(ADMIN),
    # staged writes: a sink is used by who may act as the group of its name, rows need their topics
    Code.STAGE_OPEN: _by(_sink),
    Code.STAGE_APPEND: _by(_stage_append),
    Code.STAGE_SEAL: _all(USER),
    Code.STAGE_PUBLISH: _by(_sink),
    Code.STAGE_DROP: _by(_sink),
}

REGISTRY: Mapping[int, _RegistryRow] = {
    Code.PUT_KV_CONFIG: lambda r: (ADMIN,),
    Code.GET_KV_CONFIG: lambda r: (USER,),
    Code.DELETE_KV_CONFIG: lambda r: (ADMIN,),
    Code.GET_KVLIST_BY_NAMESPACE: lambda r: (USER,),
    Code.REGISTER_BROKER: lambda r: (REGISTER,),
    Code.UNREGISTER_BROKER: lambda r: (REGISTER,),
    Code.QUERY_DATA_VERSION: lambda r: (REGISTER,),
    Code.GET_ROUTEINFO_BY_TOPIC: lambda r: (USER,) if _of(r, "topic") == names.TEMPLATE_TOPIC.decode() else _know(r),
    Code.GET_BROKER_CLUSTER_INFO: lambda r: (USER,),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda r: (MONITOR,),
    Code.GET_TOPICS_BY_CLUSTER: lambda r: (MONITOR,),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda r: (USER,),
    Code.GET_UNIT_TOPIC_LIST: lambda r: (MONITOR,),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda r: (MONITOR,),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda r: (MONITOR,),
    Code.DELETE_TOPIC_IN_NAMESRV: lambda r: (ADMIN,),
    Code.REGISTER_TOPIC_IN_NAMESRV: lambda r: (ADMIN,),
    Code.WIPE_WRITE_PERM_OF_BROKER: lambda r: (ADMIN,),
    Code.ADD_WRITE_PERM_OF_BROKER: lambda r: (ADMIN,),
    Code.UPDATE_NAMESRV_CONFIG: lambda r: (ADMIN,),
    Code.GET_NAMESRV_CONFIG: lambda r: (MONITOR,),
}


# Acts of administration: each gets a line in the audit log.
_ACTS = frozenset(
    (
        Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP, Code.UPDATE_BROKER_CONFIG, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC,
        Code.DELETE_EXPIRED_COMMITLOG, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET, Code.DELAYED_CANCEL,
        Code.DELAYED_FIRE, Code.QUEUE_CHANGE, Code.TOPIC_PURGE, Code.TOPIC_KEEP, Code.TOPIC_CONVERT,
        Code.DEAD_REDRIVE, Code.CLIENT_DISCONNECT,
        Code.CONFIG_RELOAD,
        Code.STAGE_DROP, Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG,
        Code.DELETE_TOPIC_IN_NAMESRV, Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER,
        Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN, Code.RESUME_CHECK_HALF_MESSAGE, Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.UPDATE_NAMESRV_CONFIG, Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    )
)  # fmt: skip
_TOLD = (
    "accessKey",
    "globalWhiteAddrs",
    "topic",
    "channel",
    "group",
    "groupName",
    "action",
    "address",
    "srcGroup",
    "destGroup",
    "brokerName",
    "namespace",
    "key",
    "id",
)


class Asker(Protocol):
    """A connection whose requests are some user's."""

    remote: str
    acting: User | None


def carry_out(
    rights: Rights, asker: Asker, request: RemotingCommand, needs: Callable[[], Needs],
    handle: Callable[[], RemotingCommand | None]
) -> RemotingCommand | None:  # fmt: skip
    """Ask for the rights, do it, and write the line of the audit. Refused to whom it is not allowed."""
    if request.code not in _ACTS:
        if rights.on:
            rights.demand(asker.acting, needs(), request.code)
        return handle()
    told = " ".join(f"{name}={request.ext[name]}" for name in _TOLD if name in request.ext)
    what = f"{RequestCode(request.code).name} {told}".rstrip()
    try:
        rights.demand(asker.acting, needs() if rights.on else (), request.code)
        answer = handle()
    except (Refused, StoreError) as error:
        audit(asker.acting, asker.remote, what, f"refused: {error}")
        raise
    result = "begun" if answer is None else "ok" if answer.code == 0 else f"{answer.code}: {answer.remark}"
    audit(asker.acting, asker.remote, what, result)
    return answer


def at_broker(broker: Broker, request: RemotingCommand) -> Needs:
    """What a request needs at a broker."""
    row = BROKER.get(request.code)
    return (ADMIN,) if row is None else row(broker, request)


def at_registry(request: RemotingCommand) -> Needs:
    """What a request needs at a registry."""
    row = REGISTRY.get(request.code)
    return (ADMIN,) if row is None else row(request)
