"""Two logs held against each other; the messages of a tail that was cut; the commands that print both."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_parts import make, put, snapshot

from penstock.cli.store import store as commands
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log import cutting
from penstock.log.comparing import compare, records
from penstock.log.epochs import EpochFile
from penstock.wire.ha import Epoch

FIRST = Epoch(1, b"8 bytes.", 0)


def log(folder: Path, begin: int, count: int) -> list[int]:
    """Append messages; where the log ends behind each."""
    store = make(folder)
    store.open()
    ends = []
    for n in range(begin, begin + count):
        put(store, b"message %d " % n * 20, properties=b"KEYS\x01k%d" % n)
        ends.append(store.end_position)
    store.close()
    return ends


def parted(tmp_path: Path) -> int:
    """Two logs that are the same up to where this is."""
    ends = log(tmp_path / "a", 0, 100)
    snapshot(tmp_path / "a", tmp_path / "b")
    for name, begin, tag in (("a", 1_000, b"one tag."), ("b", 2_000, b"another.")):
        log(tmp_path / name, begin, 30)
        EpochFile(Files(), tmp_path / name / "ha" / "epochs").save((FIRST, Epoch(2, tag, ends[-1])))
    return ends[-1]


def test_a_pipe_in_the_place_of_a_segment_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    os.mkfifo(tmp_path / "commitlog" / f"{0:020d}")
    with pytest.raises(StoreError, match="is no file"):
        compare(tmp_path, tmp_path)


def test_where_two_logs_part(tmp_path: Path) -> None:
    at = parted(tmp_path)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.shared == at
    assert at <= found.same < at + 100  # sizes and the like may be the same
    assert [row[1][1] for row in (found.one, found.other)] == [(2, b"one tag.".hex(), at), (2, b"another.".hex(), at)]
    done = CliRunner().invoke(commands, ["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 1
    assert "they PART" in done.output
    done = CliRunner().invoke(commands, ["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert json.loads(done.output)["shared"] == at


def test_a_log_that_is_the_beginning_of_another_one(tmp_path: Path) -> None:
    ends = log(tmp_path / "a", 0, 60)
    snapshot(tmp_path / "a", tmp_path / "b")
    log(tmp_path / "a", 60, 60)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.same == found.other[0] == ends[-1]
    assert found.one[0] > ends[-1]
    assert CliRunner().invoke(commands, ["diff", str(tmp_path / "b"), str(tmp_path / "a")]).exit_code == 0


def test_the_messages_of_a_tail(tmp_path: Path) -> None:
    ends = log(tmp_path / "a", 0, 100)
    cutting.intend(Files(), tmp_path / "a", ends[19], ends[-1], 1, "a reason")
    store = make(tmp_path / "a")
    store.open()
    store.close()
    [(tail, _)] = cutting.cut_tails(tmp_path / "a")
    found = list(records(tail))
    assert [base64.b64decode(str(row["body"])) for row in found] == [b"message %d " % n * 20 for n in range(20, 100)]
    assert [row["offset"] for row in found] == list(range(20, 100))
    listed = CliRunner().invoke(commands, ["lost", "ls", str(tmp_path / "a"), "--json"])
    row = json.loads(listed.output)
    assert (row["messages"], row["position"], row["why"]) == (80, ends[19], "a reason")
    shown = CliRunner().invoke(commands, ["lost", "show", str(tmp_path / "a"), row["name"]])
    assert len(shown.output.splitlines()) == 80
    assert "no tail of this name" in CliRunner().invoke(commands, ["lost", "show", str(tmp_path / "a"), "log-0"]).output
    piece = min(tail.glob("0*"))
    piece.write_bytes(b"\xff" * 8 + piece.read_bytes()[8:])
    assert "error" in next(records(tail))
