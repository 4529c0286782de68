"""What every part of a broker stands on: settings, files, time, the store, and the tables that come out of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec
from msgspec.structs import replace

from penstock import msgid
from penstock.broker.clock import Alarm, BrokerClock
from penstock.broker.copies import Copies
from penstock.broker.groups import GroupTable, OffsetTable
from penstock.broker.levels import LEVEL_OS, LEVELS, LOG_LEVELS
from penstock.broker.replica import followed
from penstock.broker.rules import topic_rules
from penstock.broker.sending import Sending
from penstock.broker.takeover import delivered_by_rocketmq
from penstock.broker.topics import TopicTable
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import ConfigError
from penstock.histogram import Histogram
from penstock.limits import Limits
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.store import LogStore
from penstock.schedule.delays import DelayRule
from penstock.schedule.schedule import Schedule
from penstock.wire.addresses import host_in


class Core:
    """See the module. It is made before the parts, and knows none of them."""

    def __init__(self, config: BrokerConfig, files: Files, time: BrokerClock, limits: Limits) -> None:
        self.config = config
        self.files = files
        self.limits = limits
        self.folder = Path(config.data)
        self.reload: Callable[[], list[dict[str, object]]] = _no_reload
        self.changed: dict[str, int] = {}  # settings that are not as they were at the start
        self.time = time
        time.update()
        self.started_ms = time.now_ms
        self.store_host = msgid.pack_host(f"{_own_address(config)}:{max(0, config.remoting_port)}")
        self.store = LogStore(
            self.folder, _store_options(config, self.store_host, self._needs_whole()), files=files, clock=time.clock
        )
        self.copies = Copies(config, self.store)
        self.store.follow(config.role == "slave")
        if config.role == "slave":
            self.store.confirm(0, 0)  # before its master says more
        self.topics = TopicTable(
            self.store.queue,
            level=LEVELS[config.level] if config.level in LOG_LEVELS else LEVEL_OS,
            auto_create=config.auto_create_topic_enable,
            default_queues=config.default_topic_queue_nums,
            rules=topic_rules(config.topic),
            limits=limits,
        )
        self.groups = GroupTable(auto_create=config.auto_create_subscription_group, limits=limits)
        self.offsets = OffsetTable()
        self.schedule = Schedule(self.folder / "schedule", delivered=delivered_by_rocketmq(files, self.folder))
        self.schedule.read_lost_from(self.store.record_at)
        self.store.attach(self.schedule)
        self.append_took, self.handed_log, self.handed_queue = Histogram(), Histogram(), Histogram()
        self.alarm = Alarm()  # when the schedule must be looked at next
        self.delays = DelayRule(delay_levels(config.message_delay_level))
        self.sending = Sending(self.time, self.store, self.topics, self.delays, self.alarm, self.copies, self.schedule)

    def _needs_whole(self) -> bool:
        """A master's slaves may have acknowledged what a power cut took from it: then it must not go on by itself."""
        config = self.config
        return config.role == "master" and not config.ha_accept_loss and followed(self.files, self.folder)

    def reload_with(self, reload: Callable[[], list[dict[str, object]]]) -> None:
        """How the settings of this process are taken anew."""
        self.reload = reload

    def change(self, values: Mapping[str, int]) -> None:
        """Settings that are looked at each time, and those of retention: they hold until the process ends."""
        self.changed |= values
        config = self.config = replace(self.config, **values)  # type: ignore[arg-type]
        self.store.take_options(_with_retention(self.store.options, config))

    def flush_log(self) -> None:
        """Flush the log here and now: the broker stops."""
        store = self.store
        if store.is_open and store.healthy and store.flushed_position < store.end_position:
            run_now([store.durability.start(self.time.mono_ms)], self.time.mono_ms)
            if store.durability.error is not None:
                store.fail(store.durability.error)


def _with_retention(options: StoreOptions, config: BrokerConfig) -> StoreOptions:
    return msgspec.structs.replace(
        options,
        file_reserved_time_ms=config.file_reserved_time_hours * 3_600_000,
        delete_when=config.delete_when,
        disk_max_used_ratio=config.disk_used_clean_percent / 100,
        disk_forced_clean_ratio=config.disk_used_force_percent / 100,
        disk_refuse_ratio=config.disk_used_refuse_percent / 100,
    )


def _no_reload() -> list[dict[str, object]]:
    raise ConfigError("this broker was not started by a command: it has no settings to read again")


def _store_options(config: BrokerConfig, store_host: bytes, whole: bool) -> StoreOptions:
    options = StoreOptions(
        mapped_file_size_commit_log=config.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        max_message_size=config.max_message_size,
        message_delay_level=config.message_delay_level,
        store_host=store_host,
        whole=whole,
    )
    return _with_retention(options, config)


def _own_address(config: BrokerConfig) -> str:
    """Where clients find this broker, as an address: records and message ids hold no names. ConfigError for a name of none."""
    host = host_in(config.advertise or config.host)
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        try:
            found = sorted(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))  # IPv4 is first
        except (OSError, UnicodeError) as error:
            name = "advertise" if config.advertise else "host"
            raise ConfigError(f"{name}: no address of {host!r} is found: {error}", "Say an address instead.") from None
        host = str(found[0][4][0])
        return f"[{host}]" if ":" in host else host
    return host
