"""The channels of log topics at a slave: what its master tells it, and what it makes of that, also of what makes no sense."""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.queueside import Reader, Side
from penstock.broker.levels import LEVEL_OS
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.mirror import BITS_BYTES_MAX, ChannelNews
from penstock.broker.nsq.sources import lanes
from penstock.broker.taking import Tables, Taking
from penstock.errors import DiskFull, Refused, WireError
from penstock.log import status
from penstock.log.follow import Feeder, Follower
from penstock.wire import fastjson, ha

RULES = ({"name": "t*", "kind": "log", "queues": 2}, {"name": "q*", "kind": "queue", "level": "os"})


class Couple:
    """A master and a slave; what goes from one to the other goes when the test says so."""

    def __init__(self, folder: Path, by_row: bool = True) -> None:
        self.by_row = by_row  # the slave understands what is told of single topics
        self.master = Side(folder / "a", ha_port=0, topic=RULES)
        self.slave = Side(folder / "b", ha_port=0, role="slave", topic=RULES)
        self.connect()

    def connect(self) -> None:
        self.held_at = -1  # so much of the log was sent, where it is not all
        self.tables = Tables(self.master.broker)
        self.told = ChannelNews(self.master.queueing.registry, self.master.broker.store)
        self.taking = Taking(self.slave.broker)
        if self.by_row:
            self.tables.tell_changes()
            self.told.tell_changes()

    def tell(self, ms: int = 1_000) -> list[int]:
        """Tell the slave what is new; which kinds of frames that took."""
        self.master.turn(ms)
        for kind, body in self.tables.news():
            self.taking.take(kind, body)
        kinds = []
        for kind, body in self.told.news(self.master.broker.mono_ms, self.sent()):
            kinds.append(ha.CHANNELS if kind == ha.CHANNEL_CHANGES else kind)
            self.taking.take(kind, body)
        self.slave.turn()
        return kinds

    def sent(self) -> int:
        return self.held_at if self.held_at >= 0 else int(self.master.broker.store.end_position)

    def copy_log(self) -> None:
        feeder = Feeder(self.master.broker.store, self.slave.broker.store.end_position)
        follower = Follower(self.slave.broker.store)
        if follower.empty:
            assert follower.begin_at(feeder.position) == status.OK
        while feeder.position < self.master.broker.store.end_position and feeder.next(1 << 16):
            block = bytearray(feeder.block())
            assert follower.take(block, 0, feeder.count, len(block), False) == status.OK

    def promote(self) -> Side:
        """The slave is killed and starts as a master on its folder."""
        self.slave.config = replace(self.slave.config, role="master")
        self.slave.reopen(clean=False)
        return self.slave

    def face(self, side: Side, name: bytes = b"t") -> LogChannels:
        found = side.queueing.topics[name]
        assert isinstance(found, LogChannels)
        return found

    def close(self) -> None:
        self.master.close()
        self.slave.close()


@pytest.fixture(params=[True, False], ids=["rows", "whole"])
def couple(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Couple]:
    made = Couple(tmp_path, request.param)
    yield made
    made.close()


def read(side: Side, channel: bytes, count: int = 100, topic: bytes = b"t") -> tuple[Reader, dict[bytes, int]]:
    reader = Reader()
    reader.ready_count = count
    side.queueing.topic(topic).channel(channel).add(reader)
    side.queueing.topic(topic).mark()
    side.turn()
    return reader, {delivery.body: delivery.id for delivery in reader.deliveries()}


def finish(side: Side, reader: Reader, channel: bytes, ids: list[int], topic: bytes = b"t") -> None:
    for message_id in ids:
        side.queueing.topics[topic].channels[channel].finish(reader, message_id, 0, 0)
    side.queueing.topics[topic].mark()
    side.turn()


def test_a_slave_has_the_channels_and_their_places(couple: Couple) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    for name in (b"one", b"two", b"gone#ephemeral"):
        topic.channel(name)
    for n in range(40):
        master.queueing.publish(topic, [b"%02d" % n])
    reader, found = read(master, b"one")
    done = [found[b"%02d" % n] for n in range(40) if n % 3]
    finish(master, reader, b"one", done)
    topic.pause_channel(topic.channel(b"two"), True)
    assert couple.tell() == [ha.CHANNELS, ha.CURSORS]
    assert couple.tell() == []  # nothing is new
    there = couple.face(couple.slave)
    assert {name: bool(channel.paused) for name, channel in there.channels.items()} == {b"one": False, b"two": True}
    for mine, its in zip(lanes(topic.channels[b"one"]), lanes(there.channels[b"one"]), strict=True):
        assert (its.file.committed, its.file.beyond) == (mine.file.committed, mine.file.beyond)
        assert [its.file.finished(n) for n in range(its.file.committed, 30)] == [
            mine.file.finished(n) for n in range(mine.file.committed, 30)
        ]
    couple.copy_log()
    promoted = couple.promote()
    _, again = read(promoted, b"one")
    assert sorted(again) == [b"%02d" % n for n in range(0, 40, 3)]
    assert promoted.queueing.topics[b"t"].channels[b"two"].paused


def test_a_pause_outlives_the_master(couple: Couple) -> None:
    """The new master holds back what the old one did: what came since the pause."""
    master = couple.master
    topic = couple.face(master) if b"t" in master.queueing.topics else master.queueing.topic(b"t")
    topic.channel(b"c")
    master.queueing.publish(topic, [b"before"])
    topic.pause()
    couple.tell()  # it may be here before what it speaks of
    master.queueing.publish(topic, [b"since"])
    couple.tell()
    couple.copy_log()
    couple.slave.queueing.write_table()
    promoted = couple.promote()
    face = couple.face(promoted)
    assert (face.paused, face.depth()) == (True, 1)
    reader, found = read(promoted, b"c")
    assert list(found) == [b"before"]
    face.unpause()
    promoted.turn()
    assert [one.body for one in reader.deliveries()] == [b"since"]


def test_what_was_emptied_is_not_owed_to_the_first_channel_of_the_new_master(couple: Couple) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    assert isinstance(topic, LogChannels)
    topic.stored.detail(topic.stored.settings().more._replace(owed=True))
    master.queueing.publish(topic, [b"dropped"])
    topic.empty()
    master.queueing.publish(topic, [b"kept"])
    couple.copy_log()
    couple.tell()
    couple.slave.queueing.write_table()
    promoted = couple.promote()
    assert couple.face(promoted).depth() == 1
    assert list(read(promoted, b"first")[1]) == [b"kept"]


def test_a_former_versions_master_says_only_that_a_topic_is_paused(couple: Couple) -> None:
    master = couple.master
    master.queueing.publish(master.queueing.topic(b"t"), [b"before"])
    couple.copy_log()
    couple.tell()
    told = {"channels": {"t": {"paused": True, "channels": {"c": {"paused": False, "since": 0, "at": [0, 0]}}}}}
    for _ in range(2):  # what is told again moves nothing
        couple.taking.take(ha.CHANNELS, fastjson.dumps(told))
        master.queueing.publish(master.queueing.topic(b"t"), [b"since"])
        couple.copy_log()
    couple.slave.queueing.write_table()
    promoted = couple.promote()
    assert (couple.face(promoted).paused, couple.face(promoted).depth()) == (True, 2)
    assert list(read(promoted, b"c")[1]) == [b"before"]


def test_what_comes_and_goes_at_the_master(couple: Couple) -> None:
    master, slave = couple.master, couple.slave
    topic = master.queueing.topic(b"t")
    topic.channel(b"one")
    couple.tell()
    topic.channel(b"two")
    topic.pause()
    assert ha.CHANNELS in couple.tell(ms=0)  # at once, and before what is published behind it
    assert couple.face(slave).paused
    assert sorted(couple.face(slave).channels) == [b"one", b"two"]
    topic.delete_channel(b"one")
    topic.unpause()
    couple.tell()
    assert sorted(couple.face(slave).channels) == [b"two"]
    assert not couple.face(slave).paused
    assert not list((slave.broker.folder / "queues" / "t").glob("one*"))
    couple.connect()  # a new connection is told all of it
    assert couple.tell() == [ha.CHANNELS, ha.CURSORS]
    master.broker.topics.delete(b"t", master.broker.now_ms)
    master.queueing.registry.changed(topic, True)
    couple.tell()
    assert b"t" not in slave.broker.topics.by_name
    assert b"t" not in slave.queueing.topics
    assert not list((slave.broker.folder / "queues" / "t").glob("two*"))


def test_a_channel_of_the_same_name_begins_anew(couple: Couple) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"other")
    topic.channel(b"c")
    for n in range(20):
        master.queueing.publish(topic, [b"%d" % n])
    reader, found = read(master, b"c")
    finish(master, reader, b"c", list(found.values()))
    couple.tell()
    assert sum(lane.file.committed for lane in lanes(couple.face(couple.slave).channels[b"c"])) == 20
    topic.delete_channel(b"c")
    topic.channel(b"c")
    topic.reset(b"c", {0: 0, 1: 0})  # back to the beginning
    couple.tell()
    assert sum(lane.file.committed for lane in lanes(couple.face(couple.slave).channels[b"c"])) == 0


def test_a_purge_moves_the_places_of_the_slave(couple: Couple) -> None:
    master = couple.master
    topic = couple.face(master) if b"t" in master.queueing.topics else master.queueing.topic(b"t")
    assert isinstance(topic, LogChannels)
    topic.channel(b"c")
    for n in range(20):
        master.queueing.publish(topic, [b"%d" % n])
    couple.tell()
    topic.purge({0: 7, 1: 9})
    couple.tell()
    assert [lane.file.committed for lane in lanes(couple.face(couple.slave).channels[b"c"])] == [7, 9]


def test_places_beyond_the_log_of_the_slave_are_cut_when_it_leads(couple: Couple) -> None:
    """The master had finished what the slave never got: what is stored there anew under these offsets is not finished."""
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"c")
    for n in range(10):
        master.queueing.publish(topic, [b"%d" % n])
    couple.tell()
    couple.copy_log()
    for n in range(10, 30):
        master.queueing.publish(topic, [b"%d" % n])
    reader, found = read(master, b"c")
    finish(master, reader, b"c", [id_ for body, id_ in found.items() if body != b"3"])
    couple.tell()
    promoted = couple.promote()
    fresh = promoted.queueing.topic(b"t")
    for n in range(20):
        promoted.queueing.publish(fresh, [b"new %d" % n])
    _, again = read(promoted, b"c")
    assert sorted(again) == sorted([b"3", *(b"new %d" % n for n in range(20))])


def test_a_slave_that_cannot_have_a_topic_says_so_once_and_goes_on(
    couple: Couple, caplog: pytest.LogCaptureFixture
) -> None:
    slave = couple.slave
    slave.queueing.registry.make(b"tq", LEVEL_OS, 0)  # a queue topic from before it was a slave
    master = couple.master
    for name in (b"tq", b"t"):
        master.queueing.topic(name).channel(b"c")
    couple.tell()
    master.queueing.topic(b"t").channel(b"d")
    couple.tell()
    assert sorted(couple.face(slave).channels) == [b"c", b"d"]
    assert slave.queueing.topics[b"tq"].kind == "queue"
    assert sum("channels of the master not taken topic=tq" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ha.CHANNELS, {}),
        (ha.CHANNEL_CHANGES, {"channels": {}}),
        (ha.CHANNEL_CHANGES, {"channels": 5, "gone": []}),
        (ha.CHANNEL_CHANGES, {"channels": {}, "gone": [5]}),
        (ha.CHANNEL_CHANGES, {"channels": {"t": {"paused": False, "channels": {"c": {}}}}, "gone": []}),
        (ha.CHANNELS, {"channels": 5}),
        (ha.CHANNELS, {"channels": {"t": {"paused": False, "channels": {"c": {}}}}}),
        (ha.CHANNELS, {"channels": {"t": {"paused": True, "held": [-1], "channels": {}}}}),
        (ha.CHANNELS, {"channels": {"t": {"paused": True, "held": "1", "channels": {}}}}),
        (ha.CHANNELS, {"channels": {"t": {"paused": False, "floors": [None], "channels": {}}}}),
        (ha.CURSORS, {}),
        (ha.CURSORS, {"cursors": [["t"]]}),
        (ha.CURSORS, {"cursors": [["t", "c", 0, -1, ""]]}),
        (ha.CURSORS, {"cursors": [["t", "c", 0, 1 << 62, ""]]}),
        (ha.CURSORS, {"cursors": [["t", "c", 0, 0, "no base 64!"]]}),
        (ha.CURSORS, {"cursors": [["t", "c", 0, 0, base64.b64encode(b"no deflate").decode()]]}),
        (
            ha.CURSORS,
            {"cursors": [["t", "c", 0, 0, base64.b64encode(zlib.compress(bytes(BITS_BYTES_MAX + 9))).decode()]]},
        ),
    ],
)
def test_frames_that_make_no_sense(couple: Couple, kind: int, told: dict[str, object]) -> None:
    couple.master.queueing.topic(b"t").channel(b"c")
    couple.tell()
    with pytest.raises(WireError, match="make no sense"):
        couple.taking.take(kind, fastjson.dumps(told))


@pytest.mark.parametrize(
    "row", [["none", "c", 0, 5, ""], ["t", "none", 0, 5, ""], ["t", "c", 9, 5, ""], ["t", "c", -1, 5, ""]]
)
def test_places_of_what_is_not_there_are_passed_over(couple: Couple, row: list[object]) -> None:
    couple.master.queueing.topic(b"t").channel(b"c")
    couple.tell()
    couple.taking.take(ha.CURSORS, fastjson.dumps({"cursors": [row]}))
    assert [lane.file.committed for lane in lanes(couple.face(couple.slave).channels[b"c"])] == [0, 0]


def test_bits_of_many_pages_and_more_than_a_frame(couple: Couple) -> None:
    """Cursors that have run far ahead of what is not finished."""
    master = couple.master
    topic = master.queueing.topic(b"t")
    channel = topic.channel(b"c")
    file = lanes(channel)[0].file
    for ordinal in (*range(5, 90_000, 7), 100_003):
        file.finish(ordinal)
    topic.mark()
    couple.tell()
    its = lanes(couple.face(couple.slave).channels[b"c"])[0].file
    assert its.beyond == file.beyond
    assert its.told() == file.told()
    assert its.reach() >= 100_003
    file.commit(70_001)
    topic.mark()
    couple.tell()
    assert its.committed == 70_001
    assert its.told() == file.told()


def test_a_place_is_told_behind_the_log_it_stands_on(couple: Couple) -> None:
    """What was given back with a delay stands in the log again: that has to be there first."""
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"c")
    master.queueing.publish(topic, [b"x"])
    couple.tell()
    couple.held_at = master.broker.store.end_position
    reader, found = read(master, b"c")
    topic.channels[b"c"].requeue(reader, found[b"x"], 60_000, 0)
    for _ in range(3):
        master.turn(600)
    assert sum(lane.file.committed for lane in lanes(topic.channels[b"c"])) == 1
    assert couple.tell() == []
    assert couple.tell() == []  # as long as it takes
    couple.held_at = -1
    assert couple.tell() == [ha.CURSORS]


def test_a_channel_begins_at_the_slave_where_it_begins_at_the_master(couple: Couple) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"first")
    couple.tell()
    couple.held_at = 0
    for n in range(6):
        master.queueing.publish(topic, [b"%d" % n])
    couple.copy_log()
    master.turn()
    topic.channel(b"second")
    for n in range(6, 10):
        master.queueing.publish(topic, [b"%d" % n])
    couple.copy_log()
    assert couple.tell() == [ha.CHANNELS]  # and the master is gone before it can say more
    promoted = couple.promote()
    _, again = read(promoted, b"second")
    assert sorted(again) == [b"6", b"7", b"8", b"9"]


def test_what_a_full_disk_left_out_is_taken_once_there_is_room(couple: Couple, monkeypatch: pytest.MonkeyPatch) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"c")
    master.queueing.publish(topic, [b"x"])
    reader, found = read(master, b"c")
    full = True

    def allocate(fd: int, begin: int, size: int) -> None:
        if full:
            raise DiskFull("no room")
        really(fd, begin, size)

    really = couple.slave.files.allocate
    monkeypatch.setattr(couple.slave.files, "allocate", allocate)
    couple.tell()
    assert not couple.face(couple.slave).channels
    full = False
    finish(master, reader, b"c", list(found.values()))
    couple.tell()
    assert sum(lane.file.committed for lane in lanes(couple.face(couple.slave).channels[b"c"])) == 1


def test_a_topic_that_rocketmqs_side_has_deleted_can_be_made_anew(couple: Couple) -> None:
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"c")
    master.queueing.publish(topic, [b"old"])
    couple.tell()
    master.broker.topics.delete(b"t", master.broker.now_ms)
    with pytest.raises(Refused, match="deleted"):
        master.queueing.publish(topic, [b"x"])
    again = master.queueing.topic(b"t")
    assert again is not topic
    assert not again.channels
    master.queueing.publish(again, [b"new"])
    again.channel(b"d")
    couple.tell()
    assert list(couple.face(couple.slave).channels) == [b"d"]
    _, found = read(master, b"d")
    assert list(found) == [b"new"]


@pytest.mark.parametrize("away", [False, True])
def test_a_topic_that_was_deleted_and_made_again_is_not_paused_at_the_slave(couple: Couple, away: bool) -> None:
    """Made again by RocketMQ's side: of its channels there is nothing to tell."""
    master = couple.master
    topic = master.queueing.topic(b"t")
    topic.channel(b"c")
    topic.pause()
    couple.tell()
    assert couple.face(couple.slave).paused
    master.queueing.registry.delete(topic)
    master.broker.topics.create(b"t", 2, 2, now_ms=master.broker.now_ms)
    if away:
        couple.connect()
    couple.tell()
    couple.slave.turn()
    promoted = couple.promote()
    again = promoted.queueing.topic(b"t")
    assert (again.paused, list(again.channels)) == (False, [])


def shape(side: Side) -> dict[bytes, object]:
    """Topics with channels that are kept, and what a slave must know of them."""
    found: dict[bytes, object] = {}
    for name, face in side.queueing.topics.items():
        if isinstance(face, LogChannels) and face.channels:
            found[name] = (
                bool(face.paused),
                {
                    known: (bool(channel.paused), [(lane.file.committed, lane.file.beyond) for lane in lanes(channel)])
                    for known, channel in face.channels.items()
                },
            )
    return found


@pytest.mark.parametrize("seed", range(8))
def test_lives_of_channels(tmp_path: Path, seed: int) -> None:
    """Channels and topics come, go, are paused, emptied and read; whoever was told has what the master has."""
    chance = random.Random(seed)
    couple = Couple(tmp_path, by_row=seed % 4 != 3)
    master = couple.master
    told = 0
    for _ in range(150):
        name = b"t%d" % chance.randrange(4)
        topic = master.queueing.topic(name)
        channel = topic.channel(b"c%d" % chance.randrange(3))
        what = chance.randrange(12)
        if what < 4:
            master.queueing.publish(topic, [b"%d" % n for n in range(chance.randrange(1, 9))])
            reader, found = read(master, channel.name, topic=name)
            done = chance.sample(sorted(found.values()), chance.randint(0, len(found)))
            finish(master, reader, channel.name, done, topic=name)
            channel.remove(reader)
        elif what == 4:
            topic.delete_channel(channel.name)
        elif what == 5:
            master.queueing.registry.delete(topic)
        elif what == 6:
            topic.pause() if chance.random() < 0.5 else topic.unpause()
        elif what < 9:
            topic.pause_channel(channel, chance.random() < 0.5)
        elif what == 9:
            topic.empty_channel(channel)
        elif what == 10:
            couple.connect()
        if chance.random() < 0.3:
            couple.copy_log()
            couple.tell()
            couple.tell()
            assert shape(couple.slave) == shape(master)
            told += 1
    assert told > 20
    couple.close()


def test_a_new_channel_is_told_without_those_of_other_topics(tmp_path: Path) -> None:
    couple = Couple(tmp_path)
    master = couple.master
    for n in range(300):
        master.queueing.topic(b"t%d" % n).channel(b"c")
    couple.tell()
    master.queueing.topic(b"t7").channel(b"d")
    master.turn()
    [(kind, body)] = [(k, b) for k, b in couple.told.news(master.broker.mono_ms, couple.sent()) if k != ha.CURSORS]
    assert (kind, len(body) < 500) == (ha.CHANNEL_CHANGES, True)
    couple.taking.take(kind, body)
    assert couple.slave.queueing.topics[b"t7"].channels.keys() == {b"c", b"d"}
    assert couple.slave.queueing.topics[b"t8"].channels.keys() == {b"c"}
    couple.close()
