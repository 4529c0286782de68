"""The file of the history: what was written is read, whatever else is there is set aside."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from penstock.broker.historyfile import HistoryFile, Saved, SavedTrack, chunk_of, raw
from penstock.disk.files import Files

CHUNK = array("f", [0.5, 2.0, 3.0])


def saved() -> Saved:
    track = SavedTrack(("group", "t", "g"), 7, raw({7: CHUNK, 9: CHUNK}), 400, {})
    return Saved([(1, 2), (5, 9)], [track])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = HistoryFile(Files(), tmp_path, 12)
    assert file.open(1_000) is None
    file.write(saved())
    file.write(saved())
    found = file.open(1_000)
    assert found == saved()
    assert found is not None
    assert chunk_of(found.tracks[0].minutes[9]) == CHUNK
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["history.bin"]


@pytest.mark.parametrize("spoil", ["a bit", "the end", "the head", "empty", "a chunk", "the size"])
def test_what_is_not_such_a_file_is_set_aside(tmp_path: Path, spoil: str) -> None:
    HistoryFile(Files(), tmp_path, 12).write(saved())
    path = tmp_path / "config" / "history.bin"
    data = path.read_bytes()
    path.write_bytes(
        {
            "a bit": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
            "the end": data[:-1],
            "the head": b"P" + data[1:],
            "empty": b"",
        }.get(spoil, data)
    )
    file = HistoryFile(Files(), tmp_path, 8 if spoil == "a chunk" else 12)
    assert file.open(10 if spoil == "the size" else 1_000) is None
    assert not path.exists()
    assert list((tmp_path / "lost+found").glob("*history.bin*"))
