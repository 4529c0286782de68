"""Frames of replication: fixed bytes, cut anywhere, damaged anywhere, and anything at all."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.wire import ha, haframe, hawords

POSITIONS = haframe.Positions(1000, 1000, 900, 800, 0)
EPOCHS = (ha.Epoch(1, b"8 bytes.", 0), ha.Epoch(7, b"tagtagta", 512))
HELLO = ha.Hello(
    b"n" * 16, b"s" * 16, b"i" * 16, 3, 1 << 30, 0, 1000, 900, 800, 7, EPOCHS, {"node": "b", "brokerId": 1}
)
ACCEPT = ha.Accept(b"s" * 16, b"tagtagta", 1000, 0, 2000, 0xDEADBEEF, 300, EPOCHS, {"node": "a"})
SECRET = b"sixteen bytes or more"


def test_vectors() -> None:
    """Those of the design (epoch 7)."""
    beat = ha.beat(7, POSITIONS, 1_700_000_000_000, 3500)
    assert beat == bytes.fromhex(
        "04000000 00000034 00000007 8c62c54e 00000000 000003e8 00000000 000003e8 00000000 00000384 00000000 00000320"
        "00000000 00000000 0000018b cfe56800 00000dac"
    )
    assert bytes.fromhex("ff504841 0002 0000") == ha.OPENER
    assert struct.unpack(">q", ha.OPENER)[0] < 0  # RocketMQ takes it for a negative report
    assert ha.greeting(b"0123456789abcdef", True) == bytes.fromhex("ff504842 0002 0001") + b"0123456789abcdef"


def body(frame: bytes) -> tuple[haframe.Head, bytes]:
    head, need = haframe.read_head(bytearray(frame), 0, len(frame))
    assert need == 0
    assert head is not None
    assert head.end == len(frame)
    return head, frame[head.fixed :]


def test_there_and_back() -> None:
    head, data = body(ha.hello(HELLO, SECRET, b"m" * 16))
    assert ha.proves(data, SECRET, b"slave", b"m" * 16)
    assert ha.read_hello(data, head.entries) == HELLO
    head, data = body(ha.accept(ACCEPT, 7, SECRET, b"n" * 16))
    assert (head.kind, head.epoch) == (hawords.ACCEPT, 7)
    assert ha.read_accept(data, head.entries) == ACCEPT
    assert ha.read_refuse(body(ha.refuse(7, ha.WRONG_SET, "ungewöhnlich"))[1]) == (2, "ungewöhnlich")
    assert ha.read_start(body(ha.start(7, 1 << 40))[1]) == 1 << 40
    assert ha.read_meta(body(ha.meta(7, ha.OFFSETS, 5, b"{}"))[1]) == (1, 5, b"{}")
    frame = ha.data(7, POSITIONS, b"sumssums", b"records", flags=hawords.LAST)
    head, _ = body(frame)
    assert (head.flags, head.entries, frame[head.variable :]) == (2, 1, b"sumssumsrecords")
    assert ha.read_greeting(ha.greeting(b"m" * 16, False)) == (b"m" * 16, False)


def test_a_proof_is_of_one_secret_one_side_one_nonce_and_one_hello() -> None:
    _, data = body(ha.hello(HELLO, SECRET, b"m" * 16))
    assert not ha.proves(data, b"another secret!!", b"slave", b"m" * 16)
    assert not ha.proves(data, SECRET, b"master", b"m" * 16)
    assert not ha.proves(data, SECRET, b"slave", b"x" * 16)
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 4
        assert not ha.proves(bytes(changed), SECRET, b"slave", b"m" * 16)


FRAMES = (
    ha.hello(HELLO, SECRET, b"m" * 16) + ha.start(7, 9) + ha.data(7, POSITIONS, b"s" * 16, b"r" * 100)
    + ha.frame(0x49, 7, b"", b"of a later version") + haframe.ack(7, haframe.Ack(1, 1, 1, 1)) + ha.meta(7, 4, 0, b"{}")
)  # fmt: skip


def kinds(data: bytes, at: int = 0) -> tuple[list[int], int]:
    """The kinds of the whole frames, and where the rest begins."""
    found = []
    while True:
        head, need = haframe.read_head(data, at, len(data))
        if head is None:
            assert need == 0 or need > len(data) - at
            return found, at
        found.append(head.kind)
        at = head.end


@given(st.lists(st.integers(0, len(FRAMES)), max_size=6))
def test_cut_at_any_byte(cuts: list[int]) -> None:
    found: list[int] = []
    left = b""
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(FRAMES)], strict=True):
        left += FRAMES[begin:end]
        more, used = kinds(left)
        found += more
        left = left[used:]
    assert found == kinds(FRAMES)[0] == [hawords.HELLO, hawords.START, hawords.DATA, 0x49, hawords.ACK, hawords.META]
    assert left == b""


@given(st.binary(max_size=300))
def test_anything_at_all(data: bytes) -> None:
    with contextlib.suppress(WireError):
        kinds(data)
    for read in (ha.read_greeting, ha.check_opener, lambda b: ha.read_json(b)):
        with contextlib.suppress(WireError):
            read(data)


@pytest.mark.parametrize("kind", [hawords.HELLO, hawords.ACCEPT])
def test_a_table_of_epochs_that_is_cut_short(kind: int) -> None:
    data = body(ha.hello(HELLO, SECRET, b"") if kind == hawords.HELLO else ha.accept(ACCEPT, 1, SECRET, b""))[1]
    read = ha.read_hello if kind == hawords.HELLO else ha.read_accept
    for count in (60_000, 3):
        with pytest.raises(WireError):
            read(data, count)


def test_a_refusal_may_name_the_master() -> None:
    for text, master in (
        ("not I", ""),
        ("not I", "10.0.0.1:10912"),
        ("", "[::1]:1"),
        ("so; the master is at x", "h:2"),
    ):
        data = ha.refuse(7, ha.NOT_MASTER, text, master)
        head, _ = haframe.read_head(data, 0, len(data))
        assert head is not None
        reason, told = ha.read_refuse(data[head.fixed :])
        assert (reason, told.startswith(text)) == (ha.NOT_MASTER, True)
        assert ha.master_in(told) == (master or text.rpartition(" at ")[2] * (" at " in text))


def test_rocketmqs_frames() -> None:
    assert ha.report(5 << 30) == bytes.fromhex("0000000140000000")
    assert ha.read_report(b"xx" + ha.report((1 << 63) - 1), 2) == (1 << 63) - 1
    assert ha.bare_head(5 << 30, 32768) == bytes.fromhex("000000014000000000008000")
    assert ha.read_bare_head(b"x" + ha.bare_head(1, 0), 1) == (1, 0)
    for bad in (ha.bare_head(-1, 0), ha.bare_head(0, -1), ha.bare_head(0, ha.BARE_BYTES_MAX + 1)):
        with pytest.raises(WireError):
            ha.read_bare_head(bad, 0)
    assert ha.is_bare(ha.report(0))
    assert ha.is_bare(ha.report((1 << 63) - 1))
    assert not ha.is_bare(ha.report(-1))
    assert not ha.is_bare(ha.OPENER)
    assert ha.is_echo(ha.OPENER + bytes(4))
    assert not ha.is_echo(ha.greeting(bytes(16), False))


def test_what_is_wanted_and_given() -> None:
    told = ha.Wanted(1000, 200, 0xDEADBEEF)
    assert ha.want(7, told) == bytes.fromhex("84000000 00000010 00000007 d94b2416 00000000 000003e8 000000c8 deadbeef")
    assert ha.read_wanted(body(ha.want(7, told))[1]) == (told, b"")
    head, data = body(ha.give(7, told, b"the record"))
    assert (head.kind, ha.read_wanted(data)) == (hawords.GIVE, (told, b"the record"))


def test_staged_rows() -> None:
    piece = ha.spool(7, "aaaaaaaa", 4096, b"rows", sealed=True)
    assert ha.read_spool(*body(piece)) == ha.Spool("aaaaaaaa", 4096, b"rows", True, False, False)
    gone = ha.read_spool(*body(ha.spool_gone(7, "aaaaaaaa")))
    assert (gone.token, gone.gone, gone.data) == ("aaaaaaaa", True, b"")
    there = ha.read_spool(*body(ha.spools_there(7, ["aaaaaaaa", "bbbbbbbb"])))
    assert (there.there, there.data) == (True, b"aaaaaaaa bbbbbbbb")
    for told in (ha.Spooled("aaaaaaaa", 4100, True, False), ha.Spooled("aaaaaaaa", 0, False, True)):
        assert ha.read_spooled(*body(ha.spooled(7, told))) == told
