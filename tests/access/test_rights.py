"""Who is let in, what it may, and a file of users that changes, breaks or goes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from access.people import SECRET, looked, rights_of, touched, user, write
from penstock.access import rights as rights_module
from penstock.access.needs import ADMIN, USER, publish
from penstock.access.rights import LARGE_BYTES, LOOK_MS, REST_MS, TRUSTED, Rights, Stamp, read_rights, users_file
from penstock.access.users import User, read_right, token_digest
from penstock.errors import ConfigError, Refused
from penstock.wire.acl import sign
from penstock.wire.remoting import RemotingCommand
from polling import eventually

HERE = "127.0.0.1:5"


def signed(name: str, secret: str = "") -> RemotingCommand:
    request = RemotingCommand(310, {"b": "t"}, b"body")
    sign(request, name, secret or SECRET + name)
    return request


def test_without_users_everything_is_allowed(tmp_path: Path) -> None:
    rights = Rights(tmp_path / "users.toml")
    rights.demand(None, (ADMIN,))
    assert not rights.on


def test_from_the_first_user_on_nothing_is_that_was_not_granted(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u", "publish:t"))
    rights.demand(rights.of_request(signed("u"), HERE, None), (USER, publish("t")))
    for who, need, status in (
        (None, USER, 401),
        (rights.users["u"], publish("x"), 403),
        (rights.users["u"], ADMIN, 403),
    ):
        with pytest.raises(Refused) as refused:
            rights.demand(who, (need,))
        assert refused.value.http == status
    rights.demand(None, ())


def test_unknown_user_and_wrong_secret_are_told_the_same(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u"), User("bare", addresses=("10.0.0.1",)))
    texts = set()
    for request in (
        signed("u", "another"),
        signed("nobody", SECRET + "u"),
        signed("bare", "anything"),
        signed("bare", " "),
    ):
        with pytest.raises(Refused) as refused:
            rights.of_request(request, HERE, None)
        texts.add(str(refused.value).removesuffix("=" + request.ext["AccessKey"]))
    assert texts == {"Check signature failed for accessKey"}
    assert (
        rights.of_password("u", "wrong-one", HERE)
        is rights.of_password("bare", "", HERE)
        is rights.of_token("x", HERE)
        is None
    )


def test_a_user_comes_from_where_it_may(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u", addresses=("10.0.0.*",)))
    assert rights.of_password("u", SECRET + "u", "10.0.0.3:1")
    assert not rights.of_password("u", SECRET + "u", HERE)


def test_a_connection_is_known_by_certificate_and_address(tmp_path: Path) -> None:
    local, far = User("local", addresses=("127.0.0.1",)), User("far", addresses=("10.0.0.1",))
    rights = rights_of(tmp_path, user("named"), local, far)
    assert rights.by_connection(HERE, "") == local
    assert rights.by_connection("[::1]:9", "") is None
    assert rights.by_connection("9.9.9.9:1", "named") == rights.users["named"]
    assert rights.by_connection(HERE, "unknown") is None
    assert rights.by_connection(HERE, "far") is None


def test_tokens(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u", tokens=(token_digest("token-1"), token_digest("token-2"))))
    assert rights.of_token("token-2", HERE) == rights.users["u"]
    assert rights.of_token("token-3", HERE) is None


def test_guessing_is_limited_but_who_is_in_stays_in(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u"), limit=5)
    known = rights.of_request(signed("u"), "10.0.0.1:1", None)
    for _ in range(5):
        assert rights.of_password("u", "wrong", HERE) is None
    assert rights.of_password("u", SECRET + "u", HERE) is None
    assert rights.failed_logins.refused == 1
    assert rights.of_request(signed("u"), "10.0.0.1:1", known) == known
    with pytest.raises(Refused):
        rights.of_request(signed("u"), "10.0.0.1:1", None)
    rights.tick(60_001)
    assert rights.of_password("u", SECRET + "u", HERE) == known


def test_a_new_file_is_read_and_told(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u"))
    told: list[int] = []
    rights.changed.append(lambda: told.append(len(rights.users)))
    write(tmp_path / "users.toml", user("u"), user("v"))
    looked(rights)
    rights.tick(4 * LOOK_MS)
    assert told == [2]


def test_users_that_appear_while_it_runs(tmp_path: Path) -> None:
    rights = Rights(tmp_path / "users.toml")
    write(tmp_path / "users.toml", user("u"))
    looked(rights)
    assert rights.on


@pytest.mark.parametrize("harm", ["gone", "broken", "readable", "empty"])
def test_a_file_that_is_harmed_changes_nothing(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    rights = rights_of(tmp_path, user("u", "publish:t"))
    path = tmp_path / "users.toml"
    if harm == "gone":
        path.unlink()
    elif harm == "readable":
        write(path, user("v"))
        path.chmod(0o644)
    else:
        path.write_text("[[user]]\nname" if harm == "broken" else "")
    looked(rights)
    assert rights.on
    with pytest.raises(Refused):
        rights.demand(None, (USER,))
    if harm != "empty":  # a file without users has no users: nobody may anything
        assert list(rights.users) == ["u"]
        assert "stay as they were" in caplog.text
    write(path, user("w"))
    looked(rights, 3 * LOOK_MS)
    assert list(rights.users) == ["w"]


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_cannot_be_read_for_a_moment_is_read_later(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may have lost a right, and the file does not change again."""
    rights = rights_of(tmp_path, user("u"), user("gone"))
    many = [user(f"user{n}", f"publish:orders.{n}.*") for n in range(1_000 if large else 0)]
    path = write(tmp_path / "users.toml", user("u"), *many)
    moment = LOOK_MS

    def look(until: Callable[[], bool]) -> None:
        def again() -> bool:
            nonlocal moment
            moment += LOOK_MS
            rights.tick(moment)
            return until()

        eventually(again)

    def refused(path: Path, **more: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(rights_module, "text_of", refused)
        look(lambda: "Too many open files" in caplog.text)
        for _ in range(5):
            look(lambda: True)
        assert set(rights.users) == {"u", "gone"}
        assert caplog.text.count("Too many open files") == 1
    look(lambda: "gone" not in rights.users)
    assert len(rights.users) == 1 + len(many)
    with monkeypatch.context() as patch:
        patch.setattr(rights_module, "text_of", refused)
        with pytest.raises(ConfigError, match=r"cannot read .*: Too many open files"):
            Rights(path)


@pytest.mark.parametrize("large", [True, False])
def test_a_file_is_read_where_the_system_gives_no_thread(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of processes: somebody may have lost a right, and the file does not change again."""

    def refused(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    rights = rights_of(tmp_path, user("u"), user("gone"))
    monkeypatch.setattr(Thread, "start", refused)
    write(
        tmp_path / "users.toml", user("u"), *(user(f"user{n}", f"publish:orders.{n}.*") for n in range(large * 1_000))
    )
    for moment in range(LOOK_MS, 20 * LOOK_MS, LOOK_MS):
        rights.tick(moment)
    assert set(rights.users) == {"u", *(f"user{n}" for n in range(large * 1_000))}


def test_from_a_trusted_address_nobody_proves_anything(tmp_path: Path) -> None:
    """As at RocketMQ, where the address is looked at before the name."""
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [127.0.0.*]\naccounts:\n- {accessKey: u, secretKey: 12345678}\n")
    path.chmod(0o600)
    rights = Rights(path)
    for name in ("u", "nobody"):
        assert rights.of_request(signed(name, "another"), HERE, None) is TRUSTED
        with pytest.raises(Refused):
            rights.of_request(signed(name, "another"), "10.0.0.1:5", None)
    assert rights.by_connection(HERE, "") is TRUSTED


def test_a_file_that_is_half_written_gives_nobody_more(tmp_path: Path) -> None:
    """Its beginning is a file, too: of a user from anywhere, who may come from one address, or of none at all."""
    rights = rights_of(tmp_path, user("u", "admin", addresses=("10.0.0.1",)))
    path = tmp_path / "users.toml"
    whole = path.read_text()
    pieces = whole[: whole.index("addresses")], "", whole.replace("10.0.0.1", "10.0.0.2")
    for moment, text in enumerate(pieces):
        path.write_text(text)
        touched(path)
        assert rights.tick(LOOK_MS + moment * REST_MS) == LOOK_MS + (moment + 1) * REST_MS
        assert rights.of_password("u", SECRET + "u", HERE) is None
        assert rights.of_password("u", SECRET + "u", "10.0.0.1:7") is not None
    rights.tick(LOOK_MS + 3 * REST_MS)
    assert rights.of_password("u", SECRET + "u", "10.0.0.2:7") is not None


def test_a_file_that_others_could_read_is_taken_when_they_cannot(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u"))
    path = write(tmp_path / "users.toml", user("v"))
    path.chmod(0o644)
    looked(rights)
    assert list(rights.users) == ["u"]
    path.chmod(0o600)
    touched(path)
    looked(rights, 3 * LOOK_MS)
    assert list(rights.users) == ["v"]


def test_a_start_with_a_file_that_others_can_read(tmp_path: Path) -> None:
    path = write(tmp_path / "users.toml", user("u"))
    os.chmod(path, 0o640)
    with pytest.raises(ConfigError, match="others can read") as error:
        Rights(path)
    assert "chmod 600" in error.value.hint


def test_plain_acl_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "globalWhiteRemoteAddresses: [10.0.0.*]\naccounts:\n"
        "- {accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: 192.168.0.*, topicPerms: ['t=PUB']}\n"
    )
    path.chmod(0o600)
    rights = Rights(path)
    assert rights.by_connection("10.0.0.9:1", "") is TRUSTED
    assert rights.by_connection(HERE, "") is None
    assert rights.of_request(signed("RocketMQ", "anything"), "192.168.0.4:1", None) is TRUSTED
    one = rights.of_request(signed("RocketMQ", "12345678"), HERE, None)
    assert one.may(read_right("publish:t").verb, "t")
    assert not one.is_admin
    with pytest.raises(Refused, match="Check signature failed"):
        rights.of_request(signed("RocketMQ", "anything"), HERE, None)


def test_where_the_file_is() -> None:
    assert (users_file("", "data"), users_file("a/b.yml", "data")) == (Path("data/users.toml"), Path("a/b.yml"))


def test_a_file_that_is_named_and_not_there_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be made later; until then everything is allowed, which whoever has named it does not expect."""
    own = tmp_path / "users.toml"
    assert not read_rights("", str(tmp_path)).on
    for data in (tmp_path, tmp_path / "broker-a-2", tmp_path / "broker-a-2/replica-3"):
        assert not read_rights(str(own), str(data)).on  # `penstock up` has one file for all its brokers
    assert not caplog.records
    path = tmp_path / "named.toml"
    rights = read_rights(str(path), str(tmp_path))
    assert (
        f"users names a file that is not there: everything is allowed until it is (penstock user add) path={path}"
        in caplog.text
    )
    write(path, user("root", "admin"))
    looked(rights)
    assert rights.on


def test_a_data_folder_that_cannot_be_one_is_told_as_such(tmp_path: Path) -> None:
    """It was users.toml in it that could not be opened."""
    file, around, back = (tmp_path / name for name in ("file", "around", "back"))
    around.symlink_to(back)
    back.symlink_to(around)
    for data in (around, around / "data"):
        with pytest.raises(ConfigError, match=f"data: {data} cannot be a folder: Too many levels of symbolic links"):
            read_rights("", str(data))
    file.write_bytes(b"")
    for data in (file, file / "data", file / "data" / "broker-a-2"):
        for users in ("", str(data / "users.toml"), str(tmp_path / "users.toml")):
            with pytest.raises(ConfigError, match=f"data: {data} cannot be a folder: {file} is a file"):
                read_rights(users, str(data))
    assert not read_rights("", str(tmp_path / "none" / "yet")).on


def test_a_large_file_is_read_beside_the_loop(tmp_path: Path) -> None:
    """What it says holds once it is read; one that is broken changes nothing, nor does one that a newer one has replaced."""
    path = write(tmp_path / "users.toml", user("u"))
    rights = Rights(path)
    told: list[int] = []
    rights.changed.append(lambda: told.append(len(rights.users)))
    moment = LOOK_MS

    def settled() -> bool:
        nonlocal moment
        moment += LOOK_MS
        return rights.tick(moment) >= moment + LOOK_MS

    many = [user(f"user{n}", f"publish:orders.{n}.*") for n in range(2_000)]
    write(path, *many)
    assert path.stat().st_size > LARGE_BYTES
    moment = rights.tick(moment)
    due_ms = rights.tick(moment)
    assert due_ms < moment + REST_MS
    assert (set(rights.users), told) == ({"u"}, [])  # the call has not read it
    eventually(settled)
    assert (len(rights.users), told) == (2_000, [2_000])
    path.write_text(path.read_text() + "\n[[user]]\nname = 5\n")
    eventually(settled)
    eventually(settled)
    assert (len(rights.users), told) == (2_000, [2_000])
    write(path, *many[:1_999])
    looked(rights, moment := moment + LOOK_MS)
    write(path, user("last"))
    rights.look_again()
    eventually(settled)
    assert (set(rights.users), told) == ({"last"}, [2_000, 1])


@pytest.mark.parametrize("broken", [False, True])
def test_a_second_change_of_the_same_moment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system tells two changes apart by their time, which goes on by milliseconds, or by seconds."""
    path = write(tmp_path / "users.toml", user("u"))
    monkeypatch.setattr(Rights, "_look", staticmethod(lambda path: Stamp(1, path.stat().st_size, 1, 1)))
    rights = Rights(path)
    told: list[int] = []
    rights.changed.append(lambda: told.append(len(rights.users)))
    if broken:
        path.write_bytes(b"=" * path.stat().st_size)
    else:
        write(path, user("v"))
    moment = 0

    def read_again() -> bool:
        nonlocal moment
        moment += LOOK_MS
        rights.tick(moment)
        return rights._again_ms == 0 and rights._reading is None

    eventually(read_again)
    assert (list(rights.users), told) == (["u"], []) if broken else (["v"], [1])
    assert rights.times_read == (1 if broken else 2)
    assert "cannot be used" not in caplog.text  # it was not seen to change
