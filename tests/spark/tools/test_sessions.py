"""Sessions in threads, and the cause of an error that comes out of Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.spark.tools.sessions import cause


def test_the_cause_is_the_innermost_python_error() -> None:
    spark = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise DataLoss("gone")
penstock.spark.read.planning.DataLoss: offsets 2 to 4 are gone

\tat org.apache.spark.Something"""
    assert cause(Exception(spark)) == "DataLoss: offsets 2 to 4 are gone"
    assert cause(ValueError("plain\nmore")) == "plain"
    assert cause(ValueError()) == "ValueError"
    rpc = (
        '<_InactiveRpcError of RPC that terminated with:\n\tstatus = x\n\tdetails = "not \\"there\\""\n\tdebug = "x"\n>'
    )
    assert cause(Exception(rpc)) == 'not "there"'


def test_the_cause_behind_java_is_the_innermost() -> None:
    java = """An error occurred while calling o1.sql.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.X(Y.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/Z"""
    assert cause(Exception(java)) == "IOException: No space left on device"


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["session", "register"])
def test_a_thread_of_the_users_writes(spark: Any, registry: str, way: str) -> None:
    import penstock.spark

    def write() -> int:
        mine = penstock.spark.session() if way == "session" else spark
        if way == "register":
            penstock.spark.register(mine)
        rows = mine.range(0, 20, 1, 1).selectExpr("cast(id as string) as value")
        rows.write.format("penstock").options(registry=registry).mode("append").save(f"by-{way}")
        return int(mine.read.format("penstock").options(registry=registry).load(f"by-{way}").count())

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(write).result() == 20
