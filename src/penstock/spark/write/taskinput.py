"""Whether the rows that a task was given are all its rows.

When what makes the rows fails (a lost shuffle file, a function, another source), Spark ends its connection to the task's Python
process, and Arrow takes the end of a connection for the end of the rows: `write` sees some of them, and no error. Spark then does
the task again, which is too late for whatever the first attempt has published by itself.
"""

from __future__ import annotations

import select
import sys
from types import FrameType

_MAIN = ("pyspark.worker", "__main__")  # the modules whose `main` has the connection as `infile`


def is_whole() -> bool | None:
    """Asked behind the last row: whether Spark's side of the connection is still open, which it is until the task has answered.
    None where that cannot be told, as in a process that Spark did not fork (`spark.python.use.daemon=false`).
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "main" and frame.f_globals["__name__"] in _MAIN):
        frame = frame.f_back
    if frame is None or not hasattr(select, "POLLRDHUP"):
        return None
    try:
        descriptor = frame.f_locals["infile"].fileno()
    except (KeyError, AttributeError, OSError):
        return None
    asked = select.poll()
    asked.register(descriptor, select.POLLRDHUP)
    return not asked.poll(0)
