"""A folder that nsqd left: its table, its messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disk.queue_parts import VECTORS
from penstock.disk.files import Files
from penstock.disk.nsqdata import ChannelEntry, TopicEntry, messages, read_nsqd_dat, write_nsqd_dat

FILES = Files()


def test_the_table_of_nsqd() -> None:
    assert read_nsqd_dat(FILES, VECTORS / "nsqd") == [
        TopicEntry("orders", False, (ChannelEntry("bill"), ChannelEntry("pack", True))),
        TopicEntry("empty", True),
    ]


def test_the_messages_of_nsqd() -> None:
    for channel in ("bill", "pack"):
        found = list(messages(FILES, VECTORS / "nsqd", "orders", channel))
        assert sorted(m.body for m in found) == [b"order %d" % n for n in range(1, 6)]
        assert all(len(m.id) == 16 and m.attempts == 0 and m.timestamp_ns > 1_700_000_000 * 10**9 for m in found)
        assert len({m.id for m in found}) == 5
    [alone] = messages(FILES, VECTORS / "nsqd", "empty")
    assert alone.body == b"alone"
    assert list(messages(FILES, VECTORS / "nsqd", "orders")) == []
    assert list(messages(FILES, VECTORS / "nsqd", "nothing")) == []


def test_the_table_there_and_back(tmp_path: Path) -> None:
    """What nsqd reads is as nsqd writes it; fields of ours come back."""
    assert read_nsqd_dat(FILES, tmp_path) == []
    original = json.loads((VECTORS / "nsqd" / "nsqd.dat").read_text())
    topics = read_nsqd_dat(FILES, VECTORS / "nsqd")
    write_nsqd_dat(FILES, tmp_path, topics, "1.3.0")
    written = json.loads((tmp_path / "nsqd.dat").read_text())
    assert len(written.pop("sum")) == 8
    assert written == original
    ours = [TopicEntry("t#tmp", True, (ChannelEntry("c", True, {"since": 4}),), {"level": "os"})]
    write_nsqd_dat(FILES, tmp_path, ours, "1.3.0")
    assert read_nsqd_dat(FILES, tmp_path) == ours


def test_invalid_names_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["good", "../x", "", "a" * 65, "é", "a\n", "#ephemeral", 7, None, "a#ephemeral"]
    table = {"topics": [{"name": name, "channels": [{"name": name}]} for name in names]}
    (tmp_path / "nsqd.dat").write_text(json.dumps(table))
    found = read_nsqd_dat(FILES, tmp_path)
    assert found == [TopicEntry(name, False, (ChannelEntry(name),)) for name in ("good", "a#ephemeral")]
    assert "'../x'" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"topics":5}',
        b'{"topics":[5]}',
        b'{"topics":[{"name":"t","channels":{"name":"c"}}]}',
    ],
)
def test_of_anything_else_the_backup_is_read_and_then_the_files(tmp_path: Path, content: bytes) -> None:
    known = TopicEntry("a", False, (ChannelEntry("c"),))
    for _ in range(2):
        write_nsqd_dat(FILES, tmp_path, [known], "1.3.0")
    (tmp_path / "nsqd.dat").write_bytes(content)
    assert read_nsqd_dat(FILES, tmp_path) == [known]
    assert content in [path.read_bytes() for path in (tmp_path / "lost+found").glob("nsqd.dat.*")]
    (tmp_path / "nsqd.dat.bak").write_bytes(content)
    assert read_nsqd_dat(FILES, tmp_path) == []
    for name in ("a/a_1.queue", "a/c.cursor", "log/x.0.cursor", "log/x.1.cursor", "%23x/readme"):
        path = tmp_path / "queues" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    for name in ("m.diskqueue.000000.dat", "m.diskqueue.000000.sum", "m:d.diskqueue.meta.dat"):
        (tmp_path / name).write_bytes(b"")
    assert read_nsqd_dat(FILES, tmp_path) == [
        TopicEntry("a", False, (ChannelEntry("c"),), {"level": "os"}),
        TopicEntry("log", False, (ChannelEntry("x"),), {"kind": "log"}),
        TopicEntry("m", False, (ChannelEntry("d"),), {"level": "memory"}),
    ]


def test_the_backup_serves_a_damaged_table(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_nsqd_dat(FILES, tmp_path, [TopicEntry(name)], "1.3.0")
    (tmp_path / "nsqd.dat").write_bytes(b"{")
    assert read_nsqd_dat(FILES, tmp_path) == [TopicEntry("a")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["topics", "channels", "name", "paused", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.just("topics"), JSON))
def test_json_of_any_shape(tmp_path_factory: pytest.TempPathFactory, table: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "nsqd.dat").write_text(json.dumps(table))
    found = read_nsqd_dat(FILES, folder)
    write_nsqd_dat(FILES, folder, found, "1.3.0")
    assert read_nsqd_dat(FILES, folder) == found
