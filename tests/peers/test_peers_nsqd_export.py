"""nsqd itself starts on the folder that `penstock export --to nsqd` writes, with every message, channel and pause."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from broker.nsq.test_export import NINE, fill
from broker.queueside import Side
from fronts.nsq_peer import NsqPeer
from peers.nsq_apps import apps
from penstock.broker.nsq.export import export
from penstock.disk.files import Files
from polling import eventually


@pytest.fixture(scope="session")
def nsqd() -> str:
    return str(apps() / "nsqd")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_nsqd_starts_on_it(nsqd: str, tmp_path: Path) -> None:
    side = Side(tmp_path / "data")
    fill(side)
    list(export(side.broker, Files(), tmp_path / "nsqd"))
    side.close()
    tcp, http = free_port(), free_port()
    words = [
        nsqd,
        f"-data-path={tmp_path / 'nsqd'}",
        f"-tcp-address=127.0.0.1:{tcp}",
        f"-http-address=127.0.0.1:{http}",
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:

            def ask(path: str, method: str = "GET") -> bytes:
                request = urllib.request.Request(f"http://127.0.0.1:{http}{path}", method=method)
                try:
                    return urllib.request.urlopen(request, timeout=10).read()  # type: ignore[no-any-return]
                except OSError:
                    return b""

            eventually(lambda: ask("/ping"))
            topics = {t["topic_name"]: t for t in json.loads(ask("/stats?format=json"))["topics"]}
            found = {
                (n, c["channel_name"]): (c["depth"], c["paused"]) for n, t in topics.items() for c in t["channels"]
            }
            for level in ("os", "disk", "memory"):
                assert (topics[f"q-{level}"]["depth"], topics[f"q-{level}"]["paused"]) == (1, True)
                assert found[f"q-{level}", "one"] == (9, False)
                assert found[f"q-{level}", "two"] == (9, True)
            assert found["logged", "c"] == (6, False)
            assert topics["lone"]["depth"] == 2
            peer = NsqPeer(f"127.0.0.1:{tcp}")
            peer.subscribe(b"q-os", b"one", 100)
            assert sorted(peer.message().body for _ in range(9)) == sorted(NINE)
            peer.close()
        finally:
            process.terminate()
            _, log = process.communicate(timeout=60)
    assert "ERROR" not in log
    assert "invalid" not in log
