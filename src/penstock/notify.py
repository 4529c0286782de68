"""What systemd is told (sd_notify): ready, reloading, stopping, and that the loop still turns.

Nothing happens where `NOTIFY_SOCKET` is not set.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping

_BEATS = 3  # in the time after which systemd takes a silent process for hung


class Notify:
    """The socket of the service manager, as the environment names it."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        pid, usec = environment.get("WATCHDOG_PID", ""), environment.get("WATCHDOG_USEC", "")
        ours = bool(self._address) and usec.isdecimal() and pid in ("", str(os.getpid()))
        self.beat_s = int(usec) / _BEATS / 1_000_000 if ours else 0.0  # 0: no watchdog
        self._timer: asyncio.TimerHandle | None = None

    def say(self, *lines: str) -> None:
        """Tell it; a manager that does not listen is none."""
        if self._address[:1] not in ("/", "@"):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto("\n".join(lines).encode(), address)
        except OSError:
            return

    def ready(self) -> None:
        """All is there. From now on the watchdog is fed by the loop that runs now."""
        self.say("READY=1", f"MAINPID={os.getpid()}")
        if self.beat_s and self._timer is None:
            self._beat(asyncio.get_running_loop())

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.say("WATCHDOG=1")
        self._timer = loop.call_later(self.beat_s, self._beat, loop)

    def around(self, reload: Callable[[], None]) -> Callable[[], None]:
        """The same, told: that settings are being taken anew, and when that is done."""

        def told() -> None:
            self.say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
            try:
                reload()
            finally:
                self.say("READY=1")

        return told

    def stopping(self) -> None:
        """It ends."""
        self.say("STOPPING=1")
