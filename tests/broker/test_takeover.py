"""A data folder that RocketMQ leaves to us: what it has delivered of each level is not delivered again."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.takeover import delivered_by_rocketmq
from penstock.disk.files import Files
from penstock.disk.tables import save
from penstock.log.checkpoint import Checkpoint, CheckpointFile


def folder_with(folder: Path, *, ours: bool) -> Path:
    save(Files(), folder / "config" / "delayOffset.json", {"offsetTable": {"1": 5, "3": 9}})
    if ours:
        file = CheckpointFile(folder / "checkpoint", Files())
        file.write(Checkpoint(durable=5, store_ms=7))
        file.close()
    return folder


def test_of_a_folder_of_rocketmqs(tmp_path: Path) -> None:
    assert delivered_by_rocketmq(Files(), folder_with(tmp_path, ours=False)) == {1: 5, 3: 9}


def test_of_a_folder_of_ours(tmp_path: Path) -> None:
    assert delivered_by_rocketmq(Files(), folder_with(tmp_path, ours=True)) == {}


def test_rocketmq_had_it_after_us(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ours=True)
    data = bytearray((folder / "checkpoint").read_bytes())
    data[:24] = (1_000).to_bytes(8) + (1_001).to_bytes(8) + (1_002).to_bytes(8)
    (folder / "checkpoint").write_bytes(data)
    assert delivered_by_rocketmq(Files(), folder) == {1: 5, 3: 9}


def test_of_an_empty_folder(tmp_path: Path) -> None:
    assert delivered_by_rocketmq(Files(), tmp_path) == {}
