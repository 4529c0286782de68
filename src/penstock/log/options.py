"""StoreOptions: the settings of a log store, named as RocketMQ names them."""

from __future__ import annotations

import re

import msgspec

from penstock.wire.layout import BODY_BYTES_MAX

MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_LEVEL = re.compile(r"[0-9]{1,9}[smhd]")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of each level, from RocketMQ's notation; ValueError when it is not that."""
    return tuple(
        int(word[:-1]) * _UNITS[word[-1:]] if _LEVEL.fullmatch(word) else _no_level(word) for word in text.split()
    )


def _no_level(word: str) -> int:
    raise ValueError(f"a delay level is a number and s, m, h or d: {word!r}")


class StoreOptions(msgspec.Struct, frozen=True):
    """How a log store keeps its files. Sizes in bytes, times as named."""

    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    max_message_size: int = BODY_BYTES_MAX
    message_delay_level: str = MESSAGE_DELAY_LEVEL
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    """4 or 16 bytes of address, 4 of port: part of every record."""
    flush_interval_ms: int = 500
    """A flush starts at most so long after the oldest unflushed byte."""
    whole: bool = False
    """A start that finds traces of a power cut ends with an error before it writes: others have copies of this log."""
    flush_window_ms: int = 1_000
    """Level `os`: no more acknowledgements while an acknowledged byte is unflushed for longer."""
    checkpoint_interval_ms: int = 1_000
    prefault_bytes: int = 32 << 20
    """How far ahead of the write position pages are made ready; 0 for not at all."""
    file_reserved_time_ms: int = 72 * 3_600_000
    delete_when: int = 4
    """Hour of the day, local time."""
    delete_files_batch_max: int = 10
    clean_interval_ms: int = 10_000
    disk_max_used_ratio: float = 0.75
    disk_forced_clean_ratio: float = 0.85
    disk_refuse_ratio: float = 0.90
    lost_found_ms: int = 72 * 3_600_000
    reserve_offsets: int = 4_096
    """How many queue offsets beyond the last one are reserved durably, at least."""
