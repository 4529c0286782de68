"""Layers: what one side closes the other opens, in any cutting; junk is an error and never another."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.fronts.nsq.layers import SNAPPY_IDENTIFIER, Deflate, Layer, Snappy


class Session:
    """A connection with nothing but layers."""

    def __init__(self) -> None:
        self.closing = False
        self.layers: list[Layer] = []

    def raw(self, data: bytes) -> None:
        """Bytes of a layer itself."""

    def wake(self) -> None:
        """There is something to be written."""


def pair(kind: str) -> tuple[Layer, Layer]:
    made = []
    for _ in range(2):
        session = Session()
        session.layers.append(Deflate(session, 6) if kind == "deflate" else Snappy(session))
        made.append(session.layers[0])
    return made[0], made[1]


@pytest.mark.parametrize("kind", ["deflate", "snappy"])
@given(pieces=st.lists(st.binary(max_size=300), max_size=5), at=st.integers(1, 50))
def test_there_and_back_in_any_cutting(kind: str, pieces: list[bytes], at: int) -> None:
    near, far = pair(kind)
    wire = b"".join(near.closed(piece) for piece in pieces)
    found = b"".join(inner for n in range(0, len(wire), at) for inner in far.opened(wire[n : n + at]))
    assert found == b"".join(pieces)


@pytest.mark.parametrize("kind", ["deflate", "snappy"])
@given(data=st.binary(max_size=200))
def test_junk_is_a_wire_error_or_bytes(kind: str, data: bytes) -> None:
    _, far = pair(kind)
    with contextlib.suppress(WireError):
        assert all(isinstance(piece, bytes) for piece in far.opened(data))


def test_one_layer_inside_another() -> None:
    near, far = Session(), Session()
    for session in (near, far):
        session.layers += [Snappy(session), Deflate(session, 6)]
    wire = near.layers[0].closed(near.layers[1].closed(b"inside"))
    assert wire.startswith(SNAPPY_IDENTIFIER)
    assert b"".join(far.layers[0].opened(wire)) == b"inside"


def test_a_snappy_chunk_larger_than_any() -> None:
    _, far = pair("snappy")
    with pytest.raises(WireError, match="a chunk of"):
        list(far.opened(SNAPPY_IDENTIFIER + b"\0\xff\xff\xff"))
    _, far = pair("snappy")
    with pytest.raises(WireError, match="of type 2"):
        list(far.opened(b"\x02\x01\0\0x"))
