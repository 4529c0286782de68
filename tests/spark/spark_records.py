"""Records for the tests of the Spark side: an encoder and a plain reader, written once more from the format."""

from __future__ import annotations

import socket
import struct
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """What stands in one record, decoded by hand."""

    offset: int
    body: bytes = b"x"
    queue_id: int = 0
    topic: bytes = b"orders"
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    physical: int = 0
    born_ms: int = 1_700_000_000_000
    stored_ms: int = 1_700_000_000_123
    born: tuple[bytes, int] = (b"\x7f\0\0\x01", 40000)
    store: tuple[bytes, int] = (b"\x7f\0\0\x01", 10911)
    reconsumed: int = 0
    crc: int | None = None

    def encode(self) -> bytes:
        flags = self.sys_flag | (0x10 if len(self.born[0]) == 16 else 0) | (0x20 if len(self.store[0]) == 16 else 0)
        crc = zlib.crc32(self.body) & 0x7FFFFFFF if self.crc is None else self.crc
        rest = struct.pack(
            ">IIiiqqiQ", 0xDAA320A7, crc, self.queue_id, self.flag, self.offset, self.physical, flags, self.born_ms
        )
        rest += self.born[0] + struct.pack(">i", self.born[1]) + struct.pack(">q", self.stored_ms)
        rest += self.store[0] + struct.pack(">i", self.store[1]) + struct.pack(">iq", self.reconsumed, 0)
        rest += struct.pack(">i", len(self.body)) + self.body + bytes([len(self.topic)]) + self.topic
        rest += struct.pack(">H", len(self.properties)) + self.properties
        return struct.pack(">i", len(rest) + 4) + rest


def read_plainly(records: bytes) -> list[dict[str, object]]:
    """One dict per record, column name to Python value, as the source must give it (`broker` aside)."""
    rows: list[dict[str, object]] = []
    p = 0
    while p < len(records):
        size, _, crc, queue, flag, offset, physical, sys_flag, born_ms = struct.unpack_from(">iiIiiqqiq", records, p)
        at, hosts = p + 48, []
        for bit in (0x10, 0x20):
            n = 16 if sys_flag & bit else 4
            ip, port = records[at : at + n], struct.unpack_from(">i", records, at + n)[0]
            text = socket.inet_ntop(socket.AF_INET6 if n == 16 else socket.AF_INET, ip)
            hosts.append((f"[{text}]:{port}" if n == 16 else f"{text}:{port}", records[at : at + n + 4]))
            at += n + 4
            if bit == 0x10:
                stored_ms = struct.unpack_from(">q", records, at)[0]
                at += 8
        reconsumed, _, n = struct.unpack_from(">iqi", records, at)
        stored = records[at + 16 : at + 16 + n]
        at += 16 + n
        topic = records[at + 1 : at + 1 + records[at]]
        at += 1 + records[at]
        text = records[at + 2 : p + size]
        pairs = [(name, value) for name, _, value in (x.partition(b"\1") for x in text.split(b"\2")) if name and value]
        named = dict(pairs)
        keys = named.get(b"KEYS")
        rows.append(
            {
                "key": keys,
                "value": zlib.decompress(stored) if sys_flag & 1 else stored,
                "topic": topic.decode(),
                "partition": queue,
                "offset": offset,
                "timestamp": min(max(stored_ms, -62135596800000), 253402300799999) * 1000,
                "timestampType": 1,
                "headers": [(k.decode("utf-8", "replace"), v) for k, v in pairs if k not in (b"KEYS", b"TAGS")],
                "tags": _text(named.get(b"TAGS")),
                "keys": None if keys is None else [w.decode("utf-8", "replace") for w in keys.split(b" ") if w],
                "properties": [(k.decode("utf-8", "replace"), v.decode("utf-8", "replace")) for k, v in pairs],
                "msgId": hosts[1][1].hex().upper() + f"{physical & (1 << 64) - 1:016X}",
                "uniqKey": _text(named.get(b"UNIQ_KEY")),
                "bornTimestamp": min(max(born_ms, -62135596800000), 253402300799999) * 1000,
                "bornHost": hosts[0][0],
                "storeHost": hosts[1][0],
                "flag": flag,
                "sysFlag": sys_flag,
                "reconsumeTimes": reconsumed,
                "physicalOffset": physical,
                "size": size,
                "crcOk": zlib.crc32(stored) & 0x7FFFFFFF == crc,
            }
        )
        p += size
    return rows


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
