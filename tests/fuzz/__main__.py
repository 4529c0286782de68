"""`./run fuzz [--count N] [--seed N] [--only listeners|search] [--asan]`: spoilt inputs to every listener beside a good
client, 200,000 each; then the random searches of the tests with fresh examples, twenty times as many.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from fuzz.campaign import fuzz, sanitized  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="inputs to each listener")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--only", choices=("listeners", "search"))
    parser.add_argument("--asan", action="store_true", help="the listeners with AddressSanitizer")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    if given.only != "search":
        folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))

        def tell(text: str) -> None:
            print(text, flush=True)

        environment = sanitized(folder, tell) if given.asan else None
        fuzz(folder, given.count, given.seed, tell, environment)
    if given.only != "listeners" and not given.asan:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not spark and not peers and not chaos"]
        command += ["-o", "faulthandler_timeout=0"]  # a search of an hour does not hang
        return subprocess.run(command, env={**os.environ, "PENSTOCK_FUZZ": "1"}).returncode
    return 0


sys.exit(main())
