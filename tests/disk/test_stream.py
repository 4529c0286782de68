"""Stream: what a cursor asks, and one message at a time in attributes."""

from __future__ import annotations

import pytest

from penstock.delivery.source import MemorySource
from penstock.disk.stream import MessageView, Stream
from penstock.wire.nsq import message_data


def test_the_body_of_what_is_shown_is_a_copy() -> None:
    source = MemorySource(3, None)
    assert isinstance(source, MessageView)
    source.put([message_data(1, 0, 1, b"one"), message_data(2, 0, 2, b"")])
    source.take()
    body = source.body()
    source.take()
    assert (body, source.body(), source.length) == (b"one", b"", 0)


def test_a_stream_answers_every_question_itself() -> None:
    stream = Stream()
    for ask in (stream.begin, stream.end, lambda: stream.next(0), lambda: stream.count(0), lambda: stream.find(0)):
        with pytest.raises(NotImplementedError):
            ask()
