"""In CI a skip that the machine could run fails the run; elsewhere, and for a known reason, it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("skip", "ci", "code"),
    [
        ("pytest.skip('I did not feel like it')", "1", 1),
        ("pytest.importorskip('no_such_package_of_ours')", "1", 1),
        ("pytest.skip('Spark needs Java 17 or newer and none was found')", "1", 0),
        ("pytest.skip('power cuts cannot be made here: not root')", "1", 0),
        ("pytest.skip('I did not feel like it')", "", 0),
    ],
)
def test_skips(tmp_path: Path, skip: str, ci: str, code: int) -> None:
    for name in ("conftest.py", "certificates.py"):  # and what it imports
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    (tmp_path / "test_one.py").write_text(f"import pytest\ndef test_one():\n    {skip}\ndef test_two():\n    pass\n")
    environment = {**os.environ, "PENSTOCK_CI": ci, "CI": ""}
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == code, told.stdout
    assert ("skipped, though this machine could run it" in told.stdout) == bool(code)
    assert "build; Java: " in told.stdout
