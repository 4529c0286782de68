"""The template for declarative pipelines, run for real by `spark-pipelines`, twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.spark import spark as command
from penstock.errors import ConfigError
from penstock.spark import template

SRC = Path(__file__).parents[2] / "src"


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        template.write(tmp_path, registry="r:1", source="a", target="b")
    refused = CliRunner().invoke(command, ["template", str(tmp_path)])
    assert refused.exit_code == 1
    assert "empty" in refused.stderr


@pytest.mark.parametrize("name", ["", 'x"y', "a b"])
def test_names_that_no_topic_can_have_are_not_written(tmp_path: Path, name: str) -> None:
    for names in ({"source": name, "target": "b"}, {"source": "a", "target": name}):
        with pytest.raises(ConfigError, match="no topic can be called"):
            template.write(tmp_path / "shop", registry="r:1", **names)
    assert not (tmp_path / "shop").exists()


def test_every_file_of_the_template_is_written_with_the_names_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    made = template.write(folder, registry="10.1.1.1:9876", source="orders", target="results")
    there = {str(p.relative_to(SRC / "penstock/spark/template")) for p in (SRC / "penstock/spark/template").rglob("*")}
    kept = {name for name in there if "." in name and not name.endswith(("__init__.py", ".pyc"))}
    assert {str(path.relative_to(folder)) for path in made} == kept
    spec = (folder / "spark-pipeline.yml").read_text()
    assert "name: shop\n" in spec and f"storage: {(folder / 'storage').as_uri()}\n" in spec  # noqa: PT018
    code = (folder / "transformations/orders.py").read_text()
    assert 'REGISTRY = "10.1.1.1:9876"' in code
    assert '.load("orders")' in code
    compile(code, "orders.py", "exec")
    assert "%d{HH:mm:ss}" in (folder / "conf/log4j2.properties").read_text()


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_the_project_runs_twice_and_sends_each_row_once(
    registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("yaml")
    from penstock.spark.tools import java

    publish("declared", 60)
    folder = tmp_path / "project"
    done = CliRunner().invoke(
        command, ["template", str(folder), "--registry", registry, "--from", "declared", "--to", "declared-out"]
    )
    assert done.exit_code == 0, done.output
    environment = {
        **os.environ, "PYTHONPATH": str(SRC), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java.find().home),
        "SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_TESTING": "1",  # a free port: the one that Spark takes else may be another run's
    }  # fmt: skip
    for count in (60, 90):
        ran = subprocess.run(
            [str(Path(sys.executable).parent / "spark-pipelines"), "run"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
        assert bodies(registry, "declared-out") == Counter({f"{n:.<10}": 1 for n in range(count)}), ran.stdout[-3000:]
        publish("declared", 30, first=60)


def bodies(registry: str, topic: str) -> Counter[str]:
    """Every message of a topic, durable or not yet."""
    from penstock.client.reader import LogReader
    from penstock.spark import schema
    from penstock.spark.kernel.batches import Batches

    found: Counter[str] = Counter()
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at)
                for batch in Batches(schema.arrow_of(("value",)), broker="b").of(got.records, at, end):
                    found.update(value.decode() for value in batch.column(0).to_pylist())
                at = got.next_offset
    return found
