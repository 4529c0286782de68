"""An engine, and sets of brokers that have one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etcd_parts import ElectedSet, Etcd
from penstock.registration import etcd as client


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    made = Etcd(tmp_path)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def pair(tmp_path: Path, etcd: Etcd) -> Iterator[ElectedSet]:
    made = ElectedSet(tmp_path, etcd)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests of a module, which empty it."""
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has a minute for its answer: beside a busy disk, or one that stood still, half a second is over first."""
    monkeypatch.setattr(client, "CALL_S", 60.0)
    monkeypatch.setattr(client, "LOGIN_S", 60.0)
