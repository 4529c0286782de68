"""What an NSQ daemon answers, as data: the recorded answers of nsqd 1.3.0 and, where we answer something else on purpose,
both.

Frames are written as text: "R OK" (response), "E E_INVALID …" (error), "M <attempts> <body>" (message).
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple


class Row(NamedTuple):
    """`sent` follows the magic. `reference`: what nsqd answers instead, and whether it closes."""

    name: str
    sent: bytes
    frames: list[str]
    closed: bool = True
    magic: bytes = b"  V2"
    reference: tuple[list[str], bool] | None = None
    ends: bool = False  # the client ends its side after what it sent


def sized(data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(data) if size is None else size) + data


def identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def pub(topic: str, data: bytes = b"body", size: int | None = None) -> bytes:
    return b"PUB %s\n" % topic.encode() + sized(data, size)


def mpub(topic: str, *bodies: bytes, count: int | None = None, size: int | None = None) -> bytes:
    data = struct.pack(">i", len(bodies) if count is None else count) + b"".join(sized(body) for body in bodies)
    return b"MPUB %s\n" % topic.encode() + sized(data, size)


def sub(channel: str) -> bytes:
    return b"SUB answers %s\n" % channel.encode()


ID = "0123456789abcdef"
OK = "R OK"

# nsqd started with max-msg-size 1000 and max-body-size 2000.
SMALL = [
    Row("wrong magic", b"", ["E E_BAD_PROTOCOL"], magic=b"  V9"),
    Row("http", b"", ["E E_BAD_PROTOCOL"], magic=b"GET / HTTP/1.1\r\n\r\n"),
    Row("unknown command", b"FOO\n", ["E E_INVALID invalid command FOO"]),
    Row("unknown command with words", b"FOO a b\n", ["E E_INVALID invalid command FOO"]),
    Row("lower case", b"pub t\n", ["E E_INVALID invalid command pub"]),
    Row("empty line", b"\n", ["E E_INVALID invalid command "]),
    Row("too long a line", b"X" * 20_000 + b"\n", []),
    Row("too long a line without an end", b"X" * 20_000, []),
    Row(
        "a line of 5000", b"X" * 5_000 + b"\n", [], reference=(["E E_INVALID invalid command " + "X" * 5_000], True)
    ),
    Row("identify", b"IDENTIFY\n" + sized(b"{}"), [OK], closed=False),
    Row("identify twice", (b"IDENTIFY\n" + sized(b"{}")) * 2, [OK, OK], closed=False),
    Row("identify with fields of old clients", identify(short_id="a", long_id="b", x=1), [OK], closed=False),
    Row(
        "identify junk", b"IDENTIFY\n" + sized(b"{"), ["E E_BAD_BODY IDENTIFY failed to decode JSON body"]
    ),
    Row("identify a list", b"IDENTIFY\n" + sized(b"[]"), ["E E_BAD_BODY IDENTIFY failed to decode JSON body"]),
    Row(
        "identify wrong types", identify(heartbeat_interval="x"), ["E E_BAD_BODY IDENTIFY failed to decode JSON body"]
    ),
    Row("identify size 0", b"IDENTIFY\n" + sized(b""), ["E E_BAD_BODY IDENTIFY invalid body size 0"]),
    Row("identify size -1", b"IDENTIFY\n" + sized(b"", -1), ["E E_BAD_BODY IDENTIFY invalid body size -1"]),
    Row("identify size 2001", b"IDENTIFY\n" + sized(b"", 2001), ["E E_BAD_BODY IDENTIFY body too big 2001 > 2000"]),
    *(
        Row(f"identify {field} {value}", identify(**{field: value}), [f"E E_BAD_BODY IDENTIFY {words} ({value}) is invalid"])
        for field, words, value in (
            ("heartbeat_interval", "heartbeat interval", 999),
            ("heartbeat_interval", "heartbeat interval", 60001),
            ("heartbeat_interval", "heartbeat interval", 1),
            ("heartbeat_interval", "heartbeat interval", -2),
            ("output_buffer_timeout", "output buffer timeout", 24),
            ("output_buffer_timeout", "output buffer timeout", 30001),
            ("output_buffer_size", "output buffer size", 63),
            ("output_buffer_size", "output buffer size", 65537),
            ("sample_rate", "sample rate", 100),
            ("sample_rate", "sample rate", -1),
            ("msg_timeout", "msg timeout", 999),
            ("msg_timeout", "msg timeout", 900001),
        )
    ),
    *(
        Row(f"identify {field} {value}", identify(**{field: value}), [OK], closed=False)
        for field, value in (
            ("heartbeat_interval", 1000),
            ("heartbeat_interval", 60000),
            ("heartbeat_interval", -1),
            ("output_buffer_timeout", 25),
            ("output_buffer_timeout", -1),
            ("output_buffer_size", 64),
            ("output_buffer_size", 65536),
            ("output_buffer_size", -1),
            ("sample_rate", 99),
            ("msg_timeout", 1000),
            ("msg_timeout", 900000),
            ("deflate_level", 99),
        )
    ),
    Row(
        "identify both compressions",
        identify(feature_negotiation=True, deflate=True, snappy=True),
        ["E E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"],
    ),
    Row(
        "identify after sub",
        sub("i") + b"IDENTIFY\n" + sized(b"{}"),
        [OK, "E E_INVALID cannot IDENTIFY in current state"],
    ),
    Row("sub without a channel", b"SUB a\n", ["E E_INVALID SUB insufficient number of parameters"]),
    Row("sub a bad topic", b"SUB a$ b\n", ['E E_BAD_TOPIC SUB topic name "a$" is not valid']),
    Row("sub a bad channel", b"SUB a b$\n", ['E E_BAD_CHANNEL SUB channel name "b$" is not valid']),
    Row("sub a bad channel with a slash", b"SUB a a/b\n", ['E E_BAD_CHANNEL SUB channel name "a/b" is not valid']),
    Row(
        "sub a long topic",
        b"SUB " + b"a" * 65 + b" b\n",
        [f'E E_BAD_TOPIC SUB topic name "{"a" * 65}" is not valid'],
    ),
    Row(
        "sub without heartbeats",
        identify(heartbeat_interval=-1) + sub("h"),
        [OK, "E E_INVALID cannot SUB with heartbeats disabled"],
    ),
    Row("sub twice", sub("t") * 2, [OK, "E E_INVALID cannot SUB in current state"]),
    Row("sub with another word", b"SUB answers w x\n", [OK], closed=False),
    Row("rdy of no digits", sub("r") + b"RDY \n", [OK], closed=False),
    Row("rdy before sub", b"RDY 1\n", ["E E_INVALID cannot RDY in current state"]),
    *(
        Row(f"rdy {word}", sub("r") + b"RDY %s\n" % word.encode(), [OK, f"E E_INVALID RDY could not parse count {word}"])
        for word in ("x", "-1", "+5", "1_0", "0x10", "1.0", "٣")
    ),
    Row("rdy 2501", sub("r") + b"RDY 2501\n", [OK, "E E_INVALID RDY count 2501 out of range 0-2500"]),
    Row("rdy 2500", sub("r") + b"RDY 2500\n", [OK], closed=False),
    Row("rdy 0", sub("r") + b"RDY 0\n", [OK], closed=False),
    Row("rdy alone means 1", sub("r") + b"RDY\n", [OK], closed=False),
    Row("fin before sub", b"FIN %s\n" % ID.encode(), ["E E_INVALID cannot FIN in current state"]),
    Row("fin a short id", sub("f") + b"FIN 0\n", [OK, "E E_INVALID invalid message ID"]),
    Row("fin a long id", sub("f") + b"FIN 0123456789abcdef0\n", [OK, "E E_INVALID invalid message ID"]),
    Row(
        "fin unknown",
        sub("f") + b"FIN %s\n" % ID.encode(),
        [OK, f"E E_FIN_FAILED FIN {ID} failed ID not in flight"],
        closed=False,
    ),
    Row(
        "fin an id that is no number",
        sub("f") + b"FIN zzzzzzzzzzzzzzzz\n",
        [OK, "E E_FIN_FAILED FIN zzzzzzzzzzzzzzzz failed ID not in flight"],
        closed=False,
    ),
    Row("fin alone", sub("f") + b"FIN\n", [OK, "E E_INVALID FIN insufficient number of params"]),
    Row(
        "req unknown",
        sub("q") + b"REQ %s 0\n" % ID.encode(),
        [OK, f"E E_REQ_FAILED REQ {ID} failed ID not in flight"],
        closed=False,
    ),
    Row("req before sub", b"REQ %s 0\n" % ID.encode(), ["E E_INVALID cannot REQ in current state"]),
    Row("req without time", sub("q") + b"REQ %s\n" % ID.encode(), [OK, "E E_INVALID REQ insufficient number of params"]),
    Row(
        "req of no digits",
        sub("q") + b"REQ %s \n" % ID.encode(),
        [OK, f"E E_REQ_FAILED REQ {ID} failed ID not in flight"],
        closed=False,
    ),
    Row("req -1", sub("q") + b"REQ %s -1\n" % ID.encode(), [OK, "E E_INVALID REQ could not parse timeout -1"]),
    Row("req a short id", sub("q") + b"REQ 0 0\n", [OK, "E E_INVALID invalid message ID"]),
    Row(
        "touch unknown",
        sub("u") + b"TOUCH %s\n" % ID.encode(),
        [OK, f"E E_TOUCH_FAILED TOUCH {ID} failed ID not in flight"],
        closed=False,
    ),
    Row("touch alone", sub("u") + b"TOUCH\n", [OK, "E E_INVALID TOUCH insufficient number of params"]),
    Row("touch before sub", b"TOUCH %s\n" % ID.encode(), ["E E_INVALID cannot TOUCH in current state"]),
    Row("cls before sub", b"CLS\n", ["E E_INVALID cannot CLS in current state"]),
    Row(
        "cls and after",
        sub("l") + b"CLS\nRDY 1\nFIN %s\nCLS\n" % ID.encode(),
        [OK, "R CLOSE_WAIT", f"E E_FIN_FAILED FIN {ID} failed ID not in flight", "E E_INVALID cannot CLS in current state"],
    ),
    Row("nop", b"NOP\n", [], closed=False),
    Row("pub alone", b"PUB\n", ["E E_INVALID PUB insufficient number of parameters"]),
    *(
        Row(f"pub topic {topic[-20:]} of {len(topic)}", pub(topic), [f'E E_BAD_TOPIC PUB topic name "{topic}" is not valid'])
        for topic in ("a$", "a/b", "../x", "t" * 65, "#ephemeral", "t" * 55 + "#ephemeral", "t#other", "é", "a#")
    ),
    Row("pub topic with a zero", pub("a\0"), ['E E_BAD_TOPIC PUB topic name "a\\x00" is not valid']),
    Row("pub an empty topic", pub(""), ['E E_BAD_TOPIC PUB topic name "" is not valid']),
    *(
        Row(f"pub topic {topic[-20:]} of {len(topic)}", pub(topic), [OK], closed=False)
        for topic in ("..", ".", "t" * 64, "t#ephemeral", "t" * 54 + "#ephemeral", "-", "_.-")
    ),
    Row("pub t#tmp", pub("t#tmp"), [OK], closed=False, reference=(['E E_BAD_TOPIC PUB topic name "t#tmp" is not valid'], True)),
    Row("pub another word", b"PUB a b\n" + sized(b"x"), [OK], closed=False),
    Row("pub size 0", pub("a", b""), ["E E_BAD_MESSAGE PUB invalid message body size 0"]),
    Row("pub size -1", pub("a", b"", -1), ["E E_BAD_MESSAGE PUB invalid message body size -1"]),
    Row("pub size 1001", pub("a", b"", 1001), ["E E_BAD_MESSAGE PUB message too big 1001 > 1000"]),
    Row("pub size 1000", pub("a", bytes(1000)), [OK], closed=False),
    Row("pub with a carriage return", b"PUB a\r\n" + sized(b"x"), [OK], closed=False),
    Row("pub cut short", pub("a", b"half", 8), ["E E_BAD_MESSAGE PUB failed to read message body"], ends=True),
    Row("mpub", mpub("a", b"x", b"y", b"z"), [OK], closed=False),
    Row("mpub alone", b"MPUB\n", ["E E_INVALID MPUB insufficient number of parameters"]),
    Row("mpub a bad topic", mpub("a/b", b"x"), ['E E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a/b" is not valid']),
    Row("mpub size 0", mpub("a", size=0), ["E E_BAD_BODY MPUB invalid body size 0"]),
    Row("mpub size -1", mpub("a", size=-1), ["E E_BAD_BODY MPUB invalid body size -1"]),
    Row("mpub size 2001", mpub("a", size=2001), ["E E_BAD_BODY MPUB body too big 2001 > 2000"]),
    Row("mpub count 0", mpub("a", count=0), ["E E_BAD_BODY MPUB invalid message count 0"]),
    Row("mpub count -1", mpub("a", count=-1), ["E E_BAD_BODY MPUB invalid message count -1"]),
    Row("mpub count 100000", mpub("a", count=100_000), ["E E_BAD_BODY MPUB invalid message count 100000"]),
    Row("mpub count 2^31-1", mpub("a", count=2**31 - 1), ["E E_BAD_BODY MPUB invalid message count 2147483647"]),
    Row("mpub an empty message", mpub("a", b""), ["E E_BAD_MESSAGE MPUB invalid message(0) body size 0"]),
    Row("mpub a second empty message", mpub("a", b"x", b""), ["E E_BAD_MESSAGE MPUB invalid message(1) body size 0"]),
    Row("mpub a message too big", mpub("a", bytes(1001)), ["E E_BAD_MESSAGE MPUB message too big 1001 > 1000"]),
    Row(
        "mpub parts longer than the body",
        mpub("a", b"x" * 50, b"y" * 50, size=20),
        ["E E_BAD_BODY MPUB invalid body size 20"],
        reference=([OK], False),
    ),
    Row(
        "mpub parts shorter than the body",
        mpub("a", b"x", size=49) + b"NOP\n" * 10,
        ["E E_BAD_BODY MPUB invalid body size 49"],
        reference=([OK], False),
    ),
    Row("dpub", b"DPUB a 1\n" + sized(b"x"), [OK], closed=False),
    Row("dpub 0", b"DPUB a 0\n" + sized(b"x"), [OK], closed=False),
    Row("dpub 3600000", b"DPUB later#ephemeral 3600000\n" + sized(b"x"), [OK], closed=False),
    Row("dpub of no digits", b"DPUB a \n" + sized(b"x"), [OK], closed=False),
    Row("dpub without time", b"DPUB a\n", ["E E_INVALID DPUB insufficient number of parameters"]),
    *(
        Row(f"dpub {word}", b"DPUB a %s\n" % word.encode(), [f"E E_INVALID DPUB could not parse timeout {word}"])
        for word in ("x", "-1", "abc")
    ),
    Row("dpub 3600001", b"DPUB a 3600001\n", ["E E_INVALID DPUB timeout 3600001 out of range 0-3600000"]),
    Row("dpub a bad topic", b"DPUB a$ 1\n" + sized(b"x"), ['E E_BAD_TOPIC DPUB topic name "a$" is not valid']),
    Row("dpub size 0", b"DPUB a 1\n" + sized(b""), ["E E_BAD_MESSAGE DPUB invalid message body size 0"]),
    Row("dpub size 1001", b"DPUB a 1\n" + sized(b"", 1001), ["E E_BAD_MESSAGE DPUB message too big 1001 > 1000"]),
    Row("auth when it is off", b"AUTH\n" + sized(b"secret"), ["E E_AUTH_DISABLED AUTH disabled"]),
    Row("auth with a word", b"AUTH x\n" + sized(b"secret"), ["E E_INVALID AUTH invalid number of parameters"]),
    Row("auth after sub", sub("a") + b"AUTH\n" + sized(b"x"), [OK, "E E_INVALID cannot AUTH in current state"]),
    Row("auth size 0", b"AUTH\n" + sized(b""), ["E E_BAD_BODY AUTH invalid body size 0"]),
    Row("auth size 2001", b"AUTH\n" + sized(b"", 2001), ["E E_BAD_BODY AUTH body too big 2001 > 2000"]),
    Row(
        "one connection does both",
        b"SUB both c\n" + pub("both", b"hello") + b"RDY 1\n",
        [OK, OK, "M 1 hello"],
        closed=False,
    ),
    Row("many publishes in one piece", pub("a", b"x") * 50, [OK] * 50, closed=False),
    Row("ok before the error", pub("a") + b"FOO\n" + pub("a"), [OK, "E E_INVALID invalid command FOO"]),
]  # fmt: skip

# Nothing set: a message may have 1 MiB, a body 5 MiB.
LARGE = [
    Row("pub size 1048577", pub("a", b"", 1048577), ["E E_BAD_MESSAGE PUB message too big 1048577 > 1048576"]),
    Row("pub size 1048576", pub("a", bytes(1048576)), [OK], closed=False),
    Row("mpub size 6 MiB", mpub("a", size=6 << 20), ["E E_BAD_BODY MPUB body too big 6291456 > 5242880"]),
    Row(
        "mpub a message too big",
        mpub("a", b"x", bytes(1048577)),
        ["E E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"],
    ),
    Row(
        "identify size 6 MiB",
        b"IDENTIFY\n" + sized(b"", 6 << 20),
        ["E E_BAD_BODY IDENTIFY body too big 6291456 > 5242880"],
    ),
]

# An auth server that knows "good" (subscribe to t, channel c; publish to t), "none" (nothing) and nobody else.
AUTH = [
    Row("sub first", b"SUB t c\n", ["E E_AUTH_FIRST AUTH required before SUB"]),
    Row("pub first", pub("t"), ["E E_AUTH_FIRST AUTH required before PUB"]),
    Row("mpub first", mpub("t", b"x"), ["E E_AUTH_FIRST AUTH required before MPUB"]),
    Row("dpub first", b"DPUB t 1\n" + sized(b"x"), ["E E_AUTH_FIRST AUTH required before DPUB"]),
    Row(
        "and nothing more",
        b"AUTH\n" + sized(b"good"),
        ['R {"identity":"me","identity_url":"","permission_count":1}'],
        ends=True,
    ),
    Row("wrong secret", b"AUTH\n" + sized(b"wrong"), ["E E_AUTH_FAILED AUTH failed"]),
    Row("no rights", b"AUTH\n" + sized(b"none"), ["E E_UNAUTHORIZED AUTH no authorizations found"]),
    Row(
        "twice",
        (b"AUTH\n" + sized(b"good")) * 2,
        ['R {"identity":"me","identity_url":"","permission_count":1}', "E E_INVALID AUTH already set"],
    ),
    Row(
        "another topic",
        b"AUTH\n" + sized(b"good") + pub("other"),
        ['R {"identity":"me","identity_url":"","permission_count":1}', 'E E_UNAUTHORIZED AUTH failed for PUB on "other" ""'],
    ),
    Row(
        "another channel",
        b"AUTH\n" + sized(b"good") + b"SUB t d\n",
        ['R {"identity":"me","identity_url":"","permission_count":1}', 'E E_UNAUTHORIZED AUTH failed for SUB on "t" "d"'],
    ),
    Row(
        "what is granted",
        b"AUTH\n" + sized(b"good") + b"SUB t c\n" + pub("t", b"yes") + b"RDY 1\n",
        ['R {"identity":"me","identity_url":"","permission_count":1}', OK, OK, "M 1 yes"],
        closed=False,
    ),
]  # fmt: skip
