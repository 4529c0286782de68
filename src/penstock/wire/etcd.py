"""Bodies of etcd's HTTP gateway (3.4 and later, paths below /v3/): JSON with keys and values in base64, 64-bit numbers as text.

Requests are made here and answers read; whatever cannot be right in an answer is a WireError.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import WireError

GRANT, KEEP, REVOKE = "lease/grant", "lease/keepalive", "lease/revoke"
RANGE, CHANGE, LOGIN = "kv/range", "kv/txn", "auth/authenticate"

LEASE_GONE = 5  # codes of errors, gRPC's: it was not found
NO_LOGIN = (16, 3)  # unauthenticated; the token is wrong, or the name or password
DENIED = (7, 9)  # this user may not; there are no users

_INT_TEXT_MAX = 20


class Entry(NamedTuple):
    """A key as the engine has it: its value, the revision of its last change, and the lease it ends with (0: none)."""

    value: bytes
    revision: int
    lease: int


class Unchanged(NamedTuple):
    """A change is made only if this key is at this revision; 0: if it is not there."""

    key: str
    revision: int


class Holds(NamedTuple):
    """A change is made only if this key has this value."""

    key: str
    value: bytes


class Put(NamedTuple):
    """A key that a change writes; it ends with the lease, if there is one."""

    key: str
    value: bytes
    lease: int = 0


Condition = Unchanged | Holds


def _text(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def _body(table: object) -> bytes:
    return json.dumps(table, separators=(",", ":")).encode()


# -- requests ------------------------------------------------------------------------------------------------------------


def grant(ttl_s: int) -> bytes:
    """A lease of so many seconds."""
    return _body({"TTL": str(ttl_s)})


def lease(number: int) -> bytes:
    """For KEEP and REVOKE."""
    return _body({"ID": str(number)})


def below(prefix: str) -> bytes:
    """All keys that begin so. Linearizable: what it finds is not older than the question."""
    raw = prefix.encode()
    return _body({"key": _text(raw), "range_end": _text(raw[:-1] + bytes([raw[-1] + 1]))})


def change(conditions: Sequence[Condition], puts: Sequence[Put]) -> bytes:
    """All of the puts, or, unless all conditions hold, none."""
    return _body({
        "compare": [_condition(one) for one in conditions],
        "success": [
            {"request_put": {"key": _text(put.key), "value": _text(put.value), "lease": str(put.lease)}} for put in puts
        ],
    })  # fmt: skip


def _condition(one: Condition) -> dict[str, str]:
    if isinstance(one, Holds):
        return {"key": _text(one.key), "target": "VALUE", "result": "EQUAL", "value": _text(one.value)}
    if one.revision == 0:
        return {"key": _text(one.key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    return {"key": _text(one.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(one.revision)}


def login(user: str, password: str) -> bytes:
    """For LOGIN."""
    return _body({"name": user, "password": password})


# -- answers -------------------------------------------------------------------------------------------------------------


def _table(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("an answer of the engine that is no JSON") from None
    if not isinstance(found, dict):
        raise WireError("an answer of the engine that is no object")
    return found


def _number(table: dict[str, object], name: str) -> int:
    text = table.get(name, "0")
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > _INT_TEXT_MAX:
        raise WireError(f"an answer of the engine whose {name} is no number")
    return int(text)


def _head(table: dict[str, object]) -> dict[str, object]:
    """Every true answer has one: a page of something else at this address has not. Empty where the revision is not told."""
    head = table.get("header")
    if not isinstance(head, dict) or not _number(head, "cluster_id"):
        raise WireError("an answer that is none of etcd's")
    return head


def read_grant(data: bytes) -> int:
    """The lease."""
    table = _table(data)
    _head(table)
    number = _number(table, "ID")
    if not number:
        raise WireError("a lease without a number")
    return number


def read_keep(data: bytes, number: int) -> bool:
    """Whether the lease goes on; False: it is gone."""
    table = _table(data).get("result")
    if not isinstance(table, dict):
        raise WireError("an answer of the engine without a result")
    _head(table)
    if _number(table, "ID") != number:
        raise WireError("an answer about another lease")
    return _number(table, "TTL") > 0


def read_entries(data: bytes) -> dict[str, Entry]:
    """Keys and what they hold."""
    table = _table(data)
    _head(table)
    rows = table.get("kvs", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WireError("an answer of the engine whose keys are no list")
    if table.get("more"):
        raise WireError("an answer of the engine that is cut short")
    return {
        _plain(row, "key").decode("utf-8", "replace"): Entry(
            _plain(row, "value"), _number(row, "mod_revision"), _number(row, "lease")
        )
        for row in rows
    }


def _plain(row: dict[str, object], name: str) -> bytes:
    try:
        return b64decode(str(row.get(name, "")), validate=True)
    except ValueError:
        raise WireError(f"an answer of the engine whose {name} is no base64") from None


def read_change(data: bytes) -> int:
    """The revision of the change; 0: a condition did not hold, and nothing was changed."""
    table = _table(data)
    revision = _number(_head(table), "revision")
    done = table.get("succeeded", False)
    if not isinstance(done, bool) or (done and not revision):
        raise WireError("an answer of the engine that does not say whether it was done")
    return revision if done else 0


def read_login(data: bytes) -> str:
    """The token that further requests bring."""
    token = _table(data).get("token")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise WireError("an answer of the engine without a token")
    return token


def read_error(data: bytes) -> tuple[int, str]:
    """(code, text) of an answer whose status is not 200; (0, "") when that cannot be read."""
    try:
        table = _table(data.partition(b"}")[0] + b"}")  # a trailer may stand behind it
    except WireError:
        return 0, ""
    code, text = table.get("code", 0), table.get("message") or table.get("error") or ""
    return (code if isinstance(code, int) else 0), str(text)[:200]
