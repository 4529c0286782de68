"""The archive's state: saved, rebuilt from names, held by one run at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.routes import MessageQueue
from penstock.errors import Corrupt, Locked
from penstock.spark.pipelines import manifest
from penstock.spark.read.planning import Range

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_it_is_what_was_saved(tmp_path: Path) -> None:
    state = manifest.Manifest(tmp_path, "t", {Q0: 5, Q1: 0}, [Range(Q0, 5, 9), Range(Q1, 0, 3)])
    state.save()
    assert manifest.load(tmp_path, "t") == state


def test_a_lost_file_is_rebuilt_from_the_names(tmp_path: Path) -> None:
    for r in (Range(Q0, 0, 10), Range(Q0, 10, 12), Range(Q1, 7, 9)):
        path = manifest.file_of(tmp_path, r)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "topic=t" / "broker=b" / "queue=0" / ".x.writing").touch()
    assert manifest.load(tmp_path, "t").next == {Q0: 12, Q1: 9}
    assert manifest.archived(tmp_path, "t") == [Range(Q0, 0, 10), Range(Q0, 10, 12), Range(Q1, 7, 9)]


def test_damage_is_said(tmp_path: Path) -> None:
    state = manifest.Manifest(tmp_path, "t")
    state.save()
    path = next(path for path in state.paths() if path.exists())
    path.write_text("{")
    with pytest.raises(Corrupt, match="delete it"):
        manifest.load(tmp_path, "t")
    path.write_text('{"version": 9}')
    with pytest.raises(Corrupt, match="version 9"):
        manifest.load(tmp_path, "t")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with manifest.locked(tmp_path, "t"):
        with pytest.raises(Locked), manifest.locked(tmp_path, "t"):
            pass
        with manifest.locked(tmp_path, "u"):
            pass
    with manifest.locked(tmp_path, "t"):
        pass


def test_notes_of_older_versions_move_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    old, new = folder / "_penstock" / "t.json", tmp_path / "archive.penstock" / "t.json"
    state = manifest.Manifest(folder, "t", {Q0: 5}, [Range(Q0, 5, 9)])
    state.save()
    old.parent.mkdir()
    new.rename(old)
    assert manifest.load(folder, "t") == state
    state.save()
    assert (old.exists(), new.exists()) == (False, True)
    assert manifest.load(folder, "t") == state


def test_notes_stay_inside_where_nothing_can_be_beside(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    (tmp_path / "archive.penstock").touch()  # no folder can be made there
    state = manifest.Manifest(folder, "t", {Q0: 5}, [])
    state.save()
    assert (folder / "_penstock" / "t.json").exists()
    assert manifest.load(folder, "t") == state


@pytest.mark.parametrize("topic", ["%DLQ%delivery", "%RETRY%41", "%DLQ%shop", "orders|eu"])
def test_readers_of_the_whole_folder_find_the_topics_name(topic: str, tmp_path: Path) -> None:
    """They decode the names of folders: dead letters of a group `delivery` made the whole archive unreadable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    r = Range(MessageQueue(topic, "b", 0), 0, 2)
    path = manifest.file_of(tmp_path, r)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"value": [b"1", b"2"]}), path)
    assert pq.read_table(tmp_path).column("topic").to_pylist() == [topic] * 2
    assert manifest.topic_of(path) == topic
    assert manifest.archived(tmp_path, topic) == [r]


def test_a_folder_that_an_older_version_named_is_gone_on_with(tmp_path: Path) -> None:
    old = tmp_path / "topic=%DLQ%delivery"
    old.mkdir()
    assert manifest.root_of(tmp_path, "%DLQ%delivery") == old


@pytest.mark.parametrize("notes", ["null", "[]", "{}", '{"version": 1, "next": [], "pending": []}',
    '{"version": 1, "next": {"b": {"x": 1}}, "pending": []}', '{"version": 1, "next": {}, "pending": [[1]]}',
])  # fmt: skip
def test_notes_of_another_shape_are_refused(tmp_path: Path, notes: str) -> None:
    state = manifest.Manifest(tmp_path, "t")
    state.save()
    next(path for path in state.paths() if path.exists()).write_text(notes)
    with pytest.raises(Corrupt, match="delete it to rebuild it"):
        manifest.load(tmp_path, "t")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "topic=t" / "x.parquet"
    path.parent.mkdir()
    with pytest.raises(OSError, match="No space left"), manifest.written(tmp_path, "t", path) as file:
        file.write(b"half")
        with open("/dev/full", "wb") as full:
            full.write(b"the rest")
    assert manifest.unfinished(tmp_path, "t") == []
    assert not path.exists()
    with manifest.written(tmp_path, "t", path) as file:
        file.write(b"whole")
        assert len(manifest.unfinished(tmp_path, "t")) == 1
    assert path.read_bytes() == b"whole"


def test_what_another_run_is_writing_is_not_left_half_written(tmp_path: Path) -> None:
    """The names of topics with channels may have dots: `t.x` beside `t`."""
    with manifest.written(tmp_path, "t.x", tmp_path / "x.parquet"):
        assert manifest.unfinished(tmp_path, "t") == []
        assert len(manifest.unfinished(tmp_path, "t.x")) == 1


def test_what_holds_a_file_is_durable_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes a folder whose name is not flushed, with all that is in it."""
    flushed: list[Path] = []
    monkeypatch.setattr(manifest, "flush_folder", flushed.append)
    folder = tmp_path / "deep" / "archive"
    path = manifest.file_of(folder, Range(Q0, 0, 10))
    with manifest.written(folder, "t", path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"
    named = [place for place in path.parents if place.is_relative_to(tmp_path)]  # each in the one behind it
    assert set(named) <= set(flushed)
    flushed.clear()
    with manifest.written(folder, "t", manifest.file_of(folder, Range(Q0, 10, 12))) as file:
        file.write(b"y")
    assert flushed == [path.parent]
