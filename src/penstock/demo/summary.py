"""The events as a typed Spark table, and what the chart needs of it: DataFrames in, a chart out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.charts import Chart
from penstock.demo.shape import SERIES_MAX, Field, Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.demo.events import Feed

POINTS_MAX, BINS, TOP = 300, 40, 12
_TYPES = {"number": "double", "time": "timestamp", "text": "string"}
_STEPS = (
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)


def typed(events: DataFrame, fields: list[Field]) -> DataFrame:
    """One column per field, out of the JSON bodies; `_queue`, `_offset` and `_stored` say where a row comes from."""
    from pyspark.sql import functions as F

    ddl = ", ".join(f"`{field.name}` {_TYPES[field.kind]}" for field in fields)
    body = F.from_json(F.col("value").cast("string"), ddl, {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"})
    read = events.select(body.alias("event"), "partition", "offset", "timestamp")
    columns = [F.col(f"event.`{field.name}`").alias(field.name) for field in fields]
    return read.select(
        *columns,
        F.col("partition").alias("_queue"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_stored"),
    )


def summarise(table: DataFrame, feed: Feed) -> Chart:
    """The chart the feed's plan asks for."""
    plan = feed.plan
    return {"time": _over_time, "bins": _over_bins, "top": _top}[plan.kind](table, plan, feed.topic)


def _measure(plan: Plan) -> tuple[Column, str]:
    from pyspark.sql import functions as F

    if plan.y is None:
        return F.count(F.lit(1)).cast("double"), "events"
    return F.avg(_quoted(plan.y)), f"mean {plan.y}"


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"`{name}`")


def _largest(table: DataFrame, plan: Plan) -> list[str]:
    """The series worth a line of their own: those with the largest sum, or the most events."""
    from pyspark.sql import functions as F

    if plan.series is None:
        return []
    weight = F.sum(_quoted(plan.y)) if plan.y else F.count(F.lit(1))
    ranked = (
        table.where(_quoted(plan.series).isNotNull()).groupBy(_quoted(plan.series).alias("s")).agg(weight.alias("w"))
    )
    return [row["s"] for row in ranked.orderBy(F.desc("w"), "s").limit(SERIES_MAX).collect()]


def _lines(table: DataFrame, plan: Plan, x: Column) -> dict[str, list[tuple[float, float]]]:
    """Points per series over the expression x."""
    from pyspark.sql import functions as F

    names = _largest(table, plan)
    measure, _ = _measure(plan)
    series = _quoted(plan.series) if plan.series else F.lit("")
    chosen = table.where(series.isin(names)) if names else table
    rows = (
        chosen.groupBy(x.alias("x"), series.cast("string").alias("s"))
        .agg(measure.alias("y"))
        .where("x is not null and y is not null")
        .orderBy("x")
        .collect()
    )
    lines: dict[str, list[tuple[float, float]]] = {str(name): [] for name in names} or {"": []}
    for row in rows:
        lines[row["s"]].append((float(row["x"]), float(row["y"])))
    return lines


def _over_time(table: DataFrame, plan: Plan, topic: str) -> Chart:
    from pyspark.sql import functions as F

    when = _quoted(plan.x)
    low, high = table.agg(F.min(when), F.max(when)).collect()[0]
    span = (high - low).total_seconds() if low and high else 0.0
    step = next((s for s in _STEPS if span / s <= POINTS_MAX), 604800 * max(round(span / 604800 / POINTS_MAX), 1))
    seconds = F.unix_millis(when) / 1000
    label = _measure(plan)[1] + (f" by {plan.series}" if plan.series else "")
    return Chart(
        f"{topic}: {label}, every {_span(step)}",
        f"{plan.x} (UTC)",
        _measure(plan)[1],
        times=True,
        series=_lines(table, plan, F.floor(seconds / step) * step),
    )


def _over_bins(table: DataFrame, plan: Plan, topic: str) -> Chart:
    from pyspark.sql import functions as F

    low, high = (float(edge) for edge in table.approxQuantile(plan.x, [0.001, 0.999], 0.001))
    width = _nice((high - low) / BINS)
    inside = table.where((_quoted(plan.x) >= low) & (_quoted(plan.x) <= high))
    x = F.floor(_quoted(plan.x) / width) * width
    label = _measure(plan)[1]
    return Chart(f"{topic}: {label} by {plan.x} (classes of {width:g})", plan.x, label, series=_lines(inside, plan, x))


def _top(table: DataFrame, plan: Plan, topic: str) -> Chart:
    from pyspark.sql import functions as F

    value, label = (F.sum(_quoted(plan.y)), f"sum of {plan.y}") if plan.y else (F.count(F.lit(1)), "events")
    ranked = table.where(_quoted(plan.x).isNotNull()).groupBy(_quoted(plan.x).alias("x")).agg(value.alias("y"))
    rows = ranked.orderBy(F.desc("y"), "x").limit(TOP).collect()
    bars = [(str(row["x"]), float(row["y"] or 0)) for row in rows]
    return Chart(f"{topic}: {label} by {plan.x}", plan.x, label, bars=bars)


def _nice(width: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 … at or above."""
    if width <= 0:
        return 1.0
    from math import floor, log10

    power = 10.0 ** floor(log10(width))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width)


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        count = int(seconds // size)
        if count and seconds % size == 0:
            return f"{count} {unit if count > 1 else unit[:-1]}"
    return f"{seconds:g} s"
