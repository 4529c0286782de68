"""A machine that is off, as far as who connects there can tell."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

QUEUE = 4  # more than a queue of none takes


@contextlib.contextmanager
def silent(port: int = 0) -> Iterator[int]:
    """A port where nobody refuses and nobody answers: its queue is full, and connections to it are not made."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(QUEUE):  # none is ever taken
            probe = stack.enter_context(socket.socket())
            probe.setblocking(False)
            probe.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
