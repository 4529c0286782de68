"""Penstock: a message queue for Python and Spark."""

import os as _os
import sys as _sys

__version__ = "0.1.0"

if _os.environ.get("PENSTOCK_PURE") == "1":
    # The compiled modules lie beside their sources and would win; this finder puts the sources first.
    from importlib.machinery import ModuleSpec as _ModuleSpec
    from importlib.util import spec_from_file_location as _spec_from_file_location
    from pathlib import Path as _Path

    class _SourceFinder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> "_ModuleSpec | None":
            if not name.startswith("penstock."):
                return None
            source = _Path(__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return _spec_from_file_location(name, source) if source.is_file() else None

    _sys.meta_path.insert(0, _SourceFinder)  # type: ignore[arg-type]
