"""The `penstock` command as it is typed, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import main
from penstock.testing import Broker

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("data")) as broker:
        yield broker


@pytest.fixture
def run(broker: Broker) -> Run:
    """Runs `penstock …` and gives its output; with `rows=True` the JSON objects it prints. Nothing ends in a traceback."""

    def call(*words: str, rows: bool = False, status: int = 0) -> Any:
        result = CliRunner().invoke(main, [*words, "-n", broker.registry, *(["--json"] if rows else [])])
        assert result.exit_code == status, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return rows_of(result.output) if rows else result.output

    return call


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
