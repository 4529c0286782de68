"""Every pipeline gives the same everywhere: in this process, on executors of a standalone cluster, at a Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import spark_rounds
from spark_clusters import connect_server, standalone
from spark_logs import fill_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("rounds") / "store", 300)


@pytest.fixture(scope="module")
def topic(publish: Callable[..., str]) -> str:
    return publish("rounds", 200)


@pytest.fixture(scope="module")
def here(
    spark: SparkSession, registry: str, store: Path, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The answers of this process's local session."""
    folder = tmp_path_factory.mktemp("local") / "round"
    told = spark_rounds.round(spark, registry, store, folder, "local")
    assert told["archive"]["resumed"] == 4
    assert told["archive"]["offsets"] == [(queue, offset) for queue in range(4) for offset in range(50)]
    assert told["archive"]["again"] == 0
    assert told["copied"] == told["replay"][1] == {str(n): 1 for n in range(200)}
    assert told["redrive"][:3] == [6, 6, 6]
    assert told["redrive"][3] == {str(n): 1 for n in range(12)}
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]


def there(master: str, registry: str, store: Path, folder: Path, name: str) -> Any:
    """The answers of a session of a process of its own."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("src", "tests/spark"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/spark/spark_rounds.py"), master, registry, str(store), str(folder), name],
        env={**os.environ, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def test_a_standalone_cluster_with_two_workers(
    here: dict[str, Any], registry: str, store: Path, cluster: str, tmp_path: Path
) -> None:
    assert there(cluster, registry, store, tmp_path / "round", "standalone") == here


_SUBMITTED = """
import json, os, sys
from penstock.spark import session

spark = session(config={"spark.sql.shuffle.partitions": "5"})
context = spark.sparkContext
rows = spark.read.format("penstock").options(registry=sys.argv[1], columns="value", store="none").load("rounds")
homes = context.parallelize([0], 1).map(lambda _: os.getcwd()).collect()
told = [context.master, context.appName, bool(context.uiWebUrl), rows.count(), homes[0] != os.getcwd()]
print(json.dumps([*told, *(spark.conf.get("spark.sql." + name) for name in
    ("shuffle.partitions", "autoBroadcastJoinThreshold", "session.timeZone", "python.filterPushdown.enabled"))]))
"""


def test_what_was_submitted_counts(cluster: str, registry: str, topic: str, tmp_path: Path) -> None:
    import pyspark

    (tmp_path / "job.py").write_text(_SUBMITTED)
    words = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", cluster, "--name", "nightly"]
    for name, value in {
        "ui.port": 0,
        "sql.autoBroadcastJoinThreshold": -1,
        "sql.session.timeZone": "Asia/Tokyo",
    }.items():
        words += ["--conf", f"spark.{name}={value}"]
    words += ["--conf", "spark.sql.shuffle.partitions=3", str(tmp_path / "job.py"), registry]
    env = {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [cluster, "nightly", True, 200, True, "5", "-1", "Asia/Tokyo", "true"]


def test_executors_of_their_own(request: pytest.FixtureRequest, registry: str, store: Path, tmp_path: Path) -> None:
    """A standalone cluster's are started by the same code: this is for `./run peers`, which has the time."""
    if not request.config.getoption("--peers", default=False):
        pytest.skip("runs with --peers; a standalone cluster's executors run always")
    here = request.getfixturevalue("here")
    assert there("local-cluster[2,1,1024]", registry, store, tmp_path / "round", "executors") == here


def test_a_connect_server(
    here: dict[str, Any], registry: str, store: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("grpc")
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        assert there(url, registry, store, tmp_path / "round", "connect") == here
        done = penstock(
            "stats", "--path", str(store), "--window", "all", "--by", "topic,tags", "--json", "--master", url
        )
        assert json.loads(done.stdout)["rows"] == here["stats"]
    gone = penstock("stats", "--path", str(store), "--master", url)
    assert gone.returncode == 1
    assert gone.stderr.splitlines()[1].startswith(f"penstock: no session at {url}: ")


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    """`penstock spark …` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "spark", *words], env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
