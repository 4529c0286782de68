"""A sample of what `./run chaos ha` does to nodes on machines of their own, and the page about three machines, word by word."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chaos import clocks, disks, page, partitions
from chaos.machines import can_make_machines, inside


def machines(*programs: str) -> None:
    reason = can_make_machines("etcd", *programs)
    if reason is not None:
        pytest.skip(f"machines of their own cannot be made here: {reason}")


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("layout", "faults"),
    [("one", ("master alone", "answers lost")), ("three", ("master gone",))],
)
def test_cut_off_from_one_another(layout: str, faults: tuple[str, ...]) -> None:
    machines()
    told: list[str] = []
    assert set(faults) <= set(partitions.FAULTS[layout])
    partitions.run(len(faults), told.append, layout=layout, seed=3, faults=faults)
    assert len(told) == len(faults) + 1


@pytest.mark.chaos
def test_disks_of_their_own() -> None:
    machines(*disks.PROGRAMS)
    faults = ("both_cut", "master_refusing", "slave_full")
    told: list[str] = []
    assert set(faults) <= set(disks.FAULTS)
    disks.run(len(faults), told.append, seed=3, longest_s=5.0, faults=faults)
    assert len(told) == len(faults) + 1


@pytest.mark.chaos
def test_clocks_that_are_wrong() -> None:
    machines()
    reason = clocks.can_set_clocks()
    if reason is not None:
        pytest.skip(f"a process cannot have clocks of its own here: {reason}")
    faults = ("started_ahead", "slow_and_alone", "master_behind")
    told: list[str] = []
    assert set(faults) <= set(clocks.FAULTS)
    clocks.run(len(faults), told.append, seed=3, longest_s=5.0, faults=faults)
    assert len(told) == len(faults) + 1
    assert "P6" in clocks.find("timed by the wall", seed=3)


@pytest.mark.chaos
def test_the_page_about_three_machines() -> None:
    machines()
    told: list[str] = []
    page.run(told.append)
    assert "etcd is back" in told[-1]


def test_nothing_is_left_of_a_run_that_fails(tmp_path: Path) -> None:
    """Neither names of machines, nor mounts, nor processes."""
    machines()
    program = tmp_path / "fails_on_purpose.py"
    program.write_text(
        "import subprocess\nfrom chaos.machines import Machines, at\nMachines(2)\n"
        "subprocess.Popen([*at('m1'), 'sleep', '86399'])\nprint('made', flush=True)\nraise SystemExit('on purpose')\n"
    )
    told: list[str] = []
    with pytest.raises(AssertionError, match="on purpose"):
        inside(told.append, str(program))
    assert told == ["made"]
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "m1" not in names.split()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 86399" not in running
