"""The RocketMQ front: one session per connection; frames in, bytes out, no socket.

`RemotingSession` cuts frames and passes every request to its server as an object: enough for a registry. A
`BrokerSession` answers sends and pulls itself, straight from the bytes read to the bytes to be written: the header is
scanned in place (`wire.header`), the record is encoded into the log, the answer goes into the outbox.

An answer that waits for a flush goes into `held`; at the end of the turn all of them together wait for one position
(`seal`), and `release` lets them go. Held pulls wait in `Broker.holds` and are answered by `resume`.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import cython

from penstock import msgid
from penstock.broker.broker import APPEND_REFUSALS
from penstock.broker.topics import DEAD_PREFIX, HALF_TOPIC, RETRY_PREFIX, check_topic_name
from penstock.delivery.waiters import Waiter
from penstock.errors import PenstockError, Refused, StoreError, WireError
from penstock.fronts.requests import Requests
from penstock.fronts.requests.consuming import parse_tags
from penstock.log.consumequeue import TagCodes
from penstock.log.sequences import Stored
from penstock.log.sequences import parse as parse_sequence
from penstock.log.status import READ_NAMES
from penstock.wire import record, remoting
from penstock.wire.frames import FrameCutter
from penstock.wire.header import NAMES, HeaderScan
from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.topics import LogTopic
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.log.draft import Draft
    from cython.cimports.penstock.log.reading import ReadResult
    from cython.cimports.penstock.octets import address, copy, find, java_hash, put32, same, ube32
else:
    from penstock import words
    from penstock.broker.topics import LogTopic
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.log.draft import Draft
    from penstock.log.reading import ReadResult
    from penstock.octets import address, copy, find, java_hash, put32, same, ube32

log = logging.getLogger("penstock.fronts")

HOLD_MS_MAX = 120_000
FLUSH_MS_MAX = 5_000  # rocketmq.md §7: then code 10
PULL_COUNT_MAX = 1_024
PULL_BYTES_MAX = 4 << 20
_NAMES = [name.encode() for name in NAMES]
_LONG_NAMES = frozenset(NAMES)
_LETTERS = _LONG_NAMES - set(NAMES[: words.LETTERS]) | set("abcdefghijklmn")  # what SEND V2 and batches call them


class Texts:
    """The constant parts of hot answers, as addresses."""

    def __init__(self, store_host: bytes) -> None:
        self.held = [
            b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"',
            b'","queueId":"',
            b'","queueOffset":"',
            b'"},"flag":1,"language":"JAVA","opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":409}',
            b'{"code":0,"extFields":{"maxOffset":"',
            b'","minOffset":"',
            b'","nextBeginOffset":"',
            b'","suggestWhichBrokerId":"0"},"flag":1,"language":"JAVA","opaque":',
            b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":409}',
            store_host.hex().upper().encode(),
            b"\x00\x0aMSG_REGION\x00\x00\x00\x0dDefaultRegion\x00\x08TRACE_ON\x00\x00\x00\x04true\x00\x05msgId",
            b"\x00\x07queueId",
            b"\x00\x0bqueueOffset",
            b"\x00\x09maxOffset",
            b"\x00\x09minOffset",
            b"\x00\x0fnextBeginOffset",
            b"\x00\x14suggestWhichBrokerId\x00\x00\x00\x010",
            b"\x00\x00\x00\x01\x99",  # code 0, language JAVA, version 409
            b"\x00\x00\x00\x05FOUND",
        ]
        self.blob = b"".join(self.held)
        self.base = address(self.blob)
        if not cython.compiled:
            self.at = [0] * 24
            self.length = [0] * 24
        at = 0
        for i, text in enumerate(self.held):
            self.at[i] = at
            self.length[i] = len(text)
            at += len(text)


class RemotingSession:
    """One peer. `wake()` tells the outside that there is something to be written though nothing was read."""

    def __init__(self, server: Any, remote: str, wake: Callable[[], None]) -> None:
        self.server = server
        self.remote = remote
        self.id = remote
        self.wake = wake
        self.out = Outbox()
        self.scan = HeaderScan()
        self.cutter = FrameCutter(words.HEADER_BYTES_MAX)
        self.need = 0
        self.serialize = 0
        self.oneway = False
        self.closed = False
        self.full = False  # answers wait to be written: frames that were read wait, too
        self.opaque_now = 0
        self.base = self.scan.names
        self._pending: dict[int, tuple[Callable[[remoting.RemotingCommand | None], None], int]] = {}
        self._opaque = 0

    # -- bytes in ------------------------------------------------------------------------------------------------

    def feed(self, owner: bytearray, total: int) -> int:
        """Carry out every whole frame in the first `total` bytes; how many bytes they were.

        `need` is then the size of the frame that is not complete, or 0 when even its length is not. WireError: the
        peer is no RocketMQ peer, close the connection.
        """
        base = address(owner)
        self.base = base
        pos = 0
        cutter = self.cutter
        self.full = False
        while True:
            if self.out.size > words.TURN_BYTES_MAX:
                self.need = 0
                self.full = True
                break
            if not cutter.next(base, pos, total):
                self.need = cutter.need
                break
            pos = cutter.end
            self.frame(cutter.kind, cutter.header, cutter.size, pos)
        return pos

    def frame(self, kind: int, header: int, size: int, end: int) -> None:
        """One whole frame: header of `size` bytes, body up to `end`."""
        self.cold(kind, self._bytes(header, size), self._bytes(header + size, end - header - size))

    def _bytes(self, at: int, n: int) -> bytes:
        return bytes(self.base[at : at + n])

    def cold(self, kind: int, header: bytes, body: bytes) -> None:
        """A frame as an object: answer what a peer answered us, pass on what it asks."""
        request = remoting.decode(kind, header, body)
        if request.response:
            waiting = self._pending.pop(request.opaque, None)
            if waiting is not None:
                waiting[0](request)
            return
        try:
            answer = self.server.handle(self, request)
        except Refused as refused:
            answer = request.reply(refused.remoting, remark=str(refused))
        except StoreError as error:
            log.error("request failed code=%d peer=%s error=%s", request.code, self.remote, error)
            answer = request.reply(14, remark=f"service not available now: {error}")
        except Exception:
            log.exception("request failed code=%d peer=%s", request.code, self.remote)
            answer = request.reply(1, remark="the request failed; the log of the server says why")
        if answer is not None and not request.oneway:
            self.out.put(remoting.encode(answer))

    # -- bytes out -----------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """What is to be written now."""
        return self.out.take()

    def push(self, command: remoting.RemotingCommand) -> None:
        """Send a one-way request, or an answer that took its time."""
        if self.closed:
            return
        if not command.response and not command.opaque:
            self._opaque += 1
            command.opaque = self._opaque
        self.out.put(remoting.encode(command))
        self.wake()

    def call(
        self,
        command: remoting.RemotingCommand,
        done: Callable[[remoting.RemotingCommand | None], None],
        deadline_ms: int,
    ) -> None:
        """Ask the peer; `done` gets its answer, or None after the deadline or the end of the connection."""
        self._opaque += 1
        command.opaque = self._opaque
        self._pending[command.opaque] = (done, deadline_ms)
        self.push(command)

    def tick(self, mono_ms: int) -> None:
        """Give up questions that were not answered in time."""
        if self._pending:
            for opaque in [o for o, (_, deadline_ms) in self._pending.items() if deadline_ms <= mono_ms]:
                self._pending.pop(opaque)[0](None)

    def lost(self) -> None:
        """The connection is gone."""
        self.closed = True
        for done, _ in list(self._pending.values()):
            done(None)
        self._pending.clear()
        self.server.lost(self)


class Hold:
    """A pull that waits: all that is needed to run it again."""

    __slots__ = (
        "codes",
        "counts",
        "durable",
        "max_bytes",
        "max_count",
        "offset",
        "opaque",
        "queue",
        "serialize",
        "topic",
    )

    def __init__(self, **what: Any) -> None:
        for name, value in what.items():
            setattr(self, name, value)


class BrokerSession(RemotingSession):
    """A producer or consumer at the broker."""

    def __init__(self, server: BrokerFront, remote: str, wake: Callable[[], None], born: bytes) -> None:
        RemotingSession.__init__(self, server, remote, wake)
        self.front = server
        self.broker = server.broker
        self.store = server.broker.store
        self.texts = server.texts
        self.draft = server.draft
        self.result = server.result
        self.held = Outbox()
        self.behind = False
        self.waiting: deque[tuple[int, int, bytes]] = deque()
        self.raw = server.raw
        self.text = server.text
        self._born_owner = born
        self.born = address(born)
        self.born_len = len(born)
        self.topic = None
        self.pull_topic = None
        self._pull_group = b""
        self._pull_expression = b""
        self._pull_flags = 0
        self._pull_version = -1
        self._pull_online = None
        self._pull_revision = -1
        self._pull_config = None
        self.pull_codes: TagCodes | None = None
        self._pull_counts = [0, 0]
        self._pull_names = ("", "")

    # -- frames --------------------------------------------------------------------------------------------------

    def frame(self, kind: int, header: int, size: int, end: int) -> None:
        scan = self.scan
        if kind == 0:
            known = scan.json(self.base, header, size)
        else:
            known = scan.binary(self.base, header, size)
        if known and scan.flag & 1 == 0:
            self.serialize = kind
            if self.hot(header + size, end):
                return
        self.cold(kind, self._bytes(header, size), self._bytes(header + size, end - header - size))

    def hot(self, body: int, end: int) -> bool:
        """Carry out a send or a pull; False when the scanned request is neither."""
        code = self.scan.code
        if code != 310 and code != 11 and code != 10 and code != 320 and code != 361:
            return False
        self.oneway = self.scan.flag & 2 != 0
        self.opaque_now = self.scan.opaque
        out = self.out.size
        held = self.held.size
        try:
            if code == 11 or code == 361:
                self._pull()
            else:
                self._send(code == 320, body, end - body)
        except Refused as refused:
            self._refuse(refused.remoting, str(refused))
        except PenstockError as error:
            self._unfinished(out, held, 14 if isinstance(error, StoreError) else 1, str(error))
        except Exception:
            log.exception("request failed code=%d peer=%s", code, self.remote)
            self._unfinished(out, held, 1, "the request failed; the log of the server says why")
        return True

    def _unfinished(self, out: int, held: int, code: int, remark: str) -> None:
        """A request ended half way: what it had written of its answer goes, and it is told why."""
        self.out.cut(min(out, self.out.size))
        self.held.cut(min(held, self.held.size))
        self._refuse(code, remark)

    def cold(self, kind: int, header: bytes, body: bytes) -> None:
        request = remoting.decode(kind, header, body)
        if request.code in (10, 11, 310, 320, 361) and not request.response:
            # An unusual header of a hot request: written again in the plain form, then it is like any other.
            answer_in = request.serialize
            request.serialize = words.BINARY
            names = _LETTERS if request.code in (310, 320) else _LONG_NAMES
            request.ext = {name: request.ext[name] for name in names if name in request.ext}
            frame = remoting.encode(request)
            outer = self.base
            self.base = address(frame)
            if not self.scan.binary(self.base, 8, len(frame) - 8 - len(body)):
                raise WireError(f"a header of request {request.code} that cannot be read")
            self.serialize = answer_in
            self.hot(len(frame) - len(body), len(frame))
            self.base = outer
            return
        RemotingSession.cold(self, kind, header, body)

    def _refuse(self, code: int, remark: str) -> None:
        if not self.oneway:
            answer = remoting.RemotingCommand(
                code, opaque=self.opaque_now, flag=1, remark=remark, language=0, serialize=self.serialize
            )
            self.out.put(remoting.encode(answer))

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self, batch: bool, body: int, body_len: int) -> None:
        scan = self.scan
        base = self.base
        for slot in range(8):
            if scan.kind[slot] == 0:
                self._refuse(1, f"the custom field <{NAMES[slot]}> is null")
                return
        queue_id = scan.number(4, 0)
        sys_flag = scan.number(5, 0)
        born_ms = scan.number(6, 0)
        flag = scan.number(7, 0)
        reconsume = scan.number(9, 0)
        if scan.bad >= 0:
            self._refuse(1, f"{NAMES[scan.bad]} is not a number")
            return
        topic = self.topic
        n = scan.length[1]
        if (
            topic is None
            or not topic.open
            or scan.kind[1] != 1
            or n != self.topic_len
            or not same(base, scan.at[1], self.topic_at, 0, n)
        ):
            topic = self._find_topic()
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        if queue_id >= topic.read_queues and queue_id >= topic.write_queues:
            self._refuse(1, f"request queueId[{queue_id}] is illegal, {topic.described()} Producer: {self.remote}")
            return
        if body_len > self.front.body_max or (
            scan.kind[8] and scan.length[8] >= 32767 * (6 if scan.kind[8] == 2 else 1)
        ):
            self._too_large()
            return
        draft = self.draft
        text = self.text
        wait = self._properties(batch)
        if self.reserved or ((batch or scan.true(12)) and self._reserved_within(base, body, body + body_len)):
            self._refuse(13, "the message is illegal, properties that begin with PENSTOCK_ are the broker's own")
            return
        if text.size >= 32767:
            self._too_large()
            return
        draft.flag = flag
        draft.sys_flag = sys_flag
        draft.born_ms = born_ms
        draft.reconsume_times = reconsume
        draft.prepared = 0
        draft.born = self.born
        draft.born_len = self.born_len
        queue: ConsumeQueue = topic.queues[queue_id]
        draft.queue = queue
        draft.body = base
        draft.body_pos = body
        draft.body_len = body_len
        draft.props = text.base
        draft.props_pos = 0
        draft.props_len = text.size
        if draft.seq_len > 0:
            batch = batch or scan.true(12)
            self._send_sequenced(topic, queue_id, self._bytes(body, body_len), wait, batch)
            return
        if batch or scan.true(12):
            self._send_batch(topic, queue_id, wait, body, body_len)
            return
        if self.special or topic.is_retry or sys_flag & 0xC:
            self._send_special(topic, queue_id, self._bytes(body, body_len), wait)
            return
        draft.indexed = True
        status = self.store.append(draft)
        if status:
            self._refuse(*APPEND_REFUSALS[status])
            return
        topic.put_count += 1
        topic.put_bytes += draft.size
        if not self.oneway:
            self._sent(self._outbox(topic, wait), draft.physical, queue_id, draft.queue_offset)

    def _outbox(self, topic: LogTopic, wait: bool) -> Outbox:
        """Where the answer to a stored message goes: out now, or held until the next flush."""
        if (topic.level == 1 and wait) or self.front.blocked:
            if not self.held.size:
                self.front.holding.append(self)
            return self.held
        return self.out

    def _too_large(self) -> None:
        self._refuse(
            13,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self.front.body_max}B, msg properties length limit 32KB.",
        )

    def _find_topic(self) -> LogTopic:
        """The topic of a send, checked and made if need be; remembered for the next. Refused."""
        name = self.scan.text(1)
        check_topic_name(name)
        topic = self.broker.topics.get(name)
        if topic is not None and topic.protected:
            raise Refused(f"Sending message to topic[{name.decode()}] is forbidden.", remoting=16)
        if topic is None:
            topic = self.broker.topic_to_write(name, self.scan.text(2), self.scan.number(3, 0))
        if not topic.perm & 2:
            raise Refused(f"the topic[{name.decode()}] sending message is forbidden", remoting=16)
        self.topic = topic
        self.topic_at = address(topic.name)
        self.topic_len = len(topic.name)
        return topic

    def _properties(self, batch: bool) -> bool:
        """Write the properties text to be stored into `text`; find tag and keys for the draft.

        WAIT is taken out (its value is the answer) and CLUSTER put in; `special` is set when a property asks for more
        than storing. A batch's own properties are not stored.
        """
        scan = self.scan
        draft = self.draft
        text = self.text
        text.cut(0)
        draft.tags_code = 0
        draft.uniq_len = 0
        draft.keys_len = 0
        draft.seq_len = 0
        self.special = False
        self.reserved = False
        wait = True
        b = self.base
        p = scan.at[8]
        end = p
        if scan.kind[8] == 1:
            end = p + scan.length[8]
        elif scan.kind[8] == 2:
            self.raw.cut(0)
            self.raw.room(scan.length[8])
            b = self.raw.base
            end = scan.unescape(8, b, 0)
            p = 0
        text.room(end - p + 1 + self.front.cluster_len)
        while p < end:
            stop = find(b, p, end, 2)
            if stop < 0:
                stop = end
            eq = find(b, p, stop, 1)
            if eq > p:
                n = eq - p
                v = eq + 1
                c = b[p]
                if n == 4 and c == 87 and same(b, p, self.front.words, 0, 4):  # WAIT
                    wait = not (stop - v == 5 and (b[v] | 32) == 102)
                    p = stop + 1
                    continue
                if text.size:
                    text.base[text.size] = 2
                    text.size += 1
                if n == 4 and c == 84 and same(b, p, self.front.words, 4, 4):  # TAGS
                    draft.tags_code = java_hash(b, v, stop - v, 0)
                elif n == 4 and c == 75 and same(b, p, self.front.words, 8, 4):  # KEYS
                    draft.keys_pos = text.size + 5
                    draft.keys_len = stop - v
                elif n == 4 and c == 80 and same(b, p, self.front.words, 39, 4):  # PSEQ
                    draft.seq_pos = text.size + 5
                    draft.seq_len = stop - v
                elif n >= 9 and c == 80 and same(b, p, self.front.words, 43, 9):  # PENSTOCK_…
                    self.reserved = True
                elif n == 8 and c == 85 and same(b, p, self.front.words, 12, 8):  # UNIQ_KEY
                    draft.uniq_pos = text.size + 9
                    draft.uniq_len = stop - v
                elif (
                    (n == 5 and c == 68 and same(b, p, self.front.words, 20, 5))  # DELAY
                    or (n == 8 and c == 84 and same(b, p, self.front.words, 25, 8))  # TRAN_MSG
                    or (n > 6 and c == 84 and same(b, p, self.front.words, 33, 6))  # TIMER_…
                ):
                    self.special = True
                copy(text.base, text.size, b, p, stop - p)
                text.size += stop - p
            p = stop + 1
        if not batch:
            if text.size:
                text.base[text.size] = 2
                text.size += 1
            copy(text.base, text.size, self.front.cluster, 0, self.front.cluster_len)
            text.size += self.front.cluster_len
        return wait

    def _reserved_within(self, b: Any, p: int, end: int) -> bool:
        """Whether a message of the batch b[p:end] has a property that only the broker may set."""
        while end - p >= 22:
            total = ube32(b, p)
            size = ube32(b, p + 16)
            if total < 22 or total > end - p or size > total - 22:
                return False  # refused when it is appended
            at = p + 22 + size
            p += total
            while p - at >= 9:
                if b[at] == 80 and same(b, at, self.front.words, 43, 9):
                    return True
                at = find(b, at, p, 2) + 1
                if at == 0:
                    break
        return False

    def _send_batch(self, topic: LogTopic, queue_id: int, wait: bool, body: int, body_len: int) -> None:
        if topic.is_retry or self.special:
            self._refuse(13, "batch messages can be neither delayed nor retried")
            return
        draft = self.draft
        count = self.store.append_batch(draft, self.base, body, body + body_len)
        if count < 0:
            self._refuse(*APPEND_REFUSALS[-count])
            return
        topic.put_count += count
        topic.put_bytes += draft.size
        if self.oneway:
            return
        out = self._outbox(topic, wait)
        start = self._begin(out)
        self._sent_ids(out, draft.physical, count, draft.size)
        self._sent_rest(out, queue_id, draft.queue_offset)
        self._end(out, start, 0)

    def _send_special(self, topic: LogTopic, queue_id: int, body: bytes, wait: bool) -> None:
        """A send that is delayed, half of a transaction, or a retry: by way of objects."""
        scan = self.scan
        draft = self.draft
        properties = record.parse_properties(self._text_bytes().decode("utf-8", "replace"))
        sys_flag = draft.sys_flag
        prepared = 0
        broker = self.broker
        half = properties.get("TRAN_MSG", "").lower() == "true" and not topic.is_retry
        answered = topic
        if topic.is_retry:
            # A consumer that could not send back sends anew; the dead-letter rule is the same (rocketmq.md §13).
            group_name = topic.name[len(RETRY_PREFIX) :].decode()
            group = broker.groups.find(group_name, broker.now_ms)
            limit = scan.number(11, -1)
            if draft.reconsume_times >= (group.retry_max if limit < 0 else limit):
                topic = broker.topic_to_write(DEAD_PREFIX + group_name.encode())
                queue_id = 0
                properties.pop("DELAY", None)
        born_ms, flag, reconsume = draft.born_ms, draft.flag, draft.reconsume_times
        if half:
            properties["REAL_TOPIC"], properties["REAL_QID"] = topic.name.decode(), str(queue_id)
            topic = broker.topics.by_name[HALF_TOPIC]
            placed = broker.put(
                topic, 0, body, properties, born_host=self._born_owner, born_ms=born_ms, flag=flag,
                sys_flag=sys_flag & ~0xC, reconsume_times=reconsume, half=True,
            )  # fmt: skip
            broker.transactions.begun(placed.queue_offset, placed.physical, born_ms, properties)
        else:
            placed = broker.put(
                topic, queue_id, body, properties, born_host=self._born_owner, born_ms=born_ms, flag=flag,
                sys_flag=sys_flag, reconsume_times=reconsume, prepared=prepared,
            )  # fmt: skip
        if self.oneway:
            return
        out = self._outbox(answered, wait)
        if half:
            ext = {
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "msgId": msgid.offset_msg_id(broker.store_host, placed.physical),
                "queueId": str(queue_id),
                "queueOffset": str(placed.queue_offset),
                "transactionId": properties.get("UNIQ_KEY", ""),
            }
            answer = remoting.RemotingCommand(
                0, ext, opaque=self.opaque_now, flag=1, language=0, serialize=self.serialize
            )
            out.put(remoting.encode(answer))
        else:
            self._sent(out, placed.physical, placed.queue_id, placed.queue_offset)

    def _send_sequenced(self, topic: LogTopic, queue_id: int, body: bytes, wait: bool, batch: bool) -> None:
        """A send of an idempotent producer: stored once however often it comes."""
        draft = self.draft
        scan = self.scan
        sequences = self.broker.sequences
        value = draft.sequence()
        producer, number, count = parse_sequence(value)
        stored = sequences.find(producer, number)
        if stored is None or stored.there < stored.messages:
            text = self._text_bytes()
            about = (draft.born_ms, draft.flag, draft.sys_flag, draft.reconsume_times)
            if batch:
                stored = self._store_sequenced_batch(topic, queue_id, body, value, count, stored)
            else:
                properties = record.parse_properties(text.decode("utf-8", "replace"))
                born_ms, flag, sys_flag, reconsume = about
                if topic.is_retry or sys_flag & 0xC or "TRAN_MSG" in properties or count != 1:
                    self._refuse(13, "an idempotent send is a plain message or a batch of them")
                    return
                placed = self.broker.put(
                    topic, queue_id, body, properties, born_host=self._born_owner, born_ms=born_ms, flag=flag,
                    sys_flag=sys_flag, reconsume_times=reconsume,
                )  # fmt: skip
                parts = ((placed.physical, 1),)
                name = topic.name.decode()
                stored = Stored(self.store.end_position, name, placed.queue_id, placed.queue_offset, 1, parts)
            sequences.took(producer, number, stored)
        else:
            sequences.repeats += 1
        if self.oneway:
            return
        places = [at for physical, n in stored.parts for at in self.store.positions(physical, n)]
        ids = ",".join(msgid.offset_msg_id(self.broker.store_host, at) for at in places)
        ext = {
            "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "msgId": ids,
            "queueId": str(stored.queue_id), "queueOffset": str(stored.queue_offset),
        }  # fmt: skip
        answer = remoting.RemotingCommand(0, ext, opaque=scan.opaque, flag=1, language=0, serialize=self.serialize)
        out = self._outbox(topic, wait and self.store.flushed_position < self.store.end_position)
        out.put(remoting.encode(answer))

    def _store_sequenced_batch(
        self, topic: LogTopic, queue_id: int, body: bytes, value: bytes, count: int, part: Stored | None
    ) -> Stored:
        """Append a batch with its sequence in each message; of one that a crash has cut, what is missing. Refused."""
        draft = self.draft
        if topic.is_retry or self.special:
            raise Refused("batch messages can be neither delayed nor retried", remoting=13)
        at = 0
        there = 0 if part is None else part.there
        for _ in range(there):
            at += int.from_bytes(body[at : at + 4], "big")
        draft.set_tail(b"PSEQ\x01" + value)
        try:
            found = self.store.weigh_batch(draft, body)
            if found > 0 and found != count:
                raise Refused(f"PSEQ says {count} messages, the batch has {found}", remoting=13)
            done = self.store.append_batch_bytes(draft, body[at:]) if found > 0 else found
        finally:
            draft.set_tail(b"")
        if done < 0:
            code, remark = APPEND_REFUSALS[-done]
            raise Refused(remark, remoting=code)
        topic.put_count += done
        topic.put_bytes += draft.size
        end = self.store.end_position
        if part is not None:
            return part._replace(end=end, parts=(*part.parts, (draft.physical, done)))
        name = topic.name.decode()
        return Stored(end, name, queue_id, draft.queue_offset, count, ((draft.physical, done),))

    def _text_bytes(self) -> bytes:
        return bytes(self.text.base[: self.text.size])

    def answer_when_stored(self, topic: LogTopic, answer: remoting.RemotingCommand) -> None:
        """Answer a request that stored a message on a topic, when the topic's level is reached."""
        self._outbox(topic, True).put(remoting.encode(answer))

    # -- answers to sends ----------------------------------------------------------------------------------------

    def _put(self, out: Outbox, text: int) -> None:
        out.put_from(self.texts.base, self.texts.at[text], self.texts.length[text])

    def _begin(self, out: Outbox) -> int:
        """Leave room for the lengths and write what every positive answer begins with; where the frame starts."""
        start = out.size
        out.room(64)
        out.size += 8
        if self.serialize:
            self._put(out, 18)
            out.put_int32(self.opaque_now)
            out.put_int32(1)
        return start

    def _end(self, out: Outbox, start: int, body: int) -> None:
        """Fill in the lengths; `body` more bytes follow the header."""
        put32(out.base, start, out.size - start - 4 + body)
        put32(out.base, start + 4, self.serialize << 24 | (out.size - start - 8))

    def _sent(self, out: Outbox, physical: int, queue_id: int, queue_offset: int) -> None:
        start = self._begin(out)
        self._sent_ids(out, physical, 1, 0)
        self._sent_rest(out, queue_id, queue_offset)
        self._end(out, start, 0)

    def _sent_ids(self, out: Outbox, physical: int, count: int, size: int) -> None:
        """The answer up to its message ids: one, or a batch's joined by commas."""
        digits = self.texts.length[10] + 16
        if self.serialize:
            out.put_int32(0)  # no remark
            out.put_int32(
                self.texts.length[11] + 4 + (digits + 1) * count - 1
                + self.texts.length[12] + 4 + 0 + self.texts.length[13] + 4
            )  # fmt: skip
            self._ext_at = out.size - 4
            self._put(out, 11)
            out.put_int32((digits + 1) * count - 1)
        else:
            self._put(out, 0)
        self._put(out, 10)
        out.put_hex(physical, 16)
        while count > 1:
            physical += self.store.log.size_at(physical)
            out.room(1)
            out.base[out.size] = 44
            out.size += 1
            self._put(out, 10)
            out.put_hex(physical, 16)
            count -= 1

    def _sent_rest(self, out: Outbox, queue_id: int, queue_offset: int) -> None:
        if self.serialize:
            self._put(out, 12)
            self._number_value(out, queue_id)
            self._put(out, 13)
            self._number_value(out, queue_offset)
            put32(out.base, self._ext_at, out.size - self._ext_at - 4)
        else:
            self._put(out, 1)
            out.put_decimal(queue_id)
            self._put(out, 2)
            out.put_decimal(queue_offset)
            self._put(out, 3)
            out.put_decimal(self.opaque_now)
            self._put(out, 4)

    def _number_value(self, out: Outbox, value: int) -> None:
        """A number as the value of a binary ext field: its length, then its digits."""
        at = out.size
        out.put_int32(0)
        out.put_decimal(value)
        put32(out.base, at, out.size - at - 4)

    # -- waiting for a flush -------------------------------------------------------------------------------------

    def seal(self, position: int, mono_ms: int) -> bool:
        """What is held from this turn waits until the log is flushed up to `position`. False: nothing is held."""
        if self.held.size:
            self.waiting.append((position, mono_ms, self.held.take()))
        return bool(self.waiting)

    def release(self, flushed: int) -> bool:
        """Let the answers go that waited for this position. Whether any did."""
        waiting = self.waiting
        found = False
        while waiting and waiting[0][0] <= flushed:
            self.out.put(waiting.popleft()[2])
            found = True
        return found

    def give_up(self, code: int, remark: str, before_ms: int) -> bool:
        """Answer what has waited since before a moment (monotonic) with another code. Whether anything did."""
        found = False
        while self.waiting and self.waiting[0][1] <= before_ms:
            for answer in remoting.CommandParser().feed(self.waiting.popleft()[2]):
                answer.code = code
                answer.remark = remark
                self.out.put(remoting.encode(answer))
            found = True
        return found

    # -- pulling -------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        scan = self.scan
        for slot in (14, 1, 4, 15, 16, 5, 17, 18, 20):
            if scan.kind[slot] == 0:
                self._refuse(1, f"the custom field <{NAMES[slot]}> is null")
                return
        queue_id = scan.number(4, 0)
        offset = scan.number(15, 0)
        max_count = scan.number(16, 0)
        flags = scan.number(5, 0)
        commit = scan.number(17, 0)
        suspend_ms = scan.number(18, 0)
        version = scan.number(20, 0)
        max_bytes = scan.number(23, 0)
        if scan.bad >= 0:
            self._refuse(1, f"{NAMES[scan.bad]} is not a number")
            return
        if max_count < 0:
            self._refuse(1, f"maxMsgNums {max_count} is negative")
            return
        topic = self.pull_topic
        if topic is None or not topic.open or not self._same_pull(flags & 4, version):
            topic = self._find_pull(flags & 4, version)
        if queue_id < 0 or (queue_id >= topic.read_queues and not topic.keeps(queue_id)):
            self._refuse(
                1, f"queueId[{queue_id}] is illegal, topic:[{topic.name.decode()}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{self.remote}]",
            )  # fmt: skip
            return
        if max_bytes > 0:
            max_bytes = min(max_bytes, PULL_BYTES_MAX)
            max_count = min(max_count, 65_536)
        else:
            max_bytes = 262_144
            max_count = min(max_count, 32)
        durable = topic.level == 1 or scan.true(22)
        queue: ConsumeQueue = topic.queues[queue_id]
        if flags & 1 and commit >= 0:
            self.broker.offsets.commit(self._pull_names[0], self._pull_names[1], queue_id, commit)
        status = self._read(queue, offset, max_count, max_bytes, durable, self.pull_codes)
        if self.oneway:
            return
        if status == 0:
            self._found(self._pull_counts)
        elif (
            (status == 5 or (status == 8 and offset == 0)) and flags & 2 and self.front.hold_enabled and suspend_ms > 0
        ):
            hold = Hold(
                opaque=self.opaque_now, serialize=self.serialize, topic=topic, queue=queue, offset=offset,
                max_count=max_count, max_bytes=max_bytes, durable=durable, codes=self.pull_codes, counts=self._pull_counts,
            )  # fmt: skip
            deadline_ms = self.broker.mono_ms + min(suspend_ms, HOLD_MS_MAX)
            if not self.front.park(Waiter(queue, self, deadline_ms, hold)):
                self._not_found(status, offset)
        else:
            self._not_found(status, offset)

    def _read(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, durable: bool, codes: TagCodes | None
    ) -> int:
        end = queue.max_offset
        if durable:
            end = queue.durable_end(self.store.flushed_position)
        status: int = self.store.read(queue, offset, max_count, max_bytes, end, codes, self.result)
        return status

    def _same_pull(self, has_expression: int, version: int) -> bool:
        """Whether this pull is of the group, topic and subscription of the last one."""
        scan = self.scan
        if scan.kind[14] != 1 or scan.kind[1] != 1 or has_expression != self._pull_flags:
            return False
        if self._pull_config is None or not self._pull_config.consume_enable:
            return False
        if scan.length[14] != len(self._pull_group) or not same(
            self.base, scan.at[14], self._pull_group, 0, scan.length[14]
        ):
            return False
        name: bytes = self.pull_topic.name
        if scan.length[1] != len(name) or not same(self.base, scan.at[1], name, 0, scan.length[1]):
            return False
        if has_expression:
            return scan.text(19) == self._pull_expression and not (scan.kind[21] and scan.text(21) not in (b"TAG", b""))
        online = self._pull_online
        return online is not None and online.revision == self._pull_revision and version == self._pull_version

    def _find_pull(self, has_expression: int, version: int) -> LogTopic:
        """Check what a pull names and find its subscription; remembered for the next. Refused."""
        scan = self.scan
        broker = self.broker
        group_name = scan.text(14).decode("utf-8", "replace")
        name = scan.text(1)
        config = broker.groups.find(group_name, broker.now_ms)
        if not config.consume_enable:
            raise Refused(f"subscription group no permission, {group_name}", remoting=16)
        topic = broker.topics.get(name)
        text = name.decode("utf-8", "replace")
        if topic is None:
            raise Refused(
                f"topic[{text}] not exist, apply first please! "
                "See http://rocketmq.apache.org/docs/faq/ for further details.", remoting=17
            )  # fmt: skip
        if not topic.perm & 4:
            raise Refused(f"the topic[{text}] pulling message is forbidden", remoting=16)
        online = broker.clients.consumers.get(group_name)
        codes: TagCodes | None = None
        expression = b""
        if has_expression:
            kind = scan.text(21)
            if kind not in (b"", b"TAG"):
                raise Refused("The broker does not support consumer to filter message by SQL92")
            expression = scan.text(19)
            wanted = parse_tags(expression.decode("utf-8", "replace"))[1]
        else:
            if online is None:
                raise Refused(f"the consumer's group info not exist, group: {group_name}", remoting=24)
            if not config.consume_broadcast_enable and online.message_model == "BROADCASTING":
                raise Refused(f"the consumer group[{group_name}] can not consume by broadcast way", remoting=16)
            subscription = online.subscriptions.get(text)
            if subscription is None:
                raise Refused("the consumer's subscription not exist", remoting=24)
            if subscription.version < version:
                raise Refused("the consumer's subscription not latest", remoting=25)
            if subscription.kind != "TAG":
                raise Refused("The broker does not support consumer to filter message by SQL92")
            wanted = subscription.codes
        if wanted:
            codes = TagCodes(wanted)
        self.pull_topic = topic
        self.pull_codes = codes
        self._pull_group = scan.text(14)
        self._pull_expression = expression
        self._pull_flags = has_expression
        self._pull_version = version
        self._pull_online = online
        self._pull_revision = online.revision if online is not None else -1
        self._pull_config = config
        self._pull_counts = config.get_counts.setdefault(name, [0, 0])
        self._pull_names = (group_name, text)
        return topic

    def _found(self, counts: list[int]) -> None:
        """Answer with the records of `result`, which go from the mapped log into the outbox."""
        out = self.out
        result = self.result
        start = self._begin(out)
        if self.serialize:
            self._put(out, 19)
            ext = out.size
            out.put_int32(0)
            self._put(out, 14)
            self._number_value(out, result.max_offset)
            self._put(out, 15)
            self._number_value(out, result.min_offset)
            self._put(out, 16)
            self._number_value(out, result.next_offset)
            self._put(out, 17)
            put32(out.base, ext, out.size - ext - 4)
        else:
            self._put(out, 5)
            out.put_decimal(result.max_offset)
            self._put(out, 6)
            out.put_decimal(result.min_offset)
            self._put(out, 7)
            out.put_decimal(result.next_offset)
            self._put(out, 8)
            out.put_decimal(self.opaque_now)
            self._put(out, 9)
        self._end(out, start, result.bytes_)
        out.room(result.bytes_)
        result.copy_out(out.base, out.size)
        out.size += result.bytes_
        counts[0] += result.count
        counts[1] += result.bytes_

    def _not_found(self, status: int, offset: int) -> None:
        result = self.result
        code = (0, 20, 20, 19, 21, 19, 21, 20, 19)[status]
        if status == 8 and offset != 0:
            code = 21
        if status == 3 and result.next_offset != offset:
            code = 20  # a gap: go on behind it at once
        answer = remoting.RemotingCommand(
            code,
            {
                "maxOffset": str(result.max_offset),
                "minOffset": str(result.min_offset),
                "nextBeginOffset": str(result.next_offset),
                "suggestWhichBrokerId": "0",
            },
            opaque=self.opaque_now,
            flag=1,
            remark=READ_NAMES[status],
            language=0,
            serialize=self.serialize,
        )
        self.out.put(remoting.encode(answer))

    def congested(self, full: bool) -> None:
        """The peer does not take its answers, or takes them again."""
        self.behind = full

    def resume(self, waiter: Waiter, expired: bool) -> None:
        """News for a held pull, or its time is over: answer it, or hold it on."""
        if self.closed:
            return
        hold = waiter.what
        self.opaque_now = hold.opaque
        self.serialize = hold.serialize
        status = self._read(hold.queue, hold.offset, hold.max_count, hold.max_bytes, hold.durable, hold.codes)
        if self.behind or self.out.size > 2097152:  # TURN_BYTES_MAX: it does not read so fast, it may ask again
            self.result.next_offset = hold.offset
            self._not_found(5, hold.offset)
        elif status == 0:
            self._found(hold.counts)
        elif not expired and hold.topic.open and status in (1, 5, 8):
            if status == 1:
                hold.offset = self.result.next_offset
            if self.front.park(waiter):
                return
            self._not_found(status, hold.offset)
        else:
            self._not_found(status, hold.offset)
        self.wake()


class BrokerFront:
    """What the sessions of one broker share; the outside calls `session`, `pump`, `seal` and `flushed`."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.requests = Requests(broker)
        self.texts = Texts(broker.store_host)
        self.draft = Draft()
        self.result = ReadResult()
        self.raw = Outbox()
        self.text = Outbox()
        self.body_max = broker.config.max_message_size
        self.hold_enabled = broker.config.long_polling_enable
        self._cluster = b"CLUSTER\x01" + broker.config.cluster_name.encode()
        self.cluster = address(self._cluster)
        self.cluster_len = len(self._cluster)
        self._words = b"WAITTAGSKEYSUNIQ_KEYDELAYTRAN_MSGTIMER_PSEQPENSTOCK_"
        self.words = address(self._words)
        self.blocked = False  # level `os`: unflushed bytes are older than the promised second
        self.holding: list[BrokerSession] = []
        self.sessions: set[BrokerSession] = set()
        self._waiting: set[BrokerSession] = set()
        self._durable_keys: set[ConsumeQueue] = set()
        broker.introduce(self.requests.consuming.tell, self.requests.consuming.ask_producer)

    def session(self, remote: str, wake: Callable[[], None]) -> BrokerSession:
        """The session of a new connection from `address:port`."""
        session = BrokerSession(self, remote, wake, msgid.pack_host(remote))
        self.sessions.add(session)
        return session

    def handle(self, session: BrokerSession, request: remoting.RemotingCommand) -> remoting.RemotingCommand | None:
        return self.requests.handle(session, request)

    def lost(self, session: BrokerSession) -> None:
        self.sessions.discard(session)
        self._waiting.discard(session)
        self.broker.holds.drop(session)
        for group in self.broker.clients.lost(session):
            if self.broker.groups.find(group.name, self.broker.now_ms).notify_changes:
                self.requests.consuming.tell(group)

    def park(self, waiter: Waiter) -> bool:
        """Hold a pull until news or its deadline; False when too many are held."""
        if not self.broker.holds.park(waiter):
            return False
        if waiter.what.durable:
            self._durable_keys.add(waiter.what.queue)
        waiter.what.queue.watched = True
        return True

    def pump(self) -> None:
        """Resume the pulls whose queue got messages in this turn, and those whose time is over."""
        holds = self.broker.holds
        store = self.broker.store
        if store.arrived:
            arrived, store.arrived = store.arrived, []
            for queue in arrived:
                queue.arrived = False
                self._wake(queue)
        for waiter in holds.due(self.broker.mono_ms):
            waiter.owner.resume(waiter, True)

    def _wake(self, queue: ConsumeQueue) -> None:
        queue.watched = False
        for waiter in self.broker.holds.wake(queue):
            waiter.owner.resume(waiter, False)

    def seal(self) -> None:
        """End of a turn: the answers it held wait for the flush of all that is in the log now."""
        if self.holding:
            store = self.broker.store
            for session in self.holding:
                if session.seal(store.end_position, self.broker.mono_ms):
                    self._waiting.add(session)
            self.holding = []
            store.want_flush()

    @property
    def waits_for_flush(self) -> bool:
        """Whether a flush that came back matters to anyone here."""
        return bool(self._waiting or self._durable_keys)

    def flushed(self) -> None:
        """A flush came back: release what waited for it, or fail it when flushes have ended for good."""
        store = self.broker.store
        for session in list(self._waiting):
            if store.healthy:
                done = session.release(store.flushed_position)
            else:
                done = session.give_up(14, "the disk failed: not stored durably; the broker needs a restart", 1 << 62)
            if done:
                session.wake()
            if not session.waiting:
                self._waiting.discard(session)
        keys, self._durable_keys = self._durable_keys, set()
        for queue in keys:
            self._wake(queue)

    def tick(self) -> int | None:
        """Give up flushes that take longer than 5 s; when the next held pull is due."""
        mono_ms = self.broker.mono_ms
        for session in self._waiting:
            if session.give_up(10, "flush disk timeout: stored, not yet on the disk", mono_ms - FLUSH_MS_MAX):
                session.wake()
        for session in list(self.sessions):
            session.tick(mono_ms)
        due_ms: int | None = self.broker.holds.next_ms()
        return due_ms
