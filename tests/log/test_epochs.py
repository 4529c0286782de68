"""The table of epochs: its file, and where two logs part by their tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.replica import Replica
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log.epochs import EPOCHS_MAX, EpochFile, begun, checked, common, decode, encode, held, shared_end
from penstock.wire.ha import Epoch

EPOCHS = (Epoch(1, b"8 bytes.", 0), Epoch(2, b"ei bytes", 500))
FORK = Epoch(2, b"another.", 400)


def test_the_bytes_of_the_file() -> None:
    data = encode(EPOCHS)
    assert data[:8].hex() == "5045504f00010002"
    assert data[8:28].hex() == "00000001" + b"8 bytes.".hex() + "0000000000000000"
    assert decode(data) == EPOCHS
    assert decode(encode(())) == ()


def test_a_file_that_is_not_what_it_was_is_not_believed(tmp_path: Path) -> None:
    file = EpochFile(Files(), tmp_path / "epochs")
    assert file.load() is None
    file.save(EPOCHS[:1])
    file.save(EPOCHS)
    whole = (tmp_path / "epochs").read_bytes()
    assert file.load() == EPOCHS
    for at in range(len(whole)):  # a former table, which lies beside it, would be wrong
        (tmp_path / "epochs").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError, match="epochs cannot be read"):
            file.load()
    for cut in (0, 5, len(whole) - 1):
        (tmp_path / "epochs").write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="epochs cannot be read"):
            file.load()


@pytest.mark.parametrize(
    "table",
    [
        (EPOCHS[1], EPOCHS[0]),
        (EPOCHS[0], EPOCHS[0]),
        (Epoch(1, b"8 bytes.", 9), Epoch(2, b"8 bytes.", 8)),
        (Epoch(1, b"8 bytes.", -1),),
    ],
)
def test_a_table_that_makes_no_sense(table: tuple[Epoch, ...]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        checked(table)
    with pytest.raises(ValueError, match="epoch"):
        decode(encode(table))


def test_epochs_in_common() -> None:
    assert common(EPOCHS, EPOCHS) == 2
    assert common(EPOCHS, EPOCHS[:1]) == 1
    assert common(EPOCHS, (EPOCHS[0]._replace(tag=b"another."), EPOCHS[1])) == 0


def test_up_to_where_two_logs_are_one() -> None:
    first = EPOCHS[0]
    for ours, our_end, theirs, their_end, expected in (
        ((first,), 900, (first,), 700, 700),
        ((first,), 700, (first,), 900, 700),
        (EPOCHS, 900, (first,), 500, 500),
        (EPOCHS, 900, (first,), 800, 500),  # what it wrote behind the new master's beginning
        (EPOCHS, 900, (first, FORK), 800, 400),
        (EPOCHS, 900, (first, FORK), 300, 300),  # it knows of an epoch of which it has nothing yet
        (EPOCHS, 900, EPOCHS, 800, 800),
    ):
        assert shared_end(ours, our_end, theirs, their_end) == expected


def test_a_table_that_has_let_its_oldest_epochs_go_is_still_of_the_same_log() -> None:
    old = tuple(Epoch(n, b"8 bytes.", 10 * n) for n in range(1, EPOCHS_MAX + 1))
    new = begun(old, b"new tag.", 20_000)
    assert new[0] == old[1]
    for ours, theirs in ((new, old), (old, new)):
        assert common(ours, theirs) == EPOCHS_MAX - 1
        assert shared_end(ours, 21_000, theirs, 20_500) == 20_000
        assert shared_end(ours, 21_000, theirs, 15_000) == 15_000
    newer = begun(new, b"newest t", 22_000)
    assert shared_end(newer, 23_000, old, 20_500) == 20_000  # one that was away for two
    assert common(old[:2], newer) == 0  # for more than a table holds
    assert common(newer, (newer[0]._replace(tag=b"another."), *newer[1:])) == 0
    assert common((FORK, *newer), newer) == EPOCHS_MAX
    assert common((), newer) == common(newer, ()) == 0


def test_a_new_epoch_begins_at_the_end_of_the_log() -> None:
    assert begun((), b"new tag.", 7) == (Epoch(1, b"new tag.", 7),)
    assert begun(EPOCHS, b"new tag.", 900) == (*EPOCHS, Epoch(3, b"new tag.", 900))
    # the log never came to where epoch 2 begins: its number is not given again, and it is none of this log
    assert begun(EPOCHS, b"new tag.", 300) == (EPOCHS[0], Epoch(3, b"new tag.", 300))
    assert held(EPOCHS, 500) == EPOCHS[:1]
    many = tuple(Epoch(n, b"8 bytes.", n) for n in range(1, EPOCHS_MAX + 1))
    assert len(begun(many, b"new tag.", 5_000)) == EPOCHS_MAX


def test_the_table_of_a_folder_from_before_there_was_such_a_file_is_taken_over(tmp_path: Path) -> None:
    former = {"setId": "ab" * 16, "storeId": "cd" * 16, "node": "n", "lossNumber": 4, "led": True, "followed": True,
              "epochs": [[1, b"8 bytes.".hex(), 0], [2, b"ei bytes".hex(), 500]]}  # fmt: skip
    (tmp_path / "ha").mkdir()
    (tmp_path / "ha" / "replica.json").write_text(json.dumps(former))
    for _ in range(2):
        replica = Replica(Files(), tmp_path, "n")
        replica.open(lossy=False)
        assert (replica.epochs, replica.led, replica.alone) == (EPOCHS, True, True)
        replica.save()
    (tmp_path / "ha" / "epochs").unlink()
    with pytest.raises(StoreError, match="epochs is missing"):
        Replica(Files(), tmp_path, "n").open(lossy=False)
