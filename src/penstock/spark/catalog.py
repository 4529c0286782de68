"""Tables in Spark's catalog: `CREATE TABLE orders USING penstock OPTIONS (registry '…', subscribe 'orders')`.

Spark 4.3 gives a Python source the options of such a table when it is created and none when it is read. What it does give
back is the schema it was told, so the options are kept there, as metadata of the first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = "penstock.options"
_OPTION = "option."
# What Spark says of the table itself, between its options.
_OF_THE_TABLE = frozenset({"provider", "owner", "location", "comment", "collation", "external", "is_managed_location"})


def created(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created, without what Spark adds to them; None when none is."""
    if not any(name.lower() == "provider" for name in options):
        return None
    given = {
        name.lower(): text
        for name, text in options.items()
        if name.lower() not in _OF_THE_TABLE and not name.startswith(_OPTION)
    }
    if given.get("path", "").startswith("file:"):  # a table's path becomes a URI
        given["path"] = unquote(urlsplit(given["path"]).path)
    return given


def schema(names: tuple[str, ...], given: Mapping[str, str]) -> StructType:
    """These columns, with the table's options in the first one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.spark.schema import arrow_of

    columns = from_arrow_schema(arrow_of(names))
    columns.fields[0].metadata = {_KEY: json.dumps(given, sort_keys=True)}
    return columns


def kept(wanted: StructType) -> dict[str, str]:
    """The options that a table's schema keeps; none when it is another schema."""
    for field in wanted.fields[:1]:
        given: dict[str, str] = json.loads(field.metadata.get(_KEY, "{}"))
        return given
    return {}
