"""The NSQ commands that are handled as objects: a table from name to what it checks and does (nsq.md §3 to §5).

`prepare` sees the words of the line and may refuse before the body is there; `size_check` sees the promised size;
`run` sees the body. Each raises `Failed`, which is fatal, with nsqd's words.
"""

from __future__ import annotations

import json

from penstock.broker.nsq.copied import CopyTicket
from penstock.broker.nsq.names import printable, valid_nsq_name
from penstock.delivery.channel import Channel
from penstock.errors import Refused
from penstock.fronts.nsq.connection import Failed
from penstock.fronts.nsq.granted import login
from penstock.fronts.nsq.identify import identify
from penstock.fronts.nsq.pending import SUB
from penstock.fronts.nsq.session import Command, NsqSession
from penstock.fronts.nsq.shared import Rights
from penstock.wire.nsq import CLOSE_WAIT_FRAME, OK_FRAME, RESPONSE, frame
from penstock.words import CLOSING, DIGITS_MAX, DONE, ID_BYTES, INIT, SUBSCRIBED


def digits(text: bytes) -> int:
    """The number that these ASCII digits spell, 0 where there are none, as for nsqd; -1 where they are others, or too many."""
    if not text:
        return 0
    return int(text) if text.isdigit() and text.isascii() and len(text) <= DIGITS_MAX else -1


def _state(session: NsqSession, verb: bytes, allowed: tuple[int, ...]) -> None:
    if session.state not in allowed:
        raise Failed(b"E_INVALID cannot %s in current state" % verb)


def _body_size(session: NsqSession, verb: bytes, size: int) -> None:
    if size > session.body_size_max:
        session.shared.limits.count("nsq_body")
        raise Failed(b"E_BAD_BODY %s body too big %d > %d" % (verb, size, session.body_size_max))
    if size <= 0:
        raise Failed(b"E_BAD_BODY %s invalid body size %d" % (verb, size))


def _prepare_identify(session: NsqSession, words: list[bytes]) -> None:
    _state(session, b"IDENTIFY", (INIT,))


# -- AUTH --------------------------------------------------------------------------------------------------------


def _prepare_auth(session: NsqSession, words: list[bytes]) -> None:
    _state(session, b"AUTH", (INIT,))
    if len(words) != 1:
        raise Failed(b"E_INVALID AUTH invalid number of parameters")


def _auth(session: NsqSession, words: list[bytes], body: bytes) -> None:
    shared = session.shared
    if session.rights is not None:
        raise Failed(b"E_INVALID AUTH already set")
    if not shared.strict:
        raise Failed(b"E_AUTH_DISABLED AUTH disabled")

    def answered(rights: Rights | None) -> None:
        if rights is None:
            session.fail(b"E_AUTH_FAILED AUTH failed")
        elif not rights.rules:
            session.fail(b"E_UNAUTHORIZED AUTH no authorizations found")
        else:
            session.grant(rights)
            reply = {
                "identity": rights.identity,
                "identity_url": rights.identity_url,
                "permission_count": len(rights.rules),
            }
            session.respond(frame(RESPONSE, json.dumps(reply, separators=(",", ":")).encode()))

    def answered_later(rights: Rights | None) -> None:
        answered(rights)
        session.resume()

    if shared.users is not None:
        answered(login(shared.users, body, session.remote))
    else:
        assert shared.ask_authority is not None
        session.stall()
        shared.ask_authority(session, body, answered_later)


# -- SUB, CLS and what is said of messages -----------------------------------------------------------------------


def _sub(session: NsqSession, words: list[bytes], body: bytes) -> None:
    _state(session, b"SUB", (INIT,))
    if session.heartbeat_ms <= 0:
        raise Failed(b"E_INVALID cannot SUB with heartbeats disabled")
    if len(words) < 3:
        raise Failed(b"E_INVALID SUB insufficient number of parameters")
    topic_name, channel_name = words[1], words[2]
    if not valid_nsq_name(topic_name):
        raise Failed(b'E_BAD_TOPIC SUB topic name "%s" is not valid' % printable(topic_name).encode())
    if not valid_nsq_name(channel_name):
        raise Failed(b'E_BAD_CHANNEL SUB channel name "%s" is not valid' % printable(channel_name).encode())
    session.check_right(b"subscribe", topic_name, channel_name, b"SUB")
    queueing = session.queueing
    try:
        topic = queueing.topic(topic_name)
        fresh = channel_name not in topic.channels
        channel = topic.channel(channel_name)
        queueing.write_table()  # a new channel is owed messages from now on: a restart must know it
    except Refused as refused:
        if refused.nsq == "E_PUB_FAILED":  # a new topic that could not be stored
            raise Failed(b"E_SUB_FAILED SUB failed " + str(refused).encode()) from None
        raise Failed(b"%s SUB %s" % (refused.nsq.encode(), str(refused).encode())) from None
    limit = session.shared.config.max_channel_consumers
    if limit and len(channel.consumers) >= limit:
        session.shared.limits.count("consumers")
        raise Failed(
            b"E_SUB_FAILED SUB failed consumers for %s:%s exceeds limit of %d" % (topic_name, channel_name, limit)
        )
    session.subscribe(channel)
    if queueing.copied.note_channel(topic, fresh and not channel.ephemeral):
        session.await_copies(topic, SUB)
    else:
        session.respond(OK_FRAME)


def _cls(session: NsqSession, words: list[bytes], body: bytes) -> None:
    _state(session, b"CLS", (SUBSCRIBED,))
    session.take_no_more()
    session.respond(CLOSE_WAIT_FRAME)


def _message_id(session: NsqSession, words: list[bytes], count: int) -> int:
    verb = words[0]
    _state(session, verb, (SUBSCRIBED, CLOSING))
    if len(words) < count:
        raise Failed(b"E_INVALID %s insufficient number of params" % verb)
    if len(words[1]) != ID_BYTES:
        raise Failed(b"E_INVALID invalid message ID")
    if words[1].strip(b"0123456789abcdef"):
        return -1
    number = int(words[1], 16)
    return number if number < 1 << 63 else -1  # no id of ours


def _channel(session: NsqSession) -> Channel:
    channel: Channel | None = session.channel
    assert channel is not None  # it has subscribed
    return channel


def _answer(session: NsqSession, words: list[bytes], answer: int) -> None:
    if answer != DONE:
        session.unfinished(words[0], words[1], answer)
    else:
        session.queueing.mark_channel(_channel(session))


def _req(session: NsqSession, words: list[bytes], body: bytes) -> None:
    message_id = _message_id(session, words, 3)
    delay_ms = digits(words[2])
    if delay_ms < 0:
        raise Failed(b"E_INVALID REQ could not parse timeout " + words[2])
    shared = session.shared
    delay_ms = min(delay_ms, shared.config.max_req_timeout_ms)
    begin_ms = shared.time.mono_next_ms() if delay_ms else shared.mono_ms
    _answer(session, words, _channel(session).requeue(session, message_id, delay_ms, begin_ms))


def _touch(session: NsqSession, words: list[bytes], body: bytes) -> None:
    message_id = _message_id(session, words, 2)
    _answer(session, words, _channel(session).touch(session, message_id, session.shared.mono_ms))


def _reject(session: NsqSession, words: list[bytes], body: bytes) -> None:
    """Ours: to the channel's dead-letter topic. nsqd does not know it."""
    message_id = _message_id(session, words, 2)
    _answer(session, words, _channel(session).reject(session, message_id))


def _nop(session: NsqSession, words: list[bytes], body: bytes) -> None:
    """Clients answer heartbeats with it."""


# -- publishing --------------------------------------------------------------------------------------------------


def _too_few(session: NsqSession, words: list[bytes], body: bytes) -> None:
    raise Failed(b"E_INVALID %s insufficient number of parameters" % words[0])


def _prepare_dpub(session: NsqSession, words: list[bytes]) -> None:
    if len(words) < 3:
        raise Failed(b"E_INVALID DPUB insufficient number of parameters")
    if not valid_nsq_name(words[1]):
        raise Failed(b'E_BAD_TOPIC DPUB topic name "%s" is not valid' % printable(words[1]).encode())
    delay_ms = digits(words[2])
    if delay_ms < 0:
        raise Failed(b"E_INVALID DPUB could not parse timeout " + words[2])
    limit = session.shared.config.max_req_timeout_ms
    if delay_ms > limit:
        raise Failed(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, limit))


def _dpub_size(session: NsqSession, words: list[bytes], size: int) -> None:
    if size > session.msg_size_max:
        session.shared.limits.count("nsq_message")
        raise Failed(b"E_BAD_MESSAGE DPUB message too big %d > %d" % (size, session.msg_size_max))
    if size <= 0:
        raise Failed(b"E_BAD_MESSAGE DPUB invalid message body size %d" % size)


def _dpub(session: NsqSession, words: list[bytes], body: bytes) -> None:
    session.check_right(b"publish", words[1], b"", b"DPUB")
    queueing = session.queueing
    try:
        topic = queueing.topic(words[1], hasty=True)
        ticket = queueing.publish(topic, [body], digits(words[2]))
    except Refused as refused:
        code = refused.nsq.replace("E_PUB_", "E_DPUB_").encode()
        raise Failed(b"%s DPUB failed %s" % (code, str(refused).encode())) from None
    session.publisher.count_one(words[1])
    queueing.producers.add(session)
    if isinstance(ticket, CopyTicket):
        session.await_copies(topic, b"DPUB")
        return
    if ticket is not None:
        session.await_flush(ticket.number)
    session.respond(OK_FRAME)


COMMANDS = {
    b"IDENTIFY": Command(identify, lambda s, w, size: _body_size(s, b"IDENTIFY", size), _prepare_identify),
    b"AUTH": Command(_auth, lambda s, w, size: _body_size(s, b"AUTH", size), _prepare_auth),
    b"SUB": Command(_sub),
    b"CLS": Command(_cls),
    b"REQ": Command(_req),
    b"TOUCH": Command(_touch),
    b"REJECT": Command(_reject),
    b"NOP": Command(_nop),
    b"PUB": Command(_too_few),
    b"MPUB": Command(_too_few),
    b"DPUB": Command(_dpub, _dpub_size, _prepare_dpub),
}
