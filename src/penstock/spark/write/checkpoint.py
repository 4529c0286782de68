"""What the sink reads out of the checkpoint folder of a query, and the one file it keeps there.

The folder is reached as files of the driver's machine; what lies in an object store or another file system is not read.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import StoreError

log = logging.getLogger(__name__)

NOTE = "penstock-sink.json"  # beside Spark's `metadata`: which broker decides the batches of which sink


class Checkpoint:
    """The checkpoint folder of a query: a path, or a URI as Spark takes it. Empty: none is known."""

    def __init__(self, location: str) -> None:
        self._folder: Path | None = Path(location) if location else None
        if "://" in location or location.startswith("file:"):
            place = urlsplit(location)
            self._folder = Path(unquote(place.path)) if place.scheme == "file" else None

    def planned_ms(self, batch: int) -> int | None:
        """When Spark planned a micro-batch; None where that cannot be read here."""
        if self._folder is None:
            return None
        try:
            lines = (self._folder / "offsets" / str(batch)).read_text().splitlines()
            planned = json.loads(lines[1])["batchTimestampMs"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return planned if type(planned) is int else None

    def newest_planned(self) -> dict[int, int]:
        """The number of the micro-batch that Spark planned last, and when; empty where that cannot be read here."""
        try:
            names = os.listdir(self._folder / "offsets") if self._folder is not None else []
        except OSError:
            return {}
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        planned = self.planned_ms(newest)
        return {} if planned is None else {newest: planned}

    def deciders(self) -> dict[str, str]:
        """The broker that decides, by the name of the sink; empty where none was noted, or where that cannot be read here."""
        if self._folder is None:
            return {}
        try:
            noted = tables.load(Files(), self._folder / NOTE) or {}
        except (OSError, StoreError) as error:
            log.warning("cannot read which broker decides: %s", error)
            return {}
        sink, broker = noted.get("sink"), noted.get("broker")
        return {sink: broker} if isinstance(sink, str) and isinstance(broker, str) else {}

    def note_decider(self, sink: str, broker: str) -> None:
        """Keep, durably, which broker decides for a sink: it may be away, and nobody else know it, when the query starts again.

        Nothing where the folder is not Spark's, as a path of another file system; a warning where it cannot be written.
        """
        if self._folder is None or self.deciders().get(sink) == broker or not (self._folder / "metadata").is_file():
            return
        try:
            tables.save(Files(), self._folder / NOTE, {"sink": sink, "broker": broker})
        except (OSError, StoreError) as error:
            log.warning("cannot note that broker %s decides for sink %s: %s", broker, sink, error)
