"""Warnings of the processes that Spark starts reach the one whose session it is."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark.tools import aloud
from polling import eventually


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """The logger of the whole package, which a test may change."""
    logger = logging.getLogger("penstock")
    before = list(logger.handlers)
    yield logger
    logger.handlers[:] = before


def test_a_warning_goes_through_a_file(
    tmp_path: Path, ours: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is between the lines, and wherever they are cut."""
    file = tmp_path / "stderr"
    with open(file, "a", buffering=1) as out, open(file, "rb") as seen:
        monkeypatch.setattr(sys, "stderr", out)
        monkeypatch.setenv(aloud.ASKED, "true")
        aloud.speak()
        aloud.speak()  # each module that Spark loads does
        out.write("12:00:00 ERROR Executor: of Spark itself\n")
        logging.getLogger("penstock.spark.read.planning").warning("data lost: %s", "1 to 2\nof t")
        logging.getLogger("penstock.spark.read.planning").info("nothing of note")
        out.write('penstock says ["penst')
        ours.handlers.pop()
        caplog.clear()
        listener = aloud.Listener(seen.fileno())
        listener.look()
        out.write('ock.x", 40, "later"]\npenstock says two linespenstock says []\n')
        listener.look()
        listener.look()
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("penstock.spark.read.planning", logging.WARNING, "data lost: 1 to 2\nof t"),
        ("penstock.x", logging.ERROR, "later"),
        ("penstock.spark", logging.WARNING, "two linespenstock says []"),
    ]


def test_in_sessions_of_others_nothing_is_marked(ours: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(aloud.ASKED, raising=False)
    before = list(ours.handlers)
    aloud.speak()
    assert ours.handlers == before


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_what_is_lost_in_a_session_of_ours_is_told(
    spark: Any, registry: str, publish: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """It was written to a file without a name: `failOnDataLoss=false` passed over offsets without a word."""
    assert aloud.ASKED not in os.environ
    topic = publish("lost-aloud", 40)
    rows = spark.read.format("penstock").options(registry=registry, failOnDataLoss="false", store="none").load(topic)
    with penstock.Admin(registry) as admin:
        admin.purge_topic(topic)
    assert rows.count() == 0
    said = lambda: {r.getMessage() for r in caplog.records if r.name == "penstock.spark.read.planning"}  # noqa: E731
    eventually(lambda: len(said()) == 4, 60, "nothing is said")
    assert all("of lost-aloud queue" in text and text.startswith("data lost: ") for text in said())
