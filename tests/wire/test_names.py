"""Names that the protocols share stand in one place, and the offsets of `wire.fields` fit them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.wire import fields, layout, names
from penstock.wire.record import BODY_BYTES_MAX, FIXED_BYTES, MAGIC, MAGIC_V2, PROPERTIES_BYTES_MAX
from penstock.wire.slots import NAMES

SRC = Path(names.__file__).parents[1]
OWN = {"wire/names.py", "disk/nsqdata.py"}  # disk lies below wire, and reads nsqd's own table
FACTS = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC, names.OP_TOPIC, names.RETRY_PREFIX,
         names.DEAD_PREFIX, names.TEMPLATE_TOPIC, *names.EPHEMERAL, names.NSQD_VERSION.encode())  # fmt: skip


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.decode())
def test_a_name_is_written_once(fact: bytes) -> None:
    quoted = re.compile(r"""["'(|]""" + re.escape(fact.decode()) + r"""["')|]""")
    found = [str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if quoted.search(path.read_text())]
    assert set(found) <= OWN


@pytest.mark.parametrize("name", [name for name in vars(fields) if name.endswith("_AT")])
def test_the_searched_properties_lie_where_their_offsets_say(name: str) -> None:
    at, size = getattr(fields, name), getattr(fields, name.replace("_AT", "_BYTES"))
    wanted = {
        "UNIQUE": names.UNIQUE_KEY, "HALF": names.HALF, "TIMER": names.TIMER_PREFIX, "SEQUENCE": names.SEQUENCE,
        "RESERVED": names.RESERVED_PREFIX,
    }  # fmt: skip
    word = name.removesuffix("_AT")
    assert names.SEARCHED[at : at + size].decode() == wanted.get(word, word)


@pytest.mark.parametrize(
    ("word", "name"),
    [(fields.TAGS_WORD, names.TAGS), (fields.KEYS_WORD, names.KEYS), (fields.SEQUENCE_WORD, names.SEQUENCE),
     (fields.UNIQUE_WORD, names.UNIQUE_KEY)],
)  # fmt: skip
def test_a_property_s_name_as_an_integer(word: int, name: str) -> None:
    assert word == int.from_bytes(name.encode())


def test_the_slots_are_the_scanners() -> None:
    assert len(NAMES) == fields.SLOTS
    assert NAMES[fields.QUEUE_ID] == "queueId"
    assert NAMES[fields.BATCH] == "batch"
    assert NAMES[fields.CONSUMER_GROUP] == "consumerGroup"
    assert NAMES[fields.SUSPEND_MS] == "suspendTimeoutMillis"
    assert NAMES[fields.BYTES_MAX] == "maxBytes"


def test_the_records_layout_is_the_codecs() -> None:
    assert (layout.MAGIC_V1, layout.MAGIC_V2) == (MAGIC, MAGIC_V2)
    assert layout.RECORD_FIXED_BYTES == FIXED_BYTES
    assert layout.BODY_BYTES_MAX == BODY_BYTES_MAX
    assert layout.PROPERTIES_BYTES_MAX == PROPERTIES_BYTES_MAX
