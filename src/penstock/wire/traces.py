"""Message traces as RocketMQ's clients write them: what was sent, received and made of a message, in messages of the trace topic.

Records end with 02, their fields are separated by 01; a missing tag or key is written as `null`.

    Pub time region group topic msgId tags keys storeHost bodyLength cost msgType offsetMsgId success [clientHost]
    SubBefore time region group requestId msgId retryTimes keys [client, as a broker of ours tells it]
    SubAfter requestId msgId cost success keys contextCode [time group]
    EndTransaction time region group topic msgId tags keys storeHost msgType transactionId state fromCheck

A trace message's keys are the ids and keys of the messages it tells of: by these it is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

REGION: Final = "DefaultRegion"
NORMAL, HALF, COMMIT, DELAYED = range(4)  # msgType
DONE, TIMED_OUT, FAILED_BY_ERROR, RETURNED_NULL, FAILED = range(5)  # contextCode
_NULL: Final = "null"
_FIELDS = {"Pub": 14, "SubBefore": 8, "SubAfter": 7, "EndTransaction": 13}


class Trace(NamedTuple):
    """One record. `what` is its first field; what a kind of record does not say is empty or 0."""

    what: str
    msg_id: str
    time_ms: int = 0
    group: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    msg_type: int = NORMAL
    offset_msg_id: str = ""
    success: bool = True
    request_id: str = ""
    retry_times: int = 0
    code: int = DONE
    transaction_id: str = ""
    state: str = ""
    from_check: bool = False

    def encode(self) -> str:
        """The record, its end included."""
        fields: tuple[object, ...]
        if self.what == "Pub":
            fields = (self.time_ms, REGION, self.group, self.topic, self.msg_id, self.tags or _NULL, self.keys or _NULL,
                      self.host, self.body_bytes, self.cost_ms, self.msg_type, self.offset_msg_id, self.success)  # fmt: skip
        elif self.what == "SubBefore":
            fields = (
                self.time_ms,
                REGION,
                self.group,
                self.request_id,
                self.msg_id,
                self.retry_times,
                self.keys or _NULL,
            )
            if self.host:  # as a broker of ours tells it; Java reads on to the end that it knows
                fields = (*fields, self.host)
        elif self.what == "SubAfter":
            fields = (self.request_id, self.msg_id, self.cost_ms, self.success, self.keys or _NULL, self.code, self.time_ms,
                      self.group)  # fmt: skip
        else:
            fields = (self.time_ms, REGION, self.group, self.topic, self.msg_id, self.tags or _NULL, self.keys or _NULL,
                      self.host, self.msg_type, self.transaction_id, self.state, self.from_check)  # fmt: skip
        return "\x01".join([self.what, *(_written(field) for field in fields)]) + "\x02"

    @property
    def index_keys(self) -> list[str]:
        """By what it is found."""
        return [self.msg_id, *self.keys.split()]


def read(body: bytes) -> Iterator[Trace]:
    """The records in a trace message; what is none is passed over."""
    for record in body.decode("utf-8", "replace").split("\x02"):
        fields = ["" if field == _NULL else field for field in record.split("\x01")]
        try:
            found = _read(fields) if len(fields) >= _FIELDS.get(fields[0], 1 << 30) else None
        except ValueError:
            found = None
        if found is not None:
            yield found


def _read(fields: list[str]) -> Trace | None:
    what = fields[0]
    if what == "Pub":
        _, time, _, group, topic, msg_id, tags, keys, host, size, cost, kind, place, success = fields[:14]
        return Trace(
            what, msg_id, int(time), group, topic, tags, keys, host, int(size), int(cost), int(kind), place,
            success == "true",
        )  # fmt: skip
    if what == "SubBefore":
        _, time, _, group, request, msg_id, retries, keys = fields[:8]
        host = fields[8] if len(fields) > 8 else ""
        return Trace(what, msg_id, int(time), group, keys=keys, host=host, request_id=request, retry_times=int(retries))
    if what == "SubAfter":
        _, request, msg_id, cost, success, keys, code = fields[:7]
        time, group = (fields[7], fields[8]) if len(fields) > 8 else ("0", "")
        return Trace(
            what, msg_id, int(time or 0), group, keys=keys, cost_ms=int(cost), success=success == "true", request_id=request,
            code=int(code or 0),
        )  # fmt: skip
    _, time, _, group, topic, msg_id, tags, keys, host, kind, transaction, state, checked = fields[:13]
    return Trace(
        what, msg_id, int(time), group, topic, tags, keys, host, msg_type=int(kind), transaction_id=transaction, state=state,
        from_check=checked == "true",
    )  # fmt: skip


def in_order(traces: Iterable[Trace]) -> list[Trace]:
    """By time; an end follows its beginning."""
    return sorted(set(traces), key=lambda trace: (trace.time_ms, trace.what == "SubAfter"))


def _written(field: object) -> str:
    return str(field).lower() if isinstance(field, bool) else str(field).replace("\x01", " ").replace("\x02", " ")
