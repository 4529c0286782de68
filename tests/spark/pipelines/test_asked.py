"""`pipelines.asked`: the keywords of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines import archive, audit, redrive, reindex, replay, search, stats, tables
from penstock.spark.pipelines.asked import bound_ms, complete


@pytest.mark.parametrize("job", [archive, redrive, replay, search, stats])
def test_every_keyword_has_a_default(job) -> None:  # type: ignore[no-untyped-def]
    assert job.DEFAULTS.keys() == job.Asked.__annotations__.keys()


def test_what_is_given_wins_and_a_wrong_name_is_an_error() -> None:
    assert complete({"a": 1}, {"a": 0, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(TypeError, match="'colour'"):
        stats.run(None, colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "run",
    [
        lambda store: audit.run(None, store, split_bytes=0),
        lambda store: reindex.run(None, store, to=store / "to", split_bytes=0),
        lambda store: search.run(None, path=store, key="k", limit=-1),
        lambda store: archive.run(None, "t", store / "to", file_records=0),
        lambda store: archive.run(None, "t", store / "to", group="no group"),
        lambda store: tables.compact(store / "to", "t", 1),
        lambda store: stats.run(None, ["t"], window=f"{10**20}h"),
    ],
)
def test_what_a_job_could_do_nothing_with_is_refused_first(run: Callable[[Path], object], good: Path) -> None:
    with pytest.raises(ConfigError):
        run(good)
    assert not (good / "to").exists()


def test_limits_in_time() -> None:
    assert (bound_ms(""), bound_ms("1700000000000"), bound_ms("1970-01-01T00:00:01Z")) == (
        None,
        1_700_000_000_000,
        1000,
    )
    with pytest.raises(ConfigError):
        bound_ms("yesterday")
