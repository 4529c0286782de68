"""`./run chaos [--short] [--seed N]`: 50 kills and 10 power cuts, or with --long ten times as many."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from chaos.campaign import can_cut_power, kills, power_cuts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="50 kills, 5 power cuts a level (the default)")
    parser.add_argument("--long", action="store_true", help="500 kills, 50 power cuts a level")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    given = parser.parse_args()
    times = 10 if given.long else 1
    print(f"seed {given.seed}", flush=True)

    def tell(text: str) -> None:
        print(text, flush=True)

    kills(40 * times, tell, seed=given.seed)
    kills(10 * times, tell, level="disk", seed=given.seed + 1)
    reason = can_cut_power()
    if reason is None:
        for level in ("disk", "os"):
            power_cuts(5 * times, tell, level=level, seed=given.seed + 2)
    else:
        print(f"no power cuts: {reason}")
    print("nothing acknowledged was lost, nothing invented, every offset kept its message")


main()
