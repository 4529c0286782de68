"""`wire.remoting`: frames in any cutting, lenient reading, strict writing, and nothing but WireError for junk."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.wire.remoting import BINARY, JSON, CommandParser, RemotingCommand, decode, encode

ROUTE_BINARY = bytes.fromhex("0069000199000000000000000000000000000000130005746f70696300000008436170546f706963")


def frame(header: bytes, body: bytes = b"", serialize: int = JSON) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + (serialize << 24 | len(header)).to_bytes(4, "big")
        + header
        + body
    )


def test_golden_binary_route_request() -> None:
    command = decode(BINARY, ROUTE_BINARY)
    assert (command.code, command.language, command.version, command.opaque) == (105, 0, 409, 0)
    assert command.ext == {"topic": "CapTopic"}
    written = RemotingCommand(105, {"topic": "CapTopic"}, language=0, serialize=BINARY)
    assert encode(written) == frame(ROUTE_BINARY, serialize=BINARY)


def test_golden_mixed_header_of_the_cpp_client() -> None:
    header = (
        rb'{"code":10,"extFields":{"batch":"0","defaultTopicQueueNums":4,"queueId":0,"bornTimestamp":"1795182853382",'
        rb'"unitMode":false,"x":null,"properties":"KEYS\u0001k0\u0002TAGS\u0001T\u0002WAIT\u0001true\u0002"},'
        rb'"flag":0,"language":"CPP","opaque":-7,"remark":null,"version":63}' + b"\n"
    )
    command = decode(JSON, header)
    assert command.ext["defaultTopicQueueNums"] == "4"
    assert command.ext["unitMode"] == "false"
    assert "x" not in command.ext
    assert command.ext["properties"] == "KEYS\x01k0\x02TAGS\x01T\x02WAIT\x01true\x02"
    assert (command.language, command.opaque, command.version) == (1, -7, 63)


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (b'{"code":1,"language":"COBOL"}', 7),
        (b'{"code":1,"language":9}', 9),
        (b'{"code":1,"language":99}', 7),
        (b"{}", 7),
    ],
)
def test_languages(header: bytes, language: int) -> None:
    assert decode(JSON, header).language == language


def test_ext_values_that_are_objects_become_text() -> None:
    assert decode(JSON, b'{"code":1,"extFields":{"a":{"b":[1]},"c":1.5}}').ext == {"a": '{"b":[1]}', "c": "1.5"}


def test_written_json_is_strict() -> None:
    import json

    raw = encode(RemotingCommand(0, {"queueId": "1"}, b"B", opaque=3, flag=1, remark="r", language=0))
    header = json.loads(raw[8:-1])
    assert header == {
        "code": 0,
        "extFields": {"queueId": "1"},
        "flag": 1,
        "language": "JAVA",
        "opaque": 3,
        "remark": "r",
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }


texts = st.text(max_size=20)
commands = st.builds(
    RemotingCommand,
    st.integers(-(2**15), 2**15 - 1),
    st.dictionaries(texts, texts, max_size=5),
    st.binary(max_size=50),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | st.text(min_size=1, max_size=20),
    language=st.integers(0, 12),
    version=st.integers(0, 1000),
    serialize=st.sampled_from([JSON, BINARY]),
)


@given(st.lists(commands, max_size=5), st.randoms())
def test_cutting(sent: list[RemotingCommand], rnd: random.Random) -> None:
    stream = b"".join(map(encode, sent))
    assert CommandParser().feed(stream) == sent
    parser = CommandParser()
    assert [c for i in range(len(stream)) for c in parser.feed(stream[i : i + 1])] == sent
    parser, got, at = CommandParser(), [], 0
    while at < len(stream):
        step = rnd.randint(1, 40)
        got += parser.feed(memoryview(stream)[at : at + step])
        at += step
    assert got == sent
    assert parser.pending_bytes == 0


@given(st.lists(commands, max_size=5), st.integers(0, 1 << 32))
def test_received_in_place(sent: list[RemotingCommand], seed: int) -> None:
    """Bytes that are received where the parser has room for them, in any portions, mixed with some that are fed."""
    rnd, large = random.Random(seed), RemotingCommand(7, body=bytes(range(256)) * 1_000)
    sent = [*sent, large, *sent]
    stream = b"".join(map(encode, sent))
    parser, got, at = CommandParser(), [], 0
    while at < len(stream):
        room = parser.room()
        assert len(room) >= 1_000
        size = min(rnd.choice([1, 3, 7, 100, 5_000, 200_000]), len(room), len(stream) - at)
        if rnd.random() < 0.2:
            got += parser.feed(stream[at : at + size])
        else:
            room[:size] = stream[at : at + size]
            got += parser.came(size)
        at += size
    assert got == sent
    assert parser.pending_bytes == 0


def test_room_grows_with_what_has_come_and_is_given_back() -> None:
    """A length that no bytes follow makes no room; a large frame's buffer is not kept."""
    parser = CommandParser()
    stream = encode(RemotingCommand(1, body=bytes(8 << 20)))
    parser.feed(stream[:8])
    assert len(parser.room()) < 200_000
    at, most = 8, 0
    while at < len(stream):
        room = parser.room()
        most = max(most, len(room))
        assert len(room) <= max(200_000, 2 * at)
        size = min(len(room), len(stream) - at)
        room[:size] = stream[at : at + size]
        found = parser.came(size)
        at += size
    assert len(found[0].body) == 8 << 20
    assert most < len(stream)
    assert len(parser.room()) < 200_000


def feed_cut(data: bytes, step: int) -> tuple[list[RemotingCommand], bool]:
    parser, got = CommandParser(), []
    try:
        for at in range(0, len(data), step):
            got += parser.feed(data[at : at + step])
    except WireError:
        pass
    return got, parser.error is not None


junk = st.binary(max_size=200) | st.builds(
    lambda header, body, kind: encode(RemotingCommand(1)) + frame(header, body, kind),
    st.binary(max_size=80) | st.from_regex(rb'\{("[a-z]*":("a"|[0-9]*|\{|\[|null),?)*\}', fullmatch=True),
    st.binary(max_size=20),
    st.integers(0, 3),
)


@given(junk)
@example(frame(b'{"code":1,"extFields":{"a":"\\ud800"}}'))
@example(frame(b'{"code":1,"extFields":{"a":1e999}}'))
@example(frame(b'{"code":1,"extFields":{"a":' + b"9" * 5000 + b"}}"))
@example(frame(b'{"code":1,"remark":"\xff"}'))
@settings(max_examples=400)
def test_any_bytes_give_commands_or_wire_error(data: bytes) -> None:
    whole = feed_cut(data, max(1, len(data)))
    assert whole == feed_cut(data, 1) == feed_cut(data, 7)


@pytest.mark.parametrize(
    "data",
    [
        *[n.to_bytes(4, "big") + b"\0" * 12 for n in (0, 1, 2, 3, 16_777_217, 2**32 - 1)],
        (20).to_bytes(4, "big") + (17).to_bytes(4, "big") + b"x" * 16,
        frame(b"{}", serialize=2),
        frame(b"{}", serialize=255),
        frame(b"junk", serialize=1),
        frame(ROUTE_BINARY + b"x", serialize=1),
        frame(b"not json"),
        frame(b""),
        frame(b"null"),
        frame(b"[]"),
        frame(b'{"code":"105"}'),
        frame(b'{"code":99999999999}'),
        frame(b'{"code":1,"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
        frame(b'{"x":' * 20_000),
        frame(b'{"code":1,"x":' + b"[" * 33 + b"]" * 33 + b"}"),
        frame(b'{"code":1,"extFields":{' + b",".join(b'"k%d":"v"' % i for i in range(257)) + b"}}"),
        frame(b'{"a":"' + b"x" * 65_536 + b'"}'),
        frame(b'"' + b'\\"' * 30_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_refused_frames(data: bytes) -> None:
    parser = CommandParser()
    with pytest.raises(WireError):
        parser.feed(data)
    with pytest.raises(WireError):
        parser.feed(encode(RemotingCommand(1)))


def test_brackets_in_strings_are_not_depth() -> None:
    value = '[{"' * 200
    command = RemotingCommand(1, {"properties": value})
    assert CommandParser().feed(encode(command)) == [command]


def test_commands_before_the_junk_are_given_first() -> None:
    parser = CommandParser()
    good = RemotingCommand(34, opaque=1)
    assert parser.feed(encode(good) + b"\0\0\0\0") == [good]
    with pytest.raises(WireError):
        parser.feed(b"")


def test_a_promised_length_allocates_nothing() -> None:
    parser = CommandParser()
    parser.feed((16_777_216).to_bytes(4, "big") + (2).to_bytes(4, "big"))
    assert parser.pending_bytes == 8


def test_reply_keeps_opaque_and_type() -> None:
    request = RemotingCommand(105, opaque=77, serialize=BINARY)
    answer = request.reply(17, remark="no")
    assert (answer.opaque, answer.serialize, answer.flag, answer.response, answer.oneway) == (
        77,
        BINARY,
        1,
        True,
        False,
    )
