"""What Spark's Python processes warn of, told by the process that started the session.

Their standard error is the JVM's, and that of a session of ours goes to a file that nobody sees: lost offsets that
`failOnDataLoss=false` passes over, or a broker that is away, would be noted in there alone. So in such a session each warning
of ours is a line with a mark, and `Listener` gives what it finds of them in the file to the logger of the same name here.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time

ASKED = "PENSTOCK_SPARK_ALOUD"  # in the environment of the JVM, and so of the processes it starts
MARK = "penstock says "
PAUSE_S = 0.5
READ_BYTES = 1 << 20


class Marked(logging.Formatter):
    """A record as one line: name, level and text."""

    def format(self, record: logging.LogRecord) -> str:
        return MARK + json.dumps([record.name, record.levelno, record.getMessage()])


def speak() -> None:
    """In a process that Spark started for a session of ours: write warnings so that they are found."""
    ours = logging.getLogger("penstock")
    if os.environ.get(ASKED) and not any(isinstance(handler.formatter, Marked) for handler in ours.handlers):
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(Marked())
        ours.addHandler(handler)


class Listener:
    """Follows what the JVM writes to its standard error, as long as this process lives."""

    def __init__(self, file: int) -> None:
        self._file = os.dup(file)  # so that its number is no other file's one day
        self._at = 0
        self._rest = b""
        self._lock = threading.Lock()

    def start(self) -> None:
        """In a thread of its own; what is there at the end of the process is told, too."""
        threading.Thread(target=self._follow, name="penstock-spark-log", daemon=True).start()
        atexit.register(self.look)

    def look(self) -> None:
        """Tell what has come since the last look."""
        with self._lock:
            while data := os.pread(self._file, READ_BYTES, self._at):
                self._at += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    _tell(line)

    def _follow(self) -> None:
        while True:
            time.sleep(PAUSE_S)
            self.look()


def _tell(line: bytes) -> None:
    _, mark, said = line.decode("utf-8", "replace").partition(MARK)
    if not mark:
        return
    try:
        name, level, message = json.loads(said)
        logging.getLogger(name).log(level, "%s", message)
    except (ValueError, TypeError):  # two processes wrote at once, and their lines are one
        logging.getLogger("penstock.spark").warning("%s", said)
