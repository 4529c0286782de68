"""Who a node is in its replica set, over starts; and which settings make no sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.replica import COPIED_BYTES_MAX, NO_SET, Replica, check_role, followed, placed
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.errors import ConfigError, DiskFull, StoreError
from penstock.wire import haframe
from penstock.wire.ha import Epoch


def opened(folder: Path, lossy: bool = False) -> Replica:
    replica = Replica(Files(), folder, "n")
    replica.open(lossy=lossy)
    return replica


def test_a_master_founds_a_set_and_finds_it_again(tmp_path: Path) -> None:
    replica = opened(tmp_path)
    replica.lead(0, 0)
    again = opened(tmp_path)
    again.lead(99, 99)
    assert again.set_id == replica.set_id != NO_SET
    assert (again.epochs, again.store_id, again.loss) == (replica.epochs, replica.store_id, replica.loss)
    assert again.epoch == 1
    other = opened(tmp_path / "other")
    other.lead(0, 0)
    assert other.set_id != replica.set_id
    assert other.epochs[0].tag != replica.epochs[0].tag


def test_what_a_node_says_of_itself_before_it_leads_or_follows_outlives_it(tmp_path: Path) -> None:
    """The engine has been told, and would know another node after the next start."""
    first, again = opened(tmp_path), opened(tmp_path)
    assert (first.store_id, first.loss) == (again.store_id, again.loss)


def test_a_slave_that_becomes_the_master_begins_a_new_epoch_once(tmp_path: Path) -> None:
    old = opened(tmp_path / "a")
    old.lead(0, 0)
    slave = opened(tmp_path / "b")
    slave.join(old.set_id, old.epochs)
    for _ in range(2):
        slave = opened(tmp_path / "b")
        slave.lead(0, 700)
        assert slave.epochs[:1] == old.epochs
        assert [(epoch.number, epoch.start) for epoch in slave.epochs[1:]] == [(2, 700)]
    old.join(slave.set_id, slave.epochs)
    back = opened(tmp_path / "a")
    back.lead(0, 900)
    assert [(epoch.number, epoch.start) for epoch in back.epochs] == [(1, 0), (2, 700), (3, 900)]


def test_a_master_with_slaves_that_may_have_lost_the_end_of_its_log_begins_a_new_epoch(tmp_path: Path) -> None:
    replica = opened(tmp_path)
    replica.lead(0, 0)
    opened(tmp_path, lossy=True).lead(0, 500, lossy=True)
    assert not followed(Files(), tmp_path)
    assert opened(tmp_path).epoch == 1  # nobody has a copy
    opened(tmp_path).note_slave()
    assert followed(Files(), tmp_path)
    opened(tmp_path).lead(0, 600)
    assert opened(tmp_path).epoch == 1
    opened(tmp_path, lossy=True).lead(0, 700, lossy=True)
    assert [(epoch.number, epoch.start) for epoch in opened(tmp_path).epochs] == [(1, 0), (2, 700)]


def test_the_loss_number_rises_with_each_start_that_cannot_prove_the_log(tmp_path: Path) -> None:
    replica = opened(tmp_path)
    replica.lead(0, 0)
    assert opened(tmp_path).loss == replica.loss
    assert opened(tmp_path, lossy=True).loss == replica.loss + 1
    assert opened(tmp_path).loss == replica.loss + 1


def test_a_slave_takes_the_set_over(tmp_path: Path) -> None:
    epochs = (Epoch(1, b"8 bytes.", 0), Epoch(2, b"ei bytes", 900))
    opened(tmp_path).join(b"s" * 16, epochs)
    again = opened(tmp_path)
    assert (again.set_id, again.epochs, again.epoch) == (b"s" * 16, epochs, 2)


def test_who_follows_by_an_engines_word_is_a_slave_without_it(tmp_path: Path) -> None:
    epochs = (Epoch(1, b"8 bytes.", 0),)
    settings = BrokerConfig(data=str(tmp_path))
    replica = opened(tmp_path)
    replica.join(b"s" * 16, epochs)
    assert placed(settings, Files(), tmp_path).role == "master"  # as the settings say
    replica.join(b"s" * 16, epochs, elected=True)
    assert placed(settings, Files(), tmp_path).role == "slave"
    replica.lead_by(b"s" * 16, 2, b"ei bytes", 0, 700, alone=True)
    assert placed(settings, Files(), tmp_path).role == "master"
    replica.join(b"s" * 16, replica.epochs, elected=True)
    assert placed(settings, Files(), tmp_path).role == "slave"


def test_the_largest_message_fits_a_frame() -> None:
    largest = BrokerConfig(ha_port=0, max_message_size=COPIED_BYTES_MAX)
    assert check_role(largest) == largest
    size = COPIED_BYTES_MAX + (1 << 15) + (1 << 9)  # with properties, topic, and what is fixed
    head = haframe.data_head(1, haframe.Positions(0, 0, 0, 0, 0), 1, size, 0)
    assert haframe.read_head(head, 0, len(head))[1] == len(head) + 8 + size


def test_the_former_version_of_a_damaged_account_makes_nobody_the_master(tmp_path: Path) -> None:
    """It may be from before another node was promoted."""
    replica = opened(tmp_path)
    replica.lead(0, 0)
    replica.become("master")
    replica.become("slave")  # the former version says master
    path = tmp_path / "ha" / "replica.json"
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    config = BrokerConfig(data=str(tmp_path), ha_port=0)
    assert placed(config, Files(), tmp_path).role == "slave"
    again = opened(tmp_path)
    assert (again.role, again.led, again.set_id, again.epochs) == ("slave", False, replica.set_id, replica.epochs)
    assert again.loss == replica.loss + 1  # it may have been raised in what is damaged
    assert opened(tmp_path).role == "slave"
    assert placed(config, Files(), tmp_path).role == "slave"


def test_what_was_confirmed_outlives_the_process_and_damage_is_nothing(tmp_path: Path) -> None:
    replica = opened(tmp_path)
    assert replica.confirmed() == 0
    replica.keep_confirmed(12345)
    assert opened(tmp_path).confirmed() == 12345
    path = tmp_path / "ha" / "confirmed"
    for data in (b"", path.read_bytes()[:5], b"\1" + path.read_bytes()[1:]):
        path.write_bytes(data)
        assert opened(tmp_path).confirmed() == 0


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    replica = opened(tmp_path)
    replica.lead(0, 0)
    for path in (tmp_path / "ha").glob("replica.json*"):
        path.write_text('{"setId": 5, "storeId": "ab"}')
    with pytest.raises(StoreError, match=r"replica\.json"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"role": "king"}, "role"),
        ({"level": "both"}, "level"),
        ({"host": "0.0.0.0", "ha_port": 0}, "ha_secret_file"),
        ({"ha_host": "10.0.0.1", "ha_port": 0}, "ha_secret_file"),
        ({"ha_port": 0, "remoting_port": -1}, "remoting_port"),
        ({"role": "slave", "remoting_port": -1}, "remoting_port"),
        ({"ha_port": 0, "max_message_size": 32 << 20}, "max_message_size"),
        ({"role": "slave", "max_message_size": 32 << 20}, "max_message_size"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_role(BrokerConfig(**settings))  # type: ignore[arg-type]


def test_a_slave_has_a_number_of_its_own() -> None:
    assert check_role(BrokerConfig()).broker_id == 0
    assert check_role(BrokerConfig(role="slave")).broker_id == 1
    assert check_role(BrokerConfig(role="slave", broker_id=4)).broker_id == 4


class Full(Files):
    """A disk that is full while `full`."""

    full = False

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.full:
            raise DiskFull("no room (by order of the test)")
        super().write(fd, at, data)


class HalfFull(Files):
    """Has room for one of the two files."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if path.name == "replica.json.tmp":
            raise DiskFull("no room (by order of the test)")
        return super().open(path, create=create, writable=writable)


def test_a_master_goes_on_in_no_epoch_of_another_one_that_was_half_written_down(tmp_path: Path) -> None:
    """It has begun to follow, with room for the table of epochs alone; then it is started as a master."""
    opened(tmp_path).lead(0, 0)
    half = Replica(HalfFull(), tmp_path, "n")
    half.open(lossy=False)
    other = (*half.epochs, Epoch(2, b"another.", 500))
    with pytest.raises(DiskFull):
        half.join(half.set_id, other)
    again = opened(tmp_path)
    assert again.epochs == other
    again.lead(0, 700)
    assert [epoch.number for epoch in again.epochs] == [1, 2, 3]
    assert again.led
    opened(tmp_path).lead(0, 900)
    assert opened(tmp_path).epoch == 3  # and that one is its own


CHANGES: dict[str, Callable[[Replica], None]] = {
    "alone": lambda replica: replica.note_alone(False),
    "in sync": lambda replica: replica.note_in_sync(True),
    "followed": lambda replica: replica.note_slave(),
    "peers": lambda replica: replica.note_peers({"other": "10.0.0.2:10912"}),
    "role": lambda replica: replica.become("slave"),
    "led by an engine": lambda replica: replica.lead_by(replica.set_id, 5, b"8 bytes.", 0, 7, alone=False),
    "epochs": lambda replica: replica.join(replica.set_id, (*replica.epochs, Epoch(2, b"8 bytes.", 7))),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_could_not_be_written_down_is_not_believed_and_tried_again(tmp_path: Path, what: str) -> None:
    """Else a master would confirm by itself, and nothing would tell its next start."""
    opened(tmp_path).lead(0, 0)
    files = Full()
    replica = Replica(files, tmp_path, "n")
    replica.open(lossy=False)

    def told(one: Replica) -> tuple[object, ...]:
        return one.alone, one.in_sync, one.followed, one.peers, one.role, one.epochs, one.led

    before = told(replica)
    files.full = True
    for _ in range(2):
        with pytest.raises(StoreError):
            CHANGES[what](replica)
        assert told(replica) == before
    files.full = False
    CHANGES[what](replica)
    assert told(opened(tmp_path)) == told(replica) != before


class Failing(Full):
    """A disk with room for so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self.left -= 1
        self.full = self.left < 0
        super().write(fd, at, data)


@pytest.mark.parametrize("writes", [0, 1])
def test_an_epoch_that_could_not_be_written_down_is_not_led(tmp_path: Path, writes: int) -> None:
    """Whichever of the two files has no room; the next start may read the epoch, and does not hold itself for its master."""
    opened(tmp_path).join(b"a set of 16 byte", (Epoch(1, b"8 bytes!", 0),))
    files = Failing(1 << 30)
    replica = Replica(files, tmp_path, "n")
    replica.open(lossy=False)
    files.left = writes
    with pytest.raises(StoreError):
        replica.lead_by(replica.set_id, 2, b"8 bytes.", 0, 9, alone=True)
    assert (replica.led, replica.alone, replica.role, replica.epoch) == (False, False, "", 1)
    assert replica.safe(9, 4) == 4
    after = opened(tmp_path)
    assert (after.led, after.role, after.safe(9, 4)) == (False, "", 4)
    files.left = 1 << 30
    replica.lead_by(replica.set_id, 2, b"8 bytes.", 0, 9, alone=True)
    assert opened(tmp_path).epochs == replica.epochs == (Epoch(1, b"8 bytes!", 0), Epoch(2, b"8 bytes.", 9))
    assert opened(tmp_path).led


def test_an_id_is_a_slaves_unless_the_folder_says_otherwise(tmp_path: Path) -> None:
    config = BrokerConfig(broker_id=3)
    with pytest.raises(ConfigError, match="broker_id cannot be 3 for a master"):
        placed(config, Files(), tmp_path)
    replica = Replica(Files(), tmp_path, "n")
    replica.open(lossy=False)
    for role, number in (("slave", 3), ("master", 0)):
        replica.become(role)
        assert placed(config, Files(), tmp_path).broker_id == number
