"""Entries of the schedule that make no sense, whoever wrote them: set aside and told, and the others are delivered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Reader, Side
from penstock.broker.delayed import Delayed, Wanted
from penstock.broker.due import FOLLOWING_MS, LOOK_AT_LEAST_MS, DueMessages
from penstock.broker.topics import HALF_TOPIC, TIMER_TOPIC
from penstock.errors import Refused
from penstock.wire import record
from penstock.wire.codes import SYS_COMMIT

ODD: dict[str, dict[str, str]] = {
    "id no number": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "abc"},
    "id too large": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "9" * 30},
    "id negative": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "-7"},
    "id of other digits": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "\u0663"},
    "attempts": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_ATTEMPTS": "-"},
    "attempts too many": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_ATTEMPTS": "65536"},
    "stamp": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_STAMP": "x"},
    "place": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_CHANNEL": "a", "PENSTOCK_PLACE": "x"},
    "lane": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_CHANNEL": "a", "PENSTOCK_LANE": "x"},
}
FINE: dict[str, dict[str, str]] = {
    "valid": {"PENSTOCK_QUEUE": "t", "PENSTOCK_ID": "7", "PENSTOCK_CHANNEL": "a"},
    "no such lane": {"PENSTOCK_QUEUE": "t", "PENSTOCK_CHANNEL": "a", "PENSTOCK_LANE": "9", "PENSTOCK_PLACE": "0"},
    "far place": {"PENSTOCK_QUEUE": "t", "PENSTOCK_CHANNEL": "a", "PENSTOCK_PLACE": "4611686018427387903"},
}


def put(side: Side, topic: bytes, body: bytes, properties: dict[str, str]) -> None:
    broker = side.broker
    broker.put(broker.topic_to_write(topic), 0, body, properties, born_host=broker.store_host, born_ms=broker.now_ms)


def pulled(side: Side, topic: bytes) -> list[bytes]:
    from penstock.log.reading import ReadResult

    found, result = [], ReadResult()
    for queue in side.broker.topics.by_name[topic].queues:
        side.broker.store.read(queue, 0, 1000, 1 << 20, -1, None, result)
        found += [message.body for message in record.iter_records(result.body())]
    return found


def owed(side: Side, channel: bytes) -> list[bytes]:
    reader = Reader()
    reader.ready_count = 100
    here = side.queueing.topic(b"t").channel(channel)
    here.add(reader)
    side.queueing.mark_channel(here)
    side.turn()
    return [message.body for message in reader.deliveries()]


@pytest.mark.parametrize("restarted", ["no", "before", "behind"])
@pytest.mark.parametrize("odd", [*ODD, *FINE])
def test_a_sender_s_properties_are_only_properties(tmp_path: Path, odd: str, restarted: str) -> None:
    """A delayed send stored by a broker that did not refuse them yet: it is delivered to the topic it was sent to."""
    side = Side(tmp_path)
    side.queueing.topic(b"t").channel(b"a")
    side.turn()
    put(side, b"Orders", b"order", (ODD | FINE)[odd] | {"DELAY": "1"})
    put(side, b"Orders", b"other", {"DELAY": "1"})
    side.queueing.publish(side.queueing.topic(b"t"), [b"deferred"], 1_000)
    for _ in range(4):
        side.turn(100)
    if restarted == "before":
        side.reopen(clean=False)
    for _ in range(8):
        side.turn(500)
    if restarted == "behind":
        side.reopen(clean=True)
    assert sorted(pulled(side, b"Orders")) == [b"order", b"other"]
    assert owed(side, b"a") == [b"deferred"]
    assert len(side.broker.schedule) == 0
    side.close()


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}, {"TIMER_DELAY_SEC": "1"}], ids=str)
@pytest.mark.parametrize("killed", [True, False])
def test_a_delay_is_as_long_after_a_clock_was_set_back(tmp_path: Path, delay: dict[str, str], killed: bool) -> None:
    """Store times do not decrease, and a delay is counted from there: it was an hour longer for an hour."""
    side = Side(tmp_path)
    put(side, b"Orders", b"before", {})
    side.turn()
    side.clock.jump(-3_600_000)
    side.reopen(clean=True)
    put(side, b"Orders", b"later", delay)
    side.turn(400)
    if killed:
        side.reopen(clean=False)
    side.turn(500)
    assert pulled(side, b"Orders") == [b"before"]
    for _ in range(5):
        side.turn(100)
    assert pulled(side, b"Orders") == [b"before", b"later"]
    side.close()


def test_who_leaves_no_room_for_a_moment_is_not_refused(tmp_path: Path) -> None:
    """Of a publish that would stop in the middle: what was staged fitted."""
    side = Side(tmp_path)
    put(side, b"Orders", b"before", {})
    side.turn()
    side.clock.jump(-3_600_000)
    side.reopen(clean=True)
    for more in range(60):
        put(side, b"Orders", b"later", {"DELAY": "1", "x": "y" * (record.PROPERTIES_BYTES_MAX - 100 + more)})
    assert len(side.broker.schedule) == 60
    side.close()


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_an_entry_without_sense_is_set_aside(tmp_path: Path, odd: str, restarted: bool) -> None:
    side = Side(tmp_path)
    side.queueing.topic(b"t").channel(b"a")
    side.turn()
    due = {"TIMER_DELIVER_MS": str(side.broker.now_ms + 1_000)}
    put(side, TIMER_TOPIC, b"senseless", ODD[odd] | due)
    side.queueing.publish(side.queueing.topic(b"t"), [b"deferred"], 1_000)
    put(side, b"Orders", b"other", {"DELAY": "1"})
    side.turn(500)
    assert len(Delayed(side.broker).page(Wanted(), None, 100)[0]) == 3
    if restarted:
        side.reopen(clean=False)
    for _ in range(8):
        side.turn(500)
    assert pulled(side, b"Orders") == [b"other"]
    assert owed(side, b"a") == [b"deferred"]
    (aside,) = (tmp_path / "lost+found").glob("schedule-*.record")
    message = record.decode_record(aside.read_bytes(), 0)
    assert message is not None
    assert message.body == b"senseless"
    lines = [json.loads(line) for line in (tmp_path / "damage.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == [f"lost+found/{aside.name}"]
    side.reopen(clean=False)
    assert len(side.broker.schedule) == 0
    side.close()


@pytest.mark.parametrize("odd", ODD)
def test_an_entry_without_sense_is_neither_fired_nor_in_the_way(tmp_path: Path, odd: str) -> None:
    side = Side(tmp_path)
    put(side, TIMER_TOPIC, b"senseless", ODD[odd] | {"TIMER_DELIVER_MS": str(side.broker.now_ms + 100_000)})
    put(side, TIMER_TOPIC, b"other", ODD[odd] | {"TIMER_DELIVER_MS": str(side.broker.now_ms + 100_000)})
    side.turn()
    delayed = Delayed(side.broker)
    (one, two), _ = delayed.page(Wanted(), None, 100)
    with pytest.raises(Refused, match="set aside"):
        delayed.fire(one["id"])
    assert delayed.cancel(two["id"])["id"] == two["id"]
    side.turn(200)
    assert delayed.page(Wanted(), None, 100)[0] == []
    side.close()


@pytest.mark.parametrize("properties", [{"REAL_QID": "x"}, {"REAL_QID": "9" * 5000}, {"REAL_QID": "-1"}])
def test_a_half_without_sense_ends_neither_start_nor_checks(
    tmp_path: Path, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side(tmp_path, transaction_timeout_ms=1_000, transaction_check_interval_ms=500)
    half, op = b"RMQ_SYS_TRANS_HALF_TOPIC", b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
    broker = side.broker
    for text in (properties, {"REAL_QID": "0"}):
        broker.put(
            broker.topics.by_name[half], 0, b"half", {"REAL_TOPIC": "Orders", "PGROUP": "G"} | text,
            born_host=broker.store_host, born_ms=broker.now_ms, half=True,
        )  # fmt: skip
    for body in (b"x,", b"9" * 5000, b"\xff"):
        broker.put(
            broker.topics.by_name[op], 0, body, {}, born_host=broker.store_host, born_ms=broker.now_ms, half=True
        )
    side.reopen(clean=False)
    asked: list[Any] = []
    side.broker.transactions.ask_through(lambda *words: bool(asked.append(words)) or True)
    for _ in range(4):
        side.turn(1_000)
    assert [fields["tranStateTableOffset"] for _, _, fields in asked][:1]
    assert "1" in {fields["tranStateTableOffset"] for _, _, fields in asked}
    side.close()


@pytest.mark.parametrize("kind", ["queue", "log"])
@pytest.mark.parametrize("there", [True, False], ids=["in the log", "only in the schedule"])
def test_a_byte_changed_in_the_schedule_is_never_delivered(tmp_path: Path, kind: str, there: bool) -> None:
    side = Side(tmp_path)
    side.queueing.topic(b"t").channel(b"a")
    side.turn()
    bodies = [b"body %d" % n + bytes(200) for n in range(10)]
    for body in bodies:
        if kind == "queue":
            side.queueing.publish(side.queueing.topic(b"t"), [body], 5_000)
        else:
            put(side, b"Orders", body, {"DELAY": "2"})
    side.turn(1_000)
    side.turn(1_000)
    side.broker.close(True)
    path = tmp_path / "schedule" / "data.mdb"
    data = path.read_bytes()
    assert b"body 7" in data
    path.write_bytes(data.replace(b"body 7", b"bodY 7"))
    side.open()
    if not there:  # retention took it
        side.broker.schedule.lookup = lambda physical: None
    for _ in range(8):
        side.turn(1_000)
    came = owed(side, b"a") if kind == "queue" else pulled(side, b"Orders")
    assert sorted(came) == [body for body in bodies if there or b"7" not in body]
    assert len(list((tmp_path / "lost+found").glob("schedule-*.record"))) == (0 if there else 1)
    side.close()


def test_when_to_look_again(tmp_path: Path) -> None:
    side = Side(tmp_path)
    due: DueMessages = side.broker.due
    side.turn(LOOK_AT_LEAST_MS)
    assert due.tick() == side.broker.mono_ms + LOOK_AT_LEAST_MS
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"], 700)
    assert due.tick() <= side.broker.mono_ms + 700
    side.close()


def test_what_is_due_while_a_place_is_about_to_be_given_away_comes_when_it_is_kept(tmp_path: Path) -> None:
    side = Side(tmp_path)
    due_ms = side.broker.now_ms + 1_000
    put(side, b"T", b"late", {"TIMER_DELIVER_MS": str(due_ms)})
    side.broker.store.follow(True)
    side.turn(1_500)
    assert pulled(side, b"T") == []
    side.broker.store.follow(False)
    side.turn(FOLLOWING_MS)
    assert pulled(side, b"T") == [b"late"]
    side.broker.close()


@pytest.mark.parametrize("given_back", [False, True])
def test_what_a_transaction_has_committed_comes_once_when_it_is_delayed(tmp_path: Path, given_back: bool) -> None:
    """Its delivery says that it was committed, as RocketMQ's does, and ends the entry of the schedule all the same."""
    side = Side(tmp_path)
    broker = side.broker
    broker.topic_to_write(b"Tx")
    properties = {"PGROUP": "PG", "REAL_TOPIC": "Tx", "REAL_QID": "0"} | ({} if given_back else {"DELAY": "1"})
    half = broker.put(
        broker.topics.by_name[HALF_TOPIC], 0, b"m", properties,
        born_host=broker.store_host, born_ms=broker.now_ms, half=True,
    )  # fmt: skip
    broker.transactions.begun(half.queue_offset, half.physical, broker.now_ms, properties)
    broker.transactions.end(
        {"producerGroup": "PG", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical,
         "commitOrRollback": SYS_COMMIT}
    )  # fmt: skip
    topic = b"Tx"
    if given_back:
        [entry] = [broker.topics.by_name[b"Tx"].queues[0].entry(0)]
        assert entry is not None
        broker.send_back(entry[0], "G", 1, None, "")
        topic = b"%RETRY%G"
    assert len(broker.schedule) == 1
    side.turn(1_000)
    assert pulled(side, topic) == [b"m"]
    assert len(broker.schedule) == 0
    for clean in (False, True):
        for _ in range(3):
            side.turn(500)
        side.reopen(clean)
        assert len(side.broker.schedule) == 0
        assert pulled(side, topic) == [b"m"]
    side.close()


def late(side: Side) -> int:
    """A delayed message whose topic was deleted; its id."""
    side.broker.topics.create(b"Gone", 1, 1)
    put(side, b"Gone", b"late", {"TIMER_DELIVER_MS": str(side.broker.now_ms + 5_000)})
    side.broker.topics.delete(b"Gone", side.broker.now_ms)
    side.turn()
    ((row,), _) = Delayed(side.broker).page(Wanted(), None, 10)
    return int(str(row["id"]))


@pytest.fixture
def homeless(tmp_path: Path) -> Iterator[tuple[Side, int]]:
    """Such a message, where topics are not made by themselves."""
    side = Side(tmp_path, auto_create_topic_enable=False)
    yield side, late(side)
    side.close()


def test_what_has_no_topic_is_not_fired_and_stays(homeless: tuple[Side, int]) -> None:
    side, id_ = homeless
    with pytest.raises(Refused, match=r"topic\[Gone\] not exist"):
        Delayed(side.broker).fire(id_)
    side.broker.topics.create(b"Gone", 1, 1)
    for _ in range(3):
        side.turn(3_000)
    assert pulled(side, b"Gone") == [b"late"]
    assert len(side.broker.schedule) == 0


def test_what_fell_due_without_a_topic_comes_once_there_is_one(
    homeless: tuple[Side, int], caplog: pytest.LogCaptureFixture
) -> None:
    side, id_ = homeless
    side.turn(6_000)
    assert len(side.broker.schedule) == 1
    with pytest.raises(Refused, match=r"topic\[Gone\] not exist"):
        Delayed(side.broker).fire(id_)
    side.turn(LOOK_AT_LEAST_MS)
    said = caplog.text.count("waits for its topic")
    side.broker.topics.create(b"Other", 1, 1)
    side.turn(LOOK_AT_LEAST_MS)
    assert caplog.text.count("waits for its topic") == said
    side.broker.topics.create(b"Gone", 1, 1)
    side.turn()
    assert pulled(side, b"Gone") == [b"late"]
    assert len(side.broker.schedule) == 0


@pytest.mark.parametrize("due", [True, False])
def test_what_is_for_a_log_topic_waits_where_a_queue_topic_took_the_name(tmp_path: Path, due: bool) -> None:
    side = Side(tmp_path)
    id_ = late(side)
    taken = side.queueing.topic(b"Gone")
    if due:
        side.turn(6_000)
    with pytest.raises(Refused, match="is a queue topic"):
        Delayed(side.broker).fire(id_)
    side.turn()
    assert len(side.broker.schedule) == 1
    assert taken.depth() == 0
    side.queueing.delete(taken)
    side.broker.topics.create(b"Gone", 1, 1)
    Delayed(side.broker).fire(id_)
    side.turn()
    assert pulled(side, b"Gone") == [b"late"]
    assert len(side.broker.schedule) == 0
    side.close()


@pytest.mark.parametrize("how", ["fired", "cancelled", "moved"])
def test_what_fell_due_without_a_topic_is_in_hand(homeless: tuple[Side, int], how: str) -> None:
    side, id_ = homeless
    delayed = Delayed(side.broker)
    side.turn(6_000)
    if how == "cancelled":
        delayed.cancel(id_)
    else:
        side.broker.topics.create(b"Gone", 1, 1)
        if how == "fired":
            delayed.fire(id_)
        else:
            delayed.move(id_, side.broker.now_ms + 1_000)
    side.turn(100)
    assert (pulled(side, b"Gone") if how != "cancelled" else []) == ([b"late"] if how == "fired" else [])
    assert len(side.broker.schedule) == (how == "moved")
    if how == "moved":
        side.turn(2_000)
        side.turn()
        assert pulled(side, b"Gone") == [b"late"]
