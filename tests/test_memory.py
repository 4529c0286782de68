"""The memory of a process within control groups, told by folders made up."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from penstock.memory import memory_bytes


def told(root: Path, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_bytes(root)


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
MINE = "proc/self/cgroup"


@pytest.mark.parametrize(
    "files",
    [
        {MINE: "0::/\n", f"{V2}/memory.max": "5000\n"},
        {MINE: "0::/a/b\n", f"{V2}/a/b/memory.max": "5000\n", f"{V2}/a/memory.max": "max\n"},
        {MINE: "0::/a/b\n", f"{V2}/a/b/memory.max": "9000\n", f"{V2}/a/memory.max": "5000\n"},
        {MINE: "0::/../../x\n", f"{V2}/memory.max": "5000\n"},
        {MINE: "9:cpu,memory:/docker/1\n0::/\n", f"{V1}/docker/1/memory.limit_in_bytes": "5000\n"},
        # Its own group is mounted, and has another path outside.
        {MINE: "9:memory:/docker/1\n", f"{V1}/memory.limit_in_bytes": "5000\n"},
    ],
)
def test_the_lowest_limit_of_the_groups_a_process_is_in(tmp_path: Path, files: dict[str, str]) -> None:
    assert told(tmp_path, files) == 5000


@pytest.mark.parametrize(
    "files",
    [
        {},
        {MINE: "0::/\n"},
        {MINE: "junk\n1:memory\n\n", f"{V1}/memory.limit_in_bytes": "junk"},
        {MINE: "0::/\n", f"{V2}/memory.max": "max\n"},
        {MINE: "1:memory:/\n", f"{V1}/memory.limit_in_bytes": "9223372036854771712\n"},
        {MINE: "1:cpu:/\n", f"{V1}/memory.limit_in_bytes": "5000\n"},
    ],
)
def test_without_a_limit_it_is_the_machines(tmp_path: Path, files: dict[str, str]) -> None:
    assert told(tmp_path, files) == pytest.approx(psutil.virtual_memory().total, rel=0.01)


def test_this_machine_can_be_asked() -> None:
    assert 1 << 20 < memory_bytes() <= psutil.virtual_memory().total * 1.01
