"""IDENTIFY: what a client asks for, what it gets, and the layers that lie between from then on (nsq.md §3)."""

from __future__ import annotations

import json
from functools import partial
from typing import NamedTuple

from penstock.config import BrokerConfig
from penstock.fronts.nsq.connection import Failed
from penstock.fronts.nsq.layers import Deflate, Snappy, Tls
from penstock.fronts.nsq.session import NsqSession
from penstock.wire.fastjson import JsonObject, folded
from penstock.wire.names import NSQD_VERSION
from penstock.wire.nsq import OK_FRAME, RESPONSE, frame
from penstock.words import MS_A_SECOND

_INT_MAX = (1 << 63) - 1
_KINDS: dict[str, type] = {
    "client_id": str, "hostname": str, "user_agent": str, "feature_negotiation": bool, "tls_v1": bool,
    "deflate": bool, "snappy": bool, "heartbeat_interval": int, "output_buffer_size": int,
    "output_buffer_timeout": int, "deflate_level": int, "sample_rate": int, "msg_timeout": int,
    "topology_zone": str, "topology_region": str,
}  # fmt: skip
BUFFER_BYTES, BUFFER_BYTES_MIN = 16_384, 64
INTERVAL_MS_MIN = 1_000  # of heartbeats and message timeouts
SAMPLE_RATE_MAX = 99
TEXT_CHARS_MAX = 1_024  # of an id, a host name, a user agent
DEFLATE_LEVEL = 6


class Settings(NamedTuple):
    """What is agreed with the client."""

    heartbeat_ms: int
    buffer_ms: int
    buffer_bytes: int
    sample_rate: int
    msg_timeout_ms: int


class Upgrade(NamedTuple):
    """The layers that are agreed."""

    tls: bool
    deflate: bool
    snappy: bool
    level: int


def parse(body: bytes) -> JsonObject:
    """The fields of the body, each of its kind."""
    try:
        table = json.loads(body.decode("utf-8", "replace"))  # as Go: a name in another encoding is no reason to refuse
        if table is None:
            table = {}
        if not isinstance(table, dict):
            raise ValueError
        table = folded(table)
        for name, kind in _KINDS.items():
            value = table.get(name)
            if value is None:
                table[name] = kind()
            elif type(value) is not kind or (isinstance(value, int) and abs(value) > _INT_MAX):
                raise ValueError
            elif kind is str:
                table[name] = _text(str(value))
    except (ValueError, RecursionError):
        raise Failed(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
    return table


def _text(value: str) -> str:
    """What is shown of a client to everybody who asks: half a character, which cannot be written again, becomes U+FFFD as in
    Go; and no more than fits a page.
    """
    return value[:TEXT_CHARS_MAX].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ranged(value: int, default: int, low: int, high: int, off: int | None, what: str) -> int:
    """A setting of the client: 0 means the default, -1 may mean off."""
    if value == 0:
        return default
    if value == -1 and off is not None:
        return off
    if low <= value <= high:
        return value
    raise Failed(b"E_BAD_BODY IDENTIFY %s (%d) is invalid" % (what.encode(), value))


def _settings(asked: JsonObject, config: BrokerConfig, heartbeat_ms: int) -> Settings:
    """What the client gets of what it asks for. -1 turns heartbeats and buffering off; frames leave at the end of each turn
    either way, so that the buffer's settings are only confirmed.
    """
    beat = "heartbeat_interval"
    heartbeat_ms = _ranged(
        asked[beat], heartbeat_ms, INTERVAL_MS_MIN, config.max_heartbeat_interval_ms, 0, "heartbeat interval"
    )
    buffer_ms = _ranged(
        asked["output_buffer_timeout"], config.output_buffer_timeout_ms, config.min_output_buffer_timeout_ms,
        config.max_output_buffer_timeout_ms, 0, "output buffer timeout",
    )  # fmt: skip
    asked_bytes = asked["output_buffer_size"]
    buffer_bytes = _ranged(
        asked_bytes, BUFFER_BYTES, BUFFER_BYTES_MIN, config.max_output_buffer_size, 1, "output buffer size"
    )
    if asked_bytes == -1:
        buffer_ms = 0
    sample_rate = _ranged(asked["sample_rate"], 0, 1, SAMPLE_RATE_MAX, None, "sample rate")
    msg_timeout_ms = _ranged(
        asked["msg_timeout"], config.msg_timeout_ms, INTERVAL_MS_MIN, config.max_msg_timeout_ms, None, "msg timeout"
    )
    return Settings(heartbeat_ms, buffer_ms, buffer_bytes, sample_rate, msg_timeout_ms)


def _upgrade(asked: JsonObject, config: BrokerConfig, has_tls: bool) -> Upgrade:
    deflate, snappy = asked["deflate"] and config.deflate, asked["snappy"] and config.snappy
    if deflate and snappy:
        raise Failed(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
    wanted = asked["deflate_level"]
    level = min(wanted if deflate and wanted > 0 else DEFLATE_LEVEL, config.max_deflate_level)
    return Upgrade(asked["tls_v1"] and has_tls, deflate, snappy, level)


def _reply(settings: Settings, upgrade: Upgrade, config: BrokerConfig, auth_required: bool) -> bytes:
    reply = {
        "max_rdy_count": config.max_rdy_count,
        "version": NSQD_VERSION,
        "max_msg_timeout": config.max_msg_timeout_ms,
        "msg_timeout": settings.msg_timeout_ms,
        "tls_v1": upgrade.tls,
        "deflate": upgrade.deflate,
        "deflate_level": upgrade.level,
        "max_deflate_level": config.max_deflate_level,
        "snappy": upgrade.snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": auth_required,
        "output_buffer_size": settings.buffer_bytes,
        "output_buffer_timeout": settings.buffer_ms,
        "topology_region": "",
        "topology_zone": "",
    }
    return frame(RESPONSE, json.dumps(reply, separators=(",", ":")).encode())


def identify(session: NsqSession, words: list[bytes], body: bytes) -> None:
    """Carry out the command."""
    shared = session.shared
    config = shared.config
    asked = parse(body)
    settings = _settings(asked, config, session.heartbeat_ms)
    session.introduce(
        {name: asked[name] or (session.about[name] if name != "user_agent" else "") for name in session.about}
    )
    session.agree(settings.heartbeat_ms, settings.sample_rate, settings.msg_timeout_ms)
    if settings.heartbeat_ms:
        shared.look_at(session, shared.mono_ms + settings.heartbeat_ms)
    if not asked["feature_negotiation"]:
        session.respond(OK_FRAME)
        return
    upgrade = _upgrade(asked, config, shared.tls is not None)
    session.respond(_reply(settings, upgrade, config, shared.strict and session.rights is None))
    if not (upgrade.tls or upgrade.deflate or upgrade.snappy):
        return
    session.seal()
    session.buffer()
    if upgrade.tls:
        tls = shared.tls
        assert tls is not None
        session.layers.append(Tls(session, tls.context, partial(_shaken, session, upgrade)))
        session.await_handshake(int(tls.handshake_s * MS_A_SECOND))
    else:
        _compress(session, upgrade)


def _shaken(session: NsqSession, upgrade: Upgrade) -> None:
    """TLS has begun: what is compressed goes inside."""
    layer, tls = session.layers[0], session.shared.tls
    assert isinstance(layer, Tls)
    assert tls is not None
    session.be_safe(tls.client_name(layer.connection))
    session.respond(OK_FRAME)
    session.seal()
    _compress(session, upgrade)


def _compress(session: NsqSession, upgrade: Upgrade) -> None:
    if upgrade.deflate:
        session.layers.append(Deflate(session, upgrade.level))
    elif upgrade.snappy:
        session.layers.append(Snappy(session))
    else:
        return
    session.respond(OK_FRAME)
    session.seal()
