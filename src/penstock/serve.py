"""A process of ours from its first line to its last: limits, log, signals, the `ready` line, and the server between."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping

from penstock import logs
from penstock.app import Server, runner
from penstock.config import BrokerConfig, RegistryConfig
from penstock.disk.files import keep_spares
from penstock.errors import ConfigError, NoDescriptor, Refused
from penstock.fronts.flags import LEVELS, set_log_level
from penstock.garbage import Collector
from penstock.notify import Notify
from penstock.reload import Configs, Reloading
from penstock.version import __version__

log = logging.getLogger("penstock.serve")

DESCRIPTORS_MIN = 64  # an empty broker with a registry holds 56
THREADS_MIN = 6  # two for files, and four in which libuv looks up names

Beside = Callable[[Mapping[str, object]], None]  # starts what runs beside a server, by the server's addresses
Told = Callable[[bytes], None]  # takes what the process that started this one writes to it


def run(
    broker: BrokerConfig | None,
    registry: RegistryConfig | None,
    *,
    ends_with: int = -1,
    log_as: str = "",
    read: Callable[[], Configs] | None = None,
    beside: Beside | None = None,
    told: Told | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; prints the `ready` line once every port answers, and then calls `beside`.

    `ends_with`: a descriptor; the server stops as well when that has come to its end; `told` is called with what comes before.
    `log_as`: a name for each line of the log. `read`: reads the settings anew, for SIGHUP. StoreError when something failed
    that cannot be mended while running.
    """
    prepare()
    given = [config for config in (broker, registry) if config is not None]
    log_to_stderr(*(config.log_level for config in given), log_format=given[0].log_format, log_as=log_as)

    running = False
    reloading: Reloading | None = None

    def ready(server: Server) -> None:
        nonlocal running, reloading
        log_start(server, given[0].data)
        if read is not None:
            configs = (broker, registry) if reloading is None else reloading.configs
            reloading = take_settings_at_sighup(server, configs, read, by_request=told is None)
        if running:  # started anew, on the same ports
            return
        running = True
        announce(server.addresses)
        if beside is not None:
            beside(server.addresses)

    serve(broker, registry, ready, ends_with=ends_with, told=told)


def take_settings_at_sighup(
    server: Server, configs: Configs, read: Callable[[], Configs], *, by_request: bool = True
) -> Reloading:
    """From now on SIGHUP, or an administrator, has this process read its settings again; not `by_request`: the process that
    started it has, which knows where they come from.
    """
    reloading = Reloading(server, configs, read)
    notify = Notify() if by_request else Notify({})
    heed_hangup(notify.around(reloading.at_signal))
    if server.broker is not None:
        server.broker.core.reload_with(
            (lambda: [change.row() for change in reloading.run()]) if by_request else _ask_who_started_it
        )
    return reloading


def _ask_who_started_it() -> list[dict[str, object]]:
    raise Refused(
        "this broker is one of several that one process has started, and takes its settings from there: "
        f"`kill -HUP {os.getppid()}` has all of them read theirs, and the log says what changed"
    )


def log_start(server: Server, data: str) -> None:
    """One line: version, folder, ports, and what recovery found."""
    about: dict[str, object] = {"version": __version__, "data": os.path.abspath(data), **server.addresses}
    if (found := server.recovery) is not None:
        about |= {
            "recovery": "clean" if found.clean else "power cut" if found.power_cut else "killed",
            "records": found.records, "cut_bytes": found.cut_bytes, "damaged": len(found.damage),
            "rebuilt": len(found.rebuilt), "took_ms": found.took_ms,
        }  # fmt: skip
    log.info(" ".join(["started", *(f"{name}=%s" for name in about)]), *about.values())


def prepare() -> None:
    """What must be so before the first file is opened."""
    hold_hangup()
    os.umask(0o077)
    raise_descriptor_limit()
    keep_spares()
    demand_threads()


def hold_hangup() -> None:
    """SIGHUP waits until there is somebody to heed it: it shall not end a start, nor get lost in one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def heed_hangup(heed: Callable[[], None] | None = None) -> None:
    """From now on SIGHUP has this done, one that came before as well. Without it: what it does by now."""
    if heed is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, heed)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def log_to_stderr(*levels: str, log_format: str = "auto", log_as: str = "") -> None:
    """Log lines go to standard error, from the last of these levels on that is one. ConfigError: no such format."""
    if log_format not in logs.FORMATS:
        raise ConfigError(f"log_format cannot be {log_format!r}", f"It is one of {', '.join(logs.FORMATS)}.")
    for level in levels:
        if level in LEVELS:
            set_log_level(level)
    # Nobody reads in a line where it was written, or by which thread: the library need not look.
    vars(logging).update(_srcfile=None, logThreads=False, logProcesses=False, logMultiprocessing=False)
    logs.to_stderr(log_format, log_as)


def announce(addresses: Mapping[str, object]) -> None:
    """Print the `ready` line: every port answers. Nobody may read it, or it goes into a file on a disk that is full."""
    try:
        print("ready", json.dumps({**addresses, "pid": os.getpid()}), flush=True)
    except OSError as error:
        log.warning("ready, which cannot be printed error=%s", error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left is written once more at the end
        os.close(nowhere)


def serve(
    broker: BrokerConfig | None,
    registry: RegistryConfig | None,
    ready: Callable[[Server], None],
    *,
    ends_with: int = -1,
    told: Told | None = None,
) -> None:
    """Start a server, call `ready` with it, and stop it at SIGTERM, SIGINT or the end of `ends_with`. A server whose role
    changes is started anew, and `ready` called again. At SIGHUP it takes its certificates anew, where it has some.
    """
    notify = Notify({}) if ends_with >= 0 else Notify()  # a broker among several is none of systemd's
    say_what_ends_us()

    async def main() -> None:
        stop = stop_event()
        if ends_with >= 0:
            asyncio.get_running_loop().add_reader(ends_with, _stop_at_end, ends_with, stop, told)
        server = Server(broker, registry)
        collecting = asyncio.create_task(Collector().run())
        try:
            while True:
                async with server:
                    if server.renewable:
                        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, notify.around(server.renew))
                    if not server.again:
                        ready(server)
                        notify.ready()
                    heed_hangup()
                    keep_freed_memory()
                    gc.freeze()  # what a start makes stays
                    gc.enable()
                    await server.run_until(stop)
                    if not server.again or stop.is_set():
                        notify.stopping()
                        await server.hand_over()
                    if server.again and not stop.is_set():  # its place may just have been given away
                        log.info("starting anew reason=%s", server.again)
                    else:
                        log.info("stopping")
                if not server.again or stop.is_set():
                    return
                server.prepare_again()
        finally:
            collecting.cancel()
            await server.leave_engine()

    runner()(main())


def _stop_at_end(descriptor: int, stop: asyncio.Event, told: Told | None) -> None:
    """The descriptor can be read: at its end for ever, so that it is watched no longer."""
    data = os.read(descriptor, 1 << 16)
    if data and told is not None:
        told(data)
    if not data:
        asyncio.get_running_loop().remove_reader(descriptor)
        stop.set()


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def say_what_ends_us() -> None:
    """A page of a mapped file that cannot be read, for the disk is bad or somebody has cut the file short, ends the process with
    SIGBUS: let it say so, and where, on the standard error. Nothing is lost by it that was acknowledged. Where the other threads
    are is not asked: they run on meanwhile, and who follows their frames may end by SIGSEGV before it comes to the one.
    """
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__, all_threads=False)


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


def demand_threads() -> None:
    """RuntimeError where the system gives fewer threads than may be made once all is `ready`: libuv makes its own with the first
    name that is looked up, and where it gets none it ends the process without a word.
    """
    enough, made = threading.Event(), list[threading.Thread]()
    try:
        while len(made) < THREADS_MIN:
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            made.append(thread)
    finally:
        enough.set()
        for thread in made:
            thread.join()


def raise_descriptor_limit() -> None:
    """As many open files as the system lets us have: each connection and each mapped file is one. NoDescriptor where no broker
    can begin with so few, whatever it has to open: libraries would end it without a word.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < DESCRIPTORS_MIN:
        raise NoDescriptor(
            f"at most {hard} files may be open, and the least to begin with is {DESCRIPTORS_MIN}: "
            "raise the limit of open files (ulimit -n, LimitNOFILE)"
        )
