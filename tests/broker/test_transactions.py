"""Transactions: halves, their ends, and the question to a producer who is silent."""

from __future__ import annotations

import json
import time

from fronts.raw_peer import RawPeer, wait_for
from penstock.broker.transactions import Transactions
from penstock.testing import Broker
from penstock.wire.codes import SYS_COMMIT as COMMIT
from penstock.wire.codes import SYS_ROLLBACK as ROLLBACK
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


def test_transactions() -> None:
    with Broker(transaction_timeout_ms=100, transaction_check_interval_ms=200) as broker:
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
        assert end(committed, COMMIT) == 0
        assert end(rolled, ROLLBACK) == 0
        (message,) = wait_for(peer, "Tx")
        assert message.body == b"yes"
        assert message.sys_flag & 0xC == 8
        assert message.prepared_offset == int(committed.ext["msgId"][16:], 16)
        check = peer.got.pop(0) if peer.got else peer.read()
        assert (check.code, check.ext["transactionId"]) == (39, "U1")
        half_message = next(iter_records(check.body))
        assert (half_message.body, half_message.properties["TRANSACTION_CHECK_TIMES"]) == (b"asked", "1")
        assert end(asked, COMMIT) == 0
        assert [m.body for m in wait_for(peer, "Tx", 0, 1)] == [b"asked"]
        peer.close()
