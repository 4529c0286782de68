"""The page of an audit."""

from __future__ import annotations

from penstock.spark.pipelines.findings import AuditResult
from penstock.spark.tools.report import COLOURS, bars, page, table


def audit_page(result: AuditResult) -> str:
    """The result of an audit."""
    verdict = '<p class="good">All is well.</p>' if result.ok else '<p class="damage">Not well: see the findings.</p>'
    facts = [
        ("records", result.records), ("bytes of log", result.bytes), ("segments", result.segments),
        ("queues", result.queues), ("queue entries", result.entries), ("index entries", result.index_entries),
        ("records without a sum over the whole record", result.unchecked),
    ]  # fmt: skip
    levels = {level: sum(one.level == level for one in result.findings) for level in ("damage", "derived", "note")}
    found = [
        (one.level, one.topic, "" if one.queue < 0 else one.queue, "" if one.offset < 0 else one.offset, one.why,
         "" if one.position < 0 else one.position, one.file.rpartition("/")[2])
        for one in result.findings
    ]  # fmt: skip
    topics = sorted(result.topics.items(), key=lambda item: -item[1][1])[:20]
    parts = [
        verdict,
        table(("what", "how many"), facts),
        bars("Findings", list(levels.items()), "#b42318") if found else "",
        table(("level", "topic", "queue", "offset", "what", "position", "file"), found) if found else "",
        bars("Messages by topic", [(name, count) for name, (count, _) in topics]),
        bars("Bytes by topic", [(name, size) for name, (_, size) in topics], COLOURS[2]),
        bars(
            "Records by segment", [(f"{base:020d}", count) for base, count, _ in result.per_segment][-40:], COLOURS[3]
        ),
    ]
    return page(f"Audit of {result.store}", parts)
