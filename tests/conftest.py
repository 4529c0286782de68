"""Random search: the same examples each time, or with PENSTOCK_FUZZ=1 (`./run fuzz`) fresh ones, twenty times as many.

What a search finds becomes a test by name beside it, so that it is tried from then on without luck.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from hypothesis import settings

FUZZ = os.environ.get("PENSTOCK_FUZZ") == "1"
TIMES = 20

settings.register_profile("fixed", derandomize=True, database=None, print_blob=True, deadline=None)
settings.register_profile("fuzz", derandomize=False, database=None, print_blob=True, deadline=None)
settings.load_profile("fuzz" if FUZZ else "fixed")


def pytest_report_header() -> str:
    """Which build is tested, and what is there that tests are skipped without."""
    build = "uncompiled" if os.environ.get("PENSTOCK_PURE") == "1" else "compiled"
    there = {name: shutil.which(name) for name in ("java", "openssl", "mkfs.ext4", "strace", "perf")}
    return f"penstock: {build} build; " + ", ".join(f"{name}: {path or 'missing'}" for name, path in there.items())


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
    """`./run fuzz` is for the searches alone."""
    if FUZZ:
        items[:] = [
            item
            for item in items
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            or isinstance(getattr(getattr(item, "cls", None), "settings", None), settings)
        ]
