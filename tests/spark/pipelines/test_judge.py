"""The judge: holes between segments, and what was dropped meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_logs import write_log
from spark_records import Record

from penstock.spark.log.files import LogSegment, find
from penstock.spark.pipelines.findings import AuditResult, PieceAudit
from penstock.spark.pipelines.judge import Judge


@pytest.fixture
def segments(tmp_path: Path) -> list[LogSegment]:
    write_log(tmp_path, [Record(n, b"x" * 50) for n in range(100)])
    return find(str(tmp_path))


def judged(
    folder: Path, segments: list[LogSegment], parts: list[PieceAudit], durable: int | None = None
) -> AuditResult:
    result = AuditResult(str(folder), segments=len(segments))
    Judge(folder, segments, parts, result, durable, False).run()
    return result


def test_a_whole_log(tmp_path: Path, segments: list[LogSegment]) -> None:
    parts = [PieceAudit(segment.base, records=5) for segment in segments]
    result = judged(tmp_path, segments, parts)
    assert (result.records, result.ok, result.findings) == (5 * len(segments), True, [])


def test_a_segment_that_is_missing(tmp_path: Path, segments: list[LogSegment]) -> None:
    left = [segment for segment in segments if segment.base != 4096]
    (finding,) = judged(tmp_path, left, [PieceAudit(segment.base) for segment in left]).findings
    assert (finding.level, finding.why, finding.position, finding.end) == ("damage", "a segment is missing", 4096, 8192)


def test_a_log_that_ends_too_early(tmp_path: Path, segments: list[LogSegment]) -> None:
    (finding,) = judged(tmp_path, segments, [PieceAudit(s.base) for s in segments], durable=1 << 30).findings
    assert "before its durable position" in finding.why


def test_what_retention_took_meanwhile_is_a_note(tmp_path: Path, segments: list[LogSegment]) -> None:
    parts = [PieceAudit(segment.base, dropped=segment.base == 0) for segment in segments]
    result = judged(tmp_path, segments, parts)
    assert result.ok
    assert [finding.level for finding in result.findings] == ["note"]
    assert result.segments == len(segments) - 1
