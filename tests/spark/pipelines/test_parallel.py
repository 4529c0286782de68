"""Jobs in parallel: a cluster that gives no cores is told."""

from __future__ import annotations

import io
import threading

import pytest

from penstock.spark.tools.progress import Progress


def test_a_cluster_without_free_cores_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from penstock.spark.pipelines import parallel

    monkeypatch.setattr(parallel, "IDLE_S", 0.0)
    looked = threading.Semaphore(0)
    context = SimpleNamespace(
        setJobGroup=lambda *_: None,
        statusTracker=lambda: SimpleNamespace(getJobIdsForGroup=lambda group: looked.release() or []),
    )
    out = io.StringIO()
    with parallel._TaskWatch(SimpleNamespace(sparkContext=context), 4, 100, Progress("audit", out=out)):  # type: ignore[arg-type]
        for _ in range(4):
            assert looked.acquire(timeout=20)
    assert out.getvalue() == parallel.IDLE + "\n"
