"""A broker that is killed and opened again, for tests of staged rows."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.runs import Run
from penstock.broker.staging import Staging, Token, Wanted
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.wire.record import BatchItem, decode_record, encode_batch

BORN = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


def piece(
    bodies: list[bytes], *, queue_id: int = 0, topic: bytes = b"T", properties: bytes = b"", delayed: bool = False
) -> bytes:
    messages = encode_batch(BatchItem(body, properties) for body in bodies)
    rest = struct.pack(">BB", delayed, len(topic)) + topic + struct.pack(">iiqI", queue_id, 0, 5, len(bodies))
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


class House:
    """A broker that is opened, killed and opened again on one folder."""

    def __init__(self, folder: Path, files: Files | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.files = files
        self.config = BrokerConfig(
            data=str(folder), mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=4_000,
            max_hash_slot_num=100, max_index_num=400, **settings,
        )  # fmt: skip
        self.open()

    def open(self) -> None:
        self.broker = Broker(self.config, clock=self.clock, files=self.files)
        self.broker.open()

    @property
    def staging(self) -> Staging:
        return self.broker.staging

    def kill(self) -> None:
        self.broker.close(clean=False)

    def settle(self) -> None:
        """Run what the threads would."""
        for _ in range(6):
            self.clock.advance(1000)
            self.broker.time.update()
            self.broker.store.want_flush()
            run_now(self.broker.take_jobs(), self.broker.mono_ms)
            for _, timer in self.broker.timers():
                timer()

    def stage(
        self, token: str, chunks: list[bytes], *, batch: int = 0, run: str = "run", sink: str = "S", query: str = "Q"
    ) -> None:
        staging = self.staging
        number, _ = staging.open_token(Token(Run(sink, query, run, "broker-a"), token, batch, BORN))
        for n, chunk in enumerate(chunks, 1):
            if n > number:
                assert staging.append(token, n, chunk) == n
        spool = staging.spools[token]
        staging.seal(token, spool.rows, spool.chunk_bytes, spool.sums, None)

    def publish(self, tokens: list[str], *, batch: int = 0, run: str = "run", query: str = "Q", **more: Any) -> bool:
        return self.staging.publish(Wanted("S", query, run, batch, "broker-a", tuple(tokens), {}, **more))[0]

    def rows(self, topic: bytes = b"T") -> list[bytes]:
        """Everything a reader sees."""
        found = []
        for queue in self.broker.topics.by_name[topic].queues if topic in self.broker.topics.by_name else ():
            for offset in range(queue.min_offset, queue.visible_end()):
                physical, size, _ = queue.entry(offset)
                if size != 0x7FFFFFFF:
                    found.append(decode_record(self.broker.store.record_at(physical), check=True).body)  # type: ignore[union-attr, arg-type]
        return found


A, B = "a" * 32, "b" * 32


def named(name: str, count: int) -> list[bytes]:
    return [f"{name}{n}".encode() for n in range(count)]


class Killed(BaseException):
    pass
