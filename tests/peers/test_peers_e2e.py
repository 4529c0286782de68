"""RocketMQ's own end-to-end suite for 4.9 clients (apache/rocketmq-e2e, java/e2e-v4) at our broker.

It is in no package index: `ROCKETMQ_E2E` names a checkout of it. Maven brings what it needs; it takes ten minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.testing import Broker

CHECKOUT = "ROCKETMQ_E2E"
# Its Lombok looks into the compiler; newer Javas want to be asked.
PACKAGES = ("code", "comp", "file", "main", "model", "parser", "processing", "tree", "util", "jvm", "api")
OPENED = " ".join(f"--add-opens=jdk.compiler/com.sun.tools.javac.{name}=ALL-UNNAMED" for name in PACKAGES)
SUITE_S = 3000


def test_every_test_that_it_runs_passes(tmp_path: Path) -> None:
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"{CHECKOUT} names no checkout of apache/rocketmq-e2e")
    if not shutil.which("mvn"):
        pytest.skip("mvn is not on this machine")
    suite = tmp_path / "java"
    shutil.copytree(Path(checkout) / "java", suite)
    with Broker(tmp_path / "data") as broker:
        for settings in (suite / "e2e-v4").glob("src/test/resources/env/*/*.conf"):
            settings.write_text(re.sub(r"namesrvAddr = \S+", f"namesrvAddr = {broker.registry}", settings.read_text()))
        told = subprocess.run(
            ["mvn", "-B", "test", "-Dcheckstyle.skip", "-Drat.skip"], cwd=suite / "e2e-v4", capture_output=True, text=True,
            env={**os.environ, "MAVEN_OPTS": OPENED, "cluster": "DefaultCluster"}, timeout=SUITE_S,
        )  # fmt: skip
    counts = re.findall(
        r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: \d+\s*$", told.stdout, re.MULTILINE
    )
    assert counts, told.stdout[-3000:]
    run, *bad = map(int, counts[-1])
    assert bad == [0, 0], told.stdout[-8000:]
    assert run >= 80
