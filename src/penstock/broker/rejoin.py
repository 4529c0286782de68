"""Setting a whole store aside, so that its node joins its replica set anew with nothing: `penstock ha rejoin --discard`."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.broker.replica import NO_SET
from penstock.disk import tables
from penstock.disk.files import Files
from penstock.disk.folderlock import FolderLock
from penstock.errors import ConfigError

_KEPT = {"lock", "lost+found", "users.toml", "ha"}
_BESIDE = {"namesrv", "etcd", "etcd.log"}  # the registry's, and the engine's


def rejoin(folder: Path, files: Files | None = None) -> Path:
    """Move all of this node there but lost+found, and let it be a slave of the set it was of; where the rest is now. Locked when
    a broker runs on the folder, ConfigError when the folder is of no replica set, StoreError. Done twice, or gone on with after
    a crash, it ends in the same state.
    """
    files = files or Files()
    replica = folder / "ha" / "replica.json"
    lost = folder / "lost+found"
    if not replica.parent.is_dir():  # not even a lock is left in a folder that is none of ours
        raise _of_no_set(folder)
    lock = FolderLock(folder / "lock", files)
    try:
        begun = sorted(lost.glob("store-*.part"))
        saved = tables.load(files, begun[0] / "ha" / "replica.json") if begun else None
        table = saved or tables.load(files, replica)
        if table is None:
            raise _of_no_set(folder)
        part = begun[0] if begun else lost / f"store-{time.time_ns() // 1_000_000}.part"
        files.make_folder(part)
        for name in sorted(set(files.names(folder)) - _KEPT - _BESIDE):
            if not _is_brokers(folder / name):  # `penstock up` puts them inside the first one's
                files.rename(folder / name, part / name)
        files.make_folder(part / "ha")
        for name in sorted(files.names(folder / "ha")):
            if not name.startswith("replica.json"):
                files.rename(folder / "ha" / name, part / "ha" / name)
        if saved is None:
            tables.save(files, part / "ha" / "replica.json", table)
        fresh = {"setId": NO_SET.hex(), "role": "slave", "peers": table.get("peers", {})}
        tables.save(files, replica, fresh)
        files.unlink(replica.with_name("replica.json.bak"))
        whole = part.with_suffix("")
        files.rename(part, whole)
        for changed in (lost, folder / "ha", folder):
            files.sync_folder(changed)
        return whole
    finally:
        lock.release()


def _of_no_set(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} is of no replica set", "Only the store of a slave or of a master with slaves.")


def _is_brokers(folder: Path) -> bool:
    return (folder / "lock").exists()
