"""Settings: one frozen struct per role, each setting with its meaning. Flags, environment, TOML and the reference page
come from it.

Order of strength: file, then environment (`PENSTOCK_BROKER__LEVEL`), then flags and `--set KEY=VALUE`.
Names are the peers' own in Python spelling. An unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from penstock.errors import ConfigError
from penstock.limits import PORT_MAX, QUEUES_MAX, Limits
from penstock.settingfiles import text_of

_SIZE = r"([0-9]{1,15})\s*(B|KiB|MiB|GiB|TiB|K|M|G|T)?"
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+)s)?(?:([0-9]+)ms)?"
_DURATION_CHARS_MAX = 40
_MS_MAX = 100 * 366 * 86_400_000  # a hundred years
_NUMBER_MAX = (1 << 53) - 1  # what every program that reads JSON has as it is
_SIZE_MAX = (1 << 31) - 1
# Where less, or more, would be a broker that does nothing, or none at all.
_BOUNDS = {
    "max_connections": (1, _SIZE_MAX), "max_connections_per_address": (1, _SIZE_MAX), "max_unread_bytes": (1 << 10, _SIZE_MAX),
    "max_frame_size": (1 << 6, _SIZE_MAX), "max_header_size": (1 << 8, _SIZE_MAX), "max_header_fields": (16, _SIZE_MAX),
    "max_json_depth": (2, 500), "max_waiting_answer_bytes": (1, _SIZE_MAX), "max_command_line": (16, _SIZE_MAX),
    "max_http_header_size": (1 << 8, _SIZE_MAX), "max_http_url_size": (64, _SIZE_MAX), "max_message_size": (1, _SIZE_MAX),
    "node_id": (-1, 1023), "delete_when": (0, 23), "max_deflate_level": (1, 9), "max_properties_size": (100, 32_767),
    "mapped_file_size_commit_log": (1 << 12, _SIZE_MAX), "mapped_file_size_consume_queue": (20, _SIZE_MAX),
    "max_hash_slot_num": (1, _SIZE_MAX), "max_index_num": (2, _SIZE_MAX), "queue_segment_bytes": (1 << 12, _SIZE_MAX),
    "max_bytes_per_file": (1 << 10, _NUMBER_MAX), "sync_every": (1, _NUMBER_MAX), "channel_window": (1, _SIZE_MAX),
    "msg_timeout_ms": (1, _MS_MAX), "max_msg_timeout_ms": (1, _MS_MAX), "sync_timeout_ms": (1, _MS_MAX),
    "max_msg_size": (1, _SIZE_MAX), "max_body_size": (1, _SIZE_MAX), "max_rdy_count": (1, _SIZE_MAX),
    "register_broker_period_ms": (1, _MS_MAX), "statsd_interval_ms": (1, _MS_MAX), "statsd_udp_packet_size": (64, 65_507),
    "default_topic_queue_nums": (1, QUEUES_MAX), "max_queues_per_topic": (1, QUEUES_MAX), "max_attempts": (0, 65_535),
    "max_topics": (1, _NUMBER_MAX), "max_channels_per_topic": (1, _NUMBER_MAX), "max_groups": (1, _NUMBER_MAX),
    "max_in_flight_per_channel": (1, _NUMBER_MAX),
}  # fmt: skip
# Texts that TOML may say otherwise: anything else would be a slip, such as data = 5, which makes a folder of that name.
_OTHERWISE: dict[str, tuple[type, ...]] = {"tls_required": (bool,), "e2e_processing_latency_percentile": (int, float)}
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


_TLS_CERT = "file of the certificate for every listener, renewed by SIGHUP; empty: no TLS"
_TLS_KEY = "file of its key"
_TLS_ROOTS = "file of the authorities that client certificates are checked against"
_TLS_CLIENTS = "client certificates: empty (none), optional, require-verify, or require (any, unchecked)"
_TLS_OLDEST = "oldest TLS: tls1.2 or tls1.3; older words mean tls1.2"
_TLS_HANDSHAKE = "time for a TLS handshake"


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What any listener takes of its peers."""

    max_connections: Annotated[int, "connections taken at once, HTTP's too; one more is refused"] = (
        Limits.max_connections
    )
    max_connections_per_address: Annotated[int, "the same for one address of another machine; loopback is free"] = (
        Limits.max_connections_per_address
    )
    connection_memory_bytes: Annotated[
        int,
        "memory for unfinished requests and unread answers of all connections; "
        "0: a quarter of the machine's, or of the container's",
    ] = 0
    max_unread_bytes: Annotated[int, "bytes a connection may leave unread before nothing more is read from it"] = (
        Limits.max_unread_bytes
    )
    slow_reader_timeout_ms: Annotated[int, "time it may leave that much unread before it is closed"] = (
        Limits.slow_reader_timeout_ms
    )
    request_timeout_ms: Annotated[int, "time a request may take to arrive"] = Limits.request_timeout_ms
    greeting_timeout_ms: Annotated[int, "time for NSQ's first bytes, and for the head of an HTTP request"] = (
        Limits.greeting_timeout_ms
    )
    idle_timeout_ms: Annotated[int, "silence after which a RocketMQ connection is closed"] = Limits.idle_timeout_ms
    max_frame_size: Annotated[int, "largest RocketMQ request in bytes"] = Limits.max_frame_size
    max_header_size: Annotated[int, "largest header of one; one of up to four times that is told so"] = (
        Limits.max_header_size
    )
    max_header_fields: Annotated[int, "fields of such a header"] = Limits.max_header_fields
    max_json_depth: Annotated[int, "nested objects and arrays of a JSON header"] = Limits.max_json_depth
    max_waiting_answer_bytes: Annotated[
        int, "answers to one RocketMQ connection that wait to be written, or for a flush, before its requests wait, too"
    ] = Limits.max_waiting_answer_bytes
    max_command_line: Annotated[int, "longest command line of NSQ or nsqlookupd in bytes"] = Limits.max_command_line
    max_http_header_size: Annotated[int, "headers of an HTTP request in bytes"] = Limits.max_http_header_size
    max_http_url_size: Annotated[int, "longest URL in bytes"] = Limits.max_http_url_size


class BrokerConfig(ConnectionSettings, frozen=True, kw_only=True):
    """A broker."""

    data: Annotated[str, "folder that holds everything the broker keeps"] = "penstock-data"
    host: Annotated[str, "address the listeners bind to"] = "127.0.0.1"
    insecure: Annotated[bool, "allow a bind address that other machines reach, without users"] = False
    users: Annotated[
        str, "file of users and their rights; .yml: RocketMQ's plain_acl.yml; empty: users.toml in the data folder"
    ] = ""
    failed_logins_per_minute: Annotated[
        int, "failed logins of an address, or of a name, before more are refused; 0: any"
    ] = 5
    advertise: Annotated[str, "address or name told to clients; empty: the bind address"] = ""
    remoting_port: Annotated[int, "port of the RocketMQ protocol; 0: any free one, -1: none"] = 10911
    vip_port: Annotated[bool, "open the port two below it, too, where it is free: old RocketMQ clients send there"] = (
        True
    )
    nsq_port: Annotated[int, "port of the NSQ protocol; 0: any free one, -1: none"] = 4150
    http_port: Annotated[int, "port of HTTP; 0: any free one, -1: none"] = 4151
    https_port: Annotated[int, "port of HTTPS, open when there is a certificate; 0: any free one, -1: none"] = 4152
    nsq_host: Annotated[str, "address of the NSQ listener, or the path of a Unix socket; empty: host"] = ""
    http_host: Annotated[str, "address of the HTTP listener, or the path of a Unix socket; empty: host"] = ""
    https_host: Annotated[str, "address of the HTTPS listener; empty: host"] = ""
    allowed_hosts: Annotated[
        str, "names besides this machine's own that HTTP is asked under; separated by ;, * for any"
    ] = ""
    admin_token: Annotated[str, "bearer token for PUT /config and /debug; empty: these are refused"] = ""
    open_config: Annotated[bool, "let anybody use PUT /config and /debug, as nsqd does"] = False
    broadcast_address: Annotated[str, "address told to nsqlookupd; empty: that of the listener, else the host name"] = (
        ""
    )
    broadcast_tcp_port: Annotated[int, "NSQ port told to nsqlookupd; 0: the real one"] = 0
    broadcast_http_port: Annotated[int, "HTTP port told to nsqlookupd; 0: the real one"] = 0
    lookupd_tcp_address: Annotated[str, "nsqlookupd to register with, host:port separated by ; or ,"] = ""
    topology_region: Annotated[str, "region told to nsqlookupd"] = ""
    topology_zone: Annotated[str, "zone told to nsqlookupd"] = ""
    registry: Annotated[str, "registries to register with, host:port separated by ; or ,"] = ""
    cluster_name: Annotated[str, "cluster this broker belongs to"] = "DefaultCluster"
    broker_name: Annotated[str, "name of this broker within its cluster"] = "broker-a"
    broker_id: Annotated[int, "0: master; a slave has a number of its own, and 1 where none is given"] = 0
    role: Annotated[str, "master, or slave: a copy of the master of the same broker_name"] = "master"
    node: Annotated[str, "name of this broker within its replica set; empty: host name and RocketMQ port"] = ""
    ha_host: Annotated[str, "address of the replication listener; empty: host"] = ""
    ha_port: Annotated[int, "port where slaves connect (RocketMQ's is 10912); 0: any free one, -1: none"] = -1
    ha_master: Annotated[str, "host:port of the master's ha_port; empty: as the registry says"] = ""
    ha_secret_file: Annotated[str, "file with the secret of a replica set, 16 bytes or more; empty: none"] = ""
    ha_rocketmq: Annotated[
        str,
        "addresses of RocketMQ 4's slaves and masters, with which its protocol is spoken, which knows no secret; separated by ;",
    ] = ""
    ha_tls: Annotated[
        str,
        "TLS between the nodes of a set: off, optional (slaves may, and we do not), required (of both; tls_root_ca_file signs)",
    ] = "off"
    ha_answer_ms: Annotated[int, "longest wait of a send of level pair for slaves; then code 12"] = 3_000
    ha_in_sync_ms: Annotated[int, "time after which a slave that does not reach the end is out of sync"] = 3_000
    ha_slave_lag_bytes_max: Annotated[int, "bytes a slave may be behind and be in sync"] = 256 << 20
    ha_accept_loss: Annotated[
        bool, "a master that slaves have followed starts after a power cut, too, though they may have more of its log"
    ] = False
    engine: Annotated[
        str, "who decides about the master, etcd://host:port,host:port (etcds: TLS); empty: nobody, the operator does"
    ] = ""
    engine_prefix: Annotated[str, "keys there begin so; cluster_name and broker_name follow"] = "/penstock"
    engine_user: Annotated[str, "user there; empty: none"] = ""
    engine_password_file: Annotated[str, "file with its password, for its owner alone"] = ""
    engine_ca_file: Annotated[str, "file of the authorities that sign its certificates; empty: those of the system"] = (
        ""
    )
    engine_cert: Annotated[str, "file of our certificate for it; empty: none"] = ""
    engine_key: Annotated[str, "file of its key"] = ""
    lease_ms: Annotated[
        int, "a master that the engine has not heard of for so long is replaced; it stops answering a second before"
    ] = 5_000
    min_in_sync: Annotated[
        int, "brokers in sync below which sends of level pair are refused; 2: never without a slave"
    ] = 1
    slave_read_enable: Annotated[
        bool, "readers that are far behind are sent to a slave, and slaves let themselves be read"
    ] = True
    access_message_in_memory_max_ratio: Annotated[
        int, "percent of the memory behind the end: a reader is far behind"
    ] = 40
    memory_bytes: Annotated[int, "memory in which the newest messages lie still; 0: all of this machine's"] = 0
    level: Annotated[
        str, "durability of new topics: memory (queue topics only), os, disk, pair or pair-disk (log topics only)"
    ] = "os"
    auto_create_topic_enable: Annotated[bool, "make an unknown topic when a producer first names it"] = True
    default_topic_queue_nums: Annotated[int, "queues of the template for new topics"] = 8
    auto_create_subscription_group: Annotated[bool, "make an unknown consumer group on first use"] = True
    max_message_size: Annotated[int, "largest body in bytes; in a replica set 31 MiB at most"] = 4_194_304
    long_polling_enable: Annotated[bool, "hold a pull that finds nothing"] = True
    message_delay_level: Annotated[str, "the delays of levels 1, 2, …"] = (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    mapped_file_size_commit_log: Annotated[int, "size of a commit-log segment in bytes"] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int, "size of a consume-queue file in bytes, rounded up to whole entries of 20"
    ] = 6_000_000
    max_hash_slot_num: Annotated[int, "slots of a key-index file"] = 5_000_000
    max_index_num: Annotated[int, "entries of a key-index file"] = 20_000_000
    file_reserved_time_hours: Annotated[int, "age at which a segment may be deleted"] = 72
    delete_when: Annotated[int, "hour of the day at which old segments are deleted"] = 4
    disk_used_clean_percent: Annotated[int, "disk use at which old segments are deleted at any hour"] = 75
    disk_used_force_percent: Annotated[int, "disk use at which segments are deleted whatever their age"] = 85
    disk_used_refuse_percent: Annotated[int, "disk use at which writes are refused"] = 90
    register_broker_period_ms: Annotated[int, "how often the broker registers"] = 30_000
    transaction_timeout_ms: Annotated[int, "age at which a half message is checked"] = 6_000
    transaction_check_interval_ms: Annotated[int, "how often half messages are looked at"] = 60_000
    transaction_check_max: Annotated[int, "checks before a half message is given up"] = 15
    queue_segment_bytes: Annotated[int, "size of a queue topic's segment in bytes"] = 16 << 20
    channel_window: Annotated[int, "messages a channel may run past the first unfinished one"] = 10_000
    max_attempts: Annotated[int, "deliveries after which a channel gives a message up; 0: never"] = 0
    mem_queue_size: Annotated[int, "messages kept in memory by a topic or channel of level memory"] = 10_000
    max_bytes_per_file: Annotated[int, "size of a diskqueue file in bytes"] = 104_857_600
    sync_every: Annotated[int, "messages after which a thread flushes a diskqueue, at most 40 times a second"] = 2_500
    sync_timeout_ms: Annotated[int, "time after which a diskqueue is flushed"] = 2_000
    msg_timeout_ms: Annotated[int, "time a consumer has for a message"] = 60_000
    max_msg_timeout_ms: Annotated[int, "longest time a consumer may ask for, or touch a message to"] = 900_000
    max_msg_size: Annotated[int, "largest message an NSQ client may publish in bytes"] = 1_048_576
    max_body_size: Annotated[int, "largest body of an NSQ command or HTTP request in bytes"] = 5_242_880
    max_req_timeout_ms: Annotated[int, "longest delay of a requeue or deferred publish"] = 3_600_000
    max_heartbeat_interval_ms: Annotated[int, "longest time between heartbeats a client may ask for"] = 60_000
    max_rdy_count: Annotated[int, "largest ready count"] = 2_500
    output_buffer_timeout_ms: Annotated[int, "longest wait of a message in an output buffer"] = 250
    min_output_buffer_timeout_ms: Annotated[int, "shortest such wait a client may ask for"] = 25
    max_output_buffer_timeout_ms: Annotated[int, "longest such wait a client may ask for"] = 30_000
    max_output_buffer_size: Annotated[int, "largest output buffer a client may ask for in bytes"] = 65_536
    max_channel_consumers: Annotated[int, "consumers a channel may have; 0: any number"] = 0
    deflate: Annotated[bool, "let NSQ clients ask for deflate"] = True
    max_deflate_level: Annotated[int, "highest deflate level, 1 to 9"] = 6
    snappy: Annotated[bool, "let NSQ clients ask for snappy"] = True
    tls_cert: Annotated[str, _TLS_CERT] = ""
    tls_key: Annotated[str, _TLS_KEY] = ""
    tls_root_ca_file: Annotated[str, _TLS_ROOTS] = ""
    tls_client_auth_policy: Annotated[str, _TLS_CLIENTS] = ""
    tls_required: Annotated[str, "true: NSQ and HTTP only over TLS; tcp-https: NSQ only; false"] = "false"
    tls_min_version: Annotated[str, _TLS_OLDEST] = "tls1.2"
    tls_handshake_timeout_ms: Annotated[int, _TLS_HANDSHAKE] = 10_000
    remoting_tls: Annotated[
        str, "the RocketMQ port with a certificate: optional (TLS and plain on one port), required or off"
    ] = "optional"
    security: Annotated[
        str,
        "file with user, secret and TLS for connections to registries; empty: the environment's PENSTOCK_TLS and so on",
    ] = ""
    auth_http_address: Annotated[str, "auth servers, host:port or URL separated by ; or ,"] = ""
    auth_http_request_method: Annotated[str, "how auth servers are asked: get or post"] = "post"
    http_client_connect_timeout_ms: Annotated[int, "time to connect to an auth server or nsqlookupd"] = 2_000
    http_client_request_timeout_ms: Annotated[int, "time for its answer"] = 5_000
    e2e_processing_latency_percentile: Annotated[str, "quantiles of publish-to-finish times to keep, as 0.99;0.5"] = ""
    e2e_processing_latency_window_time_ms: Annotated[int, "time these quantiles look back"] = 600_000
    statsd_address: Annotated[str, "host:port (UDP) that statistics are pushed to; empty: nowhere"] = ""
    statsd_prefix: Annotated[str, "first part of statsd names; %s is the broadcast address and HTTP port"] = "nsq.%s"
    statsd_interval_ms: Annotated[int, "time between pushes"] = 60_000
    statsd_mem_stats: Annotated[bool, "push memory figures too"] = True
    statsd_udp_packet_size: Annotated[int, "largest statsd packet in bytes"] = 508
    statsd_exclude_ephemeral: Annotated[bool, "leave ephemeral topics and channels out of statsd"] = False
    node_id: Annotated[int, "part of message ids, 0 to 1023; -1: from the host name"] = -1
    max_properties_size: Annotated[int, "properties of a RocketMQ message in bytes, 100 to 32,767"] = (
        Limits.max_properties_size
    )
    max_topics: Annotated[int, "log topics there may be, and queue topics"] = Limits.max_topics
    max_topic_creations_per_second: Annotated[
        int, "topics made by their first use in a second, ten times that at once; 0: any number"
    ] = Limits.max_topic_creations_per_second
    max_channels_per_topic: Annotated[int, "channels of a topic"] = Limits.max_channels_per_topic
    max_queues_per_topic: Annotated[int, "message queues of a log topic"] = Limits.max_queues_per_topic
    max_groups: Annotated[int, "consumer groups there may be"] = Limits.max_groups
    max_in_flight_per_channel: Annotated[int, "messages a channel has in flight or given back before it takes more"] = (
        Limits.max_in_flight_per_channel
    )
    max_waiting_pulls: Annotated[int, "pulls held until there is news; one more is answered at once"] = (
        Limits.max_waiting_pulls
    )
    max_delayed_messages: Annotated[int, "messages that may wait for their time; 0: any number"] = (
        Limits.max_delayed_messages
    )
    max_filter_size: Annotated[int, "longest SQL92 expression in bytes"] = Limits.max_filter_size
    max_filter_depth: Annotated[int, "how deep one may be nested"] = Limits.max_filter_depth
    history_bytes: Annotated[
        int, "memory for the rates and lag of the last hour and week; the quietest give way; 0: none"
    ] = 64 << 20
    log_level: Annotated[str, "debug, info, warn, error or fatal"] = "info"
    log_format: Annotated[str, "auto (logfmt on a terminal, JSON lines otherwise), logfmt or json"] = "auto"
    stage_max_bytes: Annotated[int, "bytes of staged rows at which no more are taken"] = 64 << 30
    stage_ttl_ms: Annotated[int, "age at which staged rows that nobody published are dropped"] = 86_400_000
    stage_accept_loss: Annotated[
        bool,
        "a batch that was being published, and whose staged rows are gone, is taken back: else the broker does not start",
    ] = False
    topic: Annotated[tuple[Mapping[str, object], ...], "rules for new topics: name pattern, level, queues"] = ()


class RegistryConfig(ConnectionSettings, frozen=True, kw_only=True):
    """A registry."""

    data: Annotated[str, "folder of kvConfig.json"] = "penstock-data"
    host: Annotated[str, "address the listeners bind to"] = "127.0.0.1"
    insecure: Annotated[bool, "allow a bind address that other machines reach, without users"] = False
    users: Annotated[
        str, "file of users and their rights; .yml: RocketMQ's plain_acl.yml; empty: users.toml in the data folder"
    ] = ""
    failed_logins_per_minute: Annotated[
        int, "failed logins of an address, or of a name, before more are refused; 0: any"
    ] = 5
    foreign_addresses: Annotated[bool, "let brokers register addresses they do not connect from (behind NAT)"] = False
    registry_port: Annotated[int, "port of the name server; 0: any free one, -1: none"] = 9876
    lookup_port: Annotated[int, "port of nsqlookupd's TCP protocol; 0: any free one, -1: none"] = 4160
    lookup_http_port: Annotated[int, "port of nsqlookupd's HTTP; 0: any free one, -1: none"] = 4161
    lookup_host: Annotated[str, "address of the first; empty: host"] = ""
    lookup_http_host: Annotated[str, "address of the second; empty: host"] = ""
    tls_cert: Annotated[str, _TLS_CERT + ", or that of the broker in this process"] = ""
    tls_key: Annotated[str, _TLS_KEY] = ""
    tls_root_ca_file: Annotated[str, _TLS_ROOTS] = ""
    tls_client_auth_policy: Annotated[str, _TLS_CLIENTS] = ""
    tls_min_version: Annotated[str, _TLS_OLDEST] = "tls1.2"
    tls_handshake_timeout_ms: Annotated[int, _TLS_HANDSHAKE] = 10_000
    registry_tls: Annotated[
        str, "the name server with a certificate: optional (TLS and plain on one port), required or off"
    ] = "optional"
    lookup_tls: Annotated[str, "the same for both ports of nsqlookupd"] = "optional"
    allowed_hosts: Annotated[
        str, "names besides this machine's own that HTTP is asked under; separated by ;, * for any"
    ] = ""
    broadcast_address: Annotated[str, "address this registry calls itself; empty: the host name"] = ""
    inactive_producer_timeout_ms: Annotated[int, "time after which a silent nsqd is left out"] = 300_000
    tombstone_lifetime_ms: Annotated[int, "time a tombstoned producer is left out"] = 45_000
    log_level: Annotated[str, "debug, info, warn, error or fatal"] = "info"
    log_format: Annotated[str, "auto (logfmt on a terminal, JSON lines otherwise), logfmt or json"] = "auto"


HIDDEN = "(not shown)"
_SECRETS = ("token", "secret", "password")


def is_secret(name: str) -> bool:
    """Whether the value of this setting is told to nobody; the name of a file that holds a secret is none."""
    return any(word in name for word in _SECRETS) and not name.endswith("_file")


C = TypeVar("C", BrokerConfig, RegistryConfig)


def defaults(kind: type[ConnectionSettings]) -> dict[str, Any]:
    """The settings of a role in their order, each with its default."""
    return dict(zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True))


def meanings(kind: type[ConnectionSettings]) -> dict[str, str]:
    """What each setting of a role means, in words."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(kind, include_extras=True).items()}


def parts(text: str) -> list[str]:
    """The members of a setting that is a list: separated by ; or ,, each once."""
    return list(dict.fromkeys(part.strip() for part in re.split("[;,]", text) if part.strip()))


def load(
    kind: type[C],
    section: str,
    file: str | None,
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
) -> C:
    """The settings of one role. ConfigError for unknown names and values that do not fit."""
    values: dict[str, Any] = {}
    if file:
        import tomllib

        try:
            tables = tomllib.loads(text_of(file))
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from None
        except RecursionError:
            raise ConfigError(f"{file}: nested too deep") from None
        _check_tables(tables, file)
        for name, value in tables.get(section, {}).items():
            values[_known(kind, name, file)] = value
        if section == "broker" and "topic" in tables:
            values["topic"] = tuple(tables["topic"])
    prefix = f"PENSTOCK_{section.upper()}__"
    for name, value in (os.environ if environment is None else environment).items():
        if name.startswith(prefix):
            values[_known(kind, name[len(prefix) :].lower(), name)] = value
    for name, value in flags.items():
        if value is not None:
            values[_known(kind, name, "--set")] = value
    types = defaults(kind)
    return kind(**{name: _fit(name, type(types[name]), value) for name, value in values.items()})


def sources(
    section: str, file: str | None, flags: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Where `load` would take each setting that is set from: the last of file, environment and flags that has it."""
    found: dict[str, str] = {}
    if file:
        import tomllib

        tables = tomllib.loads(text_of(file))
        found |= {name.replace("-", "_"): f"file {file}" for name in tables.get(section, {})}
        if section == "broker" and "topic" in tables:
            found["topic"] = f"file {file}"
    prefix = f"PENSTOCK_{section.upper()}__"
    for name in os.environ if environment is None else environment:
        if name.startswith(prefix):
            found[name[len(prefix) :].lower()] = f"environment {name}"
    return found | {name.replace("-", "_"): "--set" for name, value in flags.items() if value is not None}


def _check_tables(tables: Mapping[str, object], file: str) -> None:
    """ConfigError where the file has other tables than it may have."""
    hint = "Tables are [broker], [registry] and [[topic]]."
    for name, table in tables.items():
        if name not in ("broker", "registry", "topic"):
            raise ConfigError(f"{file}: unknown table [{name}]", hint)
        rows = table if name == "topic" and isinstance(table, list) else [table]
        if (name == "topic" and rows is not table) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{file}: {name} is no {'list of tables' if name == 'topic' else 'table'}", hint)


def _known(kind: type[BrokerConfig] | type[RegistryConfig], name: str, source: str) -> str:
    known = kind.__struct_fields__
    name = name.replace("-", "_")
    if name in known:
        return name
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    raise ConfigError(
        f"{source}: unknown setting {name}", f"Did you mean {near[0]}?" if near else "See docs/settings.md."
    )


def _fit(name: str, kind: type, value: object) -> Any:
    """A value from text or TOML as the setting's type; durations (`1m30s`) and sizes (`64MiB`) are understood. ConfigError."""
    if kind is tuple:
        return _rules(value)
    if kind is int:
        return _within(name, _number(name, value))
    if isinstance(value, kind) and kind is bool:
        return value
    if kind is str:
        if not isinstance(value, (str, *_OTHERWISE.get(name, ()))) or not (text := str(value)).isprintable():
            raise ConfigError(f"{name} cannot be {value!r}", 'It wants a text of one line, in TOML in quotes: "…".')
        if name == "data" and not text:
            raise ConfigError("data is empty", "It is the folder that everything is kept in; . is the present one.")
        return text
    text = str(value).strip()
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    raise ConfigError(f"{name} cannot be {value!r}", "It wants true or false.")


def _rules(value: object) -> tuple[Mapping[str, object], ...]:
    """The `[[topic]]` rules; in the environment and of --set they are JSON. ConfigError."""
    rules = value
    if isinstance(value, str):
        import json

        try:
            rules = json.loads(value)
        except (ValueError, RecursionError):
            rules = None
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, Mapping) for rule in rules):
        hint = """Such as topic='[{"name": "bank*", "level": "disk"}]', or [[topic]] in the file that --config names."""
        raise ConfigError("topic is not a list of rules in JSON", hint)
    return tuple(rules)


def _number(name: str, value: object) -> int:
    """A whole number, a size, or of a time a duration. ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if text == "-1":
        return -1
    match = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if match:
        return int(match[1]) * _SIZES[(match[2] or "").lower()[:1]]
    if text and name.endswith("_ms") and (match := re.fullmatch(_DURATION, text)) and len(text) < _DURATION_CHARS_MAX:
        d, h, m, s, ms = (int(part or 0) for part in match.groups())
        return ((d * 24 + h) * 60 + m) * 60_000 + s * 1000 + ms
    raise ConfigError(f"{name} cannot be {value!r}", "It wants a number.")


def bounds(name: str) -> tuple[int, int]:
    """The least and the largest number that a setting may be."""
    if name in _BOUNDS:
        return _BOUNDS[name]
    if name.endswith("_port"):
        return (0 if name.startswith("broadcast_") else -1), PORT_MAX
    if name.endswith(("_percent", "_ratio")):
        return 0, 100
    return 0, _MS_MAX if name.endswith("_ms") else _NUMBER_MAX


def _within(name: str, value: int) -> int:
    least, most = bounds(name)
    if not least <= value <= most:
        raise ConfigError(f"{name} cannot be {value}", f"It is {least} to {most}.")
    return value
