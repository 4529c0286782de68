"""The same server inside a Python program: `async with penstock.Broker(folder)`, and in a thread for tests."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from penstock.app import Server, runner
from penstock.clock import Clock
from penstock.config import BrokerConfig, RegistryConfig, defaults, load
from penstock.disk.files import Files
from penstock.errors import Closed, ConfigError, Locked
from penstock.fronts.soundness import check_addresses

log = logging.getLogger("penstock.embedded")

T = TypeVar("T")
RUNS = "this broker runs already: make another one, on a folder of its own"


def _configs(folder: Path, settings: dict[str, object]) -> tuple[BrokerConfig, RegistryConfig]:
    if "data" in settings:
        raise ConfigError("data is the folder that a broker is given", f"Broker({str(settings['data'])!r}) does that.")
    ports = dict.fromkeys(("remoting_port", "nsq_port", "http_port", "https_port"), 0)
    own = defaults(RegistryConfig).keys() - defaults(BrokerConfig).keys()
    told = {name: settings.pop(name) for name in own & set(settings)}
    broker = load(BrokerConfig, "broker", None, {"data": str(folder), **ports} | settings, {})
    shared = {
        name: getattr(broker, name) for name in ("data", "host", "insecure", "allowed_hosts", "broadcast_address")
    }
    free = dict.fromkeys(("registry_port", "lookup_port", "lookup_http_port"), 0)
    registry = load(RegistryConfig, "registry", None, shared | free | told, {})
    check_addresses(broker, registry)
    return broker, registry


class Addresses:
    """Where the listeners of a server are, by name."""

    addresses: dict[str, str]

    @property
    def registry(self) -> str:
        """`host:port` that clients are given."""
        return self.addresses["registry"]

    @property
    def remoting(self) -> str:
        """`host:port` of the broker's RocketMQ listener."""
        return self.addresses["remoting"]

    @property
    def nsq(self) -> str:
        """`host:port` of the broker's NSQ listener."""
        return self.addresses["nsq"]

    @property
    def http(self) -> str:
        """`host:port` of the broker's HTTP listener."""
        return self.addresses["http"]

    @property
    def lookup(self) -> str:
        """`host:port` that nsqds register at."""
        return self.addresses["lookup"]

    @property
    def lookup_http(self) -> str:
        """`host:port` that NSQ consumers are given."""
        return self.addresses["lookup_http"]


class Broker(Addresses, Server):
    """A registry and a broker in the present event loop, on free ports of the loopback address.

        async with penstock.Broker("penstock-data") as broker:
            producer = penstock.aio.Producer(broker.registry)

    Settings are those of docs/settings.md. Raises ConfigError, Locked or StoreError when it cannot start, and at the end of the
    block what kept it from going on. One whose role changes is started anew on the same ports, as a process of its own would be:
    `broker`, `net` and what was added to it are others then.
    """

    def __init__(self, folder: str | Path, **settings: object) -> None:
        Server.__init__(self, *_configs(Path(folder), settings))
        self._leave = asyncio.Event()
        self._stays: asyncio.Task[None] | None = None
        self._inside = False

    async def __aenter__(self) -> Self:
        if self._inside:
            raise Locked(RUNS)
        if self._stays is not None:  # once more
            self.prepare_again()
        await super().__aenter__()
        self._inside = True
        self._leave.clear()
        self._stays = asyncio.create_task(self._stay())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._stays is not None
        self._leave.set()
        failed: BaseException | None = None
        try:
            failed = (await asyncio.gather(self._stays, return_exceptions=True))[0]
            if failed is None:
                await self.hand_over()
        finally:
            self._inside = False
            await super().__aexit__(*error)
            await self.leave_engine()
        if failed is not None and error[0] is None:
            raise failed

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when told to stop. What kept it from going on."""
        assert self._stays is not None
        told = asyncio.ensure_future(stop.wait())
        await asyncio.wait((told, self._stays), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if self._stays.done():
            self._stays.result()

    async def _stay(self) -> None:
        """Start anew whenever the role has changed, until the block ends."""
        while True:
            await super().run_until(self._leave)
            if self._leave.is_set():
                return
            log.info("starting anew reason=%s", self.again)
            try:
                await super().__aexit__()
                self.prepare_again()
                await super().__aenter__()
            except Exception as error:
                log.critical("this broker could not be started anew error=%s", error)
                raise


def _remove(folder: Path, pid: int) -> None:
    if pid == os.getpid():  # and not in a forked child, which ends with the folder of its parent in use
        shutil.rmtree(folder, ignore_errors=True)


class ThreadedBroker(Addresses):
    """A registry and a broker in a thread of their own. Use as `with`; without a folder, in a temporary one.

    Segments are small unless the settings say otherwise, so that a start takes milliseconds. One that nobody stops is stopped
    when the program ends.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        **settings: object,
    ) -> None:
        self._owns = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-") if folder is None else folder)
        self._pid = os.getpid()  # of who made it, then of who started it
        if self._owns:
            weakref.finalize(self, _remove, self.folder, self._pid)
        small = {
            "mapped_file_size_commit_log": 16 << 20,
            "mapped_file_size_consume_queue": 20_000,
            "max_hash_slot_num": 10_000,
            "max_index_num": 40_000,
        }
        configs = _configs(self.folder, small | settings)
        self._make: Callable[[], Server] = lambda: Server(*configs, files=files, clock=clock)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._told = False  # to stop, perhaps before there is a loop
        self._failure: BaseException | None = None
        self._serves = False
        self.server: Server | None = None
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start; returns when every port answers. Raises what kept it from starting; then it may be tried again."""
        if self._thread is not None:
            raise Locked(RUNS)
        started = threading.Event()
        self._pid = os.getpid()
        self._told = False
        run = runner()  # here, for what is imported by it cannot be while the program ends
        # A loop that runs on comes back to an interpreter that is gone, now and then by SIGSEGV.
        atexit.register(self.stop)
        thread = threading.Thread(target=self._run, args=(run, started), name="penstock-broker", daemon=True)
        self._thread = thread
        try:
            thread.start()
            started.wait()
        except BaseException:  # there is no thread to be had, or it was interrupted
            self.stop()
            raise
        if not self._serves:
            self.stop()
        return self

    def stop(self) -> None:
        """Stop cleanly. A folder of its own goes with it; on a given one it may be started again.

        In a forked child this does nothing: the broker is the parent's.
        """
        if self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        try:
            self._stop_thread()
        finally:
            if self._owns and self.folder.exists():
                shutil.rmtree(self.folder)

    def _stop_thread(self) -> None:
        self._told = True
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it ended by itself: `_failure` says why
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None and self._thread.ident is not None:  # else it ends as soon as it begins
            self._thread.join()
        self._thread = self._loop = None
        self._serves = False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, function: Callable[[Server], T]) -> T:
        """Run a function with the server in its own thread, and return what it returns."""

        async def inside() -> T:
            assert self.server is not None
            return function(self.server)

        if self._loop is None or self._pid != os.getpid():
            raise Closed("this broker does not run: `with` or `start()` does that")
        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(30)

    def _run(self, run: Callable[[Coroutine[object, None, None]], None], started: threading.Event) -> None:
        async def main() -> None:
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            if self._told:  # by a start that was interrupted, or the end of the program, which has met no loop
                return
            server = self.server = self._make()
            try:
                while True:
                    async with server:
                        self.addresses = dict(server.addresses)
                        if not server.again:
                            self._serves = True
                            started.set()
                        await server.run_until(self._stop)
                        if self._stop.is_set():
                            await server.hand_over()
                    if not server.again or self._stop.is_set():
                        return
                    server.prepare_again()
            finally:
                await server.leave_engine()

        try:
            run(main())
        except BaseException as failure:
            self._failure = failure
        finally:
            started.set()
