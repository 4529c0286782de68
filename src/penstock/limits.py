"""The limits of a process: what it takes of its peers and keeps for them, and how often each limit was reached.

A field is the setting of that name (docs/operate.md says what happens at each). Whoever finds a limit reached counts it
here by the name that `/metrics` shows; bytes that break one raise a WireError with that name.
"""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Mapping

from penstock import memory

PORT_MAX = 65_535
FILES_KEPT = 64  # descriptors for files: one that cannot be opened to be flushed ends the storing until a restart
QUEUES_MAX = 65_536  # of a topic that has a table already, whatever the limit is now
_MEMORY_PARTS = 4  # of the memory there is for us connections get one

# What `penstock_limit_reached_total` counts, by the setting that moves it.
NAMES = {
    "connections": "max_connections",
    "address": "max_connections_per_address",
    "memory": "connection_memory_bytes",
    "unread": "max_unread_bytes",
    "slow_reader": "slow_reader_timeout_ms",
    "slow_request": "request_timeout_ms",
    "greeting": "greeting_timeout_ms",
    "idle": "idle_timeout_ms",
    "tls_handshake": "tls_handshake_timeout_ms",
    "frame": "max_frame_size",
    "header": "max_header_size",
    "header_fields": "max_header_fields",
    "json_depth": "max_json_depth",
    "body": "max_message_size",
    "properties": "max_properties_size",
    "answers": "max_waiting_answer_bytes",
    "command_line": "max_command_line",
    "nsq_message": "max_msg_size",
    "nsq_body": "max_body_size",
    "http_header": "max_http_header_size",
    "http_url": "max_http_url_size",
    "topics": "max_topics",
    "topic_creations": "max_topic_creations_per_second",
    "channels": "max_channels_per_topic",
    "queues": "max_queues_per_topic",
    "groups": "max_groups",
    "consumers": "max_channel_consumers",
    "in_flight": "max_in_flight_per_channel",
    "waiting_pulls": "max_waiting_pulls",
    "delayed": "max_delayed_messages",
    "filter": "max_filter_size",
    "filter_depth": "max_filter_depth",
    "logins": "failed_logins_per_minute",
}


class Limits:
    """See the module: each number is the default. `reached` is name → how often. TypeError for a name that is no limit."""

    max_connections: int = 12_000
    max_connections_per_address: int = 1_000  # of another machine: loopback is free
    connection_memory_bytes: int = 0  # a quarter of the memory
    max_unread_bytes: int = 8 << 20
    slow_reader_timeout_ms: int = 30_000
    request_timeout_ms: int = 30_000
    greeting_timeout_ms: int = 10_000
    idle_timeout_ms: int = 120_000
    max_frame_size: int = 16 << 20
    max_header_size: int = 64 << 10
    max_header_fields: int = 256
    max_json_depth: int = 32
    max_properties_size: int = 32_767
    max_waiting_answer_bytes: int = 2 << 20
    max_command_line: int = 4 << 10
    max_http_header_size: int = 16 << 10
    max_http_url_size: int = 8 << 10
    max_topics: int = 10_000
    max_topic_creations_per_second: int = 100
    max_channels_per_topic: int = 1_000
    max_queues_per_topic: int = 1_024
    max_groups: int = 10_000
    max_in_flight_per_channel: int = 100_000
    max_waiting_pulls: int = 20_000
    max_delayed_messages: int = 10_000_000
    max_filter_size: int = 2 << 10
    max_filter_depth: int = 64

    def __init__(self, **limits: int) -> None:
        for name, value in limits.items():
            if name not in Limits.__annotations__:
                raise TypeError(f"there is no limit {name}")
            setattr(self, name, value)
        self.reached = dict.fromkeys(NAMES, 0)

    @property
    def memory_bytes(self) -> int:
        """The bound of the memory of all connections, in bytes."""
        return self.connection_memory_bytes or memory.memory_bytes() // _MEMORY_PARTS

    def change(self, values: Mapping[str, int]) -> None:
        """Other bounds from now on."""
        for name, value in values.items():
            setattr(self, name, value)

    def count(self, name: str) -> None:
        """This limit was reached once more."""
        self.reached[name] += 1


def limits_of(settings: object) -> Limits:
    """The limits among the settings of a role."""
    names = [name for name in Limits.__annotations__ if hasattr(settings, name)]
    return Limits(**{name: getattr(settings, name) for name in names})


class CreationRate:
    """How many topics may be made: so many a second, ten seconds' worth at once. 0: any number."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._left = _BURST_S * per_second * _MS  # thousandths of a topic
        self._seen_ms = 0

    def take(self, now_ms: int) -> bool:
        """Whether one more may be made now."""
        if not self.per_second:
            return True
        gone_ms, self._seen_ms = max(0, now_ms - self._seen_ms), now_ms
        self._left = min(_BURST_S * self.per_second * _MS, self._left + gone_ms * self.per_second)
        if self._left < _MS:
            return False
        self._left -= _MS
        return True


_BURST_S = 10
_MS = 1_000


def is_for_files(descriptor: int, *, spare: bool = False) -> bool:
    """Whether a descriptor, which a connection has got, is one of the last: those are left to files, half of them (`spare`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    kept = min(FILES_KEPT, limit // 8)
    return descriptor >= limit - (kept // 2 if spare else kept)


def is_loopback(host: str) -> bool:
    """Whether this address, as a peer's name begins, is of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True  # a Unix socket
