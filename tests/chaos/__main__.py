"""`./run chaos [--short] [--seed N] [--only log|queue|cuts|images|defects]`: kills and power cuts for log topics, kills for
queue topics, power cuts with one side's flushes slowed, 300 crash images, then brokers with planted defects, each of which
the oracle must find. With --long ten times as many kills, 300 of those power cuts, 2,000 images; --slow SIDE slows always the
same one. `--only images --again FOLDER --seed N` makes one image again whose run was kept when it failed.

`./run chaos spark`: a query from a topic to topics, 200,000 rows, 30 kills each of its driver, its executors and the
brokers; with --short 2,400 rows and 3 kills of each; --minutes N makes no kills later than that.

`./run chaos ha [--short | --long]`: a master and its slave under sends and readers; 60 faults of the two (kill -9, SIGSTOP, a
switch, a disk that is full or slow), 30 of what is between them, then two planted defects, each of which must be found;
20 times flipped bits in one of the two copies, 20 kills of the master of staged rows, and three planted defects. 20 failovers
under delayed messages, transactions, order and NSQ. Then, as root, a
set that an engine leads on machines of its own (network namespaces): 30 faults with one member of etcd and 32 with three (cut off
from one another, from etcd, from clients, one way or both; etcd killed, stopped, emptied), and 24 of their disks (full, refusing,
hanging, without power), and 12 times a node with a wrong clock (ten years off, 8 % too fast or too slow). With --long five times
as many, and stops of up to 300 s. --only WORD runs one of these: pairs, copies, mixed, machines, disks, clocks.

`./run chaos model [--short]`: the rules of replication, two and three nodes, without an engine and with one, 3,000,000 states
each.

`./run chaos soak [--minutes 60]`: churn of topics, channels and connections; memory, descriptors and disk stay flat.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from chaos.campaign import Tell, can_cut_power, kills, power_cuts  # noqa: E402
from chaos.defects import CUT_DEFECTS, DEFECTS  # noqa: E402
from chaos.images import PLANTED, again, all_images, can_make_images, find_in_images  # noqa: E402
from chaos.queuecuts import find_cut_defect, queue_power_cuts  # noqa: E402
from chaos.queuekills import find_defect, queue_kills  # noqa: E402
from chaos.slowly import SIDES  # noqa: E402

OF_SETS = ("pairs", "copies", "mixed", "machines", "disks", "clocks")  # parts of `ha`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("broker", "spark", "soak", "model", "ha"), default="broker")
    parser.add_argument("--short", action="store_true", help="50 kills, 5 power cuts a level (the default)")
    parser.add_argument("--long", action="store_true", help="500 kills, 50 power cuts a level")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--only", choices=("log", "queue", "cuts", "images", "defects", *OF_SETS))
    parser.add_argument("--again", type=Path, help="images: the folder of a run that was kept")
    parser.add_argument("--slow", choices=tuple(SIDES), default="", help="cuts: whose flushes are late")
    parser.add_argument("--minutes", type=float, default=0, help="spark: no kills after so many, but the checks")
    given = parser.parse_args()
    if given.only is not None and (given.only in OF_SETS) is not (given.what == "ha"):
        parser.error(f"--only {given.only} is no part of {given.what}")
    times = 10 if given.long else 1
    print(f"seed {given.seed}", flush=True)

    def tell(text: str) -> None:
        print(text, flush=True)

    if given.what == "model":
        from model import elected, replication

        for model in (replication, elected):
            model.search(200_000 if given.short else 3_000_000, tell)
        return
    if given.what == "ha":
        from chaos import clocks, copies, disks, mixed, partitions, replicas

        times = 5 if given.long else 0 if given.short else 1
        for name, part in zip(OF_SETS, (replicas, copies, mixed, partitions, disks, clocks), strict=True):
            if given.only in (None, name):
                part.campaign(times, tell, given.seed)  # type: ignore[attr-defined]
        return
    if given.what == "soak":
        import tempfile

        from chaos.soak import soak

        soak(Path(tempfile.mkdtemp(prefix="penstock-soak-")), given.minutes or 60, tell, given.seed)
        return
    if given.what == "spark":
        from chaos import sinks

        many, rows, per_batch = (3, 2_400, 200) if given.short else (30, 200_000, 2_500)
        began = time.monotonic()
        sinks.run(many, tell, rows=rows, per_batch=per_batch, seed=given.seed, minutes=given.minutes)
        print(f"{(time.monotonic() - began) / 60:.1f} minutes")
        return
    if given.again is not None:
        again(given.again, given.seed, tell)
        return
    if given.only in (None, "log"):
        log_topics(times, given.seed, tell)
    if given.only in (None, "queue"):
        queue_kills(50 * times, tell, seed=given.seed)
        queue_kills(10 * times, tell, level="disk", seed=given.seed + 1)
        tell("queue topics: nothing owed was lost, nothing finished came again, nothing deferred came early")
    if given.only in (None, "cuts"):
        reason = can_cut_power()
        if reason is None:
            for level in ("os", "disk"):
                queue_power_cuts(150 if given.long else 8, tell, level=level, seed=given.seed, side=given.slow)
            tell("power cuts: nothing answered a second before was lost, nothing finished a second before came again")
        else:
            tell(f"no power cuts: {reason}")
    no_images = can_make_images() if given.only in (None, "images", "defects") else None
    if given.only in (None, "images"):
        if no_images is None:
            began = time.monotonic()
            count = all_images(2_000 if given.long else 300, tell, seed=given.seed)
            tell(
                f"{count:,} crash images in {(time.monotonic() - began) / 60:.1f} minutes: what was promised is in each"
            )
        else:
            tell(f"no crash images: {no_images}")
    if given.only in (None, "defects"):
        for name in PLANTED if no_images is None else ():
            said, seconds = find_in_images(name, seed=given.seed)
            tell(f"planted: {name:28} found in an image in {seconds:.1f} s: {said[:80]}")
        for name, (_, rules) in DEFECTS.items():
            rule, seconds = find_defect(name, seed=given.seed)
            tell(f"planted: {name:28} found by {rule} in {seconds:.1f} s")
            assert rule in rules, rules
        for name, planted in CUT_DEFECTS.items() if can_cut_power() is None else ():
            rule, seconds = find_cut_defect(name, seed=given.seed)
            tell(f"planted: {name:28} found by {rule} in {seconds:.1f} s")
            assert rule in planted.rules, planted.rules


def log_topics(times: int, seed: int, tell: Tell) -> None:
    kills(40 * times, tell, seed=seed)
    kills(10 * times, tell, level="disk", seed=seed + 1)
    reason = can_cut_power()
    if reason is None:
        for level in ("disk", "os"):
            power_cuts(5 * times, tell, level=level, seed=seed + 2)
    else:
        tell(f"no power cuts: {reason}")
    tell("log topics: nothing acknowledged was lost, nothing invented, every offset kept its message")


main()
