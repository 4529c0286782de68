"""Ids of messages: of a place in a log, and of what has no place yet."""

from __future__ import annotations

import pytest

from penstock.msgid import offset_msg_id, pack_host, parse_offset_msg_id, unpack_host


def test_hosts_and_ids() -> None:
    host = pack_host("127.0.0.1:10911")
    assert offset_msg_id(host, 0) == "7F00000100002A9F0000000000000000"
    assert parse_offset_msg_id("7F00000100002A9F0000000000000000") == ("127.0.0.1:10911", 0)
    six = pack_host("[::1]:10911")
    assert parse_offset_msg_id(offset_msg_id(six, 99)) == ("[::1]:10911", 99)
    assert unpack_host(six) == "[::1]:10911"
    for bad in ("", "localhost:1", "127.0.0.1", "127.0.0.1:x", "[::1:1"):
        with pytest.raises(ValueError):
            pack_host(bad)
    for bad in ("", "7F", "Z" * 32, "7F00000100002A9F00000000000000 0"):
        with pytest.raises(ValueError):
            parse_offset_msg_id(bad)
