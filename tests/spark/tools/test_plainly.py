"""Our errors as Spark shows them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from penstock.errors import BrokerRefused, ConfigError, NoRoute
from penstock.spark.tools.plainly import HINTS, plainly, told
from penstock.spark.tools.sessions import cause


@pytest.mark.parametrize(
    ("remark", "helps"),
    [
        ("No accessKey is configured", "the options user and secretFile"),
        ("Check signature failed for accessKey=spark", "the options user and secretFile"),
        ("No default permission for group:job-x", "or job- and the jobId"),
    ],
)
def test_who_is_refused_is_told_which_option_says_who_he_is(remark: str, helps: str) -> None:
    @plainly
    def ask() -> None:
        raise BrokerRefused(1, remark)

    with pytest.raises(BrokerRefused) as refused:
        ask()
    said, hint = str(refused.value).split("\n")
    assert said == f"refused with code 1: {remark}"
    assert helps in hint


def test_an_error_of_ours_keeps_class_and_hint_and_loses_its_frames() -> None:
    def deep(n: int) -> None:
        deep(n - 1) if n else (_ for _ in ()).throw(NoRoute("no broker serves topic 'x'"))

    def rows() -> Iterator[int]:
        yield 1
        raise ConfigError("this cannot be", "try that")

    with pytest.raises(NoRoute) as error:
        plainly(deep)(30)
    text = "".join(traceback.format_exception(error.value.with_traceback(None)))
    assert text == f"penstock.errors.NoRoute: no broker serves topic 'x'\n  {HINTS['NoRoute']}\n"
    items = plainly(rows)()
    assert next(items) == 1
    with pytest.raises(ConfigError, match="this cannot be\n  try that"):
        next(items)
    behind = f"[FAILED] Failed: Traceback (most recent call last):\n  File x\n{text} SQLSTATE: 38000\n\tat org.X"
    assert told(ValueError(behind)) == f"NoRoute: no broker serves topic 'x'\n  {HINTS['NoRoute']}"
    assert cause(ValueError(behind)) == "NoRoute: no broker serves topic 'x'"
    assert told(ValueError("of somebody else")) == ""


_QUOTED = """[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred \
in the user provided function in foreach batch sink. Reason: An exception was raised by the Python Proxy.
  File "/x/pyspark/sql/classic/dataframe.py", line 443, in count
    return int(self._jdf.count())
pyspark.errors.exceptions.captured.{said}
 SQLSTATE: XXKST
=== Streaming Query ==="""


def test_an_error_of_ours_in_a_function_of_the_users_is_told_as_well() -> None:
    ours = "DataLoss: offsets 0 to 5 of t queue 0 at a are gone\n  begin with startingOffsets"
    assert told(ValueError(_QUOTED.format(said="PythonException: " + ours))) == ours
    for theirs in ("AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] no t", "PythonException: ValueError: mine is broken"):
        assert told(ValueError(_QUOTED.format(said=theirs))) == ""
