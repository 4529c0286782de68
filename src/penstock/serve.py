"""A process of ours from its first line to its last: limits, log, signals, the `ready` line, and the server between."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping

from penstock.app import Server, runner
from penstock.config import BrokerConfig, RegistryConfig
from penstock.fronts.flags import LEVELS, set_log_level

log = logging.getLogger("penstock.serve")


def run(broker: BrokerConfig | None, registry: RegistryConfig | None, *, ends_with: int = -1, log_as: str = "") -> None:
    """Run until SIGTERM or SIGINT; prints the `ready` line once every port answers.

    `ends_with`: a descriptor; the server stops as well when that has come to its end. `log_as`: a name for each line of
    the log. StoreError when something failed that cannot be mended while running.
    """
    prepare()
    log_to_stderr(*(config.log_level for config in (broker, registry) if config is not None), log_as=log_as)

    def ready(server: Server) -> None:
        if server.recovery is not None:
            log.info("store open %s", server.recovery)
        announce(server.addresses)

    serve(broker, registry, ready, ends_with=ends_with)


def prepare() -> None:
    """What must be so before the first file is opened."""
    os.umask(0o077)
    raise_descriptor_limit()


def log_to_stderr(*levels: str, log_as: str = "") -> None:
    """Log lines go to standard error, from the last of these levels on that is one."""
    words = ("%(asctime)s", "%(levelname)s", log_as.replace("%", "%%"), "%(name)s", "%(message)s")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=" ".join(filter(None, words)))
    for level in levels:
        if level in LEVELS:
            set_log_level(level)
    if os.name == "posix" and os.geteuid() == 0:
        log.warning("running as root; a user of its own is safer")


def announce(addresses: Mapping[str, object]) -> None:
    """Print the `ready` line: every port answers."""
    print("ready", json.dumps({**addresses, "pid": os.getpid()}), flush=True)


def serve(
    broker: BrokerConfig | None,
    registry: RegistryConfig | None,
    ready: Callable[[Server], None],
    *,
    ends_with: int = -1,
) -> None:
    """Start a server, call `ready` with it, and stop it at SIGTERM, SIGINT or the end of `ends_with`. At SIGHUP it takes
    its certificates anew, where it has some.
    """

    async def main() -> None:
        stop = stop_event()
        if ends_with >= 0:
            asyncio.get_running_loop().add_reader(ends_with, _stop_at_end, ends_with, stop)
        server, told = Server(broker, registry), False
        while True:
            async with server:
                if server.renewable:
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.renew)
                if not told and not server.again:
                    ready(server)
                    told = True
                keep_freed_memory()
                gc.freeze()  # what a start makes stays
                gc.enable()
                await server.run_until(stop)
                log.info("stopping" if not server.again else f"starting anew reason={server.again}")
            if not server.again or stop.is_set():
                return
            server = server.anew()

    runner()(main())


def _stop_at_end(descriptor: int, stop: asyncio.Event) -> None:
    """The descriptor can be read: at its end for ever, so that it is watched no longer."""
    if not os.read(descriptor, 1 << 16):
        asyncio.get_running_loop().remove_reader(descriptor)
        stop.set()


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def keep_freed_memory() -> None:
    """Let the C library keep what it frees: outputs of a megabyte a turn would else be given back to the system and
    faulted in anew, turn by turn (measured: 0.55 instead of up to 1.15 us of CPU for a message of an MPUB of 200).
    """
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc's own
        mallopt(trim_threshold, 128 << 20)
        mallopt(mmap_threshold, 32 << 20)


def raise_descriptor_limit() -> None:
    """As many open files as the system lets us have: each connection and each mapped file is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
