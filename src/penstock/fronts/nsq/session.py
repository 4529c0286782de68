"""One NSQ session: commands in, frames out, no socket (nsq.md §2 to §6).

PUB, MPUB, FIN and RDY run where they stand in the bytes that were read, without an object for a message; the rest is cut
out and handled by the table of `commands`. What TLS, deflate and snappy give is collected in `_inner` and run from there.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import cython

from penstock.broker.nsq.names import printable
from penstock.errors import Refused, StoreError, WireError
from penstock.fronts.nsq.connection import Failed
from penstock.fronts.nsq.granted import Granted
from penstock.wire.nsq import HEARTBEAT_FRAME, MAGIC

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.fronts.nsq.connection import NsqConnection
    from cython.cimports.penstock.fronts.nsq.publishing import Publisher
    from cython.cimports.penstock.fronts.nsq.shared import Shared
    from cython.cimports.penstock.octets import address, be32, find, hex16, same
else:
    from penstock import words
    from penstock.delivery.channel import Channel
    from penstock.fronts.nsq.connection import NsqConnection
    from penstock.fronts.nsq.publishing import Publisher
    from penstock.fronts.nsq.shared import Shared
    from penstock.octets import address, be32, find, hex16, same

SLOW_HANDSHAKE = b"TLS_HANDSHAKE_TOO_SLOW"
HEARTBEAT_MS = 30_000
STALLED_BYTES_MAX = 1 << 20

_UNFINISHED = {words.NOT_IN_FLIGHT: b"ID not in flight", words.NOT_OWNER: b"client does not own message"}


class Command(NamedTuple):
    """One row of the table of cold commands; without `size_check` it has no body."""

    run: Callable[[NsqSession, list[bytes], bytes], None]
    size_check: Callable[[NsqSession, list[bytes], int], None] | None = None
    prepare: Callable[[NsqSession, list[bytes]], None] = lambda session, words: None


class NsqSession(NsqConnection):  # type: ignore[misc]
    """One client."""

    beats = True  # it sends heartbeats and closes silent peers itself: `net` does not

    def __init__(
        self,
        shared: Shared,
        commands: Mapping[bytes, Command],
        remote: str,
        wake: Callable[[], None],
        forget: Callable[[NsqSession], None],
    ) -> None:
        NsqConnection.__init__(self, shared, remote, wake)
        self.ended: bool
        self.publisher = Publisher(shared)
        self.state = words.INIT
        self.begun = False  # the magic was there
        self.buffered = False  # what is read goes through `_inner`
        self.stalled = False  # waits for an answer from outside (AUTH): commands are kept
        host = remote.rpartition(":")[0]
        self.about = dict.fromkeys(("client_id", "hostname", "user_agent", "topology_zone", "topology_region"), "")
        self.about["client_id"] = self.about["hostname"] = host
        self.heartbeat_ms = min(HEARTBEAT_MS, shared.config.max_heartbeat_interval_ms)
        self.beat_ms = self.heard_ms = shared.mono_ms
        self.due_number = 0
        self.shake_until_ms = 0  # when a TLS handshake must be over
        self.connected_ms = shared.broker.now_ms
        self._commands = commands
        self._forget = forget
        self._inner = bytearray()
        self._kept = bytearray()  # came from the socket while it was stalled
        self._pieces: Iterator[bytes] = iter(())  # of what came before, as the layers open it
        self._heard_out = False  # the peer says nothing more

    # -- bytes in ------------------------------------------------------------------------------------------------

    def feed(self, owner: bytearray, total: int) -> int:
        """Take in what was read; how many bytes are used up. WireError: close, without a word."""
        self.heard_ms = self.shared.mono_ms
        if self.ended:
            return total
        if not self.buffered:
            return self.run(owner, total)
        data = bytes(memoryview(owner)[:total])
        if self.stalled:
            if len(self._kept) + total > STALLED_BYTES_MAX:
                raise WireError("too much was sent while an answer was awaited")
            self._kept += data
            return total
        self.receive(data)
        return total

    def receive(self, data: bytes) -> None:
        """Bytes from the socket go through the layers, a piece at a time: what expands is run before more is."""
        if not self.layers:
            self._inner += data
            self.run_inner()
            return
        self._pieces = self.layers[0].opened(data)
        self._open()

    def _open(self) -> None:
        for piece in self._pieces:
            self._inner += piece
            self.run_inner()
            if self.ended or self.stalled:
                return

    def buffer(self) -> None:
        """Layers come between the socket and the commands: what is read goes through `_inner`."""
        self.buffered = True

    def stall(self) -> None:
        """An answer from outside is waited for: commands are kept until `resume`."""
        self.buffered = self.stalled = True

    def introduce(self, about: dict[str, str]) -> None:
        """What the client says of itself."""
        self.about = about

    def agree(self, heartbeat_ms: int, sample_rate: int, msg_timeout_ms: int) -> None:
        """What IDENTIFY has settled."""
        self.heartbeat_ms = heartbeat_ms
        self.sample_rate, self.msg_timeout_ms = sample_rate, msg_timeout_ms
        self.beat_ms = self.shared.mono_ms

    def await_handshake(self, ms: int) -> None:
        """TLS begins: its handshake has so much time."""
        self.shake_until_ms = self.shared.mono_ms + ms
        self.shared.look_at(self, self.shake_until_ms)

    def take_no_more(self) -> None:
        """CLS: what is in flight may be finished, nothing more is given."""
        self.ready_count = 0
        self.state = words.CLOSING

    def number_beat(self, number: int) -> None:
        """Where it stands among those that are due for a heartbeat."""
        self.due_number = number

    def resume(self) -> None:
        """The answer from outside is there: go on with what was kept."""
        self.stalled = False
        try:
            self.run_inner()
            if not self.stalled and not self.ended:
                self._open()
            if self._kept and not self.stalled and not self.ended:
                data = bytes(self._kept)
                self._kept.clear()
                self.receive(data)
        except WireError:
            self.end()
        if self._heard_out and not self.stalled:
            self.eof()
        self.wake()

    def run_inner(self) -> None:
        """Run the commands that are whole."""
        if self._inner and not self.ended:
            used = self.run(self._inner, len(self._inner))
            self.base = address(MAGIC)
            del self._inner[:used]

    def run(self, owner: bytearray, total: int) -> int:
        """Run the commands in these bytes."""
        base = self.base = address(owner)
        pos = 0
        self.need = 0
        if not self.begun:
            if total < words.MAGIC_BYTES:
                return 0
            if not same(base, 0, address(MAGIC), 0, words.MAGIC_BYTES):
                self.fail(b"E_BAD_PROTOCOL")
                return total
            self.begun = True
            pos = words.MAGIC_BYTES
        while pos < total:
            end = find(base, pos, total, words.LINE_FEED)
            if (total if end < 0 else end) - pos > self.line_max:
                raise WireError(f"a command line of more than {self.line_max} bytes", "command_line")
            if end < 0:
                break
            after = self._command(pos, end, total)
            if after < 0:
                break
            pos = after
            if self.ended:
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
        if last > pos and base[last - 1] == words.CARRIAGE_RETURN:
            last -= 1
        at = pos + words.VERB_BYTES
        if at == last or (at < last and base[at] == words.SPACE):
            if base[pos] == 70 and base[pos + 1] == 73 and base[pos + 2] == 78:  # FIN
                self._fin(at, last)
                return end + 1
            if base[pos] == 80 and base[pos + 1] == 85 and base[pos + 2] == 66 and at < last:  # PUB
                return self.publisher.pub(self, at + 1, last, end + 1, total)
            if base[pos] == 82 and base[pos + 1] == 68 and base[pos + 2] == 89:  # RDY
                self._rdy(at, last)
                return end + 1
        at = pos + words.MPUB_BYTES
        if at < last and base[at] == words.SPACE and same(base, pos, address(b"MPUB"), 0, words.MPUB_BYTES):
            return self.publisher.mpub(self, at + 1, last, end + 1, total)
        return self._cold(pos, last, end + 1, total)

    def _cold(self, pos: int, last: int, body: int, total: int) -> int:
        """A command that is handled as objects."""
        parts = self.cut(pos, last).split(b" ")
        verb = parts[0]
        command = self._commands.get(verb)
        if command is None:
            self.fail(b"E_INVALID invalid command " + verb)
            return body
        if self.tls_needed and verb != b"IDENTIFY":
            self.wrong_state(verb)
            return body
        at: int = body
        try:
            if command.size_check is None:
                command.run(self, parts, b"")
            else:
                command.prepare(self, parts)
                at = body + words.SIZE_BYTES
                if total < at:
                    self.need = at - pos
                    return -1
                size = be32(self.base, body)
                command.size_check(self, parts, size)
                if total - at < size:
                    self.need = at + size - pos
                    return -1
                at += size
                command.run(self, parts, self.cut(at - size, at))
        except Failed as failed:
            self.fail(failed.text)
        except (StoreError, Refused) as error:  # the disk refused what the command needed to be remembered
            self.fail(b"E_%s_FAILED %s failed %s" % (verb, verb, str(error).encode()))
        return at

    def eof(self) -> None:
        """The peer will send nothing more: what it said is answered before the end, a command that was cut short, too."""
        self._heard_out = True
        if self.stalled and not self.ended:
            return  # `resume` goes on
        if self.need and self.begun and not self.ended:
            self.fail(b"E_BAD_MESSAGE PUB failed to read message body")
        self.end()

    # -- consuming -----------------------------------------------------------------------------------------------

    def _fin(self, at: int, last: int) -> int:
        """FIN: behind the verb is a space and the message id."""
        if self.state == words.INIT:
            self.wrong_state(b"FIN")
            return 0
        if at == last:
            self.fail(b"E_INVALID FIN insufficient number of params")
            return 0
        at += 1
        stop = find(self.base, at, last, words.SPACE)
        if stop < 0:
            stop = last
        if stop - at != words.ID_BYTES:
            self.fail(b"E_INVALID invalid message ID")
            return 0
        channel = self.channel
        assert channel is not None
        shared = self.shared
        answer = channel.finish(self, hex16(self.base, at), shared.now_ns, shared.mono_ms)
        if answer != words.DONE:
            self.unfinished(b"FIN", self.cut(at, stop), answer)
        elif not channel.marked:
            self.queueing.mark_channel(channel)
        return 0

    def unfinished(self, verb: bytes, message_id: bytes, answer: int) -> None:
        """Say why the channel did not do what it was asked to do with a message."""
        self.error(b"E_%s_FAILED %s %s failed %s" % (verb, verb, message_id, _UNFINISHED[answer]))

    def _rdy(self, at: int, last: int) -> int:
        """RDY: behind the verb may be a space and a count."""
        if self.state == words.CLOSING:
            return 0
        if self.state != words.SUBSCRIBED:
            self.wrong_state(b"RDY")
            return 0
        count = 1
        if at < last:
            at += 1
            stop = find(self.base, at, last, words.SPACE)
            if stop < 0:
                stop = last
            count = self.decimal(at, stop)
            if count < 0:
                self.fail(b"E_INVALID RDY could not parse count " + self.cut(at, stop))
                return 0
            if count > self.shared.config.max_rdy_count:
                limit = self.shared.config.max_rdy_count
                self.fail(b"E_INVALID RDY count %d out of range 0-%d" % (count, limit))
                return 0
        self.ready_count = count  # the most messages this client holds at once
        channel = self.channel
        assert channel is not None
        if not channel.marked:
            self.queueing.mark_channel(channel)
        return 0

    def subscribe(self, channel: Channel) -> None:
        """This client reads a channel from now on."""
        channel.add(self)
        self.channel = channel
        self.state = words.SUBSCRIBED

    def look_at_rights(self) -> None:
        """Users or rights have changed: what it was granted is looked at again, its subscription, too."""
        self.rights = self.rights.again() if isinstance(self.rights, Granted) else None
        self.publisher.forget()
        if self.channel is None:
            return
        try:
            self.check_right(b"subscribe", self.channel.topic_name, self.channel.name, b"SUB")
        except Failed as failed:
            self.fail(failed.text)
            self.wake()

    def disconnect(self) -> None:
        """End the connection, as if its peer had."""
        self.end()
        self.wake()

    def close(self) -> None:
        """The channel is gone: end the connection."""
        self.channel = None
        self.state = words.CLOSING
        self.disconnect()

    def congested(self, full: bool) -> None:
        """The peer does not read, or reads again."""
        self.behind = self.shared.limits.max_unread_bytes + 1 if full else 0
        if not full and self.channel is not None:
            self.queueing.mark_channel(self.channel)

    def lost(self) -> None:
        """The connection is gone; what is in flight stays so until its deadline."""
        self.end()
        self.stop_waiting()
        self._forget(self)
        self.queueing.producers.discard(self)

    # -- time ----------------------------------------------------------------------------------------------------

    def beat(self, mono_ms: int) -> int:
        """Heartbeat, and the end of a silent peer; when to look again (0: never)."""
        if not self.begun:
            greeting_ms = self.shared.limits.greeting_timeout_ms
            if mono_ms - self.connected_mono_ms() >= greeting_ms:
                self.shared.limits.count("greeting")
                self.disconnect()
                return 0
            return self.connected_mono_ms() + greeting_ms
        if self.shake_until_ms:
            if any(layer.shaking for layer in self.layers):
                if mono_ms < self.shake_until_ms:
                    return self.shake_until_ms
                self.shared.limits.count("tls_handshake")
                rejected = self.shared.rejected
                rejected[SLOW_HANDSHAKE] = rejected.get(SLOW_HANDSHAKE, 0) + 1
                self.disconnect()
                return 0
            self.shake_until_ms = 0
            if self.heartbeat_ms > 0 and mono_ms < self.beat_ms + self.heartbeat_ms:
                return self.beat_ms + self.heartbeat_ms
        if self.heartbeat_ms <= 0:
            return 0
        if mono_ms - self.heard_ms > 2 * self.heartbeat_ms:
            self.disconnect()
            return 0
        if mono_ms >= self.beat_ms + self.heartbeat_ms:
            self.beat_ms = mono_ms
            if not any(layer.shaking for layer in self.layers):
                self.out.put(HEARTBEAT_FRAME)
                self.wake()
        return self.beat_ms + self.heartbeat_ms

    def connected_mono_ms(self) -> int:
        """When the connection was made (monotonic ms)."""
        return self.connected_ms - self.shared.broker.now_ms + self.shared.mono_ms

    def describe(self, now_s: int) -> dict[str, object]:
        """nsqd's fields of one client (nsq.md §10)."""
        self.publisher.settle_counts()
        layers = {layer.name: layer for layer in self.layers}
        tls = layers.get("tls")
        found: dict[str, object] = {
            **self.about,
            "version": "V2",
            "remote_address": self.remote,
            "state": self.state,
            "ready_count": self.ready_count,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connected_ms // words.MS_A_SECOND,
            "sample_rate": self.sample_rate,
            "deflate": "deflate" in layers,
            "snappy": "snappy" in layers,
            "authed": self.rights is not None,
            "auth_identity": "" if self.rights is None else self.rights.identity,
            "auth_identity_url": "" if self.rights is None else self.rights.identity_url,
            "tls": tls is not None,
            "tls_cipher_suite": "" if tls is None else tls.cipher,
            "tls_version": "" if tls is None else tls.version,
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }
        counts = self.publisher.counts
        if counts:
            found["pub_counts"] = [{"topic": printable(t), "count": n} for t, n in sorted(counts.items())]
        return found
