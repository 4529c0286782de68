"""The door of the RocketMQ front: a session for each connection, and what is done at the two ends of a turn.

A `BrokerSession` scans a header in place (`wire.header`); a send goes to its `Sender`, a pull to its `Puller`, and all else
as an object to `fronts.requests`. Answers that wait for a flush wait in `Broker.stored`, held pulls in `Broker.held_pulls`.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import cython

from penstock import msgid
from penstock.access.rights import Rights
from penstock.access.users import User
from penstock.broker.broker import Broker
from penstock.broker.topics import LogTopic
from penstock.delivery.waiters import Outcome, Waiter
from penstock.errors import PenstockError, Refused, StoreError, WireError
from penstock.fronts.front import Front
from penstock.fronts.needs import at_broker, carry_out
from penstock.fronts.remoting.pulling import Hold
from penstock.fronts.remoting.session import FAILED
from penstock.fronts.requests import Requests
from penstock.log.consumequeue import ConsumeQueue
from penstock.wire import remoting
from penstock.wire.acl import ACCESS_KEY, Proof
from penstock.wire.codes import LanguageCode, RequestCode, ResponseCode
from penstock.wire.slots import NAMES
from penstock.words import FLUSH_MS_MAX

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.fronts.remoting.pulling import Puller
    from cython.cimports.penstock.fronts.remoting.sending import Sender
    from cython.cimports.penstock.fronts.remoting.session import RemotingSession
    from cython.cimports.penstock.fronts.remoting.shared import Shared
    from cython.cimports.penstock.octets import address
    from cython.cimports.penstock.wire import fields
else:
    from penstock import words
    from penstock.fronts.remoting.pulling import Puller
    from penstock.fronts.remoting.sending import Sender
    from penstock.fronts.remoting.session import RemotingSession
    from penstock.fronts.remoting.shared import Shared
    from penstock.octets import address
    from penstock.wire import fields

if TYPE_CHECKING:
    from penstock.fronts.remoting.shared import Unanswered

log = logging.getLogger("penstock.fronts")

PATIENCE_EVERY_MS = 1_000

_LONG_NAMES = frozenset(NAMES)
_LETTERS = _LONG_NAMES - set(NAMES[: words.LETTERS]) | set("abcdefghijklmn")  # what SEND V2 and batches call them
_LETTERED = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_HOT = (RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, *_LETTERED, RequestCode.LITE_PULL_MESSAGE)
_UNSTORED = {
    Outcome.FAILED: (
        ResponseCode.SERVICE_NOT_AVAILABLE, "the disk failed: not stored durably; the broker needs a restart",
    ),
    Outcome.EXPIRED: (ResponseCode.FLUSH_DISK_TIMEOUT, "flush disk timeout: stored, not yet on the disk"),
}  # fmt: skip
_UNCOPIED = _UNSTORED | {
    Outcome.EXPIRED: (ResponseCode.FLUSH_SLAVE_TIMEOUT, "flush slave timeout: stored here, no slave has said that it has it"),
}  # fmt: skip
_ALONE = _UNSTORED | {
    Outcome.REACHED: (ResponseCode.SLAVE_NOT_AVAILABLE, "slave not available: stored on this broker only"),
}


class BrokerSession(RemotingSession):  # type: ignore[misc]
    """A producer or consumer at the broker."""

    def __init__(self, front: BrokerFront, remote: str, wake: Callable[[], None], born: bytes) -> None:
        RemotingSession.__init__(self, front, remote, wake, front.rights, front.broker.limits)  # type: ignore[arg-type]
        self.guarded = front.rights.on
        self.hot_for: User | None = None  # whose unsigned requests are carried out without an object
        self.acting_name = b""
        self.proof: Proof | None = None  # of the acting user
        self.sender = Sender(front.shared, born)
        self.puller = Puller(front.shared, front.park)
        self.behind = False
        self.base: memoryview
        self.waits = 0  # answers in `Broker.stored`

    # -- frames --------------------------------------------------------------------------------------------------

    def frame(self, kind: int, header: int, size: int, end: int) -> None:
        scan = self.scan
        if kind == words.JSON:
            known = scan.json(self.base, header, size)
        else:
            known = scan.binary(self.base, header, size)
        if known and scan.flag & words.FLAG_RESPONSE == 0 and self._is_hot():
            self.serialize = kind
            known = not self.guarded or self._is_met() or self._is_proven(header, header + size, end)
            if known or self._let_in(self._decoded(kind, header, size, end)):
                self.hot(header + size, end)
            return
        self.cold(kind, self.cut(header, size), self.cut(header + size, end - header - size))

    def _is_hot(self) -> bool:
        """Whether the scanned request is a send or a pull."""
        code = self.scan.code
        return (
            code == words.SEND_MESSAGE_V2
            or code == words.PULL_MESSAGE
            or code == words.SEND_BATCH_MESSAGE
            or code == words.SEND_MESSAGE
            or code == words.LITE_PULL_MESSAGE
        )

    def _decoded(self, kind: int, header: int, size: int, end: int) -> remoting.RemotingCommand:
        body = header + size
        return self.decode(kind, self.cut(header, size), self.cut(body, end - body))

    def _let_in(self, request: remoting.RemotingCommand) -> bool:
        """Find out whose send or pull this is; False when it was refused."""
        self.answer_to(request.opaque, request.serialize)
        self.oneway = request.oneway
        try:
            self.identify(request)
        except Refused as refused:
            self.refuse(refused.remoting, str(refused))
            return False
        self.hot_for = self.acting if ACCESS_KEY not in request.ext else None
        return True

    def _is_met(self) -> bool:
        """Whether the scanned request is that of the connection's user, who is known."""
        if self.acting is None or self.acting is not self.hot_for:
            return False
        scan = self.scan
        return scan.kind[fields.ACCESS_KEY] == words.ABSENT

    def _is_proven(self, header: int, body: int, end: int) -> bool:
        """Whether the scanned request says that it is the acting user's, and proves it: then all is as it was before.

        Whatever else it is, another user's or nobody's, is looked at in the decoded request.
        """
        proof = self.proof
        if proof is None:
            return False
        scan = self.scan
        content = scan.signed(header, body, end)
        if content is None or scan.text(fields.ACCESS_KEY) != self.acting_name:
            return False
        return proof.proves(content, scan.text(fields.SIGNATURE))

    def act_as(self, user: User | None) -> None:
        if user is not self.acting:
            self.acting_name = b"" if user is None else user.name.encode()
            # Whoever is trusted by its address proves nothing; one without a secret cannot.
            self.proof = None if user is None or not user.secret or user.trusted_from else Proof(user.secret)
            self.sender.forget()
            self.puller.forget()
            self.acting = user

    def forget_rights(self) -> None:
        """Users or rights have changed: whoever asks next is asked who it is, and whether it may."""
        self.guarded = self.rights.on
        self.hot_for = None
        self.act_as(None)

    def hot(self, body: int, end: int) -> None:
        """Carry out the send or pull that was scanned."""
        code = self.scan.code
        pull = code == words.PULL_MESSAGE or code == words.LITE_PULL_MESSAGE
        batch = code == words.SEND_BATCH_MESSAGE
        self.oneway = self.scan.flag & words.FLAG_ONEWAY != 0
        self.opaque_now = self.scan.opaque
        out = self.out.size
        held, copied = self.sender.waiting.size, self.sender.copied.size
        try:
            if pull:
                self.puller.pull(self)
            else:
                self.sender.send(self, batch, body, end - body)
        except Refused as refused:
            self.refuse(refused.remoting, str(refused))
        except StoreError as error:
            self._unfinished(out, held, copied, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        except PenstockError as error:
            self._unfinished(out, held, copied, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception:
            log.exception("request failed code=%d peer=%s", code, self.remote)
            self._unfinished(out, held, copied, ResponseCode.SYSTEM_ERROR, FAILED)
        self._park(held, copied)

    def _unfinished(self, out: int, held: int, copied: int, code: int, remark: str) -> None:
        """A request ended half way: what it had written of its answer goes, and it is told why."""
        self.out.cut(min(out, self.out.size))
        self.sender.waiting.cut(min(held, self.sender.waiting.size))
        self.sender.copied.cut(min(copied, self.sender.copied.size))
        self.refuse(code, remark)

    def cold(self, kind: int, header: bytes, body: bytes) -> None:
        request = self.decode(kind, header, body)
        if request.code in _HOT and not request.response:
            answer_in = request.serialize
            if self.guarded and not self._let_in(request):
                return
            # An unusual header of a hot request: written again in the plain form, then it is like any other.
            request.rewrite(words.BINARY, _LETTERS if request.code in _LETTERED else _LONG_NAMES)
            frame = remoting.encode(request)
            outer = self.base
            self.base = address(frame)
            size = len(frame) - words.PREFIX_BYTES - len(body)
            if not self.scan.binary(self.base, words.PREFIX_BYTES, size):
                raise WireError(f"a header of request {request.code} that cannot be read")
            self.serialize = answer_in
            self.hot(len(frame) - len(body), len(frame))
            self.base = outer
            return
        RemotingSession.cold(self, kind, header, body)

    def take(self) -> bytes:
        self.sender.store.settle()  # the answers say that it is stored
        return self.out.take()

    # -- waiting -------------------------------------------------------------------------------------------------

    def answer_when_stored(self, topic: LogTopic, answer: remoting.RemotingCommand) -> None:
        """Answer a request that stored a message on a topic, when the topic's level is reached."""
        if not self.closed:
            held, copied = self.sender.waiting.size, self.sender.copied.size
            self.sender.outbox(self, topic, True).put(remoting.encode(answer))
            self._park(held, copied)
            self.wake()

    def _park(self, held: int, copied: int) -> None:
        """Count what waits since there was so much: for a flush, and for slaves."""
        self.parked_bytes += max(0, self.sender.waiting.size - held) + max(0, self.sender.copied.size - copied)

    def seal(self) -> bytes:
        """The answers of this turn that wait for a flush."""
        answers = self.sender.waiting.take()
        self.waits += 1 if answers else 0
        return answers

    def seal_copied(self) -> tuple[bytes, bool]:
        """The answers of this turn that wait for slaves, and whether for their disks."""
        answers, on_disk = self.sender.take_copied()
        self.waits += 1 if answers else 0
        return answers, on_disk

    def settled(self, answers: bytes, outcome: Outcome) -> None:
        """What these answers waited for has come, or never will."""
        self._answer(answers, _UNSTORED.get(outcome))

    def copied(self, answers: bytes, outcome: Outcome) -> None:
        """The same of slaves."""
        self._answer(answers, _UNCOPIED.get(outcome))

    def alone(self, answers: bytes, outcome: Outcome) -> None:
        """There was no slave that could have it."""
        self._answer(answers, _ALONE[outcome])

    def _answer(self, answers: bytes, other: tuple[ResponseCode, str] | None) -> None:
        """Send what waited, or the same with another code and remark."""
        self.waits -= 1
        self.parked_bytes -= len(answers)
        self.parked = False
        if other is None:
            self.out.put(answers)
        else:
            for answer in remoting.CommandParser().feed(answers):
                answer.become(*other)
                self.out.put(remoting.encode(answer))
        self.wake()

    def congested(self, full: bool) -> None:
        """The peer does not take its answers, or takes them again."""
        self.behind = full

    def resume(self, waiter: Waiter, expired: bool) -> None:
        """News for a held pull, or its time is over: answer it, or hold it on."""
        assert isinstance(waiter, Hold)
        if not self.closed and self.puller.resume(self, waiter, expired, self.behind):
            self.wake()

    def dismiss(self, hold: Waiter) -> None:
        """Refuse a held pull: the connection is closed next."""
        assert isinstance(hold, Hold)
        if not self.closed:
            self.answer_to(hold.opaque, hold.kind)
            self.oneway = False
            self.refuse(ResponseCode.SYSTEM_BUSY, "the broker ends: ask again")
            self.wake()


class BrokerFront(Front):
    """All RocketMQ sessions of one broker."""

    name = "remoting"

    def __init__(self, broker: Broker, rights: Rights | None = None) -> None:
        self.broker = broker
        self.rights = rights or Rights()
        self.rights.changed.append(self._forget_rights)
        self.requests = Requests(broker, self.rights)
        self.shared = Shared(broker)
        self.sessions: set[BrokerSession] = set()
        self._held = broker.held_pulls
        self._durable_keys: set[ConsumeQueue] = set()  # of held pulls that see only what is flushed
        self._flushed = (0, True, 0)
        self._sharing = broker.clients.sharing
        self._patience_ms = 0  # when it is looked which questions were not answered in time
        broker.transactions.ask_through(self.requests.consuming.ask_producer)

    def session(self, remote: str, wake: Callable[[], None]) -> BrokerSession:
        """The session of a new connection from `address:port`."""
        session = BrokerSession(self, remote, wake, msgid.pack_host(remote))
        self.sessions.add(session)
        return session

    def handle(self, session: BrokerSession, request: remoting.RemotingCommand) -> remoting.RemotingCommand | None:
        """The answer to a request. Refused to whom it is not allowed."""
        return carry_out(
            self.rights, session, request, partial(at_broker, self.broker, request),
            partial(self.requests.handle, session, request),
        )  # fmt: skip

    def _forget_rights(self) -> None:
        """Users or rights have changed: nobody goes on with what it was once allowed."""
        for session in self.sessions:
            session.forget_rights()
        for waiter in self._held.due(self.broker.mono_ms + 2 * words.HOLD_MS_MAX):
            waiter.owner.resume(waiter, True)  # who still may asks again

    def leave(self) -> None:
        """The broker ends, and its connections are closed next. RocketMQ's Java client waits 30 s for a pull whose connection the
        broker has closed; for one that is refused, 3 s.
        """
        members = (member for group in self.broker.clients.consumers.values() for member in group.members.values())
        java: set[object] = {member.peer for member in members if member.language == LanguageCode.JAVA.name}
        for waiter in self._held.due(self.broker.mono_ms + 2 * words.HOLD_MS_MAX):
            owner = waiter.owner
            if owner in java and isinstance(owner, BrokerSession):
                owner.dismiss(waiter)

    def lost(self, session: BrokerSession) -> None:
        broker = self.broker
        self.sessions.discard(session)
        if session.waits:
            broker.stored.drop(session)
            broker.copies.drop(session)
        self._held.drop(session)
        broker.clients.lost(session)

    def park(self, hold: Hold) -> bool:
        """Hold a pull until news or its deadline; False when too many are held."""
        if not self._held.park(hold):
            self.broker.limits.count("waiting_pulls")
            return False
        if hold.gate:
            self._durable_keys.add(hold.queue)
        hold.queue.watch()
        return True

    # -- turns ---------------------------------------------------------------------------------------------------

    @property
    def begin_turn(self) -> Callable[[], None]:
        """Called first in each turn."""
        begin: Callable[[], None] = self.shared.update
        return begin

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        """Let this turn's answers wait where they must; resume the pulls whose queue has news, and those that are due."""
        if self.shared.holding:
            self._seal()
        for queue in news:
            self._wake(queue)
        if self._durable_keys:
            self._wake_durable()
        mono_ms = self.broker.mono_ms
        if self._held.count:
            for waiter in self._held.due(mono_ms):
                waiter.owner.resume(waiter, True)
        if self._sharing.due_ms <= mono_ms:
            self.requests.consuming.share(mono_ms)

    def _wake_durable(self) -> None:
        """Pulls that see only what is flushed or confirmed, where more is than when they were looked at last."""
        store, version = self.broker.store, self.broker.copies.version
        if (store.flushed_position, store.healthy, version) != self._flushed:
            self._flushed = (store.flushed_position, store.healthy, version)
            keys, self._durable_keys = self._durable_keys, set()
            for queue in keys:
                self._wake(queue)

    def _seal(self) -> None:
        """The answers this turn held wait for the flush of all that is in the log now."""
        broker, wanted = self.broker, False
        holding = self.shared.take_holding()
        for session in holding:
            answers = session.seal()
            if answers:
                told = partial(session.settled, answers)
                broker.stored.wait(broker.store.end_position, session, told, broker.mono_ms + FLUSH_MS_MAX)
                wanted = True
            answers, on_disk = session.seal_copied()
            if answers:
                wanted = on_disk or wanted
                self._await_copies(session, answers, on_disk)
        if wanted:
            broker.store.want_flush()

    def _await_copies(self, session: Unanswered, answers: bytes, on_disk: bool) -> None:
        """Let answers wait for what is in the log now to be at every in-sync slave; where there is none, tell so."""
        broker = self.broker
        copies, end, mono_ms = broker.copies, broker.store.end_position, broker.mono_ms
        if copies.available:
            told = partial(session.copied, answers)
            room = copies.waiting_flushed if on_disk else copies.waiting
            room.wait(end, session, told, mono_ms + broker.config.ha_answer_ms)
        elif on_disk:
            broker.stored.wait(end, session, partial(session.alone, answers), mono_ms + FLUSH_MS_MAX)
        else:
            session.alone(answers, Outcome.REACHED)

    def _wake(self, queue: ConsumeQueue) -> None:
        queue.unwatch()
        for waiter in self._held.wake(queue):
            waiter.owner.resume(waiter, False)

    def tick(self) -> int | None:
        """Give up what has waited too long, go on with what takes long; when something is due again."""
        mono_ms = self.broker.mono_ms
        self.broker.stored.expire(mono_ms)
        self.broker.copies.expire(mono_ms)
        if (
            mono_ms >= self._patience_ms
        ):  # not at each tick: there may be thousands of sessions, and a tick each millisecond
            self._patience_ms = mono_ms + PATIENCE_EVERY_MS
            for session in list(self.sessions):
                session.tick(mono_ms)
        if self.requests.statistics.go_on():
            return mono_ms
        due_ms: int | None = self._held.next_ms()
        return due_ms
