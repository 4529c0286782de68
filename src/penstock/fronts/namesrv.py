"""The name server's front: one method per request code, no socket.

`now_ms` is the steady clock's; the wall clock is looked at only for the data versions that brokers stamp with theirs.

A peer is whatever object the network keeps per connection; its `remote` is the peer's ``address:port``, empty for a
broker in this process. Key-value configuration is the only thing kept on disk.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.disk.files import Files
from penstock.disk.tables import load, save
from penstock.errors import Refused, StoreError, WireError
from penstock.registry.registration import (
    check_address,
    is_local_host,
    read_queues,
    read_registration,
    read_version,
)
from penstock.registry.routes import SYS_UNIT, SYS_UNIT_SUB, RouteTables
from penstock.version import __version__
from penstock.wire.codes import MASTER_ID, ORDER_NAMESPACE, Fields, RequestCode, ResponseCode, read_fields
from penstock.wire.fastjson import JsonObject, dumps, loads
from penstock.wire.names import DONE_TOPIC, SINK_TOPIC, TIMER_TOPIC
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.registry")

KV_NAME_BYTES_MAX = 255
KV_VALUE_BYTES_MAX = 65_536
KV_COUNT_MAX = 100_000
_OURS = {name.decode() for name in (TIMER_TOPIC, DONE_TOPIC, SINK_TOPIC)}  # of which no tool of RocketMQ 4 knows
NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)

_KV_NAME = re.compile(r"[^/\\\x00-\x20\x7f]+")
RIVALS_MAX = 1_000


class Peer(Protocol):
    """A connection, as far as this front knows it."""

    @property
    def remote(self) -> str:
        """``address:port`` of the other end, empty when it is this process."""


class Asked(NamedTuple):
    """A request on its way through: who asks, the command, its header fields, and when."""

    peer: Peer
    command: RemotingCommand
    fields: Fields
    now_ms: int


class NameServer:
    """The name server role of a registry.

    `folder` holds ``kvConfig.json``. A broker must register the address it connects from (over loopback: any address
    of this machine), unless `foreign_addresses` says that brokers may lie behind other ones. With
    `order_message_enable`, routes carry the order topics' configuration.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: Files | None = None,
        foreign_addresses: bool = False,
        is_local: Callable[[str], bool] = is_local_host,
        order_message_enable: bool = False,
        changeable: Callable[[], bool] = lambda: False,
    ) -> None:
        self.routes = RouteTables()
        self._files = files or Files()
        self._path = folder / "kvConfig.json"
        self._foreign_addresses = foreign_addresses
        self._is_local = is_local
        self._order_message_enable = order_message_enable
        self._rivals: set[str] = set()  # of slaves that were told of an id that is free
        self._changeable = changeable  # whether an administrator may change settings: where there are users
        self._kv: dict[str, dict[str, str]] = _read_kv(load(self._files, self._path))
        self._table: dict[int, Callable[[Asked], RemotingCommand]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_only_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._add_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """The answer, or None when there is none to give."""
        if command.response:
            return None
        method = self._table.get(command.code)
        if method is None:
            answer = command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
            )
        else:
            try:
                answer = method(Asked(peer, command, read_fields(command.code, command.ext), now_ms))
            except Refused as refused:
                answer = command.reply(refused.remoting, remark=str(refused))
            except StoreError as error:
                answer = command.reply(ResponseCode.SYSTEM_ERROR, remark=f"not stored: {error}")
        return None if command.oneway else answer

    def connection_lost(self, peer: Peer) -> None:
        """What was registered by this connection is gone with it."""
        self.routes.lost(peer)

    def tick(self, now_ms: int) -> int:
        """Forget silent brokers; when to be called again, in ms."""
        return self.routes.tick(now_ms)

    # -- brokers

    def _register(self, ask: Asked) -> RemotingCommand:
        told = read_registration(ask.fields, ask.command.body)
        for address in (told.address, told.nsq_address):
            if address:
                self._check_peer(ask.peer, address)
        if newer := self.routes.superseded(told):
            remark = (
                f"broker {told.broker} has a master of epoch {newer}: the one at {told.address}, of epoch {told.epoch}, is "
                "left out of the routes."
            )
            log.error("a master that was replaced: %s", remark)
            return ask.command.reply(ext=_said(*self.routes.master_of(told.broker)), remark=remark)
        rival = self.routes.rival(told, ask.peer, ask.now_ms)
        if rival:
            remark = (
                f"broker {told.broker} with id {told.broker_id} is alive at {rival}: the one at {told.address} is left out "
                "of the routes. Give it a broker_name of its own."
            )
            ext = {}
            if told.broker_id == MASTER_ID or told.address in self._rivals:
                log.error("two brokers of one name: %s", remark)
            else:  # it may take the number that is free, and then it was only for a moment
                log.info(
                    "a slave has the id of another one name=%s id=%d address=%s",
                    told.broker,
                    told.broker_id,
                    told.address,
                )
            if told.broker_id != MASTER_ID:  # a slave of the same set, perhaps, that no master has given a number yet
                if len(self._rivals) >= RIVALS_MAX:
                    self._rivals.clear()
                self._rivals.add(told.address)
                ext = {
                    "freeBrokerId": str(self.routes.free_id(told.broker)),
                    **_said(*self.routes.master_of(told.broker)),
                }
            return ask.command.reply(ext=ext, remark=remark)  # with an error code a broker would only try again
        self._rivals.discard(told.address)
        fresh = told.address not in self.routes.live
        ha_address, master = self.routes.register(told, ask.peer, ask.now_ms)
        if fresh:
            log.info("broker registered name=%s id=%d address=%s", told.broker, told.broker_id, told.address)
        if fresh and master and not ha_address:
            log.warning(
                "a slave registered whose master replicates nothing: it will stay empty, and would serve an empty route "
                "after the master's end name=%s id=%d address=%s", told.broker, told.broker_id, told.address,
            )  # fmt: skip
        ext = _said(ha_address, master)
        orders = self._kv.get(ORDER_NAMESPACE)
        return ask.command.reply(ext=ext, body=dumps({"table": orders}) if orders is not None else b"")

    def _check_peer(self, peer: Peer, address: str) -> None:
        """Routes are only as good as the addresses in them: nobody may register somebody else's."""
        here = peer.remote.rpartition(":")[0]
        host = address.rpartition(":")[0]
        if not here or host == here or self._foreign_addresses or (_loopback(here) and self._is_local(host)):
            return
        raise Refused(f"a broker that connects from {here} cannot register another machine's address")

    def _unregister(self, ask: Asked) -> RemotingCommand:
        self.routes.unregister(ask.fields["brokerName"], ask.fields["brokerAddr"], ask.fields["brokerId"], ask.peer)
        return ask.command.reply()

    def _data_version(self, ask: Asked) -> RemotingCommand:
        check_address(ask.fields["brokerAddr"])
        changed, known = self.routes.heard(ask.fields["brokerAddr"], read_version(ask.command.body), ask.now_ms)
        body = b"" if known is None else dumps({"counter": known[1], "stateVersion": known[2], "timestamp": known[0]})
        return ask.command.reply(ext={"changed": "true" if changed else "false"}, body=body)

    def _wipe_write(self, ask: Asked) -> RemotingCommand:
        return ask.command.reply(ext={"wipeTopicCount": str(self.routes.set_writable(ask.fields["brokerName"], False))})

    def _add_write(self, ask: Asked) -> RemotingCommand:
        return ask.command.reply(ext={"addTopicCount": str(self.routes.set_writable(ask.fields["brokerName"], True))})

    # -- routes and topics

    def _route(self, ask: Asked) -> RemotingCommand:
        topic = ask.fields["topic"]
        route = self.routes.route(topic)
        kind = ask.command.ext.get("kind")  # ours: any, or queue: where a new queue topic may be made
        if route is None and kind and (nsq := self.routes.queue_route(topic, new=kind == "queue")):
            return ask.command.reply(body=dumps({"kind": "queue", "nsq": nsq}))
        if route is None:
            return ask.command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=NO_ROUTE.format(topic))
        if self._order_message_enable and (order := self._kv.get(ORDER_NAMESPACE, {}).get(topic)):
            route["orderTopicConf"] = order
        return ask.command.reply(body=dumps(route))

    def _clusters(self, ask: Asked) -> RemotingCommand:
        return ask.command.reply(body=dumps(self.routes.cluster_info()))

    def _topics(self, ask: Asked) -> RemotingCommand:
        return _topic_list(ask.command, [name for name in self.routes.topics if name not in _OURS])

    def _topics_of_cluster(self, ask: Asked) -> RemotingCommand:
        topics = self.routes.topics_of(ask.fields["cluster"])
        return _topic_list(ask.command, [name for name in topics if name not in _OURS])

    def _system_topics(self, ask: Asked) -> RemotingCommand:
        clusters = self.routes.clusters()
        names = [*clusters, *(broker for brokers in clusters.values() for broker in brokers)]
        return _topic_list(ask.command, names, next(iter(self.routes.live), ""))

    def _unit_topics(self, ask: Asked) -> RemotingCommand:
        return _topic_list(ask.command, self.routes.topics_with(SYS_UNIT))

    def _unit_sub_topics(self, ask: Asked) -> RemotingCommand:
        return _topic_list(ask.command, self.routes.topics_with(SYS_UNIT_SUB))

    def _unit_sub_only_topics(self, ask: Asked) -> RemotingCommand:
        return _topic_list(ask.command, self.routes.topics_with(SYS_UNIT_SUB, without=SYS_UNIT))

    def _add_topic(self, ask: Asked) -> RemotingCommand:
        """A tool says which queues a topic has, at brokers that are registered."""
        try:
            told = loads(ask.command.body)
        except WireError:
            told = None
        queues = told.get("queueDatas") if isinstance(told, dict) else None
        if queues:
            topic = ask.fields["topic"]
            self.routes.add_topic(topic, read_queues(topic, queues))
        return ask.command.reply()

    def _delete_topic(self, ask: Asked) -> RemotingCommand:
        self.routes.delete_topic(ask.fields["topic"], ask.fields["clusterName"])
        return ask.command.reply()

    # -- configuration

    def _put_kv(self, ask: Asked) -> RemotingCommand:
        namespace, key, value = ask.fields["namespace"], ask.fields["key"], ask.fields["value"]
        for name in (namespace, key):
            if not _KV_NAME.fullmatch(name) or len(name.encode()) > KV_NAME_BYTES_MAX:
                raise Refused(f"a namespace or key has 1 to {KV_NAME_BYTES_MAX} bytes, no blank and no slash")
        if len(value.encode()) > KV_VALUE_BYTES_MAX:
            raise Refused(f"a value has at most {KV_VALUE_BYTES_MAX} bytes")
        if sum(map(len, self._kv.values())) >= KV_COUNT_MAX:
            raise Refused(f"there are already {KV_COUNT_MAX} keys")
        self._save_kv({**self._kv, namespace: {**self._kv.get(namespace, {}), key: value}})
        return ask.command.reply()

    def _get_kv(self, ask: Asked) -> RemotingCommand:
        namespace, key = ask.fields["namespace"], ask.fields["key"]
        value = self._kv.get(namespace, {}).get(key)
        if value is None:
            raise Refused(f"No config item, Namespace: {namespace} Key: {key}", remoting=ResponseCode.QUERY_NOT_FOUND)
        return ask.command.reply(ext={"value": value})

    def _delete_kv(self, ask: Asked) -> RemotingCommand:
        table = self._kv.get(ask.fields["namespace"], {})
        if ask.fields["key"] in table:
            rest = {key: value for key, value in table.items() if key != ask.fields["key"]}
            self._save_kv({**self._kv, ask.fields["namespace"]: rest})
        return ask.command.reply()

    def _list_kv(self, ask: Asked) -> RemotingCommand:
        namespace = ask.fields["namespace"]
        if namespace not in self._kv:
            raise Refused(f"No config item, Namespace: {namespace}", remoting=ResponseCode.QUERY_NOT_FOUND)
        return ask.command.reply(body=dumps({"table": self._kv[namespace]}))

    def _save_kv(self, table: dict[str, dict[str, str]]) -> None:
        save(self._files, self._path, {"configTable": table}, summed=False)
        self._kv = table

    def _update_config(self, ask: Asked) -> RemotingCommand:
        """One setting may be changed from the network, where there are users; by an administrator."""
        lines = [line.strip() for line in ask.command.body.decode("utf-8", "replace").splitlines() if line.strip()]
        values = [
            line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "orderMessageEnable"
        ]
        if not self._changeable() or len(values) != len(lines) or not set(values) <= {"true", "false"}:
            raise Refused("The configuration is not writable from the network.", remoting=ResponseCode.NO_PERMISSION)
        for value in values:
            self._order_message_enable = value == "true"
        return ask.command.reply()

    def _get_config(self, ask: Asked) -> RemotingCommand:
        lines = {
            "kvConfigPath": str(self._path.absolute()),
            "orderMessageEnable": str(self._order_message_enable).lower(),
            "penstockVersion": __version__,
        }
        return ask.command.reply(body="".join(f"{key}={value}\n" for key, value in lines.items()).encode())


def _topic_list(command: RemotingCommand, topics: list[str], address: str = "") -> RemotingCommand:
    answer: JsonObject = {"topicList": sorted(set(topics))}
    if address:
        answer["brokerAddr"] = address
    return command.reply(body=dumps(answer))


def _said(ha_address: str, master: str) -> dict[str, str]:
    """Where a master's slaves connect, and where its clients do; what is not known is not said."""
    return {key: value for key, value in (("haServerAddr", ha_address), ("masterAddr", master)) if value}


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host == "[::1]"


def _read_kv(table: JsonObject | None) -> dict[str, dict[str, str]]:
    """The kept configuration; what does not look like it is left out."""
    spaces = (table or {}).get("configTable") or {}
    return {
        str(namespace): {str(key): str(value) for key, value in entries.items()}
        for namespace, entries in spaces.items()
        if isinstance(entries, dict)
    }
