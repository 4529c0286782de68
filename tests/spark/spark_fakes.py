"""A cluster in memory: what a reader of the real one would answer."""

from __future__ import annotations

from typing import Any

from spark_records import Record

from penstock.client.reader import Fetched
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription
from penstock.errors import ClientError, NoRoute
from penstock.wire.sql92 import compile_selector


class Log:
    """Queues of records; `durable` holds durable ends before the last record; `fail` is raised, in turn."""

    def __init__(self) -> None:
        self.records: dict[MessageQueue, list[Record]] = {}
        self.oldest: dict[MessageQueue, int] = {}
        self.durable: dict[MessageQueue, int] = {}
        self.inherited: dict[MessageQueue, int] = {}  # the end that a master before may have shown
        self.groups: dict[tuple[str, MessageQueue], int] = {}
        self.fail: list[ClientError] = []
        self.fetches: list[tuple[MessageQueue, int, int, str]] = []
        self.page = 1 << 30
        self.folder = ""
        self.routes: dict[str, list[MessageQueue]] = {}  # as they were asked for first, while they are kept
        self.keeps_routes = False

    def put(self, queue: MessageQueue, count: int, size: int = 10, **given: Any) -> None:
        held = self.records.setdefault(queue, [])
        first = self.offsets(queue, durable=False)[1]
        for n in range(first, first + count):
            tag = b"TAGS\1" + (b"even" if n % 2 == 0 else b"odd")
            held.append(
                Record(n, (b"%d" % n).ljust(size, b"."), queue.queue_id, queue.topic.encode(), tag, stored_ms=1000 + n)
            )

    def drop(self, queue: MessageQueue, before: int) -> None:
        self.records[queue] = [record for record in self.records[queue] if record.offset >= before]
        self.oldest[queue] = before

    def forget_routes(self) -> None:
        self.routes.clear()

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.records})

    def queues(self, topic: str) -> list[MessageQueue]:
        found = self.routes.get(topic) or sorted(queue for queue in self.records if queue.topic == topic)
        if not found:
            raise NoRoute(topic)
        if self.keeps_routes:
            self.routes[topic] = found
        return found

    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]:
        held = self.records.get(queue, [])  # a broker says 0 of a topic that it does not have
        oldest = self.oldest.get(queue, 0)
        end = held[-1].offset + 1 if held else oldest
        return oldest, min(self.durable.get(queue, end), end) if durable else end

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        found = [record.offset for record in self.records[queue] if record.stored_ms >= timestamp_ms]
        return found[0] if found else self.offsets(queue, durable=False)[1]

    def fetch(self, queue: MessageQueue, offset: int, **wanted: Any) -> Fetched:
        if self.fail:
            raise self.fail.pop(0)
        selection = wanted.get("selection") or Subscription(queue.topic)
        tags = selection.expression
        self.fetches.append((queue, offset, wanted["max_count"], tags))
        low, high = self.offsets(queue)
        if high <= offset < self.inherited.get(queue, 0):
            return Fetched(20 if offset > high else 19, offset, low, self.inherited[queue], b"")
        if not low <= offset < high:
            return Fetched(21 if offset < low or offset > high else 19, max(low, min(offset, high)), low, high, b"")
        page = [
            r
            for r in self.records[queue]
            if offset <= r.offset < min(high, offset + min(wanted["max_count"], self.page))
        ]
        asked = {tag.strip().encode() for tag in tags.split("||")}
        if selection.kind == "SQL92":
            chosen = [r for r in page if compile_selector(tags).matches_text(r.properties.decode())]
        else:
            chosen = [r for r in page if tags == "*" or r.properties.partition(b"TAGS\1")[2] in asked]
        return Fetched(0 if chosen else 20, page[-1].offset + 1, low, high, b"".join(r.encode() for r in chosen))

    def is_gone(self, queue: MessageQueue, *, group: str) -> bool:
        return queue not in self.records

    def data_folder(self, queue: MessageQueue) -> str:
        return self.folder

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        return self.groups.get((group, queue))

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.groups[group, queue] = offset
