"""`client.aio.cluster` against a peer that does what we want it to, through our own codec."""

import asyncio

import pytest

from client.scripted import scripted
from client.steps import echo, idle_time, mute, peer
from penstock.client.aio.cluster import Cluster
from penstock.client.routes import Route
from penstock.errors import BrokerRefused, Closed, NotConnected, TimedOut, WireError
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand, encode
from silence import silent


async def test_requests_that_the_peer_starts() -> None:
    got: list[RemotingCommand] = []
    all_there = asyncio.Event()

    async def ask_back(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.response:
            got.append(command)
            if len(got) == 3:
                all_there.set()
            return
        for code, flag in ((40, FLAG_ONEWAY), (999, FLAG_ONEWAY), (40, 0), (999, 0), (41, 0)):
            writer.write(encode(RemotingCommand(code, opaque=code, flag=flag)))
        await echo(command, writer)

    async def known(command: RemotingCommand) -> RemotingCommand:
        return command.reply(0, {"done": "yes"})

    async def broken(command: RemotingCommand) -> RemotingCommand:
        raise WireError("no")

    async with peer(ask_back) as address:
        cluster = Cluster(address, handlers={40: known, 41: broken})
        await cluster.start()
        await cluster.call(address, RemotingCommand(1))
        await asyncio.wait_for(all_there.wait(), 5)
        await cluster.close()
    assert {(c.opaque, c.code) for c in got} == {(40, 0), (999, 3), (41, 1)}


async def test_a_start_that_is_given_up_may_be_made_again() -> None:
    """Before a name server is reached: it must not pass for one that is over, which has a name and keeps its routes."""
    async with peer(echo) as registry:
        cluster = Cluster(registry)
        starting = asyncio.create_task(cluster.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not cluster.is_open
        await cluster.start()
        assert cluster.client_id
        await cluster.close()


async def test_a_close_that_is_cancelled_closes_the_connections() -> None:
    """They stayed open until somebody collected them, and the broker took the client for one that is there."""
    async with peer(echo) as registry:
        for turns in range(6):
            cluster = Cluster(registry)
            await cluster.start()
            connection = await cluster.connection(registry)
            closing = asyncio.create_task(cluster.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert connection.closed == (turns > 0)  # one that has not begun closes nothing
            await cluster.close()
            assert connection.closed


async def test_a_heartbeat_comes_first_on_a_broker_connection() -> None:
    codes: list[int] = []

    async def note(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        codes.append(command.code)
        await echo(command, writer)

    async with peer(echo) as registry, peer(note) as broker:
        cluster = Cluster(registry, heartbeat=lambda: {"producerDataSet": [{"groupName": "P"}]})
        await cluster.start()
        await cluster.call(broker, RemotingCommand(10))
        await cluster.close()
        with pytest.raises(Closed):
            await cluster.connection(broker)
    assert codes == [34, 10]


async def test_heartbeats_wait_neither_for_a_name_server_nor_for_a_broker_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that does not hear of a client for two minutes forgets it; a client of twelve topics waited as long for routes."""
    monkeypatch.setattr("penstock.client.aio.cluster.ROUTE_S", 0.01)
    monkeypatch.setattr("penstock.client.aio.cluster.HEARTBEAT_S", 0.01)
    beats = asyncio.Queue[str]()
    asked = asyncio.Event()

    async def dumb(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        """Of the name server and of a broker."""
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked.set()
        else:
            beats.put_nowait("dumb")

    async def note(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        beats.put_nowait("here")
        await echo(command, writer)

    async with peer(dumb) as registry, peer(dumb) as away, peer(note) as here:
        cluster = Cluster(registry, timeout_s=60, heartbeat=lambda: {"producerDataSet": [{"groupName": "P"}]})
        cluster.routes["T"] = Route("T", {"a": {0: away}, "b": {0: here}}, ())
        await cluster.start()
        async with asyncio.timeout(50):
            await asked.wait()
            seen = {await beats.get() for _ in range(3)}
        assert seen == {"dumb", "here"}
        await cluster.close()


async def test_goodbyes_do_not_wait_for_a_broker_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a program took 3 s for each that was stopped or cut off."""
    monkeypatch.setattr("penstock.client.aio.cluster.GOODBYE_S", 600.0)
    told = asyncio.Event()

    async def dumb(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        return None

    async def note(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        told.set()
        await echo(command, writer)

    async with peer(echo) as registry, peer(dumb) as away, peer(note) as here:
        cluster = Cluster(registry, timeout_s=600)
        cluster.routes["T"] = Route("T", {"a": {0: away}, "b": {0: here}}, ())
        await cluster.start()
        for address in (away, here):
            await cluster.connection(address)
        leaving = asyncio.create_task(cluster.unregister(producer="P"))
        async with asyncio.timeout(60):
            await told.wait()
        await cluster.close()
        await leaving


async def test_refusals() -> None:
    async def refuse(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(command.reply(16, remark="no")))

    async with peer(refuse) as address:
        cluster = Cluster(address)
        await cluster.start()
        with pytest.raises(BrokerRefused) as caught:
            await cluster.ask_registry(RemotingCommand(206))
        assert (caught.value.code, caught.value.remark, caught.value.retryable) == (16, "no", False)
        await cluster.close()


def test_a_time_without_length_is_refused_at_once() -> None:
    """Such a client could do nothing, and would say that it cannot connect."""
    for timeout_s in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout_s is above 0"):
            Cluster("127.0.0.1:9876", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("said", "ext"), [({"producer": "p"}, {"producerGroup": "p"}), ({"consumer": "c"}, {"consumerGroup": "c"})]
)
async def test_a_goodbye_names_one_group(said: dict[str, str], ext: dict[str, str]) -> None:
    """The other one was said to be empty, of which a RocketMQ broker made a group of no name."""
    async with scripted() as script:
        await script.cluster.route("T")
        await script.cluster.unregister(**said)
        told = [request for request in script.asked if request.code == RequestCode.UNREGISTER_CLIENT]
        assert [request.ext for request in told] == [{"clientID": script.cluster.client_id, **ext}]


def seconds(error: Exception) -> float:
    """How long it says that it was waited."""
    return float(str(error).split()[-2])


async def test_name_servers_that_say_nothing_share_the_time_of_one() -> None:
    """Each was waited for as long as for one."""
    async with mute("a", "b", "c") as (registry, asked):
        cluster = Cluster(registry, timeout_s=0.6)
        await cluster.start()
        with pytest.raises(TimedOut) as told:
            await cluster.route("T")
        assert seconds(told.value) < 0.6
        assert asked == ["a", "b", "c"]
        await cluster.close()


async def test_one_that_answers_is_asked_in_time_whoever_is_silent_before_it() -> None:
    with silent() as one, silent() as other, idle_time():
        async with peer(echo) as good:
            cluster = Cluster(f"127.0.0.1:{one};127.0.0.1:{other};{good}", timeout_s=3)
            async with asyncio.timeout(60):
                await cluster.start()
                assert (await cluster.ask_registry(RemotingCommand(1))).code == 0
            assert cluster._directory.registries[0] == good
            await cluster.close()


async def test_waiting_for_a_connection_may_be_given_up() -> None:
    """Of a machine that answers no attempt: whoever waits goes elsewhere; one that is cancelled meanwhile is."""
    with silent() as port:
        address = f"127.0.0.1:{port}"
        async with peer(echo) as registry:
            cluster = Cluster(registry)
            await cluster.start()
            waiting = [asyncio.create_task(cluster.connection(address)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[2].cancel()
            await asyncio.sleep(0)
            cluster.part(address)
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(result) for result in results] == [NotConnected, NotConnected, asyncio.CancelledError]
            assert not cluster.is_connected(address)
            await cluster.close()
