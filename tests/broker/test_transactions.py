"""Transactions: halves, their ends, and the question to a producer who is silent."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from broker.queueside import Side
from fronts.raw_peer import RawPeer, wait_for
from penstock.broker.topics import HALF_TOPIC
from penstock.broker.transactions import ASKED_AT_ONCE, PIECE_MS, Transactions
from penstock.disk.files import Files
from penstock.errors import DiskFull, Refused
from penstock.testing import Broker, FakeClock
from penstock.wire.codes import SYS_COMMIT as COMMIT
from penstock.wire.codes import SYS_ROLLBACK as ROLLBACK
from penstock.wire.names import GIVEN_UP_TOPIC
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


def test_transactions() -> None:
    clock = FakeClock()  # it stands until all that are ended are: none of them is asked about
    with Broker(clock=clock, transaction_timeout_ms=100, transaction_check_interval_ms=200) as broker:
        assert broker.call(lambda server: isinstance(server.broker.transactions, Transactions))
        peer = RawPeer(broker.remoting)
        beat = {"clientID": "p", "producerDataSet": [{"groupName": "PG"}]}
        assert peer.ask(34, body=json.dumps(beat).encode()).code == 0
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U1"}

        def half(body: bytes) -> RemotingCommand:
            answer = peer.send("Tx", body, properties, f=4, g=int(time.time() * 1000))
            assert answer.code == 0, answer.remark
            assert "transactionId" not in answer.ext  # nor does RocketMQ 4.9 say it
            return answer

        def end(answer: RemotingCommand, what: int, group: str = "PG") -> int:
            fields = {"producerGroup": group, "tranStateTableOffset": answer.ext["queueOffset"],
                      "commitLogOffset": int(answer.ext["msgId"][16:], 16), "commitOrRollback": what,
                      "fromTransactionCheck": "false", "msgId": "U1"}  # fmt: skip
            return peer.ask(37, fields).code

        committed, rolled, asked = half(b"yes"), half(b"no"), half(b"asked")
        assert peer.pull("Tx", 0, 0).code in (17, 19)
        assert end(committed, COMMIT, "Other") == 1
        assert end(committed, 5) == 1  # no outcome, and RocketMQ refuses it, too
        assert end(committed, 0) == 0  # unknown yet
        assert end(committed, COMMIT) == 0
        assert end(rolled, ROLLBACK) == 0
        (message,) = wait_for(peer, "Tx")
        assert message.body == b"yes"
        assert message.sys_flag & 0xC == 8
        assert message.prepared_offset == int(committed.ext["msgId"][16:], 16)
        broker.call(lambda server: clock.advance(300))
        check = peer.got.pop(0) if peer.got else peer.read()
        assert (check.code, check.ext["transactionId"]) == (39, "U1")
        half_message = next(iter_records(check.body))
        assert (half_message.body, half_message.properties["TRANSACTION_CHECK_TIMES"]) == (b"asked", "1")
        assert end(asked, COMMIT) == 0
        assert [m.body for m in wait_for(peer, "Tx", 0, 1)] == [b"asked"]
        peer.close()


class Crowded(Files):
    """A disk that gives no room while the test says so."""

    full = False

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no room (by order of the test)")
        super().allocate(fd, at, length)


FILLERS = 62  # and a few commits are a segment


@pytest.mark.parametrize("again", [COMMIT, ROLLBACK])
def test_a_commit_whose_op_record_found_no_room_is_stored_once(tmp_path: Path, again: int) -> None:
    """It is said again, as a client does that was refused: what is missing is written, and nothing twice."""
    fits = 0
    while not parted(tmp_path / f"{fits}", again, fits):
        fits += 1  # no two commits begin at the same place, seen from the end of the room


def parted(folder: Path, again: int, filler: int) -> bool:
    """Whether the disk was full between the two records of a commit; so many bytes more are in each filler."""
    files = Crowded()
    side = Side(folder, files=files, mapped_file_size_commit_log=1 << 14, max_msg_size=1 << 12)
    broker = side.broker
    topic, other = broker.topic_to_write(b"Tx"), broker.topic_to_write(b"Other")
    halves = []
    for n in range(5):
        properties = {"PGROUP": "PG", "REAL_TOPIC": "Tx", "REAL_QID": "0", "UNIQ_KEY": str(n)}
        half = broker.put(
            broker.topics.by_name[HALF_TOPIC], 0, b"%d" % n, properties,
            born_host=broker.store_host, born_ms=1, half=True,
        )  # fmt: skip
        broker.transactions.begun(half.queue_offset, half.physical, 1, properties)
        fields = {"producerGroup": "PG", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical}
        halves.append(fields)
    broker.transactions.end({**halves.pop(), "commitOrRollback": COMMIT})
    broker.put(other, 0, b"", {}, born_host=broker.store_host, born_ms=1)
    files.full = True  # all files that will be written are there
    for _ in range(FILLERS):
        broker.put(other, 0, b"x" * (100 + filler), {}, born_host=broker.store_host, born_ms=1)
    refused, stored = [], 0
    for fields in halves:
        before = topic.queues[0].max_offset
        try:
            broker.transactions.end({**fields, "commitOrRollback": COMMIT})
        except Refused:
            stored += topic.queues[0].max_offset - before
            refused.append({**fields, "commitOrRollback": again if topic.queues[0].max_offset > before else COMMIT})
    files.full = False
    side.turn(10)
    for fields in refused:
        broker.transactions.end(fields)
    side.turn(10)
    assert topic.queues[0].max_offset == 1 + len(halves)
    assert not broker.transactions.open
    side.reopen(clean=False)
    assert not side.broker.transactions.open
    side.close()
    return stored > 0


def test_many_that_are_silent_are_asked_in_pieces(tmp_path: Path) -> None:
    """50,000 questions at once stopped the broker for most of a second."""
    side = Side(tmp_path, level="os", transaction_timeout_ms=1_000, transaction_check_interval_ms=60_000)
    broker, asked = side.broker, list[int]()
    transactions = broker.transactions

    def ask(group: str, data: bytes, fields: dict[str, str]) -> bool:
        asked.append(int(fields["tranStateTableOffset"]))
        return True

    transactions.ask_through(ask)
    halves = broker.topics.by_name[HALF_TOPIC]
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0"}
    for _ in range(3 * ASKED_AT_ONCE):
        where = {"born_host": broker.store_host, "born_ms": broker.now_ms}
        placed = broker.put(halves, 0, b"x", properties, half=True, **where)
        transactions.begun(placed.queue_offset, placed.physical, broker.now_ms, properties)
    side.clock.advance(60_000)
    broker.time.update()
    mono_ms = broker.mono_ms
    assert transactions.tick(mono_ms) == mono_ms + PIECE_MS
    assert asked == list(range(ASKED_AT_ONCE))
    del transactions.open[ASKED_AT_ONCE]  # it has ended meanwhile
    assert transactions.tick(mono_ms + PIECE_MS) == mono_ms + 2 * PIECE_MS
    assert transactions.tick(mono_ms + 2 * PIECE_MS) == mono_ms + 60_000
    assert asked == [n for n in range(3 * ASKED_AT_ONCE) if n != ASKED_AT_ONCE]
    assert transactions.tick(mono_ms + 3 * PIECE_MS) == mono_ms + 60_000
    side.close()


def test_those_that_nobody_tells_of_are_given_up_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(
        tmp_path,
        level="os",
        transaction_timeout_ms=1_000,
        transaction_check_interval_ms=60_000,
        transaction_check_max=2,
    )
    broker, transactions, asked = side.broker, side.broker.transactions, list[str]()
    transactions.ask_through(lambda group, data, fields: not asked.append(fields["commitLogOffset"]))
    halves = broker.topics.by_name[HALF_TOPIC]
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0"}
    for _ in range(3):
        where = {"born_host": broker.store_host, "born_ms": broker.now_ms}
        placed = broker.put(halves, 0, b"x", properties, half=True, **where)
        transactions.begun(placed.queue_offset, placed.physical, broker.now_ms, properties)
    for n in range(1, 5):
        side.clock.advance(60_000)
        broker.time.update()
        transactions.tick(broker.mono_ms)
        assert len(asked) == min(n, 2) * 3
    assert not transactions.open
    assert [line.getMessage() for line in caplog.records if line.name == "penstock.transactions"] == [
        "nobody told how transactions ended, their messages are in TRANS_CHECK_MAX_TIME_TOPIC count=3"
    ]
    assert sum(queue.max_offset for queue in broker.topics.by_name[GIVEN_UP_TOPIC].queues) == 3
    side.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_producer_whose_clock_is_ahead_is_asked_in_time(tmp_path: Path, restarted: bool) -> None:
    """Its half messages were born in the future, and nobody was asked about them before that had come."""
    side = Side(tmp_path, transaction_timeout_ms=1_000, transaction_check_interval_ms=500)
    placed = side.broker.put(
        side.broker.topics.by_name[HALF_TOPIC], 0, b"x", {"PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0"}, half=True,
        born_host=side.broker.store_host, born_ms=side.broker.now_ms + 3_600_000,
    )  # fmt: skip
    side.broker.transactions.begun(placed.queue_offset, placed.physical, side.broker.now_ms + 3_600_000, {})
    side.turn()
    if restarted:
        side.reopen(clean=False)
    asked = list[str]()
    side.broker.transactions.ask_through(lambda group, data, fields: asked.append(group) is None)
    side.turn(600)
    assert not asked
    side.turn(600)
    assert asked == ["PG"]
    side.close()
