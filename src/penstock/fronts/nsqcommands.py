"""The NSQ commands that are handled as objects: a table from name to what it checks and does (nsq.md §3 to §5).

`prepare` sees the words of the line and may refuse before the body is there; `size_check` sees the promised size;
`run` sees the body. Each raises `Failed`, which is fatal, with nsqd's words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.queuetopics import shown, valid_nsq_name
from penstock.errors import Refused
from penstock.fronts.nsqlayers import Deflate, Snappy, Tls
from penstock.wire.names import NSQD_VERSION
from penstock.wire.nsq import CLOSE_WAIT_FRAME, OK_FRAME, RESPONSE, frame

if TYPE_CHECKING:
    from penstock.fronts.nsq import NsqSession

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
_WORDS = (b"", b"ID not in flight", b"client does not own message")
_INT_MAX = (1 << 63) - 1


class Failed(Exception):
    """A fatal error and its text."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.text = text


class Command(NamedTuple):
    """One row of the table; without `size_check` it has no body."""

    run: Callable[[Any, list[bytes], bytes], None]
    size_check: Callable[[Any, list[bytes], int], None] | None = None
    prepare: Callable[[Any, list[bytes]], None] = lambda session, words: None


def digits(text: bytes) -> int:
    """The number that these ASCII digits spell; -1 when they are none, or too many."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= 18 else -1


# -- IDENTIFY ----------------------------------------------------------------------------------------------------


def _state(session: NsqSession, verb: bytes, allowed: tuple[int, ...]) -> None:
    if session.state not in allowed:
        raise Failed(b"E_INVALID cannot %s in current state" % verb)


def _body_size(session: NsqSession, verb: bytes, size: int) -> None:
    if size > session.body_size_max:
        raise Failed(b"E_BAD_BODY %s body too big %d > %d" % (verb, size, session.body_size_max))
    if size <= 0:
        raise Failed(b"E_BAD_BODY %s invalid body size %d" % (verb, size))


def _prepare_identify(session: NsqSession, words: list[bytes]) -> None:
    _state(session, b"IDENTIFY", (INIT,))


def _parse(body: bytes) -> dict[str, Any]:
    kinds: dict[str, type] = {
        "client_id": str, "hostname": str, "user_agent": str, "feature_negotiation": bool, "tls_v1": bool,
        "deflate": bool, "snappy": bool, "heartbeat_interval": int, "output_buffer_size": int,
        "output_buffer_timeout": int, "deflate_level": int, "sample_rate": int, "msg_timeout": int,
    }  # fmt: skip
    try:
        table = json.loads(body)
        if table is None:
            table = {}
        if not isinstance(table, dict):
            raise ValueError
        for name in list(table):  # as Go reads it: the case does not matter, the last one counts
            if name.lower() in kinds and name.lower() != name:
                table[name.lower()] = table.pop(name)
        for name, kind in kinds.items():
            value = table.get(name)
            if value is None:
                table[name] = kind()
            elif type(value) is not kind or (isinstance(value, int) and abs(value) > _INT_MAX):
                raise ValueError
    except (ValueError, RecursionError):
        raise Failed(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    return table


def _ranged(value: int, default: int, low: int, high: int, off: int | None, what: str) -> int:
    """A setting of the client: 0 means the default, -1 may mean off."""
    if value == 0:
        return default
    if value == -1 and off is not None:
        return off
    if low <= value <= high:
        return value
    raise Failed(b"E_BAD_BODY IDENTIFY %s (%d) is invalid" % (what.encode(), value))


def _identify(session: NsqSession, words: list[bytes], body: bytes) -> None:
    config = session.front.config
    asked = _parse(body)
    heartbeat_ms = _ranged(
        asked["heartbeat_interval"],
        session.heartbeat_ms,
        1000,
        config.max_heartbeat_interval_ms,
        0,
        "heartbeat interval",
    )
    # -1 turns both off; frames leave at the end of each turn either way, so these are only confirmed
    timeout_ms = _ranged(
        asked["output_buffer_timeout"], config.output_buffer_timeout_ms, config.min_output_buffer_timeout_ms,
        config.max_output_buffer_timeout_ms, 0, "output buffer timeout",
    )  # fmt: skip
    size = _ranged(asked["output_buffer_size"], 16384, 64, config.max_output_buffer_size, 1, "output buffer size")
    if asked["output_buffer_size"] == -1:
        timeout_ms = 0
    sample_rate = _ranged(asked["sample_rate"], 0, 1, 99, None, "sample rate")
    msg_timeout_ms = _ranged(
        asked["msg_timeout"], config.msg_timeout_ms, 1000, config.max_msg_timeout_ms, None, "msg timeout"
    )
    session.about = {
        name: asked[name] or (session.about[name] if name != "user_agent" else "") for name in session.about
    }
    session.heartbeat_ms = heartbeat_ms
    session.sample_rate, session.msg_timeout_ms = sample_rate, msg_timeout_ms
    session.beat_ms = session.front.mono_ms
    if heartbeat_ms:
        session.front.look_at(session, session.front.mono_ms + heartbeat_ms)
    if not asked["feature_negotiation"]:
        session.respond(OK_FRAME)
        return
    deflate, snappy = asked["deflate"] and config.deflate, asked["snappy"] and config.snappy
    if deflate and snappy:
        raise Failed(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
    tls = asked["tls_v1"] and session.front.tls_context is not None
    level = min(asked["deflate_level"] if deflate and asked["deflate_level"] > 0 else 6, config.max_deflate_level)
    reply = {
        "max_rdy_count": config.max_rdy_count,
        "version": NSQD_VERSION,
        "max_msg_timeout": config.max_msg_timeout_ms,
        "msg_timeout": msg_timeout_ms,
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": config.max_deflate_level,
        "snappy": snappy,
        "sample_rate": sample_rate,
        "auth_required": bool(config.auth_http_address),
        "output_buffer_size": size,
        "output_buffer_timeout": timeout_ms,
        "topology_region": "",
        "topology_zone": "",
    }
    session.respond(frame(RESPONSE, json.dumps(reply, separators=(",", ":")).encode()))
    if not (tls or deflate or snappy):
        return
    session.seal()
    session.buffered = True

    def compress() -> None:
        if deflate:
            session.layers.append(Deflate(session, level))
        elif snappy:
            session.layers.append(Snappy(session))
        else:
            return
        session.respond(OK_FRAME)
        session.seal()

    def shaken() -> None:
        session.tls_needed = False
        session.respond(OK_FRAME)
        session.seal()
        compress()

    if tls:
        session.layers.append(Tls(session, session.front.tls_context, shaken))
    else:
        compress()


# -- AUTH --------------------------------------------------------------------------------------------------------


def _prepare_auth(session: NsqSession, words: list[bytes]) -> None:
    _state(session, b"AUTH", (INIT,))
    if len(words) != 1:
        raise Failed(b"E_INVALID AUTH invalid number of parameters")


def _auth(session: NsqSession, words: list[bytes], body: bytes) -> None:
    front = session.front
    if session.rights is not None:
        raise Failed(b"E_INVALID AUTH already set")
    if not front.config.auth_http_address or front.ask_authority is None:
        raise Failed(b"E_AUTH_DISABLED AUTH disabled")
    session.buffered = session.stalled = True

    def answered(rights: Any) -> None:
        if rights is None:
            session.fail(b"E_AUTH_FAILED AUTH failed")
        elif not rights.rules:
            session.fail(b"E_UNAUTHORIZED AUTH no authorizations found")
        else:
            session.rights = rights
            reply = {
                "identity": rights.identity,
                "identity_url": rights.identity_url,
                "permission_count": len(rights.rules),
            }
            session.respond(frame(RESPONSE, json.dumps(reply, separators=(",", ":")).encode()))
        session.resume()

    front.ask_authority(session, body, answered)


# -- SUB, CLS and what is said of messages -----------------------------------------------------------------------


def _sub(session: NsqSession, words: list[bytes], body: bytes) -> None:
    _state(session, b"SUB", (INIT,))
    if session.heartbeat_ms <= 0:
        raise Failed(b"E_INVALID cannot SUB with heartbeats disabled")
    if len(words) < 3:
        raise Failed(b"E_INVALID SUB insufficient number of parameters")
    topic_name, channel_name = words[1], words[2]
    if not valid_nsq_name(topic_name):
        raise Failed(b'E_BAD_TOPIC SUB topic name "%s" is not valid' % shown(topic_name).encode())
    if not valid_nsq_name(channel_name):
        raise Failed(b'E_BAD_CHANNEL SUB channel name "%s" is not valid' % shown(channel_name).encode())
    session.check_right(b"subscribe", topic_name, channel_name, b"SUB")
    keeper = session.keeper
    try:
        channel = keeper.topic(topic_name).channel(channel_name)
        keeper.write_table()  # a new channel is owed messages from now on: a restart must know it
    except Refused as refused:
        if refused.nsq == "E_PUB_FAILED":  # a new topic that could not be stored
            raise Failed(b"E_SUB_FAILED SUB failed " + str(refused).encode()) from None
        raise Failed(b"%s SUB %s" % (refused.nsq.encode(), str(refused).encode())) from None
    limit = session.front.config.max_channel_consumers
    if limit and len(channel.consumers) >= limit:
        raise Failed(
            b"E_SUB_FAILED SUB failed consumers for %s:%s exceeds limit of %d" % (topic_name, channel_name, limit)
        )
    channel.add(session)
    session.channel = channel
    session.state = SUBSCRIBED
    session.respond(OK_FRAME)


def _cls(session: NsqSession, words: list[bytes], body: bytes) -> None:
    _state(session, b"CLS", (SUBSCRIBED,))
    session.ready_count = 0
    session.state = CLOSING
    session.respond(CLOSE_WAIT_FRAME)


def _message_id(session: NsqSession, words: list[bytes], count: int) -> int:
    verb = words[0]
    _state(session, verb, (SUBSCRIBED, CLOSING))
    if len(words) < count:
        raise Failed(b"E_INVALID %s insufficient number of params" % verb)
    if len(words[1]) != 16:
        raise Failed(b"E_INVALID invalid message ID")
    if words[1].strip(b"0123456789abcdef"):
        return -1
    number = int(words[1], 16)
    return number if number < 1 << 63 else -1  # no id of ours


def _answer(session: NsqSession, words: list[bytes], answer: int) -> None:
    if answer:
        session.error(b"E_%s_FAILED %s %s failed %s" % (words[0], words[0], words[1], _WORDS[answer]))
    else:
        session.keeper.mark_channel(session.channel)


def _fin(session: NsqSession, words: list[bytes], body: bytes) -> None:
    _message_id(session, words, 2)


def _req(session: NsqSession, words: list[bytes], body: bytes) -> None:
    message_id = _message_id(session, words, 3)
    delay_ms = digits(words[2])
    if delay_ms < 0:
        raise Failed(b"E_INVALID REQ could not parse timeout " + words[2])
    front = session.front
    delay_ms = min(delay_ms, front.config.max_req_timeout_ms)
    _answer(session, words, session.channel.requeue(session, message_id, delay_ms, front.mono_ms))


def _touch(session: NsqSession, words: list[bytes], body: bytes) -> None:
    message_id = _message_id(session, words, 2)
    _answer(session, words, session.channel.touch(session, message_id, session.front.mono_ms))


def _reject(session: NsqSession, words: list[bytes], body: bytes) -> None:
    """Ours: to the channel's dead-letter topic. nsqd does not know it."""
    message_id = _message_id(session, words, 2)
    _answer(session, words, session.channel.reject(session, message_id))


def _rdy(session: NsqSession, words: list[bytes], body: bytes) -> None:
    if session.state == CLOSING:
        return
    _state(session, b"RDY", (SUBSCRIBED,))
    session.set_ready(1)


def _nop(session: NsqSession, words: list[bytes], body: bytes) -> None:
    """Clients answer heartbeats with it."""


# -- publishing --------------------------------------------------------------------------------------------------


def _too_few(session: NsqSession, words: list[bytes], body: bytes) -> None:
    raise Failed(b"E_INVALID %s insufficient number of parameters" % words[0])


def _prepare_dpub(session: NsqSession, words: list[bytes]) -> None:
    if len(words) < 3:
        raise Failed(b"E_INVALID DPUB insufficient number of parameters")
    if not valid_nsq_name(words[1]):
        raise Failed(b'E_BAD_TOPIC DPUB topic name "%s" is not valid' % shown(words[1]).encode())
    delay_ms = digits(words[2])
    if delay_ms < 0:
        raise Failed(b"E_INVALID DPUB could not parse timeout " + words[2])
    limit = session.front.config.max_req_timeout_ms
    if delay_ms > limit:
        raise Failed(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, limit))


def _dpub_size(session: NsqSession, words: list[bytes], size: int) -> None:
    if size > session.msg_size_max:
        raise Failed(b"E_BAD_MESSAGE DPUB message too big %d > %d" % (size, session.msg_size_max))
    if size <= 0:
        raise Failed(b"E_BAD_MESSAGE DPUB invalid message body size %d" % size)


def _dpub(session: NsqSession, words: list[bytes], body: bytes) -> None:
    session.check_right(b"publish", words[1], b"", b"DPUB")
    keeper = session.keeper
    try:
        topic = keeper.topic(words[1])
        ticket = keeper.publish(topic, [body], digits(words[2]))
    except Refused as refused:
        code = refused.nsq.replace("E_PUB_", "E_DPUB_").encode()
        raise Failed(b"%s DPUB failed %s" % (code, str(refused).encode())) from None
    session.count_published()
    session.pub_counts[words[1]] = session.pub_counts.get(words[1], 0) + 1
    keeper.producers.add(session)
    if ticket is not None:
        session.hold(ticket.number)
    session.respond(OK_FRAME)


COMMANDS = {
    b"IDENTIFY": Command(_identify, lambda s, w, size: _body_size(s, b"IDENTIFY", size), _prepare_identify),
    b"AUTH": Command(_auth, lambda s, w, size: _body_size(s, b"AUTH", size), _prepare_auth),
    b"SUB": Command(_sub),
    b"CLS": Command(_cls),
    b"FIN": Command(_fin),
    b"REQ": Command(_req),
    b"TOUCH": Command(_touch),
    b"REJECT": Command(_reject),
    b"RDY": Command(_rdy),
    b"NOP": Command(_nop),
    b"PUB": Command(_too_few),
    b"MPUB": Command(_too_few),
    b"DPUB": Command(_dpub, _dpub_size, _prepare_dpub),
}
