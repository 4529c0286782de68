"""Files that settings name: what has no end is named, and nobody waits for it."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from access.people import looked, rights_of, touched, user, write
from certificates import Certificate
from penstock.access import usersfile
from penstock.access.rights import LOOK_MS, Rights
from penstock.broker.taking import secret_of as secret_of_set
from penstock.config import BrokerConfig, load, sources
from penstock.errors import ConfigError
from penstock.security import Security, secret_of, security_of
from penstock.settingfiles import FILE_BYTES_MAX, demand_file, whole
from penstock.tls import Tls, server_context

PATIENCE_S = 60


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A named pipe that nobody writes into: whoever opens it is waited for no longer than this."""

    def waits(number: int, frame: object) -> NoReturn:
        raise AssertionError("it waits for a writer")

    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(PATIENCE_S)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_what_a_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\n\xff")
    assert whole(path) == b"a\r\n\xff"
    assert whole(os.devnull) == b""
    with pytest.raises(FileNotFoundError):
        whole(tmp_path / "missing")


def test_what_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, FILE_BYTES_MAX)
    assert len(whole(path)) == FILE_BYTES_MAX
    os.truncate(path, 4 << 30)
    for read in (demand_file, whole):
        with pytest.raises(ConfigError, match="large has more than 16 MiB"):
            read(path)


def test_what_has_no_end(tmp_path: Path, fifo: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path in (fifo, tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(ConfigError, match=f"{path} is no file but a named pipe, a socket or a device"):
                whole(path)


def test_a_pipe_that_is_open_is_read_to_its_end() -> None:
    """As a shell gives it for `<(…)`."""
    reading, writing = os.pipe()
    os.write(writing, b"level = 'disk'")
    os.close(writing)
    assert whole(f"/dev/fd/{reading}") == b"level = 'disk'"
    os.close(reading)


def test_what_is_open_is_no_more_than_a_file_may_be(tmp_path: Path) -> None:
    """A pipe tells no size."""
    reading, writing = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writing, bytes(1 << 20))

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(ConfigError, match="more than 16 MiB"):
        whole(f"/dev/fd/{reading}")
    os.close(reading)
    writer.join()
    os.close(writing)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: load(BrokerConfig, "broker", path, {}),
        lambda path: Rights(Path(path)),
        lambda path: usersfile.read(Path(path)),
        lambda path: server_context(BrokerConfig(tls_cert=path)),
        lambda path: secret_of_set(BrokerConfig(ha_secret_file=path)),
        secret_of,
        security_of,
        lambda path: Security(tls=True, tls_ca=path).context,
    ],
    ids=["config", "users", "usersfile", "certificate", "secret-of-set", "secret", "security", "authorities"],
)  # fmt: skip
def test_nobody_waits_for_a_named_pipe(fifo: Path, read: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError, match="named pipe"):
        read(str(fifo))


def test_a_file_of_users_that_becomes_a_named_pipe(
    tmp_path: Path, fifo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's loop reads it: every client waited with it."""
    rights = rights_of(tmp_path, user("u"))
    path = rights.path
    assert path is not None
    fifo.rename(path)
    looked(rights)
    assert list(rights.users) == ["u"]
    assert "named pipe" in caplog.text
    touched(write(path, user("u"), user("v")))
    looked(rights, 3 * LOOK_MS)
    assert list(rights.users) == ["u", "v"]


def test_a_certificate_that_becomes_a_named_pipe(
    tmp_path: Path, fifo: Path, server_certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(tls_cert=str(tmp_path / "cert"), tls_key=str(server_certificate.key))
    Path(config.tls_cert).write_bytes(server_certificate.cert.read_bytes())
    context = server_context(config)
    assert context is not None
    tls = Tls(config, context)
    fifo.rename(config.tls_cert)
    tls.reload()
    assert tls.context is context
    assert "named pipe" in caplog.text


def test_the_mark_that_editors_on_windows_put_first_is_no_setting(tmp_path: Path) -> None:
    """TOML's own error was told of line 1, column 1, where nothing can be seen."""
    file, secret = tmp_path / "x.toml", tmp_path / "secret"
    for path, text in ((file, '[broker]\r\nlog_level = "debug"\r\n'), (secret, "key\r\n")):
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        path.chmod(0o600)
    assert load(BrokerConfig, "broker", str(file), {}, {}).log_level == "debug"
    assert "log_level" in sources("broker", str(file), {}, {})
    assert secret_of(secret) == "key"
    users = tmp_path / "users.toml"
    users.write_bytes(codecs.BOM_UTF8)
    users.chmod(0o600)
    assert usersfile.read(users) == {}
    users.write_bytes(b"\xff\xfe[\0")
    with pytest.raises(ConfigError, match="cannot read"):
        usersfile.read(users)
