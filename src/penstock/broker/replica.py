"""Who this broker is within its replica set, and which masterships its log has seen: `ha/replica.json`.

The first master makes the id of the set, a slave takes it over with its first byte. `ha/confirmed` is beside it: up to where
a slave was told that all members have the log. It is written without a flush, for it only ever lags.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from isal import isal_zlib
from msgspec.structs import replace

from penstock.broker.levels import LEVELS
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.disk.tables import load, save
from penstock.errors import ConfigError, StoreError
from penstock.limits import is_loopback
from penstock.wire.ha import ID_BYTES, TAG_BYTES, Epoch

EPOCHS_MAX = 1_000
NO_SET = bytes(ID_BYTES)

_CONFIRMED = struct.Struct(">qI")


def check_role(config: BrokerConfig) -> BrokerConfig:
    """The settings with the broker's place in its set. ConfigError where they make no sense."""
    if config.role not in ("master", "slave"):
        raise ConfigError(f"role cannot be {config.role!r}", "It is master or slave.")
    if config.level not in LEVELS:
        raise ConfigError(f"level cannot be {config.level!r}", f"It is one of {', '.join(LEVELS)}.")
    if config.ha_port >= 0 and not is_loopback(config.ha_host or config.host) and not config.ha_secret_file:
        raise ConfigError(
            "ha_port can be reached from other machines, and there is no ha_secret_file",
            "Whoever connects there gets every message: give master and slaves a file with the same 16 bytes or more.",
        )
    return replace(config, broker_id=1) if config.role == "slave" and config.broker_id == 0 else config


def followed(files: Files, folder: Path) -> bool:
    """Whether slaves have followed the broker of this data folder: they may have more of its log than a power cut leaves."""
    return bool((load(files, folder / "ha" / "replica.json") or {}).get("followed", False))


class Replica:
    """One node's own account. `open` before use."""

    def __init__(self, files: Files, folder: Path, node: str) -> None:
        self._files = files
        self._folder = folder / "ha"
        self.node = node
        self.set_id = NO_SET
        self.store_id = NO_SET
        self.loss = 0  # raised by every start that cannot prove the log whole
        self.epochs: tuple[Epoch, ...] = ()
        self.led = False  # it was the master when it ran last
        self.followed = False  # by a slave, as master
        self._kept = -1  # what ha/confirmed says

    @property
    def epoch(self) -> int:
        """The newest mastership this log has seen; 0: none."""
        return self.epochs[-1].number if self.epochs else 0

    def open(self, *, lossy: bool) -> None:
        """Read the file. `lossy`: a power cut may have taken the end of the log. StoreError."""
        self._files.make_folder(self._folder)
        table = load(self._files, self._folder / "replica.json") or {}
        try:
            self.set_id = bytes.fromhex(table.get("setId", "")).ljust(ID_BYTES, b"\0")[:ID_BYTES]
            self.store_id = bytes.fromhex(table.get("storeId", "")).ljust(ID_BYTES, b"\0")[:ID_BYTES]
            self.led = bool(table.get("led", False))
            self.followed = bool(table.get("followed", False))
            self.loss = int(table.get("lossNumber", 0))
            self.epochs = tuple(
                Epoch(int(number), bytes.fromhex(tag).ljust(TAG_BYTES, b"\0")[:TAG_BYTES], int(start))
                for number, tag, start in table.get("epochs", ())
            )
        except (TypeError, ValueError, AttributeError):
            raise StoreError(
                f"{self._folder / 'replica.json'} cannot be read: restore it, or set the folder aside"
            ) from None
        if self.store_id == NO_SET:
            self.store_id = os.urandom(ID_BYTES)
            self.loss = int.from_bytes(os.urandom(4), "big")
        elif lossy:
            self.loss += 1
            self.save()

    def save(self) -> None:
        """Write the file. StoreError."""
        table = {
            "setId": self.set_id.hex(),
            "storeId": self.store_id.hex(),
            "node": self.node,
            "lossNumber": self.loss,
            "led": self.led,
            "followed": self.followed,
            "epochs": [[epoch.number, epoch.tag.hex(), epoch.start] for epoch in self.epochs],
        }
        save(self._files, self._folder / "replica.json", table)

    def lead(self, begin: int, end: int, *, lossy: bool = False) -> None:
        """This node is the master of a log from `begin` to `end`: the first one founds the set; one that was a slave, or has
        slaves and may have lost the end of its log, begins a new epoch. StoreError.
        """
        if self.set_id == NO_SET:
            self.set_id = os.urandom(ID_BYTES)
        if not self.epochs:
            self.epochs = (Epoch(1, os.urandom(TAG_BYTES), begin),)
        elif not self.led or (lossy and self.followed):
            self.epochs = (*self.epochs, Epoch(self.epoch + 1, os.urandom(TAG_BYTES), end))[-EPOCHS_MAX:]
        else:
            return
        self.led = True
        self.save()

    def note_slave(self) -> None:
        """A slave follows. StoreError."""
        if not self.followed:
            self.followed = True
            self.save()

    def join(self, set_id: bytes, epochs: tuple[Epoch, ...]) -> None:
        """Follow a master of this set, whose epochs these are. StoreError."""
        if (set_id, epochs, False) != (self.set_id, self.epochs, self.led):
            self.set_id, self.epochs, self.led = set_id, epochs[-EPOCHS_MAX:], False
            self.save()

    # -- up to where a slave's log is confirmed --------------------------------------------------------------------

    def confirmed(self) -> int:
        """What was kept last; 0 when there is nothing that can be read."""
        try:
            data = (self._folder / "confirmed").read_bytes()
        except OSError:
            return 0
        if len(data) != _CONFIRMED.size:
            return 0
        position, told = _CONFIRMED.unpack(data)
        self._kept = position
        return position if told == isal_zlib.crc32(data[:8]) and position >= 0 else 0

    def keep_confirmed(self, position: int) -> None:
        """Outlive the process with this position. StoreError."""
        if position == self._kept:
            return
        data = position.to_bytes(8, "big")
        fd = self._files.open(self._folder / "confirmed", create=True)
        try:
            self._files.write(fd, 0, data + isal_zlib.crc32(data).to_bytes(4, "big"))
        finally:
            self._files.close(fd)
        self._kept = position
