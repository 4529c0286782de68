"""A broker whose data folder is put back to a copy of an older state: it gives offsets a second time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from client.conftest import SMALL, Cluster
from penstock.client.reader import LogReader

TOPIC = "put-back"


class PutBack:
    """It is up between the calls; `copy` is the state that `put_back` brings back."""

    def __init__(self, root: Path) -> None:
        self.folder, self.kept = root / "data", root / "copy"
        self.cluster = Cluster(self.folder, SMALL).start()

    def send(self, bodies: range) -> None:
        """These numbers to the topic's first queue, until they are durable."""
        with penstock.Producer(self.cluster.registry) as producer, LogReader(self.cluster.registry) as reader:
            queue = producer.queues(TOPIC)[0]
            producer.send_batch([penstock.Message(TOPIC, b"%d" % n) for n in bodies], queue=queue)
            while reader.offsets(queue) != reader.offsets(queue, durable=False):
                time.sleep(0.01)

    def copy(self) -> None:
        """Keep what there is now."""
        self.cluster.stop()
        shutil.copytree(self.folder, self.kept)
        self.cluster.start()

    def put_back(self) -> None:
        """The folder is as it was kept."""
        self.cluster.stop()
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)
        self.cluster.start()


@contextmanager
def put_back(root: Path) -> Iterator[PutBack]:
    """One, stopped behind the block."""
    made = PutBack(root)
    try:
        yield made
    finally:
        made.cluster.stop()
