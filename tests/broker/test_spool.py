"""Spool files: what is read again after a kill, at every length the file may have then."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from penstock.broker.spool import Spool, Spools, flush, pieces
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import Refused, StoreError
from penstock.wire.record import BatchItem, encode_batch
from penstock.wire.staged import CHUNK, piece_head

TOKEN = "a" * 16
NEVER = 1 << 62


def chunk(*bodies: bytes, topic: bytes = b"T", queue_id: int = 0) -> bytes:
    messages = encode_batch(BatchItem(body, b"") for body in bodies)
    head = piece_head(topic, queue_id, delayed=False, sys_flag=0, born_ms=1, count=len(bodies), size=len(messages))
    return head + messages


def spools_of(folder: Path) -> Spools:
    spools = Spools(Files(), folder)
    spools.open()
    return spools


def staged(folder: Path, chunks: list[bytes], *, sealed: bool) -> tuple[Spools, Spool, list[int]]:
    """The file's size after its header, after each chunk, and after its seal."""
    spools = spools_of(folder)
    spool = spools.create(Spool(TOKEN, folder / TOKEN, "S", 3, "run", "broker-a", b"\x7f\0\0\1\0\0\0\0"), 5)
    sizes = [spool.size]
    for number, data in enumerate(chunks, 1):
        spools.add_chunk(spool, number, data, list(pieces(data)), 5)
        sizes.append(spool.size)
    if sealed:
        spools.seal(spool, 5)
        sizes.append(spool.size)
    spools.close()
    return spools, spool, sizes


def test_a_spool_of_every_length(tmp_path: Path) -> None:
    chunks = [chunk(b"a", b"bb"), chunk(b"c", topic=b"U", queue_id=2)]
    spools, spool, sizes = staged(tmp_path / "whole", chunks, sealed=True)
    assert (spool.rows, spool.queues) == (3, {(b"T", 0), (b"U", 2)})
    assert [piece.messages for piece in spools.pieces(spool)] == [p.messages for c in chunks for p in pieces(c)]
    data = spool.path.read_bytes()
    assert len(data) == sizes[-1]
    for length in range(len(data) + 1):
        folder = tmp_path / f"{length}"
        folder.mkdir()
        (folder / TOKEN).write_bytes(data[:length])
        found = spools_of(folder).by_token.get(TOKEN)
        if length < sizes[0]:
            assert found is None
            assert not (folder / TOKEN).exists()
            continue
        assert found is not None
        whole = max(n for n, size in enumerate(sizes) if size <= length)
        assert (found.number, found.sealed) == (min(whole, 2), whole == 3)
        assert (found.sink, found.batch, found.run, found.coordinator) == ("S", 3, "run", "broker-a")
        assert (folder / TOKEN).stat().st_size == found.size == sizes[whole]


@pytest.mark.parametrize("zeros", [1, CHUNK.size, 4096])
def test_a_spool_that_a_power_cut_has_left_with_zeros(tmp_path: Path, zeros: int) -> None:
    """A file has grown, and what was written there has not reached the disk: it ends before."""
    chunks = [chunk(b"a", b"bb"), chunk(b"c")]
    _, spool, sizes = staged(tmp_path / "whole", chunks, sealed=True)
    data = spool.path.read_bytes()
    for whole, size in enumerate(sizes[:-1]):
        folder = tmp_path / f"{size}"
        folder.mkdir()
        (folder / TOKEN).write_bytes(data[:size] + bytes(zeros))
        found = spools_of(folder).by_token[TOKEN]
        assert (found.number, found.sealed) == (whole, False)
        assert (folder / TOKEN).stat().st_size == size


def test_a_damaged_chunk_is_not_published(tmp_path: Path) -> None:
    spools, spool, sizes = staged(tmp_path, [chunk(b"a" * 50)], sealed=True)
    data = bytearray(spool.path.read_bytes())
    data[sizes[0] + CHUNK.size + 30] ^= 1
    spool.path.write_bytes(data)
    with pytest.raises(Refused, match="damaged"):
        list(spools.pieces(spool))
    spool.path.write_bytes(data[: sizes[0] + CHUNK.size - 1])
    with pytest.raises(Refused, match="damaged"):
        list(spools.pieces(spool))
    again = spools_of(tmp_path).by_token[TOKEN]
    assert (again.number, again.sealed) == (0, False)


def test_what_is_no_token_goes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert spools_of(tmp_path).by_token == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"\0",
        b"\0" * 30,
        chunk(b"a")[:-1],
        struct.pack(">IBB", 2, 0, 0) + b"",
        struct.pack(">IBB", 30, 2, 1) + b"T" * 30,
    ],
)
def test_a_chunk_whose_lengths_do_not_add_up(bad: bytes) -> None:
    with pytest.raises(Refused, match="illegal"):
        list(pieces(bad))


def test_answers_wait_for_the_flush_and_files_for_the_log(tmp_path: Path) -> None:
    spools, spool, _ = staged(tmp_path, [chunk(b"a")], sealed=True)
    answers: list[BaseException | None] = []
    spools.when_flushed([spool], answers.append)
    assert answers == []
    run_now(spools.take_jobs(0, 0), 0)
    assert (answers, spool.flushed) == ([None], True)
    spools.when_flushed([spool], answers.append)
    assert answers == [None, None]
    spools.drop(spool, 100)
    assert spools.by_token == {}
    run_now(spools.take_jobs(99, 200), 0)
    assert spool.path.exists()
    run_now(spools.take_jobs(100, 200), 0)
    assert not spool.path.exists()
    assert spools.staged_bytes == 0


def test_a_file_that_could_not_be_removed_gives_no_chunks_to_the_next_of_its_name(tmp_path: Path) -> None:
    former, spool, _ = staged(tmp_path, [chunk(b"a"), chunk(b"b")], sealed=False)
    former.close()
    spools = Spools(Files(), tmp_path)  # it knows nothing of the file, as behind an unlink that failed
    fresh = spools.create(Spool(TOKEN, spool.path, "S", 3, "run", "broker-a", b"\x7f\0\0\1\0\0\0\0"), 5)
    spools.add_chunk(fresh, 1, chunk(b"c"), list(pieces(chunk(b"c"))), 5)
    spools.close()
    found = spools_of(tmp_path).by_token[TOKEN]
    assert (found.number, found.rows) == (1, 1)


@pytest.mark.parametrize("at", [0, 3, 6, 8, 11, 12, 40, -1])
def test_a_spool_with_a_damaged_header_is_set_aside(tmp_path: Path, at: int) -> None:
    """It was deleted, like one whose header a kill has cut short."""
    folder = tmp_path / "staging"
    _, spool, sizes = staged(folder, [chunk(b"a"), chunk(b"b")], sealed=True)
    data = bytearray(spool.path.read_bytes())
    data[at if at >= 0 else sizes[0] - 1] ^= 1
    spool.path.write_bytes(data)
    assert spools_of(folder).by_token == {}
    assert list(folder.iterdir()) == []
    (kept,) = (tmp_path / "lost+found").glob(f"staging-{TOKEN}.*")
    assert kept.read_bytes() == data


@pytest.mark.parametrize("zeros", [1, 12, 200, 4096])
def test_a_spool_of_which_a_power_cut_has_left_zeros_goes(tmp_path: Path, zeros: int) -> None:
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / TOKEN).write_bytes(bytes(zeros))
    assert spools_of(folder).by_token == {}
    assert [*folder.iterdir(), *tmp_path.glob("lost+found")] == []


@pytest.mark.parametrize("content", [b"short", b"a file of somebody who uses hexadecimal names, too"])
def test_a_file_of_another_whose_name_is_a_token_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """It was deleted, as what a kill has left of a header."""
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / TOKEN).write_bytes(content)
    assert spools_of(folder).by_token == {}
    (kept,) = (tmp_path / "lost+found").glob(f"staging-{TOKEN}.*")
    assert kept.read_bytes() == content


def test_what_is_no_spool_is_set_aside(tmp_path: Path) -> None:
    """A folder ended the start, as the `lost+found` of a disk of its own did; a file of another was deleted."""
    folder = tmp_path / "staging"
    folder.mkdir()
    staged(folder, [chunk(b"a")], sealed=True)[0].close()
    (folder / "lost+found").mkdir()
    (folder / "abcdef01").mkdir()
    (folder / "abcdef02").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "abcdef03")
    (folder / "notes.txt").write_text("keep me")
    assert list(spools_of(folder).by_token) == [TOKEN]
    assert sorted(path.name for path in folder.iterdir()) == sorted([TOKEN, "lost+found"])
    aside = {path.name.partition(".1")[0]: path for path in (tmp_path / "lost+found").glob("staging-*")}
    assert sorted(aside) == ["staging-abcdef01", "staging-abcdef02", "staging-abcdef03", "staging-notes.txt"]
    assert aside["staging-notes.txt"].read_text() == "keep me"


def test_who_waits_for_dropped_rows_is_answered(tmp_path: Path) -> None:
    spools, spool, _ = staged(tmp_path, [chunk(b"a")], sealed=True)
    answers: list[BaseException | None] = []
    spools.when_flushed([spool], answers.append)
    spools.drop(spool, 0)
    (error,) = answers
    assert isinstance(error, Refused)


def test_a_spool_that_cannot_be_opened_is_not_vouched_for(tmp_path: Path) -> None:
    class Exhausted(Files):
        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
            raise StoreError("Too many open files (by order of the test)")

    paths = [tmp_path / "there", tmp_path / "dropped"]
    paths[0].write_bytes(b"x")
    flush(Files(), tmp_path, paths)
    with pytest.raises(StoreError, match="Too many"):
        flush(Exhausted(), tmp_path, paths)
