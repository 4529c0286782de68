"""The NSQ front: one session per connection, commands in, frames out, no socket (nsq.md §2 to §6).

PUB, MPUB, FIN, RDY, REQ and TOUCH run where they stand in the bytes that were read, without an object for a message;
the rest is cut out and handled in `fronts.nsqcommands`. An answer that must wait for a flush holds back everything
behind it on its connection (`take`). TLS, deflate and snappy are layers between the bytes of the socket and those of
the session: what a layer gives is collected in `_inner` and run from there.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Any

import cython

from penstock.broker.queueing import Queueing
from penstock.broker.queuetopics import shown, valid_nsq_name
from penstock.delivery.channel import OUT_MAX, Consumer
from penstock.errors import Refused, StoreError, WireError
from penstock.fronts.nsqcommands import COMMANDS, Failed
from penstock.wire.nsq import ERROR, HEARTBEAT_FRAME, MAGIC, OK_FRAME, frame

if cython.compiled:
    from cython.cimports.penstock.broker.queuetopics import Topic
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.octets import address, be32, find, hex16, same, ube32
else:
    from penstock.broker.queuetopics import Topic
    from penstock.delivery.channel import Channel
    from penstock.octets import address, be32, find, hex16, same, ube32

log = logging.getLogger("penstock.fronts")

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
LINE_MAX = 4 << 10
MAGIC_MS = 10_000
TOO_MANY = frame(ERROR, b"E_INVALID too many connections")
STALLED_BYTES_MAX = 1 << 20

_FAILED_TEXT = (b"", b"ID not in flight", b"client does not own message")


class NsqSession(Consumer):
    """One client."""

    beats = True  # it looks after silent peers itself

    def __init__(self, front: NsqFront, remote: str, wake: Callable[[], None]) -> None:
        Consumer.__init__(self)
        self.front = front
        self.keeper: Queueing = front.keeper
        self.remote = remote
        self.wake_connection = wake
        self.need = 0
        self.state = INIT
        self.begun = False  # the magic was there
        self.closing = False  # an error was sent: write it, then close
        self.stalled = False  # waits for an answer from outside (AUTH): commands are kept
        self.channel: Any = None  # once subscribed
        self.topic: Any = None  # the one last published to
        self.topic_name = b""
        self.topic_at: Any = address(MAGIC)
        self.topic_count = 0
        self.pub_counts: dict[bytes, int] = {}
        host = remote.rpartition(":")[0]
        self.about = {"client_id": host, "hostname": host, "user_agent": ""}
        config = front.config
        self.msg_timeout_ms = config.msg_timeout_ms
        self.heartbeat_ms = min(30_000, config.max_heartbeat_interval_ms)
        self.beat_ms = self.heard_ms = front.mono_ms
        self.due_number = 0
        self.connected_ms = front.broker.now_ms
        self.msg_size_max = config.max_msg_size
        self.body_size_max = config.max_body_size
        self.rdy_max = config.max_rdy_count
        self.tls_needed = config.tls_required in ("true", "tcp-https")
        self.layers: list[Any] = []  # from the socket inwards
        self.buffered = False
        self.rights: Any = None  # what AUTH granted
        self._inner = bytearray()
        self._wire: list[bytes] = []
        self._hold_number = 0  # the flush that the last answers wait for
        self._held: list[tuple[int, bytes]] = []
        self.base: Any = address(MAGIC)

    # -- bytes in ------------------------------------------------------------------------------------------------

    def feed(self, owner: Any, total: int) -> int:
        """Take in what was read; how many bytes are used up. WireError: close, without a word."""
        front = self.front
        self.heard_ms = front.mono_ms
        if self.closing:
            return total
        if not self.buffered:
            return self.run(owner, total)
        data = bytes(memoryview(owner)[:total])
        if self.stalled:
            if len(self._inner) + total > STALLED_BYTES_MAX:
                raise WireError("too much was sent while an answer was awaited")
            self._inner += data
            return total
        self.receive(data)
        return total

    def receive(self, data: bytes) -> None:
        """Bytes from the socket go through the layers, a piece at a time: what expands is run before more is."""
        if not self.layers:
            self._inner += data
            self.run_inner()
            return
        for piece in self.layers[0].opened(data):
            self._inner += piece
            self.run_inner()
            if self.closing or self.stalled:
                return

    def resume(self) -> None:
        """The answer from outside is there: go on with what was kept."""
        self.stalled = False
        self.run_inner()
        self.wake()

    def run_inner(self) -> None:
        """Run the commands that are whole."""
        if self._inner and not self.closing:
            used = self.run(self._inner, len(self._inner))
            self.base = address(MAGIC)
            del self._inner[:used]

    def run(self, owner: Any, total: int) -> int:
        """Run the commands in these bytes."""
        base = self.base = address(owner)
        pos = 0
        self.need = 0
        if not self.begun:
            if total < 4:
                return 0
            if not same(base, 0, address(MAGIC), 0, 4):
                self.fail(b"E_BAD_PROTOCOL")
                return total
            self.begun = True
            pos = 4
        while pos < total:
            end = find(base, pos, total, 10)
            if end < 0:
                if total - pos > 4096:  # LINE_MAX
                    raise WireError("a command line of more than 4 KiB")
                break
            if end - pos > 4096:
                raise WireError("a command line of more than 4 KiB")
            after = self._command(pos, end, total)
            if after < 0:
                break
            pos = after
            if self.closing:
                return total
            if self.buffered and owner is not self._inner:
                # The bytes behind an upgrade belong to the next layer.
                rest = bytes(memoryview(owner)[pos:total])
                if rest:
                    if self.stalled:
                        self._inner += rest
                    else:
                        self.receive(rest)
                return total
            if self.stalled:
                break
        return pos

    def _command(self, pos: int, end: int, total: int) -> int:
        """One command whose line is [pos, end); where the next begins, or -1 when its body is not there yet."""
        base = self.base
        last = end
        if last > pos and base[last - 1] == 13:
            last -= 1
        length = last - pos
        if length >= 4 and base[pos + 3] == 32:
            if base[pos] == 70 and base[pos + 1] == 73 and base[pos + 2] == 78:  # FIN
                self._fin(pos + 4, last)
                return end + 1
            if base[pos] == 80 and base[pos + 1] == 85 and base[pos + 2] == 66:  # PUB
                return self._pub(pos + 4, last, end + 1, total)
            if base[pos] == 82 and base[pos + 1] == 68 and base[pos + 2] == 89:  # RDY
                self._rdy(pos + 4, last)
                return end + 1
        if length > 4 and base[pos + 4] == 32 and same(base, pos, address(b"MPUB"), 0, 4):
            return self._mpub(pos + 5, last, end + 1, total)
        return self._cold(pos, last, end + 1, total)

    def _cold(self, pos: int, last: int, body: int, total: int) -> int:
        """A command that is handled as objects."""
        words = self.cut(pos, last).split(b" ")
        command = COMMANDS.get(words[0])
        if command is None:
            self.fail(b"E_INVALID invalid command " + words[0])
            return body
        if self.tls_needed and words[0] != b"IDENTIFY":
            self.fail(b"E_INVALID cannot %s in current state (TLS required)" % words[0])
            return body
        at: int = body
        try:
            if command.size_check is None:
                command.run(self, words, b"")
            else:
                command.prepare(self, words)
                if total - body < 4:
                    self.need = body + 4 - pos
                    return -1
                size = be32(self.base, body)
                command.size_check(self, words, size)
                if total - body - 4 < size:
                    self.need = body + 4 + size - pos
                    return -1
                at = body + 4 + size
                command.run(self, words, self.cut(body + 4, at))
        except Failed as failed:
            self.fail(failed.text)
        except (StoreError, Refused) as error:  # the disk refused what the command needed to be remembered
            self.fail(b"E_%s_FAILED %s failed %s" % (words[0], words[0], str(error).encode()))
        return at

    def cut(self, begin: int, end: int) -> bytes:
        """These bytes as an object."""
        if cython.compiled:
            data: bytes = self.base[begin:end]
        else:
            data = bytes(self.base[begin:end])
        return data

    def eof(self) -> None:
        """The peer will send nothing more: a command that was cut short is answered before the end."""
        if self.need and self.begun and not self.closing:
            self.fail(b"E_BAD_MESSAGE PUB failed to read message body")
        self.closing = True

    # -- publishing ----------------------------------------------------------------------------------------------

    def _topic_of(self, pos: int, last: int, verb: bytes) -> int:
        """Let `topic` be the one named in [pos, last); 0, or -1 after an error was sent."""
        stop = find(self.base, pos, last, 32)
        if stop < 0:
            stop = last
        topic = self.topic
        if (
            topic is not None
            and topic.open
            and stop - pos == len(self.topic_name)
            and same(self.base, pos, self.topic_at, 0, stop - pos)
        ):
            return 0
        return self._new_topic(self.cut(pos, stop), verb)

    def _new_topic(self, name: bytes, verb: bytes) -> int:
        if self.tls_needed:
            self.fail(b"E_INVALID cannot %s in current state (TLS required)" % verb)
            return -1
        if not valid_nsq_name(name):
            doubled = b"E_BAD_TOPIC " if verb == b"MPUB" else b""
            self.fail(b'E_BAD_TOPIC %s%s topic name "%s" is not valid' % (doubled, verb, shown(name).encode()))
            return -1
        self.count_published()
        self.topic = None
        if self.front.config.auth_http_address:
            try:
                self.check_right(b"publish", name, b"", verb)
            except Failed as failed:
                self.fail(failed.text)
                return -1
        try:
            self.topic = self.keeper.topic(name)
        except Refused as refused:
            self.fail(b"%s %s %s" % (refused.nsq.encode(), verb, str(refused).encode()))
            return -1
        except StoreError as error:
            self.fail(b"E_PUB_FAILED %s failed %s" % (verb, str(error).encode()))
            return -1
        self.topic_name = name
        self.topic_at = address(name)
        self.keeper.producers.add(self)
        return 0

    def count_published(self) -> None:
        """Bring `pub_counts` up to date."""
        if self.topic_count and self.topic_name:
            self.pub_counts[self.topic_name] = self.pub_counts.get(self.topic_name, 0) + self.topic_count
        self.topic_count = 0

    def _pub(self, pos: int, last: int, body: int, total: int) -> int:
        if self._topic_of(pos, last, b"PUB") < 0:
            return body
        if total - body < 4:
            self.need = body + 4 - pos + 4
            return -1
        base = self.base
        size = be32(base, body)
        if size <= 0 or size > self.msg_size_max:
            self._bad_size(size, b"PUB")
            return body
        if total - body - 4 < size:
            self.need = body + 4 + size - pos + 4
            return -1
        if self.front.strict and not self._may_publish(b"PUB"):
            return body
        topic = self.topic
        answer = topic.ready(size, 1)
        if answer != 0 or not self.front.healthy:
            self._not_stored(answer, b"E_PUB_FAILED PUB failed ")
            return body + 4 + size
        try:
            topic.put(self.front.now_ns, base, body + 4, size, 0)
            topic.placed()
        except (StoreError, Refused) as error:
            self.fail(b"E_PUB_FAILED PUB failed " + str(error).encode())
            return body + 4 + size
        self.topic_count += 1
        self._ok(topic)
        return body + 4 + size

    def _may_publish(self, verb: bytes) -> bool:
        """Where rights are asked for: they may have run out since the topic was named."""
        try:
            self.check_right(b"publish", self.topic_name, b"", verb)
        except Failed as failed:
            self.fail(failed.text)
            return False
        return True

    def _ok(self, topic: Topic) -> int:
        """Answer a publish, behind the flush where the topic's level says so."""
        out = self.out
        if topic.level == 1 or (self.front.blocked and topic.level == 0):
            self.hold(self.keeper.want_flush(topic))
        elif self.front.blocked and self.channel is not None:  # the answer says, too, that its FINs are done
            self.hold(self.keeper.want_flush(self.keeper.topics[self.channel.topic_name]))
        out.put_from(self.front.ok_at, 0, 10)
        return 0

    def _bad_size(self, size: int, verb: bytes) -> None:
        if size > self.msg_size_max:
            self.fail(b"E_BAD_MESSAGE %s message too big %d > %d" % (verb, size, self.msg_size_max))
        else:
            self.fail(b"E_BAD_MESSAGE %s invalid message body size %d" % (verb, size))

    def _not_stored(self, answer: int, text: bytes) -> None:
        self.fail(text + str(self.keeper.refusal(answer or 2)).encode())

    def _mpub(self, pos: int, last: int, body: int, total: int) -> int:
        if self._topic_of(pos, last, b"MPUB") < 0:
            return body
        if self.front.strict and not self._may_publish(b"MPUB"):
            return body
        if total - body < 4:
            self.need = body + 4 - pos + 5
            return -1
        base = self.base
        size = be32(base, body)
        if size <= 0 or size > self.body_size_max:
            if size > self.body_size_max:
                self.fail(b"E_BAD_BODY MPUB body too big %d > %d" % (size, self.body_size_max))
            else:
                self.fail(b"E_BAD_BODY MPUB invalid body size %d" % size)
            return body
        if total - body >= 8:  # said as soon as it can be seen, whatever was promised of the rest
            count = be32(base, body + 4)
            if count <= 0 or count > (self.body_size_max - 4) // 5:
                self.fail(b"E_BAD_BODY MPUB invalid message count %d" % count)
                return body
        at = body + 8
        end = body + 4 + size
        stop = end if end < total else total
        n = 0
        count = be32(base, body + 4) if total - body >= 8 else 0
        while n < count and at + 4 <= stop:
            length = be32(base, at)
            if length <= 0:
                self.fail(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (n, length))
                return body
            if length > self.msg_size_max:
                self.fail(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (length, self.msg_size_max))
                return body
            at += 4 + length
            n += 1
        if end > total and at <= end:
            self.need = end - pos + 5
            return -1
        if n != count or at != end:
            self.fail(b"E_BAD_BODY MPUB invalid body size %d" % size)
            return body
        topic = self.topic
        answer = topic.ready(size - 4 - 4 * count, count)
        if answer != 0 or not self.front.healthy:
            self._not_stored(answer, b"E_MPUB_FAILED MPUB failed ")
            return end
        at = body + 8
        now_ns = self.front.now_ns
        try:
            while n > 0:
                n -= 1
                length = ube32(base, at)
                topic.put(now_ns, base, at + 4, length, 1 if n else 0)
                at += 4 + length
            topic.placed()
        except (StoreError, Refused) as error:
            self.fail(b"E_MPUB_FAILED MPUB failed " + str(error).encode())
            return end
        self.topic_count += count
        self._ok(topic)
        return end

    # -- consuming -----------------------------------------------------------------------------------------------

    def _fin(self, pos: int, last: int) -> int:
        if self.state == 0:
            self.fail(b"E_INVALID cannot FIN in current state")
            return 0
        stop = find(self.base, pos, last, 32)
        if stop < 0:
            stop = last
        if stop - pos != 16:
            self.fail(b"E_INVALID invalid message ID")
            return 0
        channel = self.channel
        front = self.front
        answer = channel.finish(self, hex16(self.base, pos), front.now_ns, front.mono_ms)
        if answer:
            self.error(b"E_FIN_FAILED FIN %s failed %s" % (self.cut(pos, stop), _FAILED_TEXT[answer]))
        elif not channel.marked:
            self.keeper.mark_channel(channel)
        return 0

    def _rdy(self, pos: int, last: int) -> int:
        if self.state != 3:
            if self.state == 4:
                return 0  # ignored while closing
            self.fail(b"E_INVALID cannot RDY in current state")
            return 0
        stop = find(self.base, pos, last, 32)
        if stop < 0:
            stop = last
        count = self.decimal(pos, stop)
        if count < 0:
            self.fail(b"E_INVALID RDY could not parse count " + self.cut(pos, stop))
            return 0
        if count > self.rdy_max:
            self.fail(b"E_INVALID RDY count %d out of range 0-%d" % (count, self.rdy_max))
            return 0
        self.set_ready(count)
        return 0

    def set_ready(self, count: int) -> None:
        """The most messages this client holds at once."""
        self.ready_count = count
        if not self.channel.marked:
            self.keeper.mark_channel(self.channel)

    def decimal(self, pos: int, end: int) -> int:
        """The decimal number in [pos, end), or -1."""
        if end <= pos or end - pos > 18:
            return -1
        value: int = 0
        while pos < end:
            digit = self.base[pos] - 48
            if digit < 0 or digit > 9:
                return -1
            value = value * 10 + digit
            pos += 1
        return value

    # -- answers -------------------------------------------------------------------------------------------------

    def fail(self, text: bytes) -> None:
        """A fatal error: say it, then close."""
        self.error(text)
        self.closing = True

    def error(self, text: bytes) -> None:
        """An error frame."""
        self.out.put(frame(ERROR, text))
        rejected, code = self.front.rejected, text.partition(b" ")[0]
        rejected[code] = rejected.get(code, 0) + 1

    def respond(self, data: bytes) -> None:
        """A whole frame."""
        self.out.put(data)

    def hold(self, number: int) -> None:
        """What is answered from here on waits for flush `number`."""
        if self._hold_number == number:
            return
        self._put_aside()
        self._hold_number = number
        self._held.append((number, b""))
        self.front.holding.add(self)

    def _put_aside(self) -> None:
        """What was answered so far goes where it belongs: behind the last flush waited for, or out."""
        data = self.out.take()
        if not data:
            return
        if self._held:
            last = len(self._held) - 1
            self._held[last] = (self._held[last][0], self._held[last][1] + data)
        else:
            self._wire.append(self._encoded(data))

    def release(self, done: int, healthy: bool) -> bool:
        """Flushes up to `done` succeeded, or one has failed: let go what waited; whether nothing does any more."""
        self._put_aside()
        if not healthy:
            self._held = []
            self.fail(b"E_PUB_FAILED PUB failed the disk failed: restart the broker")
        while self._held and self._held[0][0] <= done:
            self._wire.append(self._encoded(self._held.pop(0)[1]))
        if not self._held:
            self._hold_number = 0
        self.wake()
        return not self._held

    # -- bytes out -----------------------------------------------------------------------------------------------

    def _encoded(self, data: bytes) -> bytes:
        for layer in reversed(self.layers):
            data = layer.closed(data)
        return data

    def seal(self) -> None:
        """What was answered so far goes through the layers there are now: others follow."""
        self._put_aside()

    def raw(self, data: bytes) -> None:
        """Bytes of a layer itself."""
        self._wire.append(data)

    def take(self) -> bytes:
        """What is to be written now: each flush of a layer whole."""
        if not self._held and not self.layers and not self._wire:
            return self.out.take()
        self._put_aside()
        wire, self._wire = self._wire, []
        return b"".join(wire)

    def wake(self) -> None:
        self.wake_connection()

    def close(self) -> None:
        """The channel is gone: end the connection."""
        self.closing = True
        self.channel = None
        self.state = CLOSING
        self.wake()

    def congested(self, full: bool) -> None:
        """The peer does not read, or reads again."""
        self.behind = OUT_MAX + 1 if full else 0
        if not full and self.channel is not None:
            self.keeper.mark_channel(self.channel)

    def lost(self) -> None:
        """The connection is gone; what is in flight stays so until its deadline."""
        self.closing = True
        self.front.forget(self)
        self.keeper.producers.discard(self)
        channel, self.channel = self.channel, None
        if channel is not None and not channel.removed:
            channel.remove(self)
            self.front.left(channel)

    # -- time and rights -----------------------------------------------------------------------------------------

    def beat(self, mono_ms: int) -> int:
        """Heartbeat, and the end of a silent peer; when to look again (0: never)."""
        if not self.begun:
            if mono_ms - self.connected_mono_ms() >= MAGIC_MS:
                self.closing = True
                self.wake()
                return 0
            return self.connected_mono_ms() + MAGIC_MS
        if self.heartbeat_ms <= 0:
            return 0
        if mono_ms - self.heard_ms > 2 * self.heartbeat_ms:
            self.closing = True
            self.wake()
            return 0
        if mono_ms >= self.beat_ms + self.heartbeat_ms:
            self.beat_ms = mono_ms
            if not any(getattr(layer, "shaking", False) for layer in self.layers):
                self.out.put(HEARTBEAT_FRAME)
                self.wake()
        return self.beat_ms + self.heartbeat_ms

    def connected_mono_ms(self) -> int:
        """When the connection was made (monotonic ms)."""
        return self.connected_ms - self.front.broker.now_ms + self.front.mono_ms

    def check_right(self, permission: bytes, topic: bytes, channel: bytes, verb: bytes) -> None:
        """Failed where AUTH did not grant this."""
        if not self.front.config.auth_http_address:
            return
        if self.rights is None:
            raise Failed(b"E_AUTH_FIRST AUTH required before " + verb)
        if not self.rights.grants(permission, topic, channel, self.front.mono_ms):
            raise Failed(b'E_UNAUTHORIZED AUTH failed for %s on "%s" "%s"' % (verb, topic, channel))

    def describe(self, now_s: float) -> dict[str, Any]:
        """nsqd's fields of one client (nsq.md §10)."""
        self.count_published()
        tls = next((layer for layer in self.layers if layer.name == "tls"), None)
        found = {
            **self.about,
            "version": "V2",
            "remote_address": self.remote,
            "state": self.state,
            "ready_count": self.ready_count,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connected_ms // 1000,
            "sample_rate": self.sample_rate,
            "deflate": any(layer.name == "deflate" for layer in self.layers),
            "snappy": any(layer.name == "snappy" for layer in self.layers),
            "authed": self.rights is not None,
            "auth_identity": getattr(self.rights, "identity", ""),
            "auth_identity_url": getattr(self.rights, "identity_url", ""),
            "tls": tls is not None,
            "tls_cipher_suite": "" if tls is None else tls.cipher,
            "tls_version": "" if tls is None else tls.version,
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }
        if self.pub_counts:
            found["pub_counts"] = [{"topic": shown(t), "count": n} for t, n in sorted(self.pub_counts.items())]
        return found


class NsqFront:
    """All NSQ sessions of a broker."""

    name = "nsq"

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.config = broker.config
        self.keeper: Queueing = broker.queueing
        self.sessions: set[NsqSession] = set()
        self.holding: set[NsqSession] = set()
        self.rejected: dict[bytes, int] = {}
        self.ask_authority: Any = None  # (session, secret, done) → nothing; given by whoever has sockets
        self.tls_context: Any = None
        self.strict = bool(broker.config.auth_http_address)
        self.blocked = False
        self.healthy = True
        self.mono_ms = broker.mono_ms
        self.now_ns = broker.now_ns
        self.ok = OK_FRAME
        self.ok_at: Any = address(OK_FRAME)
        self._beats: list[tuple[int, int]] = []
        self._due: dict[int, NsqSession] = {}  # number in `_beats` → who; one that left is no longer held
        self._number = 0

    def session(self, remote: str, wake: Callable[[], None]) -> NsqSession:
        """A session for a new connection."""
        session = NsqSession(self, remote, wake)
        self.sessions.add(session)
        self.look_at(session, self.mono_ms + MAGIC_MS)
        return session

    def look_at(self, session: NsqSession, due_ms: int) -> None:
        """Look whether this session is due for a heartbeat then."""
        self._number += 1
        self._due.pop(session.due_number, None)
        session.due_number = self._number
        self._due[self._number] = session
        heapq.heappush(self._beats, (due_ms, self._number))

    def forget(self, session: NsqSession) -> None:
        """A connection is gone: nothing here keeps its session alive."""
        self.sessions.discard(session)
        self.holding.discard(session)
        self._due.pop(session.due_number, None)
        if len(self._beats) > 1_000 and len(self._beats) > 4 * len(self._due):  # mostly of those that left
            self._beats = [beat for beat in self._beats if beat[1] in self._due]
            heapq.heapify(self._beats)

    def begin_turn(self) -> None:
        """The first thing in each turn."""
        broker, keeper = self.broker, self.keeper
        self.mono_ms = broker.mono_ms
        self.now_ns = broker.now_ns
        self.blocked = keeper.blocked()
        self.healthy = keeper.healthy

    def end_turn(self, news: list[Any]) -> None:
        """At the end of a turn: answers whose flush is done go out."""
        if self.holding:
            done, healthy = self.keeper.flush_done, self.keeper.healthy
            for session in [s for s in self.holding if s.release(done, healthy)]:
                self.holding.discard(session)

    def tick(self) -> int | None:
        """Heartbeats that are due; when the next one is."""
        beats, mono_ms = self._beats, self.mono_ms
        while beats and beats[0][0] <= mono_ms:
            session = self._due.pop(heapq.heappop(beats)[1], None)
            if session is None:
                continue
            again_ms = session.beat(mono_ms)
            if again_ms:
                self.look_at(session, max(again_ms, mono_ms + 1))
        return beats[0][0] if beats else None

    def left(self, channel: Channel) -> None:
        """A consumer left a channel: an ephemeral one goes with its last."""
        topic = self.keeper.topics.get(channel.topic_name)
        if channel.ephemeral and not channel.consumers and topic is not None:
            topic.delete_channel(channel.name)
        elif channel.waiting_count:
            self.keeper.mark_channel(channel)
