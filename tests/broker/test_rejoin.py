"""A whole store set aside: it begins anew as an empty slave of its set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.rejoin import rejoin
from penstock.broker.replica import NO_SET, Replica, placed
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.disk.folderlock import FolderLock
from penstock.errors import ConfigError, Locked, StoreError


def made(folder: Path) -> Replica:
    replica = Replica(Files(), folder, "n")
    replica.open(lossy=False)
    replica.lead(0, 0)
    replica.note_peers({"other": "10.0.0.2:10912"})
    for name in ("commitlog", "consumequeue", "config", "lost+found"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    (folder / "users.toml").write_text("# users")
    return replica


def test_everything_but_lost_and_found_and_users_is_moved(tmp_path: Path) -> None:
    former = made(tmp_path)
    whole = rejoin(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ha", "lock", "lost+found", "users.toml"]
    assert (whole / "commitlog" / "file").read_text() == "commitlog"
    assert json.loads((whole / "ha" / "replica.json").read_text())["storeId"] == former.store_id.hex()
    assert (whole / "ha" / "epochs").is_file()
    replica = Replica(Files(), tmp_path, "n")
    replica.open(lossy=False)
    assert (replica.set_id, replica.epochs, replica.led, replica.alone) == (NO_SET, (), False, False)
    assert replica.store_id != former.store_id
    assert replica.peers == {"other": "10.0.0.2:10912"}
    assert placed(BrokerConfig(role="master"), Files(), tmp_path).role == "slave"


def test_what_penstock_up_keeps_beside_the_first_node_stays(tmp_path: Path) -> None:
    """Above all the other nodes: one of them may be the master by now."""
    made(tmp_path)
    stays = ["broker-a-2", "etcd", "etcd.log", "namesrv", "replica-2"]
    for name in ("broker-a-2", "replica-2"):
        made(tmp_path / name)
        FolderLock(tmp_path / name / "lock", Files()).release()
    for name in ("etcd", "namesrv"):
        (tmp_path / name).mkdir()
    (tmp_path / "etcd.log").touch()
    rejoin(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*stays, "ha", "lock", "lost+found", "users.toml"]
    )
    assert (tmp_path / "replica-2" / "commitlog" / "file").is_file()


def test_not_beside_a_broker_that_runs_and_not_without_a_set(tmp_path: Path) -> None:
    made(tmp_path / "a")
    lock = FolderLock(tmp_path / "a" / "lock", Files())
    with pytest.raises(Locked):
        rejoin(tmp_path / "a")
    lock.release()
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="no replica set"):
        rejoin(tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())  # a folder that is none of ours stays as it is


class NthFails(Files):
    """The n-th renaming, and all behind it, fail."""

    def __init__(self, left: int) -> None:
        self.left = left

    def rename(self, old: Path, new: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreError("by order of the test")
        super().rename(old, new)


@pytest.mark.parametrize("left", range(12))
def test_one_that_was_interrupted_goes_on(tmp_path: Path, left: int) -> None:
    former = made(tmp_path)
    try:
        whole = rejoin(tmp_path, NthFails(left))
    except StoreError:
        whole = rejoin(tmp_path)
    assert [path.name for path in (tmp_path / "lost+found").glob("store-*")] == [whole.name]
    assert (whole / "commitlog" / "file").is_file()
    assert json.loads((whole / "ha" / "replica.json").read_text())["storeId"] == former.store_id.hex()
    assert not (tmp_path / "commitlog").exists()
    assert json.loads((tmp_path / "ha" / "replica.json").read_text())["role"] == "slave"
