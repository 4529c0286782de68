"""Looking at queue topics, channels and delayed messages, and changing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from penstock.client.aio.admincluster import ClusterAdmin, object_of
from penstock.client.conversation import OK, making_sense
from penstock.client.results import SEND_STATUSES
from penstock.client.routes import Json
from penstock.client.rows import DelayedRow, MessageRow, PurgedRow, RedrivenRow, TopicRow, rows_of
from penstock.client.subscriptions import Start, start_ms
from penstock.errors import BrokerRefused, NoRoute, NotEverywhere, NotFound, WireError
from penstock.wire.codes import (
    RequestCode,
    ResponseCode,
)
from penstock.wire.remoting import RemotingCommand

QUEUE_COUNT = 8  # of a new topic, on each broker
BODY_BYTES = 64 << 10  # of a message that is looked at
ID_DIGITS_MAX = 18  # of a delayed message
AT_ONCE = 256  # requests on their way, of calls that make many


class QueueAdmin(ClusterAdmin):
    """The administration of what NSQ clients see."""

    # -- queue topics

    async def queue_topics(self, topic: str = "") -> list[Json]:
        """The topics that NSQ sees, or one of them: a row for each broker that has it, with its channels."""

        async def seen(address: str) -> list[Json]:
            found: list[Json] = []
            after: str | None = ""
            while True:
                rows, after = await self._page(
                    address, RequestCode.QUEUE_TOPICS, TopicRow, field="topics", topic=topic, after=after or ""
                )
                found += rows
                if not after:
                    return found

        answers = await self._each(seen)
        return [{"broker": broker, **row} for broker, rows in answers.items() for row in rows]

    async def change_queue(
        self,
        topic: str,
        action: Literal["add", "rm", "pause", "unpause", "empty"],
        *,
        channel: str | None = None,
        level: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change a queue topic, or a channel of a topic of either kind, on every broker that has it; "add" makes it on
        all, or on one `broker`. The brokers where it was done; NoRoute when none has it, NotEverywhere when some do not answer.
        An empty name of a channel is a ValueError: it would be the topic that goes.

        `level`, of a topic that is added: memory, os or disk; without it what the broker's rules say.
        """
        ext = {"topic": topic, "action": action} | ({"level": level} if level else {})
        if channel is not None:
            if not channel:
                raise ValueError("the name of a channel is not empty")
            ext["channel"] = channel

        async def change(address: str) -> bool:
            request = RemotingCommand(RequestCode.QUEUE_CHANGE, dict(ext))
            answer = await self._cluster.ask(address, request, (*OK, ResponseCode.TOPIC_NOT_EXIST))
            return answer.code == ResponseCode.SUCCESS

        answers = await self._at_all(change, await self._by_name(broker, away=True))
        done = [name for name, made in answers.items() if made]
        if not done:
            raise NoRoute(f"no broker has topic {topic!r}" + (f" with a channel {channel!r}" if channel else ""))
        self._cluster.routes.pop(topic, None)
        return done

    async def purge_topic(
        self,
        topic: str,
        to: Literal["end"] | int | datetime = "end",
        *,
        queue: int | None = None,
        broker: str | None = None,
        dry_run: bool = False,
    ) -> list[Json]:
        """Take the messages of a topic of either kind below a place out of the sight of all groups and channels: all there
        are now, those below an offset (int), or those stored before a moment; at every broker or one. A row for each
        queue: from, to, messages.
        NotFound when no broker has the topic, NotEverywhere when some do not answer.
        """
        moment = start_ms(to) if isinstance(to, datetime) else None
        ext = {"topic": topic, "to": str(to) if moment is None else f"time:{moment}", "dryRun": str(dry_run).lower()}
        if queue is not None:
            ext["queue"] = str(queue)

        async def purge(address: str) -> list[Json] | str:
            try:
                answer = await self._own(address, RequestCode.TOPIC_PURGE, **ext)
            except BrokerRefused as refused:
                if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return refused.remark
            with making_sense(address):
                return rows_of(answer["queues"], PurgedRow)

        try:
            answers = await self._at_all(purge, await self._by_name(broker, away=not dry_run))
        except NotEverywhere as error:
            if dry_run:  # nothing is done anywhere
                raise next(iter(error.missed.values())) from None
            raise
        remarks = [answer for answer in answers.values() if isinstance(answer, str)]
        if len(remarks) == len(answers):
            raise NotFound(remarks[-1], "`penstock topic ls` lists the topics.")
        return [{"broker": name, **row} for name, rows in answers.items() if not isinstance(rows, str) for row in rows]

    async def redrive_page(self, broker: str, topic: str, wanted: Mapping[str, str]) -> tuple[list[Json], str | None]:
        """Have one broker send some dead letters of a queue topic again, or say which; where to go on, None at the end.
        `wanted` are the request's fields: channel, to, text, limit, after, dryRun. NotFound: no such topic.
        """
        address = await self._address_of(broker)
        try:
            rows, after = await self._page(address, RequestCode.DEAD_REDRIVE, RedrivenRow, topic=topic, **wanted)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise NotFound(refused.remark, "Make it, or say another one with --to.") from None
        return [{"broker": broker, **row} for row in rows], after

    async def keep_topic(
        self,
        topic: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        trace: bool | None = None,
    ) -> None:
        """How long, and how many bytes at each broker, a log topic keeps its messages; 0: as the broker does. And whether
        each broker writes down where they go (`traces`). What is not named stays as it is. NotFound when no broker has it.
        """
        named = {"retentionMs": retention_ms, "retentionBytes": retention_bytes}
        ext = {name: str(value) for name, value in named.items() if value is not None}
        ext |= {} if trace is None else {"trace": str(trace).lower()}

        async def keep(address: str) -> bool:
            request = RemotingCommand(RequestCode.TOPIC_KEEP, {"topic": topic, **ext})
            answer = await self._cluster.ask(address, request, (*OK, ResponseCode.TOPIC_NOT_EXIST))
            return answer.code == ResponseCode.SUCCESS

        if not any((await self._at_all(keep, await self._by_name(away=True))).values()):
            raise NotFound(f"no broker has the log topic {topic!r}", "`penstock topic ls` lists the topics.")

    async def convert_topic(self, topic: str, kind: Literal["log", "queue"], *, dry_run: bool = False) -> list[Json]:
        """A topic becomes of this kind at every broker that has it, if nothing would be lost at any: a row for each, `against`
        says what would. BrokerRefused with that, and none is changed. NotFound when no broker has it. The name servers, which
        keep what brokers no longer tell, forget where a log topic was.
        """
        rows: list[Json] = []
        for dry in (True,) if dry_run else (True, False):
            rows = []
            for broker, address in (await self._by_name()).items():
                ext = {"topic": topic, "kind": kind, "dryRun": str(dry).lower()}
                try:
                    found = await self._own(address, RequestCode.TOPIC_CONVERT, **ext)
                except BrokerRefused as refused:
                    if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                        raise
                else:
                    with making_sense(address):
                        against = list(map(str, found["against"]))
                    rows.append({"broker": broker, "topic": topic, "to": kind, "against": against})
            if not rows:
                raise NotFound(f"no broker has topic {topic!r}", "`penstock topic ls` lists the topics.")
            against = [text for row in rows for text in row["against"]]
            if against and not dry_run:
                raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "; ".join(against))
        if kind == "queue" and not dry_run:
            await self._forget_route(topic)
        self._cluster.routes.pop(topic, None)
        return rows

    # -- messages

    async def browse(
        self,
        topic: str,
        *,
        channel: str = "",
        state: Literal["ready", "in-flight", "deferred"] = "ready",
        start: Start = "first",
        key: str = "",
        queue: int | None = None,
        limit: int = 100,
        body_bytes: int = BODY_BYTES,
    ) -> list[Json]:
        """Messages of a topic of either kind, or of a channel; nothing is changed by looking: no attempts, no order.

        Of a channel, or of a queue topic, what is in this `state`: ``ready`` in the order in which it would be given. Of a
        log topic without a channel what is stored, from the `start` on: "first", "last" (the newest `limit`), a moment, or
        an offset (int); or what has this `key`; of one `queue` alone. Bodies are cut off at `body_bytes`; one that is no
        text is in base64 (`encoding`). NotFound when no broker has such a topic, or channel.
        """
        if limit < 1:
            raise ValueError("limit is 1 at least")
        moment = start_ms(start) if isinstance(start, datetime) else None
        ext = {"topic": topic, "state": state, "from": str(start) if moment is None else f"time:{moment}"}
        ext |= {"channel": channel, "key": key, "bodyBytes": str(body_bytes)}
        if queue is not None:
            ext["queue"] = str(queue)

        async def look(address: str) -> list[Json] | str:
            try:
                return await self._browse(address, ext, limit)
            except BrokerRefused as refused:
                if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return refused.remark

        answers = await self._each(look)
        missing = [answer for answer in answers.values() if isinstance(answer, str)]
        if len(missing) == len(answers):
            raise NotFound(sorted(missing)[-1], "`penstock topic ls` and `penstock channel ls` list what there is.")
        found = [{"broker": name, **row} for name, rows in answers.items() if not isinstance(rows, str) for row in rows]
        if state == "ready" and not channel and len(answers) > 1:
            found.sort(key=lambda row: int(row["stored"]))
        return found[-limit:] if start == "last" else found[:limit]

    async def browse_page(
        self, broker: str, after: str, *, topic: str, channel: str, state: str, body_bytes: int, body_from: int = 0
    ) -> tuple[list[Json], str | None]:
        """Some rows of one broker behind the place `after`, and where to go on; None at the end. With `body_from` one row
        alone, and of its body what is behind so many bytes. NotFound.
        """
        address = await self._address_of(broker)
        ext = {"topic": topic, "channel": channel, "state": state, "bodyBytes": str(body_bytes), "limit": "1000"}
        if body_from:
            ext |= {"limit": "1", "bodyFrom": str(body_from)}
        try:
            rows, next_ = await self._page(address, RequestCode.BROWSE, MessageRow, **ext, after=after)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return [], None
        return [{"broker": broker, **row} for row in rows], next_

    async def brokers(self) -> dict[str, str]:
        """The masters: name to address."""
        return await self._by_name()

    async def _browse(self, address: str, ext: dict[str, str], limit: int) -> list[Json]:
        """Pages of one broker, until there are so many."""
        rows: list[Json] = []
        after: str | None = ""
        while len(rows) < limit:
            some, after = await self._page(
                address, RequestCode.BROWSE, MessageRow, **ext, limit=str(limit - len(rows)), after=after or ""
            )
            rows += some
            if not after:
                break
        return rows

    # -- delayed messages

    async def delayed(
        self, *, topic: str = "", channel: str = "", text: str = "", key: str = "", limit: int = 100
    ) -> list[Json]:
        """The delayed messages of both kinds of topic, by due time: of a topic, for a channel or group, with a text in
        the body, with a key or message id. Each has an `id`, ``broker/number``, for `cancel_delayed` and `fire_delayed`.
        """
        if limit < 0:
            raise ValueError("limit is not below 0")

        async def waiting(address: str) -> list[Json]:
            rows: list[Json] = []
            after: str | None = ""
            while len(rows) < limit:
                some, after = await self._page(
                    address, RequestCode.DELAYED_LIST, DelayedRow,
                    topic=topic, channel=channel, text=text, key=key, after=after or "", limit=str(limit - len(rows)),
                )  # fmt: skip
                rows += some
                if not after:
                    break
            return rows

        answers = await self._each(waiting)
        found = [{**row, "id": f"{broker}/{row['id']}"} for broker, rows in answers.items() for row in rows]
        return sorted(found, key=lambda row: row["due"])[:limit]  # each broker gives its own in order

    async def delayed_counts(self, edges: Sequence[int], *, topic: str = "", channel: str = "") -> list[int]:
        """How many are due before the first of these moments (ms), before the second …, and after the last; of no moments, how
        many there are.
        """
        moments = ",".join(map(str, edges))

        async def count(address: str) -> list[int]:
            counts = [0] * (len(edges) + 1)
            after: str | None = ""
            while True:
                page = await self._own(
                    address, RequestCode.DELAYED_COUNT, edges=moments, topic=topic, channel=channel, after=after or ""
                )
                with making_sense(address):
                    counts = [a + int(b) for a, b in zip(counts, page["counts"], strict=True)]
                    after = page["next"]
                    if not isinstance(after, str | None):
                        raise WireError(f"{after!r} is no place to go on from")
                if not after:
                    return counts

        return [sum(counts) for counts in zip(*(await self._each(count)).values(), strict=True)]

    async def cancel_delayed(self, id_: str) -> Json:
        """A delayed message is not to be delivered; its row, with a `status` as a send has it (`SendStatus`): another one than
        SEND_OK says that it is so, but a crash of the broker now may undo it. BrokerRefused when it is not there, or too late.
        """
        return await self._one_delayed(RequestCode.DELAYED_CANCEL, id_)

    async def fire_delayed(self, id_: str, *, at_ms: int | None = None) -> Json:
        """A delayed message is to be delivered now, or at another time, which gives it another id; its row. BrokerRefused when
        it is not there, or on its way.
        """
        if at_ms is None:
            return await self._one_delayed(RequestCode.DELAYED_FIRE, id_)
        try:  # not by the field that firing needs: a broker that cannot move it would fire it
            return await self._one_delayed(RequestCode.DELAYED_FIRE, id_, "move", due=str(at_ms))
        except BrokerRefused as error:
            if "<id> is null" not in str(error):
                raise
            raise BrokerRefused(
                error.code,
                "its broker is of an older version: it can fire or cancel a delayed message, and not move it",
            ) from None

    async def _one_delayed(self, code: RequestCode, id_: str, field: str = "id", **more: str) -> Json:
        if not isinstance(id_, str):
            raise TypeError(f"the id of a delayed message is text, not {id_!r}")
        broker, slash, number_ = id_.rpartition("/")
        if not slash or not (number_.isascii() and number_.isdigit()) or len(number_) > ID_DIGITS_MAX:
            raise ValueError(f"{id_!r} is not the id of a delayed message, broker/number")
        address = await self._address_of(broker)
        command = RemotingCommand(code, {field: number_, **more})
        answer = await self._cluster.ask(address, command, tuple(SEND_STATUSES))
        status = SEND_STATUSES[ResponseCode(answer.code)].name
        with making_sense(address):
            row = object_of(answer.body)
            return {**row, "id": f"{broker}/{row['id']}", "status": status}
