"""Committed offsets: at the brokers, or in a file of this machine."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from client.scripted import QUEUE, scripted
from penstock.client.aio.offsets import BrokerOffsets, FileOffsets
from penstock.wire.codes import RequestCode, ResponseCode

OTHER = QUEUE._replace(queue_id=1)


async def test_at_the_broker() -> None:
    async with scripted() as script:
        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
            command.reply(ext={"offset": "7"})
            if command.ext["queueId"] == "0"
            else command.reply(ResponseCode.QUERY_NOT_FOUND)
        )
        offsets = BrokerOffsets(script.cluster, "G")
        await offsets.open()
        assert (await offsets.get(QUEUE), await offsets.get(OTHER)) == (7, None)
        await offsets.commit(OTHER, 9)
        last = script.asked[-1]
        assert (last.code, last.ext["commitOffset"]) == (RequestCode.UPDATE_CONSUMER_OFFSET, "9")


async def test_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "groups" / "G.json"
    offsets = FileOffsets(path)
    await offsets.open()
    assert await offsets.get(QUEUE) is None
    await asyncio.gather(offsets.commit(QUEUE, 5), offsets.commit(OTHER, 6), offsets.commit(QUEUE, 7))
    again = FileOffsets(path)
    await again.open()
    assert (await again.get(QUEUE), await again.get(OTHER)) == (7, 6)
    assert json.loads(path.read_text())["offsetTable"] == {"T@a@0": 7, "T@a@1": 6}


async def test_a_file_that_cannot_be_written_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    offsets = FileOffsets(tmp_path / "file" / "G.json")
    with caplog.at_level(logging.ERROR, "penstock.client"):
        await offsets.commit(QUEUE, 5)
    assert "offsets not kept" in caplog.text
    assert await offsets.get(QUEUE) == 5
