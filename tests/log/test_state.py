"""LogState: message queues by name, and what is derived from a record."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put, work

from penstock.errors import StoreError
from penstock.log import status
from penstock.log.durability import Job
from penstock.log.state import LogState


class Heard:
    """A subscriber that notes what it is given."""

    topics = frozenset((b"T",))
    position = -1

    def __init__(self) -> None:
        self.added: list[tuple[int, int]] = []
        self.over: list[int] = []

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        self.added.append((physical, len(record)))

    def done(self, prepared: int, physical: int) -> None:
        self.over.append(prepared)

    def cut(self, end: int) -> None:
        pass

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"t" * 128, b"a b"])
def test_names_of_no_queue(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(StoreError):
        LogState(tmp_path).queue(name, 0)
    with pytest.raises(StoreError):
        LogState(tmp_path).queue(b"T", -1)


def test_a_queue_is_made_once(tmp_path: Path) -> None:
    state = LogState(tmp_path)
    assert state.queue(b"T", 3) is state.queue(b"T", 3)
    assert set(state.queues[b"T"]) == {3}
    assert not (tmp_path / "consumequeue").exists()


def test_subscribers_hear_live_and_again_at_a_start(tmp_path: Path) -> None:
    store, heard = make(tmp_path), Heard()
    store.attach(heard)
    store.open()
    drafts = [put(store, b"x", topic) for topic in (b"T", b"U", b"T")]
    expected = [(drafts[0].physical, drafts[0].size), (drafts[2].physical, drafts[2].size)]
    assert heard.added == expected
    store.close(False)
    again, heard = make(tmp_path), Heard()
    again.attach(heard)
    again.open()
    assert heard.added == expected
    again.close()


def test_a_failed_store_takes_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Senders were told that the broker's log says why, and it said nothing."""
    store = make(tmp_path)
    store.open()
    draft = put(store, b"x")
    work(store)
    store.refuse(status.DISK_FULL)
    draft.queue = store.queue(b"T", 0)
    assert store.append(draft) == status.DISK_FULL
    store.refuse(status.OK)
    assert store.append(draft) == status.OK
    for error in ("a flush: Input/output error", "another one"):
        store.fail(StoreError(error))
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == [
        "nothing is stored any more, until a restart error=a flush: Input/output error"
    ]
    store.refuse(status.OK)
    assert store.append(draft) == status.NOT_WRITABLE
    store.close(False)
