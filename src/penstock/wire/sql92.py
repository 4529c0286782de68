"""RocketMQ's filter language (rocketmq.md §11): an expression over a message's properties, compiled once, with three values.

or    = and (OR and)*
and   = equal (AND equal)*
equal = order (= order | <> order | IS [NOT] NULL)*
order = unary (> unary | >= unary | < unary | <= unary | [NOT] BETWEEN unary AND unary | [NOT] IN ('a', 'b'))*
unary = + unary | - unary | NOT unary | literal | name | ( or )

Properties are strings; one that is missing is null. A message matches when the result is true; null and errors do not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from math import copysign
from typing import Final, NamedTuple

from penstock.errors import Refused
from penstock.wire.codes import ResponseCode
from penstock.wire.record import parse_properties

BYTES_MAX: Final = 2048
DEPTH_MAX: Final = 64
COMPILED_MAX: Final = 256  # that are kept: every heartbeat and many pulls bring the same ones

Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]

_WORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "IS", "NULL"])
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_INT_DIGITS_MAX = 19
_FLOAT_MIN, _FLOAT_MAX = 5e-324, 1.7976931348623157e308
_NULL = "NULL"
_JAVA_INT = re.compile(r"[+-]?\d+", re.ASCII)
_JAVA_FLOAT = re.compile(
    r"[\x00-\x20]*[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)[\x00-\x20]*", re.ASCII
)


@cache  # compiled for the first expression: most brokers never see one
def _one_token() -> re.Pattern[str]:
    return re.compile(
        r"(?P<blank>[ \t\r\n\f]+|--[^\r\n]*[\r\n]|/\*.*?\*/)"
        r"|(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
        r"|(?P<int>(?:0|[1-9]\d*)[lL]?)"
        r"|(?P<string>'(?:[^']|'')*')"
        r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
        r"|(?P<sign><>|<=|>=|[=<>()+,-])",
        re.DOTALL | re.ASCII,
    )


class Uncomparable(Exception):
    """Values that cannot be compared: the message does not match."""


class _Part(NamedTuple):
    """A part of an expression: what it is, and what it gives for a message's properties."""

    kind: str  # constant, property, or bool
    evaluate: Evaluate
    value: Value = None
    name: str = ""


class Selector:
    """A compiled expression."""

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is wanted."""
        try:
            return self._evaluate(properties) is True
        except Uncomparable:
            return False

    def matches_text(self, properties: str) -> bool:
        """The same of properties as a record has them."""
        return self.matches(parse_properties(properties))


@lru_cache(COMPILED_MAX)
def compile_selector(
    text: str,
    bytes_max: int = BYTES_MAX,
    depth_max: int = DEPTH_MAX,
    reached: Callable[[str], None] = lambda name: None,
) -> Selector:
    """Refused (23) when the text is no expression, too long or nested too deep; `reached` is told of the limit."""
    try:
        if len(text.encode()) > bytes_max:
            raise _Wrong(f"longer than {bytes_max} bytes", "filter")
        return Selector(text, _Parser(text, depth_max).whole().evaluate)
    except _Wrong as error:
        if error.limit:
            reached(error.limit)
        raise Refused(
            f"Parse '{text[:200]}' failed: {error}", remoting=ResponseCode.SUBSCRIPTION_PARSE_FAILED
        ) from None


class _Wrong(ValueError):
    """No expression; the text says why, and `limit` whether it is beyond one."""

    def __init__(self, why: str, limit: str = ""):
        super().__init__(why)
        self.limit = limit


class _Parser:
    """One pass over the tokens of a text, from left to right."""

    def __init__(self, text: str, depth_max: int) -> None:
        self._depth_max = depth_max
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    # -- tokens ----------------------------------------------------------------------------------------------------

    def _is(self, *wanted: str) -> bool:
        """Whether the next tokens are these words or signs."""
        return [word for _, word in self._tokens[self._at : self._at + len(wanted)]] == list(wanted)

    def _took(self, *wanted: str) -> bool:
        if not self._is(*wanted):
            return False
        self._at += len(wanted)
        return True

    def _must(self, wanted: str) -> None:
        if not self._took(wanted):
            raise _Wrong(f"{wanted} is expected, not {self._seen()}")

    def _seen(self) -> str:
        return self._tokens[self._at][1] or "the end"

    # -- grammar ---------------------------------------------------------------------------------------------------

    def whole(self) -> _Part:
        found = _as_bool(self._or())
        if self._tokens[self._at][0] != "end":
            raise _Wrong(f"{self._seen()} is not expected")
        return found

    def _or(self) -> _Part:
        self._depth += 1
        if self._depth > self._depth_max:
            raise _Wrong(f"nested deeper than {self._depth_max}", "filter_depth")
        left = self._and()
        while self._took("OR"):
            left = _either(_as_bool(left), _as_bool(self._and()))
        self._depth -= 1
        return left

    def _and(self) -> _Part:
        left = self._equal()
        while self._took("AND"):
            left = _both(_as_bool(left), _as_bool(self._equal()))
        return left

    def _equal(self) -> _Part:
        left = self._order()
        while True:
            if self._took("="):
                left = _equal(left, self._order())
            elif self._took("<>"):
                left = _not(_equal(left, self._order()))
            elif self._took("IS", "NULL"):
                left = _is_null(left)
            elif self._took("IS", "NOT", "NULL"):
                left = _not(_is_null(left))
            else:
                return left

    def _order(self) -> _Part:
        left = self._unary()
        while True:
            sign = next((sign for sign in _ORDERS if self._took(sign)), "")
            if sign:
                left = _compared(left, self._unary(), sign)
            elif self._took("BETWEEN"):
                left = self._between(left, inside=True)
            elif self._took("NOT", "BETWEEN"):
                left = self._between(left, inside=False)
            elif self._took("IN"):
                left = self._in(left, inside=True)
            elif self._took("NOT", "IN"):
                left = self._in(left, inside=False)
            else:
                return left

    def _between(self, value: _Part, *, inside: bool) -> _Part:
        low = self._unary()
        self._must("AND")
        high = self._unary()
        if not inside:
            return _either(_compared(value, low, "<"), _compared(value, high, ">"))
        if low.kind == high.kind == "constant":
            if low.value is None or high.value is None:
                raise _Wrong("BETWEEN NULL")
            try:
                empty = _order_of(high.value, low.value) < 0
            except Uncomparable as error:
                raise _Wrong(str(error)) from None
            if empty:
                raise _Wrong(f"BETWEEN {low.value} AND {high.value}: nothing is")
        return _both(_compared(value, low, ">="), _compared(value, high, "<="))

    def _in(self, value: _Part, *, inside: bool) -> _Part:
        self._must("(")
        members = [self._string()]
        while self._took(","):
            members.append(self._string())
        self._must(")")
        if value.kind != "property":
            raise _Wrong("IN needs a name on its left")
        return _among(value, frozenset(members), inside=inside)

    def _string(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "string":
            raise _Wrong(f"a string is expected, not {self._seen()}")
        self._at += 1
        return text[1:-1].replace("''", "'")

    def _unary(self) -> _Part:
        self._depth += 1
        if self._depth > self._depth_max:
            raise _Wrong(f"nested deeper than {self._depth_max}", "filter_depth")
        found = self._signed()
        self._depth -= 1
        return found

    def _signed(self) -> _Part:
        if self._took("+"):
            return self._unary()
        if self._took("-"):
            return _negative(self._unary())
        if self._took("NOT"):
            return _not(_as_bool(self._unary()))
        return self._primary()

    def _primary(self) -> _Part:
        kind, text = self._tokens[self._at]
        if self._took("("):
            inner = self._or()
            self._must(")")
            return inner
        if kind == "string":
            return _constant(self._string())
        self._at += 1
        if kind == "int":
            number = int(text.rstrip("lL"))
            if number > _INT_MAX:
                raise _Wrong(f"{text} is no number of 64 bits")
            return _constant(number)
        if kind == "float":
            value = float(text)
            if value < _FLOAT_MIN or value > _FLOAT_MAX:
                raise _Wrong(f"{text} is out of range")
            return _constant(value)
        if kind == "name":
            return _Part("property", lambda properties: properties.get(text), name=text)
        if text in ("TRUE", "FALSE"):
            truth = text == "TRUE"
            return _Part("bool", lambda properties: truth, truth)
        if text == "NULL":
            return _Part("bool", lambda properties: None, name=_NULL)
        self._at -= 1
        raise _Wrong(f"{self._seen()} is not expected")


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; words are in capitals and of the kind `word`."""
    found: list[tuple[str, str]] = []
    token = _one_token()
    at = 0
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            raise _Wrong(f"{text[at]!r} is not expected")
        kind, part = str(match.lastgroup), match.group()
        at = match.end()
        if kind == "name" and part.upper() in _WORDS:
            kind, part = "word", part.upper()
        if kind != "blank":
            found.append((kind, part))
    return [*found, ("end", "")]


# -- parts -------------------------------------------------------------------------------------------------------------


def _constant(value: Value) -> _Part:
    return _Part("constant", lambda properties: value, value)


def _as_bool(part: _Part) -> _Part:
    if part.kind == "bool":
        return part
    if part.kind == "property":  # a string is neither true nor false
        return _Part("bool", lambda properties: None if part.evaluate(properties) is None else False)
    raise _Wrong(f"{part.value!r} is no condition")


def _not(part: _Part) -> _Part:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part.evaluate(properties)
        return None if value is None else not value

    return _Part("bool", evaluate)


def _either(left: _Part, right: _Part) -> _Part:
    def evaluate(properties: Mapping[str, str]) -> Value:
        one = left.evaluate(properties)
        if one is True:
            return True
        other = right.evaluate(properties)
        if other is True:
            return True
        return None if one is None or other is None else False

    return _Part("bool", evaluate)


def _both(left: _Part, right: _Part) -> _Part:
    def evaluate(properties: Mapping[str, str]) -> Value:
        one = left.evaluate(properties)
        if one is False:
            return False
        other = right.evaluate(properties)
        if other is False:
            return False
        return None if one is None or other is None else True

    return _Part("bool", evaluate)


def _negative(part: _Part) -> _Part:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part.evaluate(properties)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return _Part("number", evaluate)


def _is_null(part: _Part) -> _Part:
    return _Part("bool", lambda properties: part.evaluate(properties) is None)


def _among(part: _Part, members: frozenset[str], *, inside: bool) -> _Part:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part.evaluate(properties)
        return None if value is None else (value in members) is inside

    return _Part("bool", evaluate)


def _equal(left: _Part, right: _Part) -> _Part:
    if _NULL in (left.name, right.name):
        raise _Wrong("= NULL: IS NULL is meant")
    if left.kind == "bool" and isinstance(left.value, bool) and right.kind == "constant":
        raise _Wrong(f"{left.value} cannot be compared with {right.value!r}")

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:  # as RocketMQ has it, which looks at the right side only behind the left one
            return True if one is other else None if one is None else False
        if isinstance(one, str) and isinstance(other, str):
            return one == other
        if isinstance(one, bool) != isinstance(other, bool) and not isinstance(one, str) and not isinstance(other, str):
            return False
        return _order_of(one, other) == 0

    return _Part("bool", evaluate)


_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _compared(left: _Part, right: _Part, sign: str) -> _Part:
    for part in (left, right):
        if part.kind == "bool" or (part.kind == "constant" and not isinstance(part.value, int | float)):
            raise _Wrong(f"{part.value!r} has no order")
    holds = _ORDERS[sign]

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return None
        return holds(_order_of(one, other))

    return _Part("bool", evaluate)


def _order_of(left: Value, right: Value) -> int:
    """Below, equal to or above 0. A string takes the type of the other side; two strings are numbers. Uncomparable."""
    if isinstance(left, str) and isinstance(right, str):
        left, right = _float(left), _float(right)
    elif isinstance(left, str):
        left = _like(left, right)
    elif isinstance(right, str) and not isinstance(left, bool):
        right = _like(right, left)
    if isinstance(left, bool) != isinstance(right, bool) or left is None or right is None:
        raise Uncomparable(f"{left!r} and {right!r}")
    for one, other in ((left, right), (right, left)):
        if one != one:  # not a number: Java puts it above all others
            return (other == other) * (1 if one is left else -1)
    if left == right == 0:  # and a zero with a minus below the other
        left, right = copysign(1, left), copysign(1, right)  # type: ignore[arg-type]
    return (left > right) - (left < right)  # type: ignore[operator]


def _like(text: str, other: Value) -> Value:
    if isinstance(other, bool):
        return text.lower() == "true"
    return _int(text) if isinstance(other, int) else _float(text)


def _int(text: str) -> int:
    # Python refuses to read thousands of digits, and Java takes any number of zeros before the others.
    digits = text.lstrip("+-").lstrip("0")
    if not _JAVA_INT.fullmatch(text) or len(digits) > _INT_DIGITS_MAX:
        raise Uncomparable(f"{text!r} is no integer")
    number = -int(digits or "0") if text[0] == "-" else int(digits or "0")
    if not _INT_MIN <= number <= _INT_MAX:
        raise Uncomparable(f"{text!r} is no integer")
    return number


def _float(text: str) -> float:
    if not _JAVA_FLOAT.fullmatch(text):
        raise Uncomparable(f"{text!r} is no number")
    return float(
        text.strip(
            "\0\1\2\3\4\5\6\7\x08\t\n\x0b\x0c\r\x0e\x0f \x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
        ).rstrip("fFdD")
    )
