"""What stands between a slave and its master, and is a bad network when it is told to be."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class Proxy:
    """Passes bytes on. `delay_s`, `flip` (the next bytes have one bit wrong) and `dead` (nothing passes, nobody is told) may be
    set at any time; `cut` ends all connections.
    """

    def __init__(self, to: str, seed: int) -> None:
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay_s = 0.0
        self.flip = self.dead = False
        self.flipped = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._start(self._accept)

    def _start(self, run: object, *words: object) -> None:
        threading.Thread(target=run, args=words, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                slave, _ = self._listener.accept()
                master = socket.create_connection(self._to, 5)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                with contextlib.suppress(OSError, UnboundLocalError):
                    slave.close()
                continue
            master.settimeout(None)
            with self._lock:
                self._open |= {slave, master}
            self._start(self._pass, slave, master)
            self._start(self._pass, master, slave)

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)  # the slow network is the experiment
                if self.dead:
                    continue
                if self.flip:
                    self.flip = False
                    self.flipped += 1
                    spoilt = bytearray(data)
                    spoilt[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                    data = bytes(spoilt)
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, to}
        source.close()

    def cut(self) -> None:
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
