"""Who this broker is within its replica set, and which masterships its log has seen: `ha/replica.json`, `ha/epochs`.

The first master makes the id of the set, a slave takes it over with its first byte. `ha/confirmed` is beside it: up to where
all members have the log, as far as this node knows. It is written without a flush, for it only ever lags.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from isal import isal_zlib
from msgspec.structs import replace

from penstock.access.users import check_address
from penstock.broker.levels import LEVELS
from penstock.config import BrokerConfig, parts
from penstock.disk.files import Files
from penstock.disk.tables import is_sound, load, save
from penstock.errors import ConfigError, StoreError
from penstock.limits import is_loopback
from penstock.log.epochs import EPOCHS_MAX, EpochFile, begun, checked
from penstock.wire.fastjson import JsonObject
from penstock.wire.ha import ID_BYTES, TAG_BYTES, Epoch
from penstock.wire.hawords import FRAME_BYTES_MAX

log = logging.getLogger("penstock.broker")

PEERS_MAX = 100
NAME_MAX = 300  # letters of a node's name, and of each of its addresses: whoever follows is told all of them
NAMED = f"{NAME_MAX} letters at most, all of them printable"
COPIED_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)  # of a body: there are its properties, too, and the frame
NO_SET = bytes(ID_BYTES)

_CONFIRMED = struct.Struct(">qI")


def said(about: JsonObject, word: str) -> str:
    """What a node says of itself, its name or an address; empty where that is none."""
    value = about.get(word)
    return value if isinstance(value, str) and len(value) <= NAME_MAX and value.isprintable() else ""


def check_role(config: BrokerConfig) -> BrokerConfig:
    """The settings with the broker's place in its set. ConfigError where they make no sense."""
    if config.role not in ("master", "slave"):
        raise ConfigError(f"role cannot be {config.role!r}", "It is master or slave.")
    if len(config.node) > NAME_MAX or not config.node.isprintable():
        raise ConfigError("node cannot be a name like that", f"It has {NAMED}.")
    if config.level not in LEVELS:
        raise ConfigError(f"level cannot be {config.level!r}", f"It is one of {', '.join(LEVELS)}.")
    if config.ha_port >= 0 and not is_loopback(config.ha_host or config.host) and not config.ha_secret_file:
        raise ConfigError(
            "ha_port can be reached from other machines, and there is no ha_secret_file",
            "Whoever connects there gets every message: give master and slaves a file with the same 16 bytes or more.",
        )
    if of_a_set(config) and config.remoting_port < 0 and "/" not in config.host:
        raise ConfigError(
            "a broker of a replica set needs its remoting_port",
            "Its slaves and `penstock ha` ask it there: set remoting_port, or unset ha_port and role.",
        )
    if of_a_set(config) and config.max_message_size > COPIED_BYTES_MAX:
        raise ConfigError(
            f"max_message_size cannot be {config.max_message_size} in a replica set",
            f"A larger one than {COPIED_BYTES_MAX} would never reach a slave, nor what comes behind it.",
        )
    for pattern in parts(config.ha_rocketmq):
        if pattern in ("*", "*.*.*.*"):
            raise ConfigError(
                "ha_rocketmq cannot be *", "Whoever connects from there gets every message: name the addresses."
            )
        check_address(pattern)
    return _numbered(config)


def _numbered(config: BrokerConfig) -> BrokerConfig:
    return replace(config, broker_id=1) if config.role == "slave" and config.broker_id == 0 else config


def of_a_set(config: BrokerConfig) -> bool:
    """Whether this broker is, or can be, one of a replica set."""
    return config.ha_port >= 0 or config.role == "slave"


def _account(files: Files, folder: Path) -> JsonObject:
    """What a node has written down of itself. Where that is damaged its former version says what it is, not what it was when it
    ran last: it leads nothing until somebody promotes it.
    """
    path = folder / "ha" / "replica.json"
    table = load(files, path) or {}
    if table and not is_sound(files, path):
        table |= {"role": "slave", "led": False, "alone": False, "inSync": False}
    return table


def placed(config: BrokerConfig, files: Files, folder: Path) -> BrokerConfig:
    """The settings with the role that a promotion or a change of places has given to this data folder, if any: the setting
    `role` says what a node is at first. ConfigError for a master by it that would be found as a slave.
    """
    role = _account(files, folder).get("role", "")
    if role == "master":
        return replace(config, role="master", broker_id=0)
    if role == "slave":
        return _numbered(replace(config, role="slave"))
    if config.role == "master" and config.broker_id:
        raise ConfigError(
            f"broker_id cannot be {config.broker_id} for a master",
            "Clients send to 0 alone: unset it, or set role=slave.",
        )
    return config


def seated(config: BrokerConfig, leads: bool) -> BrokerConfig:
    """The same where an engine decides: the setting `role` and what the folder says count for nothing."""
    return replace(config, role="master", broker_id=0) if leads else _numbered(replace(config, role="slave"))


def followed(files: Files, folder: Path) -> bool:
    """Whether slaves have followed the broker of this data folder: they may have more of its log than a power cut leaves."""
    return bool(_account(files, folder).get("followed", False))


def copied(files: Files, folder: Path) -> bool:
    """Whether other nodes have had this log, or it is a copy of theirs: what is damaged here may be sound there."""
    table = _account(files, folder)
    return bool(table.get("followed", False) or table.get("peers"))


def was_slave(files: Files, folder: Path) -> bool:
    """Whether the log of this data folder ends as another node has written it, whatever the broker is now."""
    table = _account(files, folder)
    return bool(table.get("epoch")) and not table.get("led", False)


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
        self.alone = False  # it led without a slave in sync: all it flushed counts as confirmed
        self.in_sync = False  # of a slave: its master said so when it was heard last
        self.role = ""  # given by a verb: it counts more than the setting
        self.peers: dict[str, str] = {}  # node → where slaves connect to it, once it is a master
        self.damage: Callable[[], dict[str, object]] = dict  # what people are told of records that did not hold
        self._kept = -1  # what ha/confirmed says
        self._epochs = EpochFile(files, self._folder / "epochs")

    @property
    def epoch(self) -> int:
        """The newest mastership this log has seen; 0: none."""
        return self.epochs[-1].number if self.epochs else 0

    def open(self, *, lossy: bool) -> None:
        """Read the file. `lossy`: a power cut may have taken the end of the log. StoreError."""
        self._files.make_folder(self._folder)
        table = _account(self._files, self._folder.parent)
        try:
            self.set_id = bytes.fromhex(table.get("setId", "")).ljust(ID_BYTES, b"\0")[:ID_BYTES]
            self.store_id = bytes.fromhex(table.get("storeId", "")).ljust(ID_BYTES, b"\0")[:ID_BYTES]
            self.led = bool(table.get("led", False))
            self.followed = bool(table.get("followed", False))
            self.loss = int(table.get("lossNumber", 0))
            self.alone = bool(table.get("alone", self.led and self.followed))
            self.in_sync = bool(table.get("inSync", False))
            self.role = str(table.get("role", ""))
            self.peers = {str(node): str(at) for node, at in dict(table.get("peers", {})).items()}
            self.epochs = self._read_epochs(table.get("epochs", ()), int(table.get("epoch", 0)))
        except (TypeError, ValueError, AttributeError):
            raise StoreError(
                f"{self._folder / 'replica.json'} cannot be read: restore it, or set the folder aside"
            ) from None
        if table.get("epoch", self.epoch) != self.epoch:
            self.led = False  # a change ended between the two files: it led no epoch that is new here
        if self.store_id == NO_SET:
            self.store_id = os.urandom(ID_BYTES)
            self.loss = int.from_bytes(os.urandom(4), "big")
            self.save()  # the engine hears them before anything else is written here
        elif not is_sound(self._files, self._folder / "replica.json"):
            log.error("replica.json is damaged, and its former version may name a former role: this node leads nothing until it "
                      "is promoted (penstock ha promote)")  # fmt: skip
            self.loss += 1 + lossy  # the former version may have the number from before a loss
            self.save()
        elif lossy:
            self.loss += 1
            self.in_sync = False
            self.save()

    def _read_epochs(self, former: Iterable[tuple[int, str, int]], newest: int) -> tuple[Epoch, ...]:
        epochs = self._epochs.load()
        if epochs is None:  # of a folder from before there was such a file
            epochs = checked(
                Epoch(int(number), bytes.fromhex(tag).ljust(TAG_BYTES, b"\0")[:TAG_BYTES], int(start))
                for number, tag, start in former
            )
            if newest > 0:
                raise StoreError(f"{self._epochs.path} is missing: restore it, or set the folder aside")
        return epochs

    def save(self) -> None:
        """Write the file. StoreError."""
        table = {
            "setId": self.set_id.hex(),
            "storeId": self.store_id.hex(),
            "node": self.node,
            "lossNumber": self.loss,
            "led": self.led,
            "followed": self.followed,
            "alone": self.alone,
            "inSync": self.in_sync,
            "role": self.role,
            "peers": self.peers,
            "epoch": self.epoch,
        }
        if self.epochs:
            self._epochs.save(self.epochs)
        save(self._files, self._folder / "replica.json", table)

    def tell_of_damage(self, says: Callable[[], dict[str, object]]) -> None:
        """What people are told of damaged records, once there was one."""
        self.damage = says

    def _change(self, **values: object) -> None:
        """Let these be so, on the disk first: what could not be written down is as it was, and tried again when it is wanted
        again. StoreError.
        """
        before = {name: getattr(self, name) for name in values}
        self.__dict__.update(values)
        try:
            self.save()
        except StoreError:
            self.__dict__.update(before)
            raise

    def lead(self, begin: int, end: int, *, lossy: bool = False) -> None:
        """This node is the master of a log from `begin` to `end`: the first one founds the set; one that was a slave, or has
        slaves and may have lost the end of its log, begins a new epoch. StoreError.
        """
        set_id, epochs = self.set_id, self.epochs
        if set_id == NO_SET:
            set_id = os.urandom(ID_BYTES)
        if not epochs:
            epochs = (Epoch(1, os.urandom(TAG_BYTES), begin),)
        elif not self.led or (lossy and self.followed):
            epochs = begun(epochs, os.urandom(TAG_BYTES), end)
        elif self.alone:
            return
        self._change(set_id=set_id, epochs=epochs, led=True, alone=True, in_sync=False)

    def lead_by(self, set_id: bytes, number: int, tag: bytes, begin: int, end: int, *, alone: bool) -> None:
        """This node is the master of an epoch that the engine has given it; its log goes from `begin` to `end`. StoreError."""
        epoch = Epoch(number, tag, end if self.epochs else begin)
        epochs = (*(former for former in self.epochs if former.start <= end), epoch)[-EPOCHS_MAX:]
        self._change(set_id=set_id, epochs=epochs, role="master", led=True, alone=alone, in_sync=False)

    def note_slave(self) -> None:
        """A slave follows. StoreError."""
        if not self.followed:
            self._change(followed=True)

    def note_alone(self, alone: bool) -> None:
        """A master: whether no slave is in sync, before it acts on that. StoreError."""
        if alone != self.alone:
            self._change(alone=alone)

    def note_in_sync(self, in_sync: bool) -> None:
        """A slave: its master counts on it, or does not. StoreError."""
        if in_sync != self.in_sync:
            self._change(in_sync=in_sync)

    def may_lack(self, end: int, confirmed: int) -> str:
        """Why this slave, whose log ends there, may lack what was acknowledged; empty: it has all of it."""
        if not self.in_sync:
            return "it was not in sync with its master when it heard of it last"
        return f"its log ends at {end}, and {confirmed} was confirmed" if confirmed > end else ""

    def note_peers(self, peers: Mapping[str, str]) -> None:
        """Where other nodes of the set are found when they are masters. StoreError."""
        known = {**self.peers, **{node: at for node, at in peers.items() if node != self.node and at}}
        if known != self.peers and len(known) <= PEERS_MAX:
            self._change(peers=known)

    def forget_peer(self, node: str) -> str:
        """Ask this node no more; where it was found, or empty. StoreError."""
        known = dict(self.peers)
        address = known.pop(node, "")
        if address:
            self._change(peers=known)
        return address

    def become(self, role: str) -> None:
        """Be the master or a slave from the next start on, whatever the settings say. StoreError."""
        self._change(role=role, led=self.led and role != "master")  # a master begins an epoch

    def safe(self, flushed: int, confirmed: int) -> int:
        """This node cuts nothing below by itself: it may have been acknowledged, or seen, and be nowhere else."""
        return flushed if self.led and self.alone else min(flushed, confirmed)

    def join(self, set_id: bytes, epochs: tuple[Epoch, ...], *, elected: bool = False) -> None:
        """Follow a master of this set, whose epochs these are. One whom an engine has `elected`: should there be no engine at a
        later start, this node is a slave, whatever its settings say. StoreError.
        """
        role = "slave" if elected else self.role
        if (set_id, epochs, False, role) != (self.set_id, self.epochs, self.led, self.role):
            self._change(set_id=set_id, epochs=epochs[-EPOCHS_MAX:], led=False, alone=False, role=role)

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
