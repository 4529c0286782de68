"""The scanner of hot headers: "not mine", or exactly the fields of `remoting.decode`."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.wire import remoting
from penstock.wire.acl import ACCESS_KEY, SIGNATURE, Proof, is_signed, sign
from penstock.wire.header import HeaderScan
from penstock.wire.remoting import RemotingCommand
from penstock.wire.slots import NAMES
from penstock.words import BINARY, JSON

LETTERS = dict(zip("abcdefghijklmn", NAMES, strict=False))
PIECES = [b'"', b"\\", b",", b"{", b"}", b":", b"0", b"-", b"1e5", b"null", b"true", b" ", b"\n", b"\x00", b"\xff", b"\xc3\xa9",
          b"\\u00e9", b"\\ud83d\\ude00", b"\\ud800", b"\\x", b'"opaque":3', b'"code":10,', b'"weight":3,', b'"extFields":{},',
          b'"topic":"T",', b'"b":"T",', b"99999999999", b"\xed\xa0\x80", b"[", b"]", b"08"]  # fmt: skip
TIMES = 1 if os.environ.get("PENSTOCK_PURE") == "1" else 4  # as many examples: the same code is slow uncompiled
TEXTS = ["", "T", "12", "-7", "true", "a\u0001b\u0002", "é", "消息", "\U0001f600", 'quoted "\\/\n', "x" * 300]


def same_as_decode(kind: int, header: bytes) -> bool:
    """Whether the scanner takes a header; AssertionError when it gives other fields than `decode`."""
    scan = HeaderScan()
    fields = scan.look(kind, header)
    if fields is None:
        return False
    try:
        command = remoting.decode(kind, header)
    except WireError as error:
        raise AssertionError(f"the scanner takes what decode refuses: {header!r}: {error}") from None
    found = (scan.code, scan.flag, scan.opaque, scan.version)
    assert found == (command.code, command.flag, command.opaque, command.version), header
    wanted = {LETTERS.get(k, k): v.encode() for k, v in command.ext.items() if k in NAMES or k in LETTERS}
    assert fields == wanted, header
    return True


def a_header(rng: random.Random) -> tuple[int, bytes]:
    """A header as a client writes it, or with a few bytes of it changed."""
    names = [*NAMES, *LETTERS, "unknown", "zz", "é"]
    ext: dict[str, Any] = {name: rng.choice(TEXTS) for name in rng.sample(names, rng.randrange(9))}
    command = RemotingCommand(
        rng.choice((10, 11, 310, 320, 361, 34, 0)), ext, opaque=rng.randrange(-(2**31), 2**31), flag=rng.randrange(4)
    )
    command.version = rng.randrange(500)
    kind = command.serialize = rng.choice((JSON, JSON, BINARY))
    frame = remoting.encode(command)
    header = frame[8:]
    if kind == JSON and rng.random() < 0.3:  # other spellings of the same
        fields = json.loads(header)
        for name in ext:
            if rng.random() < 0.3:
                fields["extFields"][name] = rng.choice((7, 0, -3, True, False, None, 1.5, 2**70))
        fields |= rng.choice(({}, {"weight": 3}, {"language": 5}, {"remark": None}, {"x": "y"}))
        header = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode()
    changed = bytearray(header)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        at = rng.randrange(len(changed) + 1)
        choice = rng.randrange(4)
        if choice == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif choice == 1:
            changed[at:at] = rng.choice(PIECES)
        elif choice == 2:
            del changed[at : at + rng.randrange(1, 4)]
        else:
            changed[at:at] = changed[at : at + rng.randrange(1, 30)]
    return kind, bytes(changed)


def all_of(scan: HeaderScan, header: bytes) -> object:
    """What a scan of a JSON header says, all of it."""
    fields = scan.look(JSON, header)
    if fields is None:
        return None
    content = scan.signed(0, len(header), len(header))
    return fields, scan.code, scan.flag, scan.opaque, scan.version, content


VALUES = (b"\\u0002k\\u0001", b"plain", b'"', b"\\", b"\x01", b"\xff", b"\xc3\xa9", b"", b"\\u00")


def the_next(rng: random.Random, header: bytes) -> bytes:
    """Another header of the same client: other values, now and then something else."""
    changed = bytearray(header)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        digits = [at for at, byte in enumerate(changed) if 48 <= byte <= 57]
        choice = rng.randrange(6)
        if choice < 3 and digits:
            at = rng.choice(digits)
            changed[at : at + 1] = rng.choice((b"7", b"0", b"99", b"", b"-3", b"1" * 20))
        elif choice == 3 and b"\\u000" in changed:
            at = changed.find(b"\\u000")
            changed[at : at + 6] = rng.choice(
                (b"\\u0002k\\u0001", b"plain", b'"', b"\\", b"\x01", b"\xff", b"\xc3\xa9", b"", b"\\u00")
            )
        else:
            at = rng.randrange(len(changed) + 1)
            changed[at : at + rng.randrange(2)] = rng.choice(PIECES)
    return bytes(changed)


@settings(max_examples=TIMES * 1_250)
@given(st.integers(0, 2**63))
def test_a_header_behind_others_is_scanned_as_the_first(seed: int) -> None:
    """A scan keeps the shape of the last header: whatever came before, it says what a fresh one says."""
    rng = random.Random(seed)
    scan, kept = HeaderScan(), []
    for _ in range(6):
        if not kept or rng.random() < 0.2:
            kind, header = a_header(rng)
            if kind == BINARY:
                scan.look(BINARY, header)  # forgets nothing, and leaves nothing behind
                continue
        else:
            header = the_next(rng, rng.choice(kept))
        kept.append(header)
        assert all_of(scan, header) == all_of(HeaderScan(), header), kept


SENT = (
    b'{"code":310,"extFields":{"a":"group","b":"T","c":"TBW102","d":"4","e":"%d","f":"0","g":"%d","h":"0","i":"%s","j":"0",'
    b'"k":"false","l":"16","m":"false"},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":399}'
)


def test_what_changes_in_a_producers_headers_is_seen() -> None:
    scan = HeaderScan()
    for n in range(3000):
        properties = b"KEYS\\u0001k%d\\u0002WAIT\\u0001true" % n if n % 3 else b"plain%d" % n
        header = SENT % (n % 16, 1_700_000_000_000 + n, properties, n)
        if n % 500 == 499:
            header = header.replace(b'"T"', b'"Other"')
        fields = scan.look(JSON, header)
        assert fields is not None
        assert (scan.code, scan.opaque, scan.version) == (310, n, 399)
        assert fields == HeaderScan().look(JSON, header)
        assert fields["topic"] == (b"Other" if n % 500 == 499 else b"T")
        assert fields["queueId"] == b"%d" % (n % 16)


@pytest.mark.parametrize(
    "broken",
    [
        SENT % (1, 5, b'a"b', 7), SENT % (1, 5, b"a\\", 7), SENT % (1, 5, b"a\x02", 7), SENT % (1, 5, b"\xff", 7),
        SENT % (1, 5, b"x", 7) + b"x", (SENT % (1, 5, b"x", 7))[:-1], (SENT % (1, 5, b"x", 7)).replace(b"7", b"07"),
        (SENT % (1, 5, b"x", 7)).replace(b":7", b":99999999999"), (SENT % (1, 5, b"x", 7)).replace(b":7", b":7.5"),
        (SENT % (1, 5, b"x", 7)).replace(b":7", b":7e2"), (SENT % (1, 5, b"x", 7)).replace(b":7", b":"),
        SENT[:40] % (), b"", b"{}",
    ],
)  # fmt: skip
def test_what_is_broken_behind_a_sound_header_is_not_mine(broken: bytes) -> None:
    scan = HeaderScan()
    assert scan.look(JSON, SENT % (1, 5, b"x", 7)) is not None
    assert scan.look(JSON, broken) is None
    assert scan.look(JSON, SENT % (2, 6, b"y", 8)) == HeaderScan().look(JSON, SENT % (2, 6, b"y", 8))


@settings(max_examples=TIMES * 5_000)
@given(st.integers(0, 2**63))
def test_any_header_is_not_mine_or_the_same_as_decode(seed: int) -> None:
    same_as_decode(*a_header(random.Random(seed)))


@settings(max_examples=TIMES * 500)
@given(st.sampled_from((JSON, BINARY)), st.binary(max_size=80))
def test_any_bytes_are_not_mine_or_the_same_as_decode(kind: int, header: bytes) -> None:
    same_as_decode(kind, header)


@settings(max_examples=TIMES * 500)
@given(
    st.sampled_from((JSON, BINARY)),
    st.dictionaries(st.sampled_from(NAMES), st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=8),
)
def test_what_our_own_encoder_writes_is_taken(kind: int, ext: dict[str, str]) -> None:
    frame = remoting.encode(RemotingCommand(310, ext, serialize=kind))
    assert same_as_decode(kind, frame[8:])


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":7,"weight":3,"code":361}',
        b'{"code":310,"opaque":1,"version":70000,"flag":0,"remark":"a\\u00e9\\ud83d\\ude00\\"\\\\"}',
        b'{"code":11,"extFields":{"topic":"T","queueId":7,"d":"x","commitOffset":"-0","durable":true}}',
        b'{"code":11,"extFields":{}}',
        b' { "code" : 11 , "extFields" : { "topic" : "T" } } ',
    ],
)  # fmt: skip
def test_sound_headers_are_taken(header: bytes) -> None:
    assert same_as_decode(JSON, header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b'{"code":11',
        b'{"code":11}x',
        b'{"code":11,}',
        b'{,"code":11}',
        b'{"code" 11}',
        b'{"code":11,,"flag":0}',
        b'{"code":011}',
        b'{"code":-}',
        b'{"code":1.0}',
        b'{"code":1e2}',
        b'{"code":"11"}',
        b'{"code":2147483648}',
        b'{"cobe":361}',
        b'{"code":11,"extFieldf":{}}',
        b'{"code":11,"extFields":{"topic":"T","topic":"U"}}',
        b'{"code":11,"extFields":{"topic":"T","b":"U"}}',
        b'{"code":11,"extFields":{"topic":null}}',
        b'{"code":11,"extFields":{"queueId":1.5}}',
        b'{"code":11,"extFields":{"queueId":-0}}',
        b'{"code":11,"extFields":{"queueId":08}}',
        b'{"code":11,"extFields":{"topic":"\\ud800"}}',
        b'{"code":11,"extFields":{"topic":"\\udc00\\ud800"}}',
        b'{"code":11,"extFields":{"topic":"\\ud800\\u0041"}}',
        b'{"code":11,"extFields":{"topic":"\\q"}}',
        b'{"code":11,"extFields":{"topic":"\\u12g4"}}',
        b'{"code":11,"extFields":{"topic":"\xff"}}',
        b'{"code":11,"extFields":{"topic":"a\x01"}}',
        b'{"code":11,"extFields":{"topic":"T"}',
        b'{"code":11,"extFields":{},"extFields":{}}',
        b'{"code":11,"code":310}',
        b'{"code":11,"extFields":{"durable":truex}}',
        b'{"code":11,"extFields":{"durable":tru',
        b'{"code":11,"remark":"\\ud8',
        b'{"code":11,"remark":"\\',
        b'{"code":11,"x":[1]}',
        b'{"\\u0063ode":11}',
    ],
)
def test_broken_and_unusual_headers_are_not_mine(header: bytes) -> None:
    assert HeaderScan().look(JSON, header) is None
    assert HeaderScan().look(BINARY, header) is None


def binary(code: int = 11, remark: bytes = b"", *fields: tuple[bytes, bytes]) -> bytes:
    ext = b"".join(len(k).to_bytes(2) + k + len(v).to_bytes(4) + v for k, v in fields)
    return code.to_bytes(2) + b"\0\1\x99" + bytes(8) + len(remark).to_bytes(4) + remark + len(ext).to_bytes(4) + ext


def test_binary_headers() -> None:
    assert same_as_decode(BINARY, binary(11, b"", (b"topic", b"T"), (b"", b""), ("é".encode(), "é".encode())))
    assert same_as_decode(BINARY, binary(0xFFFF))
    sound = binary(11, b"r", (b"topic", b"T"))
    for cut in range(len(sound)):
        assert not same_as_decode(BINARY, sound[:cut])
    assert not same_as_decode(BINARY, sound + b"\0")
    assert not same_as_decode(BINARY, binary(11, b"\xff"))
    assert not same_as_decode(BINARY, binary(11, b"", (b"topic", b"\xff")))
    assert not same_as_decode(BINARY, binary(11, b"", (b"\xff", b"")))
    assert not same_as_decode(BINARY, binary(11, b"", (b"topic", b"T"), (b"b", b"U")))
    assert same_as_decode(BINARY, binary(11, b"", *((b"%d" % n, b"") for n in range(256))))
    assert not same_as_decode(BINARY, binary(11, b"", *((b"%d" % n, b"") for n in range(257))))


def _signed_as_decoded(kind: int, header: bytes, body: bytes, secret: str) -> bool | None:
    """Whether the scanner finds the same proof as the decoded request; None where it leaves it to that."""
    scan = HeaderScan()
    frame = header + body
    if scan.look(kind, frame, len(header)) is None:
        return None
    content = scan.signed(0, len(header), len(frame))
    if content is None:
        return None
    request = remoting.decode(kind, header, body)
    covered = "".join(request.ext[name] for name in sorted(request.ext) if name != SIGNATURE)
    assert content == covered.encode() + body
    proven = Proof(secret).proves(content, scan.text(25))
    assert proven is is_signed(request, secret)
    return proven


def a_signed_header(rng: random.Random) -> tuple[int, bytes, bytes, bool]:
    """A signed request, and whether what is signed was changed: a field, the order, one twice, the signature, the body."""
    names = list(rng.choice((tuple(LETTERS), NAMES[:24], (*NAMES[:24], "zz"), (*LETTERS, *NAMES[14:24]))))
    ext = {name: rng.choice(TEXTS) for name in rng.sample(names, rng.randrange(1, 13))}
    body = rng.choice((b"", b"body", bytes(range(256))))
    command = RemotingCommand(rng.choice((10, 11, 310, 320)), ext, body, serialize=rng.choice((JSON, JSON, BINARY)))
    sign(command, rng.choice(("user", "é", 'us"er')), "secret-" + "x" * rng.choice((1, 100)))
    change = rng.choice(("nothing", "nothing", "order", "field", "twice", "signature", "none", "number", "body"))
    fields = dict(command.ext)
    if change == "order":
        fields = dict(rng.sample(list(fields.items()), len(fields)))
    elif change == "field":
        fields[rng.choice(list(ext))] += "!"
    elif change == "signature":
        fields[SIGNATURE] = rng.choice(
            ("", "x", fields[SIGNATURE][:-1], "A" + fields[SIGNATURE], fields[SIGNATURE].lower())
        )
    elif change == "none":
        del fields[rng.choice((SIGNATURE, ACCESS_KEY))]
    sent = RemotingCommand(command.code, fields, body, serialize=command.serialize)
    header = remoting.encode(sent)[8 : len(remoting.encode(sent)) - len(body)]
    if sent.serialize == JSON and change == "twice":
        name = rng.choice(list(fields))
        header = header.replace(b'"extFields":{', b'"extFields":{%s:"other",' % json.dumps(name).encode(), 1)
    elif sent.serialize == JSON and change == "number":
        header = header.replace(b'"12"', b"12").replace(b'"true"', b"true")
    if sent.serialize == JSON and rng.random() < 0.3:  # escapes as other writers have them
        header = header.replace(b"/", b"\\/")
    return (
        sent.serialize,
        header,
        body + (b"!" if change == "body" else b""),
        change in ("field", "signature", "none", "body"),
    )


@settings(max_examples=TIMES * 1_250, derandomize=True)
@given(st.integers(0, 2**63))
def test_what_a_signature_covers_is_the_same_as_in_the_decoded_request(seed: int) -> None:
    rng = random.Random(seed)
    kind, header, body, changed = a_signed_header(rng)
    for secret in ("secret-" + "x" * 100, "secret-x", "another"):
        assert not (_signed_as_decoded(kind, header, body, secret) and changed)


def test_the_usual_requests_are_proven_without_being_decoded() -> None:
    proven = 0
    for seed in range(2_000):
        kind, header, body, _ = a_signed_header(random.Random(seed))
        proven += True in [_signed_as_decoded(kind, header, body, "secret-" + "x" * n) for n in (1, 100)]
    assert proven > 200
