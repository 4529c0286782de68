"""A Spark session that is quiet and well set, on a machine that may have no Java of its own."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.spark.tools import aloud, java, plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The first line of a traceback that is not indented: `package.Error: sentence`.
_ERROR = re.compile(r"(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*: .*|[A-Z]\w*(?:Error|Exception|Loss|Route|Corrupt|Out|Lost))\s*$")
# `: java.io.IOException: sentence` at the head of Java's stack, and each `Caused by:` further down.
_JAVA_ERROR = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)+([\w$]+)(?::? ?)(.*)$", re.MULTILINE)
# What gRPC writes on five lines.
_RPC_ERROR = re.compile(r'^<_\w+ of RPC that terminated with:.*?^\s*details = "(.+?)"$', re.MULTILINE | re.DOTALL)
# What a JVM that gives up says first, in its log or before it has one.
_JVM_SAID = re.compile(r"(?: ERROR |^Exception in thread \S+ (?:[\w$]+\.)*|^[Ee]rror: )(.*)$", re.MULTILINE)
CONNECT_HINT = "pip install 'penstock[connect]'"
_jvm_words: IO[bytes] | None = None  # what the JVM says on its standard error


def session(
    app: str | None = None,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    quick: bool = False,
) -> SparkSession:
    """A session that knows `format("penstock")`: the active one, what `spark-submit` was given, or a new local one.

    `master` is Spark's, or `sc://host:port` for a Spark Connect server. `config` wins over what is set here. `quick`
    starts two seconds sooner and computes slower: for short jobs.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and running():  # in a thread that has not used it yet
        active = SparkSession.builder.getOrCreate()
    if active is None:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # the JVM of spark-submit runs this program
        where = master or os.environ.get("SPARK_REMOTE")
        if where is None and not submitted:
            where = os.environ.get("PENSTOCK_SPARK_MASTER", "local[*, 4]")
        if where is not None and where.startswith("sc://"):
            active = _connect(app or "penstock", where, dict(config or {}), quick)
        elif submitted or where is None:
            active = _submitted(app, where, dict(config or {}))
        else:
            active = _start(app or "penstock", where, dict(config or {}), quick)
    register(active)
    return active


def running() -> bool:
    """Whether this process has a session already."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None


def register(spark: SparkSession) -> None:
    """Make our formats known to a session that does not find them by itself (a broken `pyspark_…` package), and in this thread.

    To write, Spark looks for a format in the active session, which a thread of the user's has none of.
    """
    from pyspark_penstock import DefaultSource
    from pyspark_penstock_log import DefaultSource as LogSource

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark.dataSource.register(DefaultSource)
        spark.dataSource.register(LogSource)
    if hasattr(spark, "_jsparkSession"):  # else it is a Connect server's, which knows the session of each request
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def settings(quick: bool = False) -> dict[str, str]:
    """What a new session is started with."""
    log4j = Path(__file__).with_name("log4j2.properties")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.unix.domain.socket.enabled": str(sys.platform == "linux").lower(),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.authenticate.socketTimeout": "120s",  # a worker may start slowly on a busy machine
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        + (f" {_QUICK}" if quick else ""),
        **({"spark.executor.extraJavaOptions": _QUICK} if quick else {}),
    }


def _hush() -> None:
    """PySpark's notices about pandas, and its second account, as a line of JSON, of each error it raises anyway."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    plainly.shorten_exceptions()


def _connect(app: str, where: str, config: dict[str, str], quick: bool) -> SparkSession:
    """A session at a Spark Connect server, which has a JVM, settings and workers of its own."""
    from pyspark.sql import SparkSession

    _hush()
    _knock(where)
    try:
        plainly.shorten_connect_exceptions()
        builder = SparkSession.builder.remote(where).appName(app)
        for name, value in {"spark.sql.session.timeZone": "UTC", **config}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except ImportError as error:
        raise ConfigError(f"Spark Connect needs another package ({error})", CONNECT_HINT) from None
    except Exception as error:
        raise ConfigError(f"no session at {where}: {cause(error)}", "is the Connect server there?") from None


def _knock(where: str) -> None:
    """`ConfigError` when nobody listens there: Spark's own client would go on trying for many minutes."""
    host, _, port = where.removeprefix("sc://").partition("/")[0].rpartition(":")
    if not port.isdigit():  # the default port
        host, port = where.removeprefix("sc://").partition("/")[0], "15002"
    try:
        socket.create_connection((host.strip("[]"), int(port)), 10).close()
    except OSError as error:
        raise ConfigError(f"no session at {where}: {error}", "is the Connect server there?") from None


def _start(app: str, master: str, config: dict[str, str], quick: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _hush()
    os.environ["JAVA_HOME"] = str(java.find().home)  # the one that was there may be too old
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _let_workers_import_us()
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app)
    for name, value in {**settings(quick), **_executor_settings(master), **config}.items():
        conf.set(name, value)
    if SparkContext._gateway is None:
        global _jvm_words
        _jvm_words = tempfile.TemporaryFile(prefix="penstock-jvm-")  # noqa: SIM115  (lives as long as the JVM)
        os.environ[aloud.ASKED] = "true"
        try:
            gateway = launch_gateway(conf, popen_kwargs={"stderr": _jvm_words})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise _not_started(master, error) from None
        finally:
            del os.environ[aloud.ASKED]  # for the JVM and what it starts alone
        aloud.Listener(_jvm_words.fileno()).start()
        try:
            SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            raise _not_started(master, error) from None
    try:
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise _not_started(master, error) from None


_ANYWHERE = (
    "spark.sql.session.timeZone", "spark.sql.python.filterPushdown.enabled", "spark.python.authenticate.socketTimeout",
    "spark.sql.execution.arrow.pyspark.enabled",
)  # fmt: skip


def _submitted(app: str | None, master: str | None, config: dict[str, str]) -> SparkSession:
    """The session of a program that `spark-submit` runs: its master, name and settings count, ours only fill gaps."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _hush()
    _let_workers_import_us()
    try:
        SparkContext._ensure_initialized()  # type: ignore[attr-defined]
        conf = SparkConf(_jvm=SparkContext._jvm)
        ours = settings()
        for name in _ANYWHERE:
            conf.setIfMissing(name, ours[name])
        if not _installed():
            conf.setIfMissing("spark.executorEnv.PYTHONPATH", str(_root()))
        for name, value in {**config, "spark.master": master, "spark.app.name": app}.items():
            if value is not None:
                conf.set(name, value)
        if (conf.get("spark.master") or "").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise _not_started(master or "the master submitted to", error) from None


def _not_started(master: str, error: Exception) -> ConfigError:
    """Why there is no session: what the JVM logged as an error says it better than what it answered."""
    said = [match[1] for match in _JVM_SAID.finditer(jvm_words(200))]
    why = said[0].strip() if said else cause(error)
    hint = (
        "penstock spark doctor"
        if master.startswith("local")
        else "is the master there, and can its workers start Java?"
    )
    return ConfigError(f"Spark did not start at {master}: {why}", hint)


def _let_workers_import_us() -> None:
    """Spark's Python workers must find this package even where it is run from a source tree."""
    root = str(_root())
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if not _installed() and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])


def _root() -> Path:
    return Path(__file__).parents[3]


def _installed() -> bool:
    return "site-packages" in str(_root())


def _executor_settings(master: str) -> dict[str, str]:
    """Executors on other machines do not inherit this process's environment."""
    paths = os.environ.get("PYTHONPATH", "")
    return {"spark.executorEnv.PYTHONPATH": paths} if paths and not master.startswith("local") else {}


def jvm_words(lines: int = 30) -> str:
    """The last lines the JVM wrote to its standard error."""
    if _jvm_words is None:
        return ""
    data = os.pread(_jvm_words.fileno(), 1 << 20, max(os.fstat(_jvm_words.fileno()).st_size - (1 << 20), 0))
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:])


def cause(error: BaseException) -> str:
    """What went wrong, in one line: the innermost Python error behind a Spark exception, without its stack."""
    ours = plainly.told(error)
    if ours:
        return ours.splitlines()[0]
    text = str(error)
    if text.startswith("An error occurred while calling "):  # Py4J: the innermost error of Java, if Python has none
        found = _JAVA_ERROR.findall(text)
        if found and "Traceback (most recent call last):" not in text:
            return f"{found[-1][0]}: {found[-1][1].strip()}".removesuffix(": ")
    if (said := _RPC_ERROR.search(text)) is not None:
        return said[1].replace('\\"', '"')
    blocks = text.split("Traceback (most recent call last):")[1:]
    for block in blocks:
        for line in block.splitlines():
            match = _ERROR.match(line)
            if match:
                return match[1].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first or type(error).__name__
