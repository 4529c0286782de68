"""The requests that tend a replica set, at brokers that have no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from fronts.raw_peer import RawPeer
from ha_parts import eventually
from penstock.errors import BrokerRefused
from penstock.fronts.requests import MASTERS_WORK
from penstock.fronts.requests.replicaset import SetCalls
from penstock.testing import Broker
from penstock.wire.codes import RequestCode


def test_a_broker_of_no_replica_set(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, penstock.Admin(broker.registry) as admin:
        at = broker.addresses["remoting"]
        with pytest.raises(BrokerRefused, match="no replica set"):
            admin.pause_failover(at, True)
        with pytest.raises(BrokerRefused, match="no replica set"):
            admin.forget_node(at, "n")


def test_a_slave_is_forgotten_when_it_is_away(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", ha_port=0, node="a") as broker, penstock.Admin(broker.registry) as admin:
        at = broker.addresses["remoting"]
        with pytest.raises(BrokerRefused, match="no engine"):
            admin.pause_failover(at, True)
        with pytest.raises(BrokerRefused, match="a is this node"):
            admin.forget_node(at, "a")
        nothing = {"address": "", "engine": False}
        assert admin.forget_node(at, "b") == nothing
        with Broker(
            tmp_path / "b", ha_port=0, node="b", role="slave", registry=broker.registry, registry_port=-1,
            lookup_port=-1, lookup_http_port=-1, ha_master=broker.addresses["ha"],
        ) as slave:  # fmt: skip
            eventually(lambda: '"node":"b"' in admin.runtime_info(at)["replicaSet"].replace(" ", ""))
            for dry_run in (True, False):
                with pytest.raises(BrokerRefused, match="b is connected"):
                    admin.forget_node(at, "b", dry_run=dry_run)
            with pytest.raises(BrokerRefused, match="a is connected"):
                admin.forget_node(slave.addresses["remoting"], "a")
            ha = slave.addresses["ha"]
        eventually(lambda: '"node":"b"' not in admin.runtime_info(at)["replicaSet"].replace(" ", ""))
        known = {"address": ha, "engine": False}
        assert admin.forget_node(at, "b", dry_run=True) == known
        assert ha in (tmp_path / "a" / "ha" / "replica.json").read_text()
        assert admin.forget_node(at, "b") == known
        assert ha not in (tmp_path / "a" / "ha" / "replica.json").read_text()
        assert admin.forget_node(at, "b") == nothing


def test_they_need_what_they_are_about(tmp_path: Path) -> None:
    assert set(SetCalls.TABLE) == {RequestCode.HA_PAUSE, RequestCode.HA_FORGET}
    assert not set(SetCalls.TABLE) & MASTERS_WORK  # any node is asked
    with Broker(tmp_path, ha_port=0) as broker:
        peer = RawPeer(broker.addresses["remoting"])
        for code, field in ((RequestCode.HA_PAUSE, "paused"), (RequestCode.HA_FORGET, "node")):
            answer = peer.ask(code)
            assert (answer.code, answer.remark) == (1, f"the custom field <{field}> is null")
        peer.close()
