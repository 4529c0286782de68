"""Ten sets of a master and a slave, two registries, 10,000 topics over them: routes are right after any failures.

Real registries and real frames; the clock and the network are made up. Requests take their time, connections break unheard,
processes are killed, hang and wake, sets change places, registries start empty. Who is the master of a set the test decides,
as an engine would: five seconds after the old one was lost.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client.routes import Route, parse_route
from penstock.fronts.namesrv import NameServer
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.remoting import CommandParser, RemotingCommand, encode

SETS, TOPICS, FAILURES = 10, 10_000, 1_000
BURST = 10  # failures that come one upon another; then all is left in peace
LEASE_MS, PERIOD_MS, RECONNECT_MS, DELAY_MS = 5_000, 30_000, 1_000, 2_000
PEACE_MS = 200_000  # a broker that was not heard of is forgotten after 120 s, at the next look


class Line:
    """A connection of a node to a registry, as the registry knows it."""

    def __init__(self, node: Node) -> None:
        self.remote = f"{node.host}:5000"
        self.parser = CommandParser()
        self.free_ms = 0  # when the bytes before have come
        self.dead = False  # nothing more comes through, whoever has noticed


class Node:
    """A broker, as far as a registry hears of it."""

    def __init__(self, world: World, owner: Set, number: int) -> None:
        self.world, self.set = world, owner
        self.host = f"10.0.{owner.number}.{number}"
        self.address, self.number = f"{self.host}:10911", number
        self.up, self.hangs, self.run = True, False, 0
        self.epoch = 0
        self.lines: list[Line | None] = [None] * len(world.registries)
        self.cut = [False] * len(world.registries)

    @property
    def leads(self) -> bool:
        return self.set.master is self and self.epoch == self.set.epoch

    def start(self) -> None:
        self.up, self.hangs = True, False
        self.run += 1
        self.lines = [None] * len(self.lines)
        for registry in range(len(self.lines)):
            self.beat(registry, self.run)

    def command(self, whole: bool) -> RemotingCommand:
        ext = {
            "brokerAddr": self.address, "brokerId": "0" if self.leads else str(self.number), "clusterName": "C",
            "brokerName": self.set.name, "bodyCrc32": "0", "compressed": "false", "haServerAddr": f"{self.host}:10912",
        }  # fmt: skip
        if self.leads:
            ext["epoch"] = str(self.epoch)
        return RemotingCommand(RequestCode.REGISTER_BROKER, ext, self.set.body if whole else self.set.no_news)

    def tell(self, registry: int, whole: bool) -> None:
        """Register, over the connection there is or a new one."""
        if not self.up or self.hangs or self.cut[registry]:
            return
        line = self.lines[registry]
        if line is None or line.dead:
            line, whole = Line(self), True
            self.lines[registry] = line
        self.world.carry(registry, line, encode(self.command(whole)), self)

    def beat(self, registry: int, run: int) -> None:
        """Register each period."""
        if run == self.run and self.up:
            self.tell(registry, False)
            self.world.later(PERIOD_MS, lambda: self.beat(registry, run))

    def tell_all(self) -> None:
        for registry in range(len(self.lines)):
            self.tell(registry, True)

    def kill(self) -> None:
        """The system closes its connections."""
        self.up = False
        self.run += 1
        for registry, line in enumerate(self.lines):
            if line is not None and not self.cut[registry]:
                self.world.close(registry, line)
        self.set.look()

    def hang(self) -> None:
        self.hangs = True
        self.set.look()

    def wake(self) -> None:
        """What it was about to say it says, though another one is the master by now."""
        if not self.hangs or not self.up:
            return
        self.hangs = False
        lines, former = list(self.lines), self.epoch
        for registry, line in enumerate(lines):
            if line is not None and not line.dead and not self.cut[registry] and former and self.set.last is self:
                stale = self.command(False)
                stale.ext.update({"brokerId": "0", "epoch": str(former)})
                self.world.carry(registry, line, encode(stale), self)
        self.tell_all()


class Set:
    """A master and a slave; `look` elects."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.name = world, number, f"broker-{number}"
        self.nodes = [Node(world, self, n) for n in (1, 2)]
        self.master: Node | None = None
        self.last: Node | None = None  # who was it before
        self.epoch = 0
        self.body = self.no_news = b""

    def lead(self, node: Node) -> None:
        self.last, self.master = self.master, node
        self.epoch += 1
        node.epoch = self.epoch
        self.world.note(f"{self.name}: {node.address} leads epoch {self.epoch}")
        for one in (node, *self.nodes):
            one.tell_all()

    def look(self) -> None:
        """Nobody leads: whoever is there does, when the lease has ended."""

        def elect() -> None:
            master = self.master
            able = [node for node in self.nodes if node.up and not node.hangs]
            if able and (master is None or not master.up or master.hangs):
                self.lead(able[0])

        self.world.later(LEASE_MS, elect)


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.now = 1_000_000
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.steps: list[str] = []
        self.registries = [self.registry(), self.registry()]
        self.heard: list[dict[str, int]] = [{}, {}]  # by registry and set: the newest epoch that a master has said
        self.refused = 0
        self.sets = [Set(self, n) for n in range(SETS)]
        self.topics = {f"topic-{n:05d}": sorted(self.random.sample(range(SETS), 1 + n % 3)) for n in range(TOPICS)}
        for one in self.sets:
            names = [topic for topic, on in self.topics.items() if one.number in on]
            queues = {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
            one.body, one.no_news = (
                json.dumps({
                    "topicConfigSerializeWrapper": {
                        "dataVersion": {"timestamp": 1, "counter": counter},
                        "topicConfigTable": {name: {"topicName": name, **queues} for name in told},
                    },
                    "filterServerList": [],
                }).encode()
                for counter, told in ((1, names), (1, []))
            )  # fmt: skip
            for node in one.nodes:
                node.start()
            one.lead(one.nodes[0])

    def registry(self) -> NameServer:
        return NameServer(self.folder)

    def note(self, words: str) -> None:
        self.steps.append(f"{self.now}: {words}")

    def must(self, holds: bool, words: str) -> None:
        assert holds, words + "\n" + "\n".join(self.steps[-40:])

    def later(self, ms: int, do: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + ms, self.count, do))

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while self.events and self.events[0][0] <= until:
            self.now, _, do = heapq.heappop(self.events)
            for registry in self.registries:
                registry.tick(self.now)
            do()
        self.now = until
        for registry in self.registries:
            registry.tick(self.now)

    def carry(self, number: int, line: Line, data: bytes, node: Node) -> None:
        """Bytes to a registry: some time later, in pieces, in order; not at all if the connection breaks before."""
        cut = self.random.randrange(len(data))
        at = self.random.randrange(1, DELAY_MS)
        target = self.registries[number]
        when = line.free_ms = max(self.now + at, line.free_ms + 1)

        def come() -> None:
            if line.dead or self.registries[number] is not target or node.cut[number]:
                return
            for command in [*line.parser.feed(data[:cut]), *line.parser.feed(data[cut:])]:
                self.take(number, line, command)

        self.later(when - self.now, come)

    def take(self, number: int, line: Line, command: RemotingCommand) -> None:
        """A registration has come: what clients are sent to never gets older."""
        name, ext = command.ext["brokerName"], command.ext
        heard = self.heard[number]
        if name not in self.registries[number].routes.addresses:
            heard.pop(name, None)  # forgotten: it comes anew
        known = heard.get(name, 0)
        reply = self.registries[number].handle(line, command, self.now)
        assert reply is not None
        self.must(reply.code == ResponseCode.SUCCESS, f"{ext}: {reply.remark}")
        if ext["brokerId"] == "0" and int(ext["epoch"]) < known:
            self.refused += 1
            self.must("has a master of epoch" in (reply.remark or ""), f"an old master was taken: {ext}")
        elif ext["brokerId"] == "0":
            heard[name] = int(ext["epoch"])
        address = self.registries[number].routes.addresses[name].get(0)
        if address is not None and heard.get(name):
            master = next(node for node in self.sets[int(name[7:])].nodes if node.address == address)
            self.must(master.epoch >= heard[name], f"{name}: clients are sent to {address}, of an older epoch")

    def close(self, number: int, line: Line) -> None:
        line.dead = True
        self.registries[number].connection_lost(line)

    # -- failures

    def fail(self) -> None:
        kinds = (
            self.kill,
            self.kill,
            self.kill_set,
            self.hang,
            self.hang,
            self.cut,
            self.cut,
            self.switch,
            self.restart,
        )
        self.random.choice(kinds)()

    def node(self) -> Node:
        return self.random.choice(self.random.choice(self.sets).nodes)

    def kill(self) -> None:
        node = self.node()
        if node.up:
            self.note(f"{node.address} is killed")
            node.kill()
            self.later(self.random.randrange(150_000), lambda: self.come_back(node))

    def come_back(self, node: Node) -> None:
        if not node.up:
            self.note(f"{node.address} is back")
            node.start()
            node.set.look()

    def kill_set(self) -> None:
        one = self.random.choice(self.sets)
        self.note(f"all of {one.name} is killed")
        for node in one.nodes:
            if node.up:
                node.kill()
                self.later(self.random.randrange(150_000), lambda node=node: self.come_back(node))  # type: ignore[misc]

    def hang(self) -> None:
        node = self.node()
        if node.up and not node.hangs:
            self.note(f"{node.address} hangs")
            node.hang()
            self.later(self.random.randrange(150_000), node.wake)

    def cut(self) -> None:
        """Neither side hears of it; the node connects anew when it can."""
        node, number = self.node(), self.random.randrange(len(self.registries))
        self.note(f"{node.address} is cut off from registry {number}")
        node.cut[number] = True

        def heal() -> None:
            node.cut[number] = False
            line = node.lines[number]
            node.lines[number] = None
            if line is not None:
                line.dead = True
                if self.random.random() < 0.5:  # a late reset; or never
                    self.registries[number].connection_lost(line)
            self.later(RECONNECT_MS, lambda: node.tell(number, True))

        self.later(self.random.randrange(1, 150_000), heal)

    def switch(self) -> None:
        one = self.random.choice(self.sets)
        if one.master is not None and all(node.up and not node.hangs for node in one.nodes):
            one.lead(next(node for node in one.nodes if node is not one.master))

    def restart(self) -> None:
        """A registry that knows nothing: all connections to it are gone, and made anew."""
        number = self.random.randrange(len(self.registries))
        self.note(f"registry {number} starts anew")
        self.registries[number] = self.registry()
        self.heard[number] = {}
        for one in self.sets:
            for node in one.nodes:
                line = node.lines[number]
                if line is not None:
                    line.dead = True
                self.later(RECONNECT_MS, lambda node=node: node.tell(number, True))  # type: ignore[misc]

    # -- what must hold

    def right(self, topics: list[str]) -> None:
        """Everything that is there is in the routes, at its place, and nothing else."""
        for number, registry in enumerate(self.registries):
            wanted = {}
            for one in self.sets:
                here = [node for node in one.nodes if node.up and not node.hangs and not node.cut[number]]
                self.must(one.master is not None and one.master in here, f"{one.name} has no master")
                wanted[one.name] = {0 if node.leads else node.number: node.address for node in here}
            self.must(registry.routes.addresses == wanted, f"{registry.routes.addresses}\n is not \n{wanted}")
            for topic in topics:
                route = self.route(number, topic)
                names = [f"broker-{n}" for n in self.topics[topic]]
                self.must(sorted(route.brokers) == names, f"{topic} is at {sorted(route.brokers)}, not {names}")
                self.must(all(route.brokers[name] == wanted[name] for name in names), f"{topic}: {route.brokers}")
                self.must(len(route.publish_queues()) == 4 * len(names), f"{topic}: not all queues can be sent to")

    def route(self, number: int, topic: str) -> Route:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        reply = self.registries[number].handle(Line(self.sets[0].nodes[0]), command, self.now)
        assert reply is not None
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return parse_route(topic, reply.body)


@pytest.mark.parametrize("seed", [1])
def test_routes_are_right_after_a_thousand_failures(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.pass_time(PEACE_MS)
    world.right(list(world.topics))
    for n in range(FAILURES // BURST):
        for _ in range(BURST):
            world.fail()
            world.pass_time(world.random.randrange(20_000))
        world.pass_time(PEACE_MS + 150_000)
        world.right(list(world.topics) if n % 50 == 49 else world.random.sample(list(world.topics), 20))
    assert sum(one.epoch for one in world.sets) > 10 * SETS  # there were failovers
    assert world.refused > 0  # and old masters that did not know of them


def test_a_set_that_is_killed_takes_its_queues_alone(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.pass_time(PEACE_MS)
    for node in world.sets[3].nodes:
        node.kill()
    for topic in world.random.sample(list(world.topics), 2_000):
        on = world.topics[topic]
        left = [f"broker-{n}" for n in on if n != 3]
        if left:
            for number in range(len(world.registries)):
                assert sorted({queue.broker for queue in world.route(number, topic).publish_queues()}) == left
        else:
            assert world.registries[0].routes.route(topic) is None
