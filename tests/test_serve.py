"""A process of ours: it stops at SIGTERM, or when a descriptor ends; its log says who speaks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from certificates import Authority
from polling import eventually

PROGRAM = """
import sys
from penstock.config import BrokerConfig
from penstock.serve import run
ports = {f"{name}_port": -1 for name in ("remoting", "http")}
run(BrokerConfig(data=sys.argv[1], nsq_port=0, **ports), None, ends_with=0, log_as="100%")
"""


def test_too_few_threads_end_a_start_and_no_broker_that_is_ready(tmp_path: Path) -> None:
    """As `pids.max` gives them. The first name that was looked up ended the process, by libuv and without a word."""
    limit = """
import threading
start = threading.Thread.start
def few(thread):
    if threading.active_count() > 4:
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = few
"""
    done = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "RuntimeError: can't start new thread"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["term", "int", "end of input"])
def test_a_process_stops_cleanly(tmp_path: Path, how: str) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(read)
    assert process.stdout is not None
    assert process.stdout.readline().startswith('ready {"nsq": "127.0.0.1:')
    os.write(write, b"what is said meanwhile is nothing to it")
    if how != "end of input":
        process.send_signal(signal.SIGTERM if how == "term" else signal.SIGINT)
    else:
        os.close(write)
    _, log = process.communicate(timeout=60)
    if how != "end of input":
        os.close(write)
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]  # not on a terminal: JSON
    started = next(line for line in lines if line["event"] == "started")
    assert {**started, "broker": "100%", "data": str(tmp_path), "recovery": "clean", "records": 0} == started
    assert started["nsq"].startswith("127.0.0.1:")
    assert (lines[-1]["event"], lines[-1]["logger"]) == ("stopping", "penstock.serve")
    assert oct((tmp_path / "store.json").stat().st_mode & 0o777) == "0o600"
    assert "Traceback" not in log


def test_a_page_that_cannot_be_read_ends_no_process_without_a_word(tmp_path: Path) -> None:
    """As a mapped file that was cut short, or a bad disk, does: the standard error was empty."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    process.send_signal(signal.SIGBUS)
    _, log = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in log
    assert "Segmentation fault" not in log
    assert log.count("most recent call first") == 1  # of the others, who run on, nobody follows the frames


@pytest.mark.parametrize("where", ["a full disk", "nowhere"])
def test_a_ready_line_that_cannot_be_printed_ends_no_process(tmp_path: Path, where: str) -> None:
    if where == "nowhere":
        read, out = os.pipe()
        os.close(read)
    else:
        out = os.open("/dev/full", os.O_WRONLY)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(out)
    assert process.stderr is not None
    log = [process.stderr.readline()]
    while log[-1] and "cannot be printed" not in log[-1]:
        log.append(process.stderr.readline())
    assert process.poll() is None
    process.terminate()
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, json.loads(rest.splitlines()[-1])["event"]) == (0, "stopping")
    assert "Traceback" not in "".join(log) + rest


def test_sighup_renews_the_certificates_and_ends_nothing(tmp_path: Path, authority: Authority) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    shutil.copy(first.cert, tmp_path / "cert.pem")
    shutil.copy(first.key, tmp_path / "key.pem")
    program = PROGRAM.replace("nsq_port=0", "nsq_port=-1, https_port=0, tls_cert='cert.pem', tls_key='key.pem'")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    address = json.loads(process.stdout.readline().removeprefix("ready "))["https"]
    host, _, port = address.rpartition(":")

    def shown() -> bytes:
        pem = ssl.get_server_certificate((host, int(port)), timeout=30)
        return ssl.PEM_cert_to_DER_cert(pem)

    assert shown() == ssl.PEM_cert_to_DER_cert(first.cert.read_text())
    shutil.copy(second.cert, tmp_path / "cert.pem")
    shutil.copy(second.key, tmp_path / "key.pem")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: shown() == ssl.PEM_cert_to_DER_cert(second.cert.read_text()))
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert '"event": "certificate renewed", "cert": "cert.pem"' in log
