"""Which driver may write to a sink: a run that is new ends those before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.runs import Run, Runs
from penstock.errors import Refused
from penstock.wire.codes import ResponseCode


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    broker = Side(tmp_path).broker
    return Runs(broker.staging.sinks, broker.sending)


def test_a_new_run_fences_the_one_before(runs: Runs) -> None:
    assert runs.ask("S", "Q", "one", False) is None
    assert not runs.register(Run("S", "Q", "one", "broker-a"))
    assert not runs.register(Run("S", "Q", "two", "broker-a"))
    assert not runs.register(Run("S", "Q", "two", ""))  # known: nothing is written
    with pytest.raises(Refused) as caught:
        runs.register(Run("S", "Q", "one", "broker-a"))
    assert caught.value.remoting == ResponseCode.STAGE_STALE
    with pytest.raises(Refused):
        runs.demand_current("S", "one")
    runs.demand_current("S", "two")
    runs.demand_current("another", "one")


def test_a_run_that_was_given_up_ends_none_that_comes_later(runs: Runs) -> None:
    """Its job has failed, and the same job writes again while a task of the first is still at work."""
    runs.give_up("S", "one")
    runs.register(Run("S", "Q", "two", "broker-a"))
    for ask in (runs.demand_current, lambda sink, run: runs.register(Run(sink, "Q", run, "broker-a"))):
        with pytest.raises(Refused) as caught:
            ask("S", "one")
        assert caught.value.remoting == ResponseCode.STAGE_STALE
    runs.register(Run("S", "Q", "two", "broker-a"))
    runs.register(Run("another", "Q", "one", "broker-a"))


def test_another_query_takes_a_sink_only_by_reset(runs: Runs) -> None:
    runs.register(Run("S", "Q", "one", "broker-a"))
    with pytest.raises(Refused, match="sinkReset") as caught:
        runs.register(Run("S", "other", "two", "broker-a"))
    assert caught.value.remoting == ResponseCode.STAGE_OTHER_QUERY
    assert runs.register(Run("S", "other", "two", "broker-a", reset=True))
    known = runs.ask("S", "other", "two", False)
    assert known is not None
    assert (known.query, known.last) == ("other", -1)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\n", " a", "é"])
def test_names(runs: Runs, name: str) -> None:
    for run in (Run(name, "Q", "r", "b"), Run("S", name, "r", "b"), Run("S", "Q", name, "b")):
        with pytest.raises(Refused, match="printable"):
            runs.register(run)


def test_a_new_run_names_who_decides(runs: Runs) -> None:
    with pytest.raises(Refused, match="decides"):
        runs.register(Run("S", "Q", "one", ""))
