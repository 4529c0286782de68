"""The requests that change roles, at a broker that is of no replica set, and at a master without a slave."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import BrokerRefused
from penstock.fronts.requests import MASTERS_WORK
from penstock.fronts.requests.roles import RoleCalls
from penstock.testing import Broker
from penstock.wire.codes import RequestCode


def test_a_broker_of_no_replica_set(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, penstock.Admin(broker.registry) as admin:
        for call in (admin.promote, admin.switch):
            with pytest.raises(BrokerRefused, match="no replica set"):
                call(broker.addresses["remoting"])


def test_a_master_without_a_slave(tmp_path: Path) -> None:
    with Broker(tmp_path, ha_port=0) as broker, penstock.Admin(broker.registry) as admin:
        with pytest.raises(BrokerRefused, match="is the master already"):
            admin.promote(broker.addresses["remoting"], accept_loss=True)
        with pytest.raises(BrokerRefused, match="no slave is in sync"):
            admin.switch(broker.addresses["remoting"])


def test_both_are_for_administrators_and_need_a_mastership() -> None:
    assert set(RoleCalls.TABLE) == {RequestCode.HA_PROMOTE, RequestCode.HA_SWITCH}
    assert not set(RoleCalls.TABLE) & MASTERS_WORK  # a slave is asked to be the master
