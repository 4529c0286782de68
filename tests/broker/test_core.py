"""The core of a broker: what the settings become."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import msgid
from penstock.broker.clock import BrokerClock
from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_DISK, LEVEL_OS
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.errors import ConfigError
from penstock.limits import Limits


def core(folder: Path, **settings: object) -> Core:
    return Core(BrokerConfig(data=str(folder), **settings), Files(), BrokerClock(FakeClock()), Limits())  # type: ignore[arg-type]


def test_settings_reach_the_store_and_the_topics(tmp_path: Path) -> None:
    made = core(tmp_path, mapped_file_size_commit_log=1 << 20, file_reserved_time_hours=5, disk_used_refuse_percent=80)
    options = made.store.options
    assert (options.mapped_file_size_commit_log, options.file_reserved_time_ms) == (1 << 20, 5 * 3_600_000)
    assert options.disk_refuse_ratio == 0.8
    assert not any(tmp_path.iterdir())  # nothing is opened yet


@pytest.mark.parametrize(("level", "number"), [("os", LEVEL_OS), ("disk", LEVEL_DISK), ("memory", LEVEL_OS)])
def test_a_log_topic_is_at_level_os_or_disk(tmp_path: Path, level: str, number: int) -> None:
    made = core(tmp_path, level=level)
    assert made.topics.create(b"T", 1, 1, announce=False).level == number


@pytest.mark.parametrize(
    ("advertise", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3:7", "10.1.2.3"),
        ("localhost", "127.0.0.1"),
        ("::1", "[::1]"),
        ("[::1]:7", "[::1]"),
    ],
)
def test_the_address_in_records_is_the_one_that_is_advertised(tmp_path: Path, advertise: str, address: str) -> None:
    made = core(tmp_path, host="0.0.0.0", advertise=advertise, remoting_port=1234)
    assert msgid.unpack_host(made.store_host) == f"{address}:1234"


@pytest.mark.parametrize(("more", "name"), [({"advertise": "a..b"}, "advertise"), ({"host": "a..b"}, "host")])
def test_a_name_without_an_address_cannot_stand_in_records(tmp_path: Path, more: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: no address of 'a\.\.b'"):
        core(tmp_path, **more)


def test_a_rule_that_cannot_be_obeyed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        core(tmp_path, topic=({"name": "x*", "kind": "nothing"},))
