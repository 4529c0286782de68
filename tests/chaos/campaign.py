"""Kills and power cuts under load, with damage in between; the seed says it all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos.victim import Load, Recorder, Victim, check
from penstock.log.verify import inspect

Tell = Callable[[str], None]


def _tail(folder: Path, chance: random.Random) -> str:
    """Bytes of a record that was being written: garbage behind the last whole record."""
    for path in sorted((folder / "commitlog").iterdir(), reverse=True):
        entries = list(inspect(path))
        if not entries or entries[0]["kind"] != "record" or entries[-1]["kind"] != "free" or entries[-1]["size"] < 100:
            continue  # a segment prepared ahead, or full
        at = entries[-1]["position"] - int(path.name)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(struct.pack(">iI", 400, 0xDAA320A7) + chance.randbytes(min(entries[-1]["size"] - 8, 300)))
        return f"garbage behind the last record of {path.name}"
    return "tail: nothing to damage"


def _index(folder: Path, chance: random.Random) -> str:
    files = sorted((folder / "index").glob("*")) if (folder / "index").is_dir() else []
    if not files:
        return "index: none"
    path = chance.choice(files)
    if chance.random() < 0.5:
        path.unlink()
        return f"index {path.name} removed"
    with path.open("r+b") as file:
        file.seek(0)
        file.write(b"\xff" * 40)
    return f"index {path.name} header overwritten"


def _queue(folder: Path, chance: random.Random) -> str:
    files = sorted((folder / "consumequeue" / "Chaos").glob("*/*"))
    if not files:
        return "queue: none"
    path = chance.choice(files)
    if chance.random() < 0.5:
        shutil.rmtree(path.parent)
        return f"consume queue {path.parent.name} removed"
    with path.open("r+b") as file:
        file.seek(chance.randrange(0, path.stat().st_size // 20) * 20)
        file.write(b"\xff" * 20)
    return f"consume queue {path.parent.name} overwritten somewhere"


def _checkpoint(folder: Path, chance: random.Random) -> str:
    path = folder / "checkpoint"
    if not path.exists():
        return "checkpoint: none"
    if chance.random() < 0.5:
        path.unlink()
        return "checkpoint removed"
    path.write_bytes(chance.randbytes(4096))
    return "checkpoint overwritten"


def _settings(folder: Path, chance: random.Random) -> str:
    path = folder / "config" / chance.choice(("topics.json", "consumerOffset.json", "subscriptionGroup.json"))
    if path.exists() and path.with_name(path.name + ".bak").exists():
        path.write_bytes(b"" if chance.random() < 0.5 else b'{"half')
        return f"{path.name} emptied or halved"
    return "settings: none"


DAMAGES = [_tail, _index, _queue, _checkpoint, _settings, lambda folder, chance: "no damage"]


def kills(rounds: int, tell: Tell, *, level: str = "os", seed: int = 0, load_s: float = 0.6) -> None:
    """kill -9 under load, damage, start, check; at the end a clean stop and the offline check."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name, contextlib.ExitStack() as stack:
        folder = Path(name) / "data"
        victim, recorder = stack.enter_context(Victim(folder, Path(name) / "log", level)), Recorder()
        for number in range(rounds):
            victim.start()
            load = Load(victim, recorder, seed * 10_000 + number)
            load.start()
            time.sleep(chance.uniform(0.1, load_s))  # the moment of the kill is the experiment
            victim.end()
            load.join()
            did = chance.choice(DAMAGES)(folder, chance)
            victim.start()
            try:
                present = check(victim.address, recorder)
            except AssertionError:
                tell(f"kill {number + 1}/{rounds} FAILED after {did}")
                raise
            victim.end(signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM)
            tell(f"kill {number + 1}/{rounds}: {len(recorder.acked):,} acknowledged, {present:,} there; then {did}")
        victim.start()
        check(victim.address, recorder)
        victim.end(signal.SIGTERM)
        report = victim.verify()
        assert report["ok"], report
        tell(f"offline check: {report['records']:,} records; slowest start {max(victim.start_s):.2f} s")


# -- power cuts (reliability.md 6.1) -----------------------------------------------------------------------------------


def can_cut_power() -> str | None:
    """None where loop mounts work here, else the reason why not."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    try:
        with tempfile.TemporaryDirectory() as name, _image(Path(name), 64):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop mount: {error}"
    return None


def _mount(image: Path, at: Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True, capture_output=True)


@contextlib.contextmanager
def _image(folder: Path, mib: int) -> Iterator[tuple[Path, Path]]:
    image, at = folder / "disk.img", folder / "mnt"
    at.mkdir()
    with image.open("wb") as file:
        file.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-qF", str(image)], check=True, capture_output=True)
    _mount(image, at)
    try:
        yield image, at
    finally:
        subprocess.run(["umount", str(at)], capture_output=True)


def _cut(mountpoint: Path) -> None:
    """Nothing after this instant, and nothing unflushed before it, reaches the image."""
    fd = os.open(mountpoint, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 2))
    finally:
        os.close(fd)


def power_cuts(rounds: int, tell: Tell, *, level: str, seed: int = 0) -> None:
    """Cut, remount, start, check: at `disk` everything answered, at `os` what was answered a second before."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name,
        _image(Path(name), 700) as (image, at),
        contextlib.ExitStack() as stack,
    ):
        victim, recorder = stack.enter_context(Victim(at / "data", Path(name) / "log", level)), Recorder()
        for number in range(rounds):
            victim.start()
            load = Load(victim, recorder, seed * 10_000 + number)
            load.start()
            time.sleep(chance.uniform(1.2, 2.5))
            cut_at = time.monotonic()
            _cut(at)
            victim.end()
            load.join()
            subprocess.run(["umount", str(at)], check=True, capture_output=True)
            _mount(image, at)
            victim.start()
            present = check(victim.address, recorder, cut_at if level == "disk" else cut_at - 1.0)
            victim.end(signal.SIGTERM)
            tell(f"power cut {number + 1}/{rounds} at level {level}: {present:,} there")
