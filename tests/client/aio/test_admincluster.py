"""What administration stands on: brokers by name, and answers that are none."""

from __future__ import annotations

import pytest

from client.scripted import Scripted, scripted
from client.steps import peer
from penstock.client.aio.admincluster import ClusterAdmin
from penstock.errors import NoRoute, WireError
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand, encode


async def test_brokers_and_masters() -> None:
    async with peer(Scripted().answer) as address, ClusterAdmin(address) as admin:
        info = await admin.cluster_info()
        assert (info.brokers, info.clusters) == ({"a": {0: address}}, {"C": ["a"]})
        assert await admin._masters() == [address]
        with pytest.raises(NoRoute, match="no broker 'b' is there"):
            await admin._masters("b")


@pytest.mark.parametrize(
    "body", [b"[]", b'{"brokerAddrTable": {"a": {}}}', b'{"brokerAddrTable": {"a": {"brokerAddrs": {"x": ""}}}}']
)
async def test_an_answer_that_is_no_cluster(body: bytes) -> None:
    async def answer(command: RemotingCommand, writer) -> None:  # type: ignore[no-untyped-def]
        assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        writer.write(encode(command.reply(body=body)))

    async with peer(answer) as address, ClusterAdmin(address) as admin:
        with pytest.raises(WireError):
            await admin.cluster_info()


async def test_a_scripted_cluster_is_one() -> None:
    async with scripted() as script:
        assert (await script.cluster.route("T")).brokers
