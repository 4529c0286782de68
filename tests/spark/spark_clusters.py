"""Spark servers on this machine, out of the pip package: a master with two workers of one core each; a Connect server."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 90.0
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Its address, `spark://127.0.0.1:PORT`; logs and work folders are in `folder`."""
    master = _Daemon(folder / "master.log", _java(f"{_DEPLOY}.master.Master"), "--host", "127.0.0.1", "--port", "0")
    daemons = [master]
    try:
        url = master.said(r"Starting Spark master at (spark://\S+)")
        for n in range(2):
            given = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{n}")]
            daemons.append(_Daemon(folder / f"worker-{n}.log", _java(f"{_DEPLOY}.worker.Worker"), *given, url))
        for worker in daemons[1:]:
            worker.said(r"(Successfully registered with master)")
        yield url
    finally:
        for daemon in reversed(daemons):
            daemon.end()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its address, `sc://127.0.0.1:PORT`. It has a session of two cores and finds our formats by itself."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    submit = [
        str(_home() / "bin" / "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    submit += ["--master", "local[2, 2]", "--driver-memory", "1g", "--driver-java-options", " ".join(_QUICK)]
    for setting in (
        f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false", "spark.sql.shuffle.partitions=2",
        "spark.sql.session.timeZone=UTC", f"spark.sql.warehouse.dir={folder}/warehouse",
    ):  # fmt: skip
        submit += ["--conf", setting]
    server = _Daemon(folder / "connect.log", submit, "spark-internal")
    try:
        server.said(r"(Spark Connect server started at)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.end()


def _home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _java(main: str) -> list[str]:
    from penstock.spark.tools import java

    return [
        str(java.find().home / "bin" / "java"),
        "-Xmx256m",
        *_QUICK,
        "-cp",
        f"{_home()}/jars/*",
        main,
        "--webui-port",
        "0",
    ]


class _Daemon:
    """One JVM. Its log is read for what it must say before others may go on."""

    def __init__(self, log: Path, command: list[str], *words: str) -> None:
        # What Spark's own start script would set; without the version a worker cannot build an executor's command.
        environment = {
            "SPARK_HOME": str(_home()), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        }  # fmt: skip
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *words], env={**os.environ, **environment}, stdout=out, stderr=out, start_new_session=True
            )

    def said(self, pattern: str) -> str:
        """The group of the first line that matches."""
        deadline = time.monotonic() + START_S
        while True:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"{self.log} does not say {pattern}"
            time.sleep(0.02)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
