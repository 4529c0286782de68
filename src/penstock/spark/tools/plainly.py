"""Errors of ours through Spark: a sentence, and below it what to do, without the stacks of three processes.

worker    `plainly` at each method that Spark calls: our error keeps its class and loses its frames, and its hint becomes a
          second line of its text, because text is all of it that gets through the JVM
driver    `told` finds that text in what Spark made of it; in sessions of ours PySpark's exceptions say nothing else
"""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import Callable, Iterator
from functools import wraps
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from penstock.errors import BAD_SIGNATURE, NO_RIGHT, NO_USER, BrokerRefused, PenstockError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

log = logging.getLogger(__name__)
C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# What to do about an error that does not say it itself.
HINTS = {
    "NoRoute": "is the topic's name right, and the option registry the cluster it is in?",
    "NotTrusted": (
        "the option tlsCa names the file of the authorities that sign the servers' certificates; insecureSkipHostname is for"
        " certificates of other hosts"
    ),
    "ConnectionLost": (
        "is a broker there? the option registry says where; `penstock up` starts one. Of one that takes TLS alone, or none, the"
        " connection ends: the option tls"
    ),
    "TimedOut": "is the broker up and not too busy? what was done stands, and the same again goes on",
}
# The same of what access control has answered.
_USER = "the options user and secretFile, or PENSTOCK_USER and PENSTOCK_SECRET in the environment of the driver, say who we are"
_DENIALS = (
    (NO_USER, f"the broker wants to know that: {_USER}"),
    (BAD_SIGNATURE, f"{_USER}; behind several wrong secrets the broker refuses right ones, too, for a minute"),
    (NO_RIGHT, "docs/rights.md says who grants it. To write takes group:NAME and group:NAME/*, too: the sinkId is NAME, or job-"
               " and the jobId; to read takes the groupIdPrefix"),
)  # fmt: skip
# `penstock.errors.NoRoute: sentence`, and the hint, which is indented by two.
_OURS = re.compile(r"^(?:py_?spark_)?penstock[\w.]*\.([A-Z]\w*): (.+(?:\n  \S.*)*)", re.MULTILINE)
# The same where it was shortened already: a function of the user's failed with it, as that of `foreachBatch`, and Spark quotes
# its traceback. What is Spark's own begins with its class in brackets, or with a sentence.
_QUOTED = re.compile(r"^pyspark\.errors\.exceptions\.\w+\.\w+: ([A-Z]\w*): (.+(?:\n  \S.*)*)", re.MULTILINE)


def plainly(method: Callable[P, R]) -> Callable[P, R]:
    """The same method, whose errors of ours are two lines."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        try:
            result = method(*given, **named)
        except PenstockError as error:
            log.debug("%s", error, exc_info=True)
            raise _short(error) from None
        return cast(R, _each(result)) if isinstance(result, GeneratorType) else result

    return call


def all_plainly(*names: str) -> Callable[[C], C]:
    """The same for these methods of a class."""

    def change(cls: C) -> C:
        for name in names:
            setattr(cls, name, plainly(getattr(cls, name)))
        return cls

    return change


def _each(items: Iterator[T]) -> Iterator[T]:
    try:
        yield from items
    except PenstockError as error:
        log.debug("%s", error, exc_info=True)
        raise _short(error) from None


def _short(error: PenstockError) -> PenstockError:
    text = str(error)
    hint = error.hint or _denial(error)
    hint = hint or next((HINTS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in HINTS), "")
    if hint and hint not in text:
        error.args = (f"{text}\n  {hint}",)
    return error.with_traceback(None)


def _denial(error: PenstockError) -> str:
    said = error.remark if isinstance(error, BrokerRefused) and error.denied else ""
    return next((hint for words, hint in _DENIALS if words in said), "")


_TWO_DRIVERS = re.compile(r"\[CONCURRENT_STREAM_LOG_UPDATE\][^\n]*?(?: for (\d+)|\n|$)")

# Spark itself makes Python of the text that a checkpoint has as an offset, before a source is asked anything.
_HALF_OFFSET = re.compile(
    r"python_streaming_source_runner\.py.*^[\w.]*JSONDecodeError: ([^\n]+)", re.MULTILINE | re.DOTALL
)


def told(error: BaseException) -> str:
    """Our words behind a Spark exception, `NoRoute: no broker serves …` and the hint below it; empty: none of ours."""
    seen: BaseException | None = error
    while seen is not None:
        text = _whole_text(seen)
        found = _OURS.search(text) or next((m for m in _QUOTED.finditer(text) if m[1] not in vars(builtins)), None)
        if found:
            return f"{found[1]}: {found[2].rstrip()}"
        two = _TWO_DRIVERS.search(text)
        if two:
            which = f", and was first with micro-batch {two[1]}" if two[1] else ""
            return (
                f"TwoDrivers: another driver runs this query from the same checkpoint{which}\n"
                "  end that one and start this one again: it goes on where the checkpoint is, nothing is lost or there twice"
            )
        half = _HALF_OFFSET.search(text)
        if half:
            return (
                f"BadOffset: the checkpoint holds an offset that is not whole: {half[1]}\n"
                "  it is a line of a file in the checkpoint's folder offsets. Put back the file, or the whole checkpoint; "
                "or begin with a new checkpoint and startingOffsets"
            )
        seen = getattr(seen, "_cause", None)
    return ""


def _whole_text(error: BaseException) -> str:
    """What an exception of Spark's says, before it is shortened; a Py4J error has Java's whole stack in it."""
    return str(getattr(error, "_desc", None) or getattr(error, "_message", None) or error)


def shorten_exceptions() -> None:
    """Let PySpark's exceptions that carry an error of ours say that, last and alone. Once per process.

    With `spark.sql.pyspark.jvmStacktrace.enabled` on, everything is said as usual.
    """
    from pyspark.errors.exceptions import captured

    if getattr(captured.CapturedException.__str__, "_penstock", False):
        return
    _say_shortly(captured.CapturedException)
    _say_shortly(captured.PythonException)
    convert = captured.convert_exception

    def converted(java: JavaObject) -> PySparkException:
        error = convert(java)
        if not told(error) or "JVM stacktrace:" in str(error):
            return error
        if isinstance(error, captured.UnknownException):  # which would be shown as Py4J's, with Java's whole stack
            cause = error._cause
            error = captured.PythonException(desc=error._desc, stackTrace=error._stackTrace)
            error._cause = cause
        return error.with_traceback(None)

    captured.convert_exception = converted  # type: ignore[assignment]


def shorten_connect_exceptions() -> None:
    """The same for Spark Connect."""
    from pyspark.errors.exceptions import connect

    if getattr(connect.SparkConnectGrpcException.__str__, "_penstock", False):
        return
    _say_shortly(connect.SparkConnectGrpcException)
    convert = connect.convert_exception

    def converted(*given: Any, **named: Any) -> PySparkException:
        error = convert(*given, **named)
        return error.with_traceback(None) if told(error) else error

    connect.convert_exception = converted  # type: ignore[assignment]


def _say_shortly(cls: type[PySparkException]) -> None:
    whole = cls.__str__

    def say(self: PySparkException) -> str:
        ours = told(self)
        if not ours:
            return str(whole(self))
        text = str(whole(self)) if cls.__name__ == "CapturedException" else ""
        return text if "JVM stacktrace:" in text else ours

    say._penstock = True  # type: ignore[attr-defined]
    cls.__str__ = say  # type: ignore[method-assign]
