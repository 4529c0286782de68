"""Some commands of `penstock spark` after one another in one process, so that one JVM will do: `spark_commands.py JSON`.

Before each one its number is printed, behind it its exit code.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from penstock.cli.spark import spark

    for number, words in enumerate(json.loads(sys.argv[1])):
        print(f"== {number} {words[0]}", flush=True)
        try:
            spark.main(words, prog_name="penstock spark")
        except SystemExit as ended:
            sys.stdout.flush()
            print(f"== exit {ended.code}", flush=True)


if __name__ == "__main__":
    main()
