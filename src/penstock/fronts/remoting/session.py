"""One RocketMQ connection: frames in, bytes out, no socket.

`RemotingSession` cuts frames and passes every request to its server as an object: enough for a registry. A
`front.BrokerSession` answers sends and pulls itself, straight from the bytes read to the bytes to be written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import cython

from penstock.access.rights import Rights
from penstock.access.users import User
from penstock.delivery.waiters import Waiter
from penstock.errors import Refused, StoreError
from penstock.limits import Limits
from penstock.wire import remoting
from penstock.wire.acl import ACCESS_KEY
from penstock.wire.codes import LanguageCode, ResponseCode
from penstock.wire.frames import FrameCutter
from penstock.wire.header import HeaderScan
from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address
else:
    from penstock import words
    from penstock.octets import address

log = logging.getLogger("penstock.fronts")

_HEARD_OUT = 4  # a header of so many times the limit is read, to be told that it is too large
FAILED = "the request failed; the log of the server says why"


def failure(request: remoting.RemotingCommand, error: Exception, remote: str) -> remoting.RemotingCommand:
    """The answer to a request that ended so. What is no refusal is in the log, too."""
    if isinstance(error, Refused):
        return request.reply(error.remoting, remark=str(error))
    if isinstance(error, StoreError):
        log.error("request failed code=%d peer=%s error=%s", request.code, remote, error)
        return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {error}")
    log.error("request failed code=%d peer=%s", request.code, remote, exc_info=error)
    return request.reply(ResponseCode.SYSTEM_ERROR, remark=FAILED)


class Server(Protocol):
    """What answers the requests that a session does not answer itself."""

    def handle(self, session: RemotingSession, request: remoting.RemotingCommand) -> remoting.RemotingCommand | None:
        """The answer; None when there is none, or not yet. Refused."""

    def lost(self, session: RemotingSession) -> None:
        """The connection is gone."""


class RemotingSession:
    """One peer. `wake()` tells the outside that there is something to be written though nothing was read.

    Where there are users, each request is some user's: the one it names and proves to be, else the one of the connection.
    """

    def __init__(
        self,
        server: Server,
        remote: str,
        wake: Callable[[], None],
        rights: Rights | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.server = server
        self.remote = remote
        self.id = remote
        self.certificate = ""  # the name in the peer's certificate, once that was checked
        self.wake = wake
        self.out = Outbox()
        self.scan = HeaderScan(self.limits.max_header_fields)
        self.header_max = self.limits.max_header_size
        self.cutter = FrameCutter(_HEARD_OUT * self.header_max, self.limits.max_frame_size)
        self.answers_max = self.limits.max_waiting_answer_bytes
        self.parked_bytes = 0  # answers that wait for a flush
        self.parked = False  # nothing is carried out until they are settled
        self.need = 0
        self.serialize = 0
        self.oneway = False
        self.closed = False
        self.closing = False  # what is there is written, then the connection is closed
        self.rights = rights or Rights()
        self.acting: User | None = None  # whose request is carried out
        self._met: User | None = None  # of the connection
        self._met_among: object = None  # the users there were then
        self.full = False  # answers wait to be written: frames that were read wait, too
        self.opaque_now = 0
        self.base: memoryview = self.scan.names
        self._pending: dict[int, tuple[Callable[[remoting.RemotingCommand | None], None], int]] = {}
        self._opaque = 0

    def certify(self, name: str) -> None:
        """The peer has shown a certificate with this name."""
        self.certificate = name

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
            if self.out.size + self.parked_bytes > self.answers_max:
                self.need = 0
                self.full = True
                if not self.parked:
                    self.limits.count("answers")
                self.parked = self.parked_bytes > 0
                break
            if not cutter.next(base, pos, total):
                self.need = cutter.need
                break
            pos = cutter.end
            if cutter.size > self.header_max:
                self.refuse_header(cutter.kind, self.cut(cutter.header, cutter.size))
            else:
                self.frame(cutter.kind, cutter.header, cutter.size, pos)
        return pos

    def refuse_header(self, kind: int, header: bytes) -> None:
        """Tell the peer that its header is too large."""
        request = self.decode(kind, header, b"")
        self.limits.count("header")
        if not request.response and not request.oneway:
            remark = f"the message is illegal: a header of {len(header)} bytes, at most {self.header_max}"
            self.out.put(remoting.encode(request.reply(ResponseCode.MESSAGE_ILLEGAL, remark=remark)))

    def decode(self, kind: int, header: bytes, body: bytes) -> remoting.RemotingCommand:
        """A frame as an object."""
        limits = self.limits
        return remoting.decode(kind, header, body, limits.max_header_fields, limits.max_json_depth)

    def frame(self, kind: int, header: int, size: int, end: int) -> None:
        """One whole frame: header of `size` bytes, body up to `end`."""
        self.cold(kind, self.cut(header, size), self.cut(header + size, end - header - size))

    def resume(self, waiter: Waiter, expired: bool) -> None:
        """News for what the session has parked, or its time is over."""
        raise NotImplementedError

    def cut(self, at: int, n: int) -> bytes:
        """These bytes as an object."""
        return bytes(self.base[at : at + n])

    def cold(self, kind: int, header: bytes, body: bytes) -> None:
        """A frame as an object: answer what a peer answered us, pass on what it asks."""
        request = self.decode(kind, header, body)
        if request.response:
            waiting = self._pending.pop(request.opaque, None)
            if waiting is not None:
                waiting[0](request)
            return
        try:
            self.identify(request)
            answer = self.server.handle(self, request)
        except Exception as error:
            answer = failure(request, error, self.remote)
        if answer is not None and not request.oneway:
            self.out.put(remoting.encode(answer))

    # -- who asks ------------------------------------------------------------------------------------------------

    def identify(self, request: remoting.RemotingCommand) -> None:
        """Find out whose request this is: `acting`. Refused when it names a user and does not prove it."""
        rights = self.rights
        if not rights.on:
            return
        if ACCESS_KEY in request.ext:
            self.act_as(rights.of_request(request, self.remote, self.acting))
            return
        if self._met_among is not rights.users:
            self._met_among = rights.users
            self._met = rights.by_connection(self.remote, self.certificate)
        self.act_as(self._met)

    def act_as(self, user: User | None) -> None:
        """The requests from here on are this user's."""
        self.acting = user

    # -- bytes out -----------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """What is to be written now."""
        return self.out.take()

    def answer(self, code: int, remark: str | None, ext: dict[str, str] | None = None) -> remoting.RemotingCommand:
        """The answer to the request that is being carried out, as an object."""
        return remoting.RemotingCommand(
            code,
            ext,
            opaque=self.opaque_now,
            flag=words.FLAG_RESPONSE,
            remark=remark,
            language=LanguageCode.JAVA,
            serialize=self.serialize,
        )

    def refuse(self, code: int, remark: str) -> None:
        """Tell the peer why its request is not carried out."""
        if not self.oneway:
            self.out.put(remoting.encode(self.answer(code, remark)))

    def answer_to(self, opaque: int, serialize: int) -> None:
        """What is answered now belongs to this request."""
        self.opaque_now = opaque
        self.serialize = serialize

    def push(self, command: remoting.RemotingCommand) -> None:
        """Send a one-way request, or an answer that took its time."""
        if self.closed:
            return
        if not command.response and not command.opaque:
            self._opaque += 1
            command.number(self._opaque)
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
        self._pending[command.number(self._opaque)] = (done, deadline_ms)
        self.push(command)

    def disconnect(self) -> None:
        """End the connection behind what it is owed."""
        self.closing = True
        self.wake()

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
