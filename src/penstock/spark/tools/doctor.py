"""Is everything there that the Spark side needs? One line per thing, and what to do about what is missing."""

from __future__ import annotations

import importlib
import pkgutil
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from penstock.errors import ConfigError

PYSPARK_MIN = (4, 3)
CONNECT_PORT = 15_002  # of a Spark Connect server, and of what spark-pipelines starts for a run


class Check(NamedTuple):
    """One thing looked at; `advice` is empty when it is all right."""

    thing: str
    found: str
    advice: str = ""

    @property
    def good(self) -> bool:
        return not self.advice


def examine() -> list[Check]:
    """All findings; starts no JVM."""
    neighbours = _neighbours() if _version("pyspark") else []  # they need it
    return [_python(), _build(), _pyspark(), *_packages(), _connect(), _java(), *neighbours]


def _python() -> Check:
    return Check("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _build() -> Check:
    try:
        from penstock.spark.kernel import batches
    except ImportError as error:
        return Check("decoder", str(error), "pip install 'penstock[spark]'")
    if batches.COMPILED:
        return Check("decoder", "compiled")
    return Check("decoder", "numpy (slow)", "install a wheel, or build: pip install penstock with a C compiler there")


def _pyspark() -> Check:
    found = _version("pyspark")
    if found is None:
        return Check("PySpark", "not installed", "pip install 'penstock[spark]'")
    if tuple(int(part) for part in found.split(".")[:2]) < PYSPARK_MIN:
        return Check("PySpark", found, "needs 4.3: pip install 'penstock[spark]'")
    return Check("PySpark", found)


def _packages() -> list[Check]:
    findings = []
    for package, why in (("pyarrow", "batches"), ("pandas", "mapInArrow, used by archive")):
        found = _version(package)
        advice = "" if found else f"needed for {why}: pip install 'penstock[spark]'"
        if package == "pandas" and found and int(found.split(".")[0]) >= 3:
            advice = "PySpark 4.3 wants pandas < 3"
        findings.append(Check(package, found or "not installed", advice))
    return findings


def _connect() -> Check:
    """Needed by nobody who does not use it, so what is missing is no fault."""
    wanted = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
    missing = [package for package in wanted if _version(package) is None]
    if missing:
        return Check("Connect", f"not installed ({', '.join(missing)}); only sc:// and spark-pipelines need it")
    pipelines = "" if _version("pyyaml") else "; spark-pipelines needs pyyaml, too"
    if _taken(CONNECT_PORT):
        pipelines += f"; port {CONNECT_PORT} is taken: SPARK_TESTING=1 spark-pipelines run takes another one"
    return Check("Connect", f"grpcio {_version('grpcio')}{pipelines}")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _java() -> Check:
    from penstock.spark.tools import java

    try:
        found = java.find()
    except ConfigError as error:
        return Check("Java", str(error), error.hint)
    return Check("Java", f"{found.version} from {found.origin}, {found.home}")


def _neighbours() -> list[Check]:
    """Modules Spark imports while it looks for data sources: one that fails makes every look-up fail."""
    findings = []
    for module in sorted(m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_")):
        try:
            importlib.import_module(module)
        except Exception as error:
            advice = "Spark cannot look up any format while it fails: remove it, or call penstock.spark.register(spark)"
            findings.append(Check(module, f"fails: {error}", advice))
        else:
            findings.append(Check(module, "found"))
    return findings


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def report(findings: list[Check]) -> str:
    """The findings as text."""
    width = max(len(finding.thing) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{'ok ' if finding.good else 'BAD'} {finding.thing:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"    {'':<{width}}  {finding.advice}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(examine()))
    sys.exit(not all(finding.good for finding in examine()))
