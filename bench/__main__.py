"""`python -m bench [log|backlog|spark|nsq|latency|scale|brokers|ha|client|java|watch|tabs|pauses|page] [--short]`,
`… compare COMMIT`, `… profile [ROW]`
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    name, arguments = (
        (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 and sys.argv[1][0] != "-" else ("log", sys.argv[1:])
    )
    if name == "log":
        from bench.log import main as run
    elif name == "backlog":
        from bench.backlog import main as run
    elif name == "spark":
        sys.argv = ["bench spark", *arguments]
        runpy.run_path(str(Path(__file__).with_name("spark.py")), run_name="__main__")
        return
    elif name == "nsq":
        from bench.nsq import main as run
    elif name == "latency":
        from bench.latency import main as run
    elif name == "scale":
        from bench.scale import main as run
    elif name == "brokers":
        from bench.brokers import main as run
    elif name == "ha":
        from bench.ha import main as run
    elif name == "client":
        from bench.client import main as run
    elif name == "java":
        from bench.java import main as run
    elif name == "watch":
        from bench.watch import main as run
    elif name == "tabs":
        from bench.tabs import main as run
    elif name == "pauses":
        from bench.pauses import main as run
    elif name == "page":
        from bench.page import main as run
    elif name == "compare":
        from bench.compare import main as run
    elif name == "profile":
        from bench.profile import main as run
    else:
        raise SystemExit(
            f"bench: no {name}; there are log, backlog, spark, nsq, latency, scale, brokers, ha, client, java, watch, tabs, "
            "pauses, page, compare and profile"
        )
    run(arguments)


main()
