"""`wire.fastjson`: what Java writes is read, what we write Java reads."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.wire.fastjson import Pairs, check_depth, dumps, folded, loads

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "T"}


def test_java_dialect() -> None:
    assert loads(b'{0:"x",1:"y"}\n') == {"0": "x", "1": "y"}
    assert loads(b'{"0":"x"}') == {"0": "x"}
    assert loads(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}') == {
        "offsetTable": Pairs([(QUEUE, {"maxOffset": 5})])
    }
    assert loads(b'{"a" : [1, -2.5, true, null, {}, []]}') == {"a": [1, -2.5, True, None, {}, []]}


def test_names_as_go_finds_them() -> None:
    assert folded({"A": 1, "a": 2, "B": 3, "b": None, "c": None}) == {"a": 2, "b": 3, "c": None}


def test_written_for_java() -> None:
    assert dumps({"t": Pairs([(QUEUE, 5)])}) == b'{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
    assert dumps([{"t": Pairs([({"q": Pairs()}, [Pairs([(QUEUE, None)])])])}]) == (
        b'[{"t":{{"q":{}}:[{{"brokerName":"b","queueId":0,"topic":"T"}:null}]}}]'
    )
    assert dumps({0: "a"}) == b'{"0":"a"}'
    assert dumps({"g": {-5: {2**63 - 1: ("x",)}}}) == b'{"g":{"-5":{"9223372036854775807":["x"]}}}'
    with pytest.raises(TypeError):
        dumps({"a": object()})
    assert dumps([1, None, True, "x"]) == b'[1,null,true,"x"]'


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.lists(
            st.tuples(st.dictionaries(st.text(max_size=5), inner, max_size=2), inner), min_size=1, max_size=3
        ).map(Pairs)
    ),
    max_leaves=8,
)


@given(values)
def test_round_trip(value: object) -> None:
    assert loads(dumps(value)) == value


@given(st.binary(max_size=60) | st.text('{}[]:,"\\ 01ae-.', max_size=60).map(str.encode))
def test_any_bytes_give_a_value_or_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        loads(data)


@pytest.mark.parametrize(
    "data", [b"", b"{" * 100, b"[" * 33 + b"]" * 33, b"{0:}", b'{{"a":1}:2,"b":3}', b'"' + b'\\"' * 99_999]
)
def test_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        loads(data)


def deeper(data: bytes, most: int) -> bool:
    """Whether brackets outside strings are nested deeper, byte by byte."""
    depth, inside, escaped = 0, False, False
    for byte in data:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = not escaped and byte == ord("\\")
        elif byte == ord('"'):
            inside = True
        elif byte in b"{[":
            depth += 1
            if depth > most:
                return True
        elif byte in b"}]":
            depth -= 1
    return False


@given(st.text(alphabet='[]{}[]{}"",a\\', max_size=40), st.integers(1, 6))
def test_how_deep_it_is_nested_whatever_it_is(text: str, most: int) -> None:
    data = text.encode()
    wanted = deeper(data, most) and data.count(b"{") + data.count(b"[") > most
    try:
        check_depth(data, most)
    except WireError:
        assert wanted
    else:
        assert not wanted
