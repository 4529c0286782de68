"""A project for Spark's declarative pipelines, written out of the files in this folder with the names filled in."""

from __future__ import annotations

from pathlib import Path
from string import Template

from penstock.client.subscriptions import check_topic
from penstock.errors import ConfigError

FILES = ("spark-pipeline.yml", "transformations/orders.py", "conf/spark-defaults.conf", "conf/log4j2.properties")


def write(folder: Path, *, registry: str, source: str, target: str) -> list[Path]:
    """Write the project; the files. `ConfigError` when something is there already."""
    root = folder.absolute()
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root} is not empty", "name a folder that is empty or not there yet")
    for topic in (source, target):
        try:
            check_topic(topic)
        except ValueError as error:
            raise ConfigError(str(error), "name topics with --from and --to") from None
    names = {"name": root.name, "folder": str(root), "storage": (root / "storage").as_uri(), "registry": registry,
             "source": source, "target": target}  # fmt: skip
    here = Path(__file__).parent
    made = []
    for file in FILES:
        text = (here / file).read_text()
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        # Log settings have dollar signs of their own.
        path.write_text(text if file.endswith(".properties") else Template(text).substitute(names))
        made.append(path)
    return made
