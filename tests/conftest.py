"""Random search: the same examples each time, or with PENSTOCK_FUZZ=1 (`./run fuzz`) fresh ones, twenty times as many.

What a search finds becomes a test by name beside it, so that it is tried from then on without luck.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from certificates import Authority, Certificate

FUZZ = os.environ.get("PENSTOCK_FUZZ") == "1"
TIMES = 20

END_S = 120  # for the interpreter to end in, behind the last test

settings.register_profile("fixed", derandomize=True, database=None, print_blob=True, deadline=None)
settings.register_profile("fuzz", derandomize=False, database=None, print_blob=True, deadline=None)
settings.load_profile("fuzz" if FUZZ else "fixed")


HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data"

# Where `.ci/run` (or CI=true) runs the tests, only what this machine cannot give may be skipped. Packages are in
# requirements.lock, so a test that misses one of those is a mistake; duckdb and polars are not in it.
IN_CI = os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("PENSTOCK_CI") == "1"
MAY_BE_SKIPPED = (
    r"runs with --peers",  # needs the network, `./run peers` is for it
    r"cannot be installed here", r"is not on this machine", r"are not installed$",  # foreign clients and brokers
    r"no network of one's own",
    r"only root may mount", r"can be mounted here", r"cannot be mounted here",
    r"cannot be made here: (not root|no |this kernel|\S+ (is )?missing|.*(mount|loop|fuse|losetup))",
    r"rows of .* are not here$", r"needs the shared sample data",
    r"an uncompiled build has no sheets",
    r"no openssl program", r"[Jj]ava",  # programs of the system
    r"(duckdb|polars) is not installed here",
    r"not a git checkout",
)  # fmt: skip

# Spark gives a Python process of its own 10 s to start and call back, which no setting changes. It has run nothing of ours then.
NOT_BEGUN = "Python worker failed to connect back"


# What `./run test` runs in the compiled build alone: programs as a whole, their deadlines, pages, models, and what takes long
# of modules that are Python in both builds. What is compiled is tested in both (tests/test_house.py).
ONCE = (
    "broker/nsq/test_mirror.py", "broker/test_disk_states.py", "broker/test_order_of_durability.py", "broker/test_purge.py",
    "broker/test_room.py", "broker/test_tables.py", "cli/", "client/aio/test_channels.py", "client/aio/test_doubts.py",
    "client/aio/test_outages.py", "client/test_staging.py", "console/", "demo/", "fronts/test_bare.py",
    "fronts/test_haexchange.py", "fronts/test_prometheus.py", "fronts/test_soundness.py", "model/", "registration/",
    "registry/test_spread.py",
    "spark/pipelines/", "test_docs.py", "test_facts.py", "test_house.py", "test_httpd.py", "test_limits.py",
    "test_operation.py", "test_packaging.py", "test_skips.py", "test_supervisor.py", "wire/test_traces.py",
)  # fmt: skip

# What makes and deletes folders hundreds of times has them in memory, where `./run test` names a folder there: a fifth of the
# time. All other tests of the compiled build work on the disk.
MEMORY = os.environ.get("PENSTOCK_IN_MEMORY")
IN_MEMORY = (
    "broker/test_damage.py", "broker/test_order_of_durability.py", "broker/test_power_lives.py", "disk/test_diskqueue.py",
    "log/test_nth_call.py", "log/test_recovery.py",
)  # fmt: skip


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's own, but for IN_MEMORY."""
    if not MEMORY or not _is_of(request.path, IN_MEMORY):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _is_of(path: Path, names: tuple[str, ...]) -> bool:
    return path.is_relative_to(HERE) and path.relative_to(HERE).as_posix().startswith(names)


def _java() -> str:
    """The version of the Java that Spark would start."""
    from penstock.errors import ConfigError
    from penstock.spark.tools import java

    try:
        return str(java.find().version)
    except ConfigError:
        return "missing"


def pytest_report_header() -> list[str]:
    """Which build is tested, and what is there that tests are skipped without."""
    build = "uncompiled" if os.environ.get("PENSTOCK_PURE") == "1" else "compiled"
    there = {name: shutil.which(name) for name in ("openssl", "mkfs.ext4", "strace", "perf", "etcd")}
    missing = [name for name, path in there.items() if path is None]
    root = "root" if os.geteuid() == 0 else "not root"
    return [
        f"penstock: {build} build; Java: {_java()}; sample data: {'there' if DATA.exists() else 'missing'}; {root}; "
        f"programs missing: {', '.join(missing) or 'none'}",
        f"penstock: {'a skip that is not allowed fails this run' if IN_CI else 'skips are allowed'}",
    ]


class Skips:
    """What was skipped, and why. In CI a reason that `MAY_BE_SKIPPED` does not know fails the run."""

    def __init__(self) -> None:
        self.odd: list[str] = []

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(known, reason) for known in MAY_BE_SKIPPED):
            self.odd.append(f"{report.nodeid}: {reason}")

    pytest_runtest_logreport = note
    pytest_collectreport = note

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.odd and IN_CI and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.odd and IN_CI:
            terminalreporter.section("skipped, though this machine could run it")
            for line in self.odd:
                terminalreporter.write_line(line, red=True)
            terminalreporter.write_line("See MAY_BE_SKIPPED in tests/conftest.py.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(), "penstock-skips")
    config.pluginmanager.register(Garbage(), "penstock-garbage")
    config.pluginmanager.register(Attempts(), "penstock-attempts")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script, and so of all it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """What a test left running must not hold up the end for ever: it is shown where all threads stand, and the process ends."""
    faulthandler.dump_traceback_later(END_S, exit=True, file=sys.__stderr__)


def pytest_unconfigure() -> None:
    """All that was said is there to read, whatever happens to this process now."""
    sys.stdout.flush()


def pytest_itemcollected(item: Any) -> None:
    """Give a test that searches twenty times its examples."""
    if not FUZZ:
        return
    case = getattr(item, "cls", None)
    holder, name = item.obj, "_hypothesis_internal_use_settings"
    if isinstance(getattr(case, "settings", None), settings):  # a rule machine
        holder, name = case, "settings"
    elif not getattr(item.obj, "is_hypothesis_test", False):
        return
    given = getattr(holder, name, None) or settings.default
    if not getattr(holder, "searched", False):
        holder.searched = True
        setattr(holder, name, settings(given, max_examples=TIMES * given.max_examples))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`./run fuzz` is for the searches alone. In CI what kills at random moments may be tried twice, and what Spark could not
    even begin (decision 140).
    """
    for item in items:
        if _is_of(item.path, ONCE):
            item.add_marker(pytest.mark.once)
        if IN_CI and item.get_closest_marker("chaos") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))
        elif IN_CI and item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=NOT_BEGUN))
    if FUZZ:
        items[:] = [
            item
            for item in items
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            or isinstance(getattr(getattr(item, "cls", None), "settings", None), settings)
        ]


class Garbage:
    """What a module's tests have left in cycles, brokers with all their files and maps, goes with the module, and what it says of
    itself then is said by its last test. The collector by itself comes late where so much is alive: 10,000 open files were.
    A broker that runs on would meet the clocks and system calls that later tests replace: one could not be stopped at the end.
    """

    @staticmethod
    def pytest_collection_finish() -> None:
        gc.collect()
        gc.freeze()  # the tests themselves stay to the end

    @staticmethod
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            assert "penstock-broker" not in [thread.name for thread in threading.enumerate()], (
                "a broker outlives this module"
            )


class Attempts:
    """What a first attempt left open goes with it, so that no later test is blamed when the collector finds it."""

    def __init__(self) -> None:
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= str(report.outcome) == "rerun"  # so pytest-rerunfailures calls it

    def pytest_runtest_logfinish(self) -> None:
        if not self.failed:
            return
        self.failed = False
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # they hold its frames
            if hasattr(sys, name):
                delattr(sys, name)
        told, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = told


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A command that quiets the log, as the demo does, quiets it for its own test alone."""
    logger = logging.getLogger("penstock")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of the tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server_certificate(authority: Authority) -> Certificate:
    """Of a server on this machine."""
    return authority.sign("server")


@pytest.fixture(scope="session")
def client_certificate(authority: Authority) -> Certificate:
    """Of a client called anna."""
    return authority.sign("anna")
