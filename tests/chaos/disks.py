"""The set of `partitions`, each node on a file system of its own, while disks are full, refuse writes, hang, or lose power.

Each node has an ext4 in a file on a tmpfs, by a loop mount, so that faults are the kernel's own:

full      a file takes all the room of the file system: ENOSPC
refusing  a file takes all the room of the tmpfs below: the block device says no to writes, and flushes fail
hung      the file system is frozen: whoever writes or flushes waits, in the kernel
cut       it is shut down, what was not flushed is gone; then the process is killed, and the machine starts again

All at level `pair-disk`, which promises what `pair` does, and after a power cut of both; what is wanted is P1 to P5.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.campaign import _cut, _mount, can_cut_power
from chaos.machines import Tell, can_make_machines, ends, inside
from chaos.partitions import LEASE_MS, Apart, Campaign, play

MIB, ROOM_MIB = 192, 208  # of the file system, and of the tmpfs that it is a file in
FAULTS = (
    "master_full", "slave_full", "both_full", "master_refusing", "slave_refusing", "master_hung", "slave_hung", "master_cut",
    "slave_cut", "both_cut", "master_killed", "parted",
)  # fmt: skip
MENDED = 1  # the most that e2fsck ends with when the file system is whole
PROGRAMS = ("e2fsck", "mkfs.ext4", "umount", "fsfreeze", "fstrim", "losetup")


class Disk:
    """One node's."""

    def __init__(self, folder: Path, name: str) -> None:
        self.below, self.at = folder / f"below-{name}", folder / f"disk-{name}"
        for path in (self.below, self.at):
            path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={ROOM_MIB}m", "tmpfs", self.below)
        self.image = self.below / "image"
        with self.image.open("wb") as file:
            file.truncate(MIB << 20)
        _run("mkfs.ext4", "-qF", "-m", "0", self.image)
        _mount(self.image, self.at)
        self.store = self.at / "data"

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        with _taken(self.at / "ballast"):
            yield

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        _run("fstrim", self.at)  # so that what is free above takes no room below
        with _taken(self.below / "ballast"):
            yield

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        _run("fsfreeze", "--freeze", self.at)
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", self.at)

    def cut(self) -> None:
        _cut(self.at)

    def mount_again(self) -> None:
        """As the machine does when it starts."""
        _run("umount", self.at)
        done = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, text=True, check=False)
        if done.returncode > MENDED:
            raise OSError(f"e2fsck: {done.stdout}{done.stderr}")
        _mount(self.image, self.at)


@contextlib.contextmanager
def _taken(path: Path) -> Iterator[None]:
    """A file that takes all the room there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\xff" * (1 << 16))
    try:
        yield
    finally:
        path.unlink()


def _run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class DiskCampaign(Campaign):
    """And its disks."""

    def __init__(self, made: Apart, chance: random.Random, longest_s: float, disks: dict[str, Disk]) -> None:
        super().__init__(made, chance, longest_s)
        self.disks = disks

    def _of(self, who: str) -> str:
        return self.made.roles()[who]

    def master_full(self) -> None:
        self._full(self._of("master"))

    def slave_full(self) -> None:
        self._full(self._of("slave"))

    def both_full(self) -> None:
        self._full("a", "b")

    def _full(self, *names: str) -> None:
        """For half of the times somebody starts again while there is no room."""
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(self.disks[name].full())
            time.sleep(self._while_s())
            killed = self.chance.choice(names) if self.chance.random() < 0.5 else ""
            if killed:
                self.made.nodes[killed].kill()
                with contextlib.suppress(AssertionError):  # it may say that it cannot
                    self.made.nodes[killed].start()
                time.sleep(self._while_s())
        self._all_run()

    def master_refusing(self) -> None:
        self._refusing(self._of("master"))

    def slave_refusing(self) -> None:
        self._refusing(self._of("slave"))

    def _refusing(self, name: str) -> None:
        """What the kernel says is written is not: only a new start, from what the disk has, may go on."""
        with self.disks[name].refusing():
            time.sleep(max(2.0, self._while_s()))
        self._power_lost(name)
        try:
            self.made.nodes[name].start()
        except AssertionError:  # what the kernel had promised to write was the file system's own: the disk is replaced
            shutil.rmtree(self.disks[name].store)
        self._all_run()

    def master_hung(self) -> None:
        with self.disks[self._of("master")].hung():
            time.sleep(self._while_s())
        self._all_run()

    def slave_hung(self) -> None:
        with self.disks[self._of("slave")].hung():
            time.sleep(self._while_s())
        self._all_run()

    def master_cut(self) -> None:
        self._power_lost(self._of("master"))
        time.sleep(self._while_s())
        self._all_run()

    def slave_cut(self) -> None:
        self._power_lost(self._of("slave"))
        time.sleep(self._while_s())
        self._all_run()

    def both_cut(self) -> None:
        """The nodes start, and when nobody stands, a person says who is to."""
        roles = self.made.roles()
        first, second = self.chance.sample([roles["master"], roles["slave"]], 2)
        self._power_lost(first)
        time.sleep(self.chance.uniform(0, 3))
        self._power_lost(second)
        self._all_run()
        end = time.monotonic() + 2 * LEASE_MS / 1000
        while time.monotonic() < end and not self._led():
            time.sleep(0.1)
        if self._led():
            return
        rows = self._all()
        most = max(rows, key=lambda name: int(str(rows[name]["written"])))
        done = self.made.ha("promote", "--node", most, "--accept-loss")
        assert done.returncode == 0 or self._led(), done.stderr

    def _led(self) -> bool:
        return any(row["role"] == "master" for row in self.made.rows().values())

    def _power_lost(self, name: str) -> None:
        self.disks[name].cut()
        node = self.made.nodes[name]
        if node.process is not None and node.process.poll() is None:
            node.kill()
        self.disks[name].mount_again()

    def _all_run(self) -> None:
        for name, node in self.made.nodes.items():
            assert node.process is not None
            if node.process.poll() is not None:
                node.start()
            self.tell_ends(name)

    def tell_ends(self, name: str) -> None:
        """For whoever reads the log of a run that failed."""
        free = shutil.disk_usage(self.disks[name].at).free >> 20
        print(f"  {name}: {free} MiB free", file=sys.stderr)


def within(folder: Path, rounds: int, seed: int, longest_s: float, faults: tuple[str, ...], tell: Tell) -> None:
    chance = random.Random(seed)
    disks = {name: Disk(folder, name) for name in "ab"}
    made = Apart(folder, "one", {name: disk.store for name, disk in disks.items()}, level="pair-disk",
                 file_reserved_time_hours=1)  # fmt: skip
    play(made, DiskCampaign(made, chance, longest_s, disks), rounds, seed, faults, tell)


def run(rounds: int, tell: Tell, *, seed: int = 0, longest_s: float = 6.0, faults: tuple[str, ...] = FAULTS) -> None:
    """So many faults at random, each from and to a whole set. What fails is kept."""
    folder = tempfile.mkdtemp(prefix="penstock-chaos-")
    try:
        inside(tell, "chaos.disks", folder, str(rounds), str(seed), str(longest_s), *faults)
    except AssertionError as error:
        raise AssertionError(f"{error}\nkept in {folder}") from error
    shutil.rmtree(folder)


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    reason = can_make_machines("etcd", *PROGRAMS) or can_cut_power()
    if reason is not None:
        tell(f"no disks of their own: they cannot be made here: {reason}")
        return
    run(2 * len(FAULTS) * times or 6, tell, seed=seed, longest_s=20.0 if times > 1 else 6.0)


if __name__ == "__main__":
    place, many, begin, longest, *names = sys.argv[1:]
    ends(lambda: within(Path(place), int(many), int(begin), float(longest), tuple(names), print))
