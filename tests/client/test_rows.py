"""What is taken for a row of each kind: all that is printed of it is there, and nothing is null where it must not be."""

from __future__ import annotations

import pytest
from msgspec.inspect import TypedDictType, type_info

from client.scripted import CHANNEL, CLIENT, DELAYED, MESSAGE, TOPIC
from penstock.client import rows
from penstock.client.routes import Json
from penstock.client.rows import rows_of
from penstock.errors import WireError

NODE = {"node": "n", "role": "master", "epoch": 1, "written": 5, "in_sync": "yes", "id": 0}
EVERY: list[tuple[type, Json]] = [
    (rows.TopicRow, TOPIC), (rows.MessageRow, MESSAGE), (rows.DelayedRow, DELAYED), (rows.ClientRow, CLIENT),
    (rows.ChannelRow, CHANNEL), (rows.PurgedRow, {"queue": 0, "messages": 1}), (rows.NodeRow, NODE),
    (rows.RedrivenRow, {"id": "1", "offset": 0, "to": "t"}), (rows.ChangeRow, {"effect": "now"}),
    (rows.KnownRow, {"address": "", "engine": True}),
]  # fmt: skip


def needed(shape: type) -> list[str]:
    found = type_info(shape)
    assert isinstance(found, TypedDictType)
    return [field.name for field in found.fields if field.required]


@pytest.mark.parametrize(("shape", "row"), EVERY)
def test_a_row_is_passed_on_as_it_came(shape: type, row: Json) -> None:
    newer = row | {"later": {"than": "this"}}
    assert rows_of([row, newer], shape) == [row, newer]
    assert rows_of([], shape) == []


def test_an_older_broker_does_not_tell_how_old_the_oldest_message_is() -> None:
    older = {name: value for name, value in CHANNEL.items() if name != "lagMillis"}
    assert rows_of([TOPIC | {"channels": [older]}], rows.TopicRow) == [TOPIC | {"channels": [older]}]


@pytest.mark.parametrize(("shape", "row"), EVERY)
def test_what_lacks_a_field_or_has_another_thing_in_it_is_no_row(shape: type, row: Json) -> None:
    for name in needed(shape):
        wrongs: list[object] = [{"a": 1}, b"", 1.5]
        if row[name] is not None:  # some may be null
            wrongs.append(None)
        for wrong in wrongs:
            with pytest.raises(WireError, match=f"no {shape.__name__}: "):
                rows_of([row, row | {name: wrong}], shape)
        with pytest.raises(WireError, match=f"missing required field `{name}`"):
            rows_of([{of: value for of, value in row.items() if of != name}], shape)


def test_fields_that_not_every_message_has_are_looked_at_too() -> None:
    for name, wrong in {"tags": None, "keys": [None], "properties": {"a": None}, "offset": "0", "due": "soon"}.items():
        with pytest.raises(WireError, match="no MessageRow: "):
            rows_of([MESSAGE | {name: wrong}], rows.MessageRow)
    without = {name: MESSAGE[name] for name in needed(rows.MessageRow)}
    assert rows_of([without, without | {"due": None}], rows.MessageRow) == [without, without | {"due": None}]


def test_a_channel_within_a_topic() -> None:
    for wrong in (None, "c", CHANNEL | {"depth": None}):
        with pytest.raises(WireError, match="no TopicRow: "):
            rows_of([TOPIC | {"channels": [wrong]}], rows.TopicRow)


@pytest.mark.parametrize("wrong", [None, {}, "rows", [None], ["row"], [[]]])
def test_what_is_no_list_of_rows(wrong: object) -> None:
    with pytest.raises(WireError, match="no ClientRow: "):
        rows_of(wrong, rows.ClientRow)
