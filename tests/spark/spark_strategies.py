"""Random records for Hypothesis."""

from __future__ import annotations

import zlib
from typing import Any

from hypothesis import strategies as st
from spark_records import Record

name = st.binary(min_size=0, max_size=9).filter(lambda b: 1 not in b and 2 not in b)
pair = st.one_of(
    st.tuples(name, st.binary(max_size=12).filter(lambda b: 2 not in b)).map(b"\1".join),
    st.tuples(
        st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"KEYSX", b"TAG"]),
        st.sampled_from([b"", b"a", b"a b", b" a  b ", b"TagA", "grün".encode()]),
    ).map(b"\1".join),
    st.binary(max_size=4).filter(lambda b: 2 not in b),
)
properties = st.tuples(st.lists(pair, max_size=5).map(b"\2".join), st.sampled_from([b"", b"\2"])).map(b"".join)
host = st.tuples(
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.integers(0, 99999)
)


@st.composite
def records(draw: Any) -> list[Record]:
    made = []
    for offset in range(draw(st.integers(0, 12))):
        packed = draw(st.booleans())
        body = draw(st.binary(max_size=40))
        made.append(
            Record(
                offset=offset + 100,
                body=zlib.compress(body) if packed else body,
                sys_flag=int(packed) | draw(st.sampled_from([0, 2, 4])),
                queue_id=draw(st.integers(0, 7)),
                topic=draw(st.sampled_from([b"t", b"orders", b"%RETRY%g", b"x" * 127])),
                properties=draw(properties),
                flag=draw(st.integers(-(2**31), 2**31 - 1)),
                physical=draw(st.integers(0, 2**62)),
                born_ms=draw(st.integers(0, 2**63 - 1)),
                born=draw(host),
                store=draw(host),
                reconsumed=draw(st.integers(0, 99)),
                crc=draw(st.sampled_from([None, 7])),
            )
        )
    return made
