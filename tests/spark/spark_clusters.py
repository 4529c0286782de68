"""A standalone Spark cluster on this machine: a master and two workers with one core each, out of the pip package."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 90.0
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Its address, `spark://127.0.0.1:PORT`; logs and work folders are in `folder`."""
    master = _Daemon(folder / "master.log", f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", "0")
    daemons = [master]
    try:
        url = master.said(r"Starting Spark master at (spark://\S+)")
        for n in range(2):
            given = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{n}")]
            daemons.append(_Daemon(folder / f"worker-{n}.log", f"{_DEPLOY}.worker.Worker", *given, url))
        for worker in daemons[1:]:
            worker.said(r"(Successfully registered with master)")
        yield url
    finally:
        for daemon in reversed(daemons):
            daemon.end()


class _Daemon:
    """One JVM. Its log is read for what it must say before others may go on."""

    def __init__(self, log: Path, main: str, *words: str) -> None:
        import pyspark

        from penstock.spark import java

        home = Path(pyspark.__file__).parent
        command = [str(java.find().home / "bin" / "java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", f"{home}/jars/*", main, "--webui-port", "0", *words]
        # What Spark's own start script would set; without the version a worker cannot build an executor's command.
        environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=out, stderr=out, start_new_session=True
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
            time.sleep(0.05)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
