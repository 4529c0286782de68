"""The page of an audit."""

from __future__ import annotations

from penstock.spark.pipelines.auditpage import audit_page
from penstock.spark.pipelines.findings import AuditResult, MessageFinding


def test_the_verdict_and_every_finding() -> None:
    result = AuditResult("/data/<store>", records=7, topics={"orders": [7, 700]}, per_segment=[[0, 7, 0]])
    assert "All is well." in audit_page(result)
    result.findings.append(
        MessageFinding("damage", "/data/commitlog/0", "a sum does not hold & more", 5, 9, "orders", 1, 2)
    )
    page = audit_page(result)
    assert "Not well" in page
    assert "a sum does not hold &amp; more" in page
    assert "<store>" not in page  # what comes from outside is escaped
    assert "orders" in page
