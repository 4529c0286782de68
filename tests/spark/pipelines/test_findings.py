"""What an audit finds, as values."""

from __future__ import annotations

import json

from penstock.spark.pipelines import findings as module
from penstock.spark.pipelines.findings import AuditResult, MessageFinding, PieceAudit


def test_notes_are_no_faults() -> None:
    result = AuditResult("store", findings=[MessageFinding("note", "f", "dropped")])
    assert result.ok
    result.findings.append(MessageFinding("derived", "f", "an entry"))
    assert not result.ok
    assert json.loads(json.dumps(result.as_dict()))["ok"] is False
    assert not AuditResult("store", more_findings=1).ok


def test_a_piece_keeps_so_many_and_counts_the_rest() -> None:
    piece = PieceAudit(0)
    for _ in range(module.FINDINGS_MAX + 5):
        piece.add(MessageFinding("damage", "f", "bad"))
    assert (len(piece.findings), piece.more) == (module.FINDINGS_MAX, 5)
