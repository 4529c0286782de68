"""Rewrites the generated tables of a documentation page: `python -m penstock.spark.pages docs/spark.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark import schema
from penstock.spark.log import options as logoptions
from penstock.spark.read import options
from penstock.spark.write import options as sinkoptions


def rewritten(page: str) -> str:
    """The page with the tables between their markers as they are now."""
    for name, table in (
        ("options", options.table()),
        ("log options", options.table(logoptions.OPTIONS)),
        ("columns", schema.table()),
        ("sink options", options.table(sinkoptions.SINK_OPTIONS)),
        ("security options", options.table(options.SECURITY_OPTIONS)),
        ("sink columns", sinkoptions.columns_table()),
    ):
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        page = before + start + table + end + after
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
