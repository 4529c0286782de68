"""Stores that a broker has filled, shared by the tests of this folder: none changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_logs import fill_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("jobs") / "store", 300)


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("audit") / "store", 350)
