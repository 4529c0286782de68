"""The `penstock` command itself: settings as flags."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock import Admin, Message, Producer
from penstock.cli.main import ABOUTS, Lazy, _next_step, main, set_flags
from penstock.cli.tools import first_sentence
from penstock.config import BrokerConfig, RegistryConfig, load
from penstock.errors import ConfigError, ConnectionLost, NotConnected, NotTrusted, PenstockError, StoreError, TimedOut
from penstock.testing import Broker


def test_every_name_that_settings_prints_can_be_set() -> None:
    rows = json.loads(CliRunner().invoke(main, ["settings", "--json"]).output)
    lines = CliRunner().invoke(main, ["settings"]).output.splitlines()
    assert len(rows) == len(lines) > 80
    for row, line in zip(rows, lines, strict=True):
        name, text = line.partition(" = ")[0], "[]" if row["name"] == "topic" else str(row["default"])
        assert name == f"{row['role']}.{row['name']}"
        kind: Any = {"broker": BrokerConfig, "registry": RegistryConfig}[row["role"]]
        for roles in (("broker", "registry"), (row["role"],)):
            said = set_flags((f"{name}={text}",), *roles)[row["role"]]
            assert list(said) == [row["name"]]
            assert load(kind, row["role"], None, said, {}) == kind()


def test_a_name_without_its_role_is_that_of_whoever_has_it() -> None:
    given = ("lookup_host=127.0.0.2", "broker_name=b", "log-level=warn", "registry.log_level=error")
    assert set_flags(given, "broker", "registry") == {
        "broker": {"broker_name": "b", "log_level": "warn"},
        "registry": {"lookup_host": "127.0.0.2", "log_level": "error"},
    }
    rules = """topic=[{"name": "bank*", "level": "disk"}]"""
    said = set_flags((rules,), "broker")["broker"]
    assert load(BrokerConfig, "broker", None, said, {}).topic == ({"name": "bank*", "level": "disk"},)


@pytest.mark.parametrize(
    ("given", "why", "hint"),
    [
        ("registry.lookup_host=x", "no setting of the broker", "penstock registry --set lookup_host"),
        ("brocker.level=os", "unknown setting brocker.level", "penstock settings"),
    ],
)
def test_what_cannot_be_set_is_said_with_what_to_do(given: str, why: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        set_flags((given,), "broker")
    assert hint in error.value.hint
    done = CliRunner().invoke(main, ["broker", "--set", given])
    assert (done.exit_code, done.output.count("Traceback")) == (2, 0)
    assert why in done.output


def test_the_table_of_first_sentences_is_true() -> None:
    context = click.Context(main)
    assert {name: first_sentence(main.get_command(context, name)) for name in Lazy.elsewhere} == ABOUTS  # type: ignore[arg-type]
    said = CliRunner().invoke(main, ["--help"]).output
    for about in ABOUTS.values():
        assert " ".join(about.split()) in " ".join(said.split())


def test_a_verb_imports_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """CPU time differs from machine to machine; what is imported does not. 0.12 s is what it is for."""
    with Broker(tmp_path) as broker:
        script = (
            "import sys\nfrom penstock.cli.main import main\n"
            f"main(['topic', 'ls', '-n', {broker.registry!r}], standalone_mode=False)\n"
            "print(*sorted(name for name in sys.modules if name.startswith('penstock.')), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = set(done.stderr.split())
    assert "penstock.client.aio.admin" in found
    unneeded = {"penstock.client.aio.push", "penstock.client.aio.producer", "penstock.client.blocking", "penstock.wire.sql92",
                "penstock.serve", "penstock.net", "penstock.spark", "penstock.console"}  # fmt: skip
    assert not found & unneeded
    assert len(found) < 60


def test_an_encoding_that_lacks_a_sign_ends_no_command(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Producer(broker.registry) as producer:
        producer.send(Message("t", "ü\u0118\U0001f4a5".encode()))

        def said(*words: str) -> str:
            command = [sys.executable, "-m", "penstock.cli", *words, "-n", broker.registry]
            environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
            return subprocess.run(command, capture_output=True, check=True, env=environ).stdout.decode("latin-1")

        read = ("tail", "t", "--from", "first", "--no-follow")
        assert json.loads(said(*read, "--json"))["body"] == "ü\u0118\U0001f4a5"
        assert "ü\\u0118\\ud83d\\udca5" in said(*read)
        assert "\\u0118" in said("peek", "t")


@pytest.mark.parametrize("limit", [16, 22, 27, 63])
def test_too_few_descriptors_are_said_with_what_to_do(tmp_path: Path, limit: int) -> None:
    """Not by the library of the event loop, which aborts the process at 22 and raises something else at 27."""
    command = f'ulimit -n {limit}; exec "{sys.executable}" -m penstock.cli broker --data "{tmp_path}"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    said = (
        f"penstock: at most {limit} files may be open, and the least to begin with is 64: raise the limit of open files"
    )
    assert (done.returncode, done.stderr) == (1, f"{said} (ulimit -n, LimitNOFILE)\n")


def test_a_folder_that_cannot_be_made_is_said_with_what_to_do() -> None:
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http")]
    command = [sys.executable, "-m", "penstock.cli", "broker", "--data", "/proc/penstock", *ports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    what, hint = done.stderr.splitlines()[-2:]
    assert (done.returncode, what) == (1, "penstock: /proc/penstock: No such file or directory")
    assert "spelled right" in hint


@pytest.mark.parametrize(
    ("call", "refused", "said", "hinted"),
    [
        ("os.posix_fallocate", "EPERM", "fallocate(2)", "seccomp"),
        ("os.posix_fallocate", "ENOSYS", "fallocate(2)", "seccomp"),
        ("fcntl.flock", "ENOLCK", "flock(2)", "with locks"),
        ("mmap.mmap", "ENODEV", "cannot map", "direct_io"),
    ],
)
def test_a_call_that_is_refused_is_said_with_what_to_do(
    tmp_path: Path, call: str, refused: str, said: str, hinted: str
) -> None:
    """By a sandbox, an old kernel or a file system."""
    code = f"""
import errno, fcntl, mmap, os
class Refused:
    def __new__(cls, *asked, **more):
        raise OSError(errno.{refused}, os.strerror(errno.{refused}))
{call} = Refused
from penstock.cli.main import main
main(["broker", "--data", {str(tmp_path)!r}, "--remoting-port=0", "--nsq-port=0", "--http-port=0"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    what, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 1
    assert said in what
    assert hinted in hint


def caused(number: int, cause: type[OSError] = OSError) -> NotConnected:
    error = NotConnected("cannot connect to there: a reason")
    error.__cause__ = cause(number, "a reason")
    return error


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (caused(errno.EMFILE), "ulimit -n"),  # it asked whether something runs there
        (caused(errno.ENFILE), "fs.file-max"),
        (caused(errno.ENOMEM), "no memory"),
        (caused(errno.ENOBUFS), "no memory"),
        (caused(errno.EACCES), "firewall"),
        (caused(errno.EPERM), "firewall"),
        (caused(errno.ENETUNREACH), "network up"),
        (caused(errno.EHOSTUNREACH), "network up"),
        (caused(errno.EADDRNOTAVAIL), "address right"),
        (caused(errno.ECONNREFUSED), "Does it run there?"),
        (caused(errno.ETIMEDOUT, TimeoutError), "Does it run there?"),
        (caused(errno.ECONNRESET, ConnectionResetError), "PENSTOCK_TLS"),
        (caused(1, ssl.SSLError), "PENSTOCK_TLS"),
        (NotTrusted("cannot connect to there: a reason"), "PENSTOCK_TLS_CA"),
        (caused(-2, socket.gaierror), "spelled right"),
        (NotConnected("timed out"), "Does it run there?"),
        (ConnectionLost("closed"), "PENSTOCK_TLS"),
        (TimedOut("no answer"), "penstock status"),
    ],
)
def test_a_connection_that_fails_is_said_with_what_to_do(error: PenstockError, hint: str) -> None:
    assert hint in _next_step(error)


@pytest.mark.parametrize(
    "number", [errno.EDQUOT, errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENFILE]
)
def test_what_a_file_system_refuses_is_said_with_what_to_do(number: int) -> None:
    error = StoreError("a file")
    error.__cause__ = OSError(number, os.strerror(number))
    assert _next_step(error)


def test_too_few_descriptors_are_said_to_be_so(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f'{{"topic":"t{n}","kind":"queue","body":"x"}}\n' for n in range(60)))
    command = ["-c", "ulimit -n 40; exec $0 -m penstock.cli import --new -n $1 $2"]
    done = subprocess.run(
        ["bash", *command, sys.executable, broker.registry, str(tmp_path / "f")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Too many open files" in done.stderr
    assert "ulimit -n" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["import_module", "getattr"])
def test_ctrl_c_while_a_command_is_imported_is_no_traceback(name: str) -> None:
    code = f"""
import penstock.cli.__main__ as begin
def interrupted(*asked):
    raise KeyboardInterrupt
begin.{name} = interrupted
begin.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_clients_have_their_public_names() -> None:
    from penstock.client import aio

    assert all(getattr(aio, name).__name__ == name for name in aio.__all__)
    with pytest.raises(AttributeError, match="Nosuch"):
        _ = aio.Nosuch


def test_the_end_of_a_verb_looks_for_no_garbage() -> None:
    """What is there at the end is set aside, so that the collector does not go through it while the process ends."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('set aside', gc.get_freeze_count() > 1000, gc.isenabled()))\n"
        "sys.argv = ['penstock', 'cheat']\n"
        "from penstock.cli.__main__ import main\n"
        "main()\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "set aside True True"


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(broker: Broker, tmp_path: Path, closed: str) -> None:
    """As a shell or cron may close them: no traceback, and no socket in their place that is written to."""
    with Admin(broker.registry) as admin:
        admin.create_topic("closed", 1)
    verbs = {
        f"export closed -n {broker.registry}": 0, "cheat": 0, f"topic rm closed -n {broker.registry}": 2,
        f"topic ls -n {broker.registry}": 0,
    }  # fmt: skip
    for verb, code in verbs.items():
        told = tmp_path / "told"
        said = f"{sys.executable} -m penstock.cli {verb} 2>{told} {closed}"
        done = subprocess.run(["sh", "-c", said], env={**os.environ, "PYTHONDEVMODE": ""}, timeout=120)
        assert (done.returncode, "Traceback" in told.read_text()) == (code, False), (verb, told.read_text())


@pytest.mark.parametrize("words", ["main --help", "main --version", "nsqd --version", "main topic --help"])
def test_help_that_cannot_be_written_is_one_line(words: str, tmp_path: Path) -> None:
    command, *rest = words.split()
    code = f"from penstock.cli.__main__ import {command}; {command}()"
    with (tmp_path / "told").open("w+") as told, open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", code, *rest], stdout=full, stderr=told, timeout=120)
        told.seek(0)
        said = told.read()
    assert (done.returncode, "Traceback" in said, "No space left" in said) == (1, False, True), said


@pytest.mark.parametrize(
    ("limited", "fault", "words"),
    [
        (True, "bytes(1 << 40)", "1,024 MiB of address space"), (False, "raise MemoryError", "no more memory"),
        (False, 'raise RuntimeError("can\'t start new thread")', "`ulimit -a`"),
    ],
)  # fmt: skip
def test_too_little_memory_ends_with_a_sentence(limited: bool, fault: str, words: str) -> None:
    script = f"""
import resource, sys, types
from penstock.cli.__main__ import _run
def command():
    if {limited}:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    {fault}
sys.modules["tiny"] = types.ModuleType("tiny")
sys.modules["tiny"].command = command
_run("tiny", "command")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert words in done.stderr
