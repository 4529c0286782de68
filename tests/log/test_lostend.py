"""A power cut is not forgotten by a start that ends between the store and what a node of a set makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.replica import Replica
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log import checkpoint, lostend
from penstock.log.draft import Draft
from penstock.registration.registrar import Registration
from penstock.registration.replication import belong, lead, make_front

Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a broker, as the given role, after a boot of this name."""

    def begin(boot: str, role: str, *, accept_loss: bool = True) -> Broker:
        monkeypatch.setattr(checkpoint, "boot_id", lambda: f"boot {boot}")
        broker = Broker(
            BrokerConfig(
                data=str(tmp_path), role=role, ha_port=0, ha_accept_loss=accept_loss, mapped_file_size_commit_log=1 << 16,
                max_hash_slot_num=100, max_index_num=100,
            ),
            clock=FakeClock(),
        )  # fmt: skip
        broker.open()
        return broker

    return begin


def cut(start: Start, folder: Path) -> Replica:
    """A master that slaves follow, whose machine loses its power."""
    broker = start("one", "master")
    replica = Replica(Files(), folder, "n")
    replica.open(lossy=False)
    replica.lead(0, 0)
    replica.note_slave()
    draft = Draft()
    draft.queue = broker.store.queue(b"T", 0)
    draft.set_body(b"x" * 50)
    assert broker.store.append(draft) == 0
    broker.close(clean=False)
    return replica


def front_of(broker: Broker, *, lossy: bool) -> Replica:
    registration = Registration(broker, "127.0.0.1:1", "", "127.0.0.1:2")
    belong(broker, lossy=lossy)
    front = make_front(broker, registration, lambda why: None)
    if broker.config.role == "master":
        assert lostend.noted(broker.folder)  # until its epoch is written down
        lead(front, lossy=lossy)
    return front.replica


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("role", ["slave", "master"])
def test_a_start_that_ends_in_the_middle_says_it_again(start: Start, tmp_path: Path, role: str, clean: bool) -> None:
    """Else a node would stand, or be promoted, that has lost what it acknowledged; or write on in an epoch that others have."""
    before = cut(start, tmp_path)
    broker = start("two", role)
    assert broker.recovered is not None
    assert broker.recovered.power_cut
    broker.close(clean)  # a full disk, or kill -9, before the node has said anything of itself
    broker = start("two", role)
    assert broker.recovered is not None
    assert broker.recovered.lossy
    assert not broker.recovered.power_cut  # the process ended, this time
    replica = front_of(broker, lossy=True)
    assert replica.loss == before.loss + 1
    assert replica.epoch == before.epoch + (role == "master")
    broker.close(clean=False)
    broker = start("two", role)
    assert broker.recovered is not None
    assert not broker.recovered.lossy
    broker.close()


def test_a_master_that_must_not_go_on_says_so_again(start: Start, tmp_path: Path) -> None:
    cut(start, tmp_path)
    start("two", "master").close(clean=False)
    with pytest.raises(StoreError, match="power cut"):
        start("two", "master", accept_loss=False)


def test_a_broker_of_no_set_notes_nothing(start: Start, tmp_path: Path) -> None:
    start("one", "master").close(clean=False)
    broker = start("two", "master")
    assert broker.recovered is not None
    assert broker.recovered.power_cut
    assert not lostend.noted(tmp_path)
    broker.close()
