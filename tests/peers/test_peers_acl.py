"""RocketMQ's Java client and mqadmin at a broker with users: rights denied and granted, in both kinds of file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import SECRET, user, write
from peers.rocketmq_broker import Installed
from penstock import Admin, Security
from penstock.testing import Broker

PLAIN_ACL = """
accounts:
- {accessKey: application, secretKey: secret-of-application, topicPerms: [Peer=PUB|SUB], groupPerms: [peer-readers=SUB]}
- {accessKey: administrator, secretKey: secret-of-administrator, admin: true}
"""


@pytest.fixture(params=["users.toml", "plain_acl.yml"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    path = tmp_path / request.param
    if request.param == "users.toml":
        rights = ("publish:Peer", "subscribe:Peer", "group:peer-readers")
        write(path, user("application", *rights), user("administrator", "admin"))
    else:
        path.write_text(PLAIN_ACL)
        path.chmod(0o600)
    with Broker(tmp_path / "data", users=str(path)) as broker:
        root = Security(user="administrator", secret=SECRET + "administrator")
        with Admin(broker.registry, security=root) as admin:
            admin.create_topic("Peer", 4)
        yield broker


def test_the_java_client_may_what_it_was_granted(broker: Broker, tmp_path: Path) -> None:
    installed = Installed()
    me = installed.client(broker.registry, tmp_path, "-Dpeer.user=application", f"-Dpeer.secret={SECRET}application")
    sent = me.run("send", "Peer", 60)
    assert {line["status"] for line in sent} == {"SEND_OK"}
    assert me.run("read", "Peer")
    for properties in ((), ("-Dpeer.user=application", "-Dpeer.secret=another-secret")):
        stranger = installed.client(broker.registry, tmp_path, *properties)
        with pytest.raises(AssertionError, match=r"No accessKey is configured|Check signature failed"):
            stranger.run("read", "Peer")
    with pytest.raises(AssertionError, match="No default permission for topic:Other"):
        me.run("send", "Other", 1)


def test_mqadmin_changes_accounts(broker: Broker, tmp_path: Path) -> None:
    installed = Installed()
    tools = tmp_path / "conf" / "tools.yml"
    tools.parent.mkdir()
    tools.write_text(f"accessKey: administrator\nsecretKey: {SECRET}administrator\n")
    place = ("-b", broker.remoting)
    told = installed.admin(
        broker.registry,
        tmp_path,
        "updateAclConfig",
        *place,
        "-a",
        "newcomer",
        "-s",
        "secret-of-newcomer",
        "-t",
        "Peer=PUB",
    )
    assert "success" in told
    assert "newcomer" in installed.admin(broker.registry, tmp_path, "getAccessConfigSubCommand", "-c", "DefaultCluster")
    new = installed.client(broker.registry, tmp_path, "-Dpeer.user=newcomer", f"-Dpeer.secret={SECRET}newcomer")
    assert {line["status"] for line in new.run("send", "Peer", 60)} == {"SEND_OK"}
    assert "success" in installed.admin(broker.registry, tmp_path, "deleteAccessConfig", *place, "-a", "newcomer")
    assert "broker-a" in installed.admin(broker.registry, tmp_path, "clusterAclConfigVersion", "-c", "DefaultCluster")
    with pytest.raises(AssertionError, match="Check signature failed"):
        new.run("send", "Peer", 1)
