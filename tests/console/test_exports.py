"""`console.exports`: what is refused is refused before a file begins."""

from __future__ import annotations

import json

import pytest

import penstock
from penstock.console.exports import export_dead
from penstock.console.pages import Site
from penstock.console.upstream import Upstream
from penstock.errors import NotFound
from penstock.security import PLAIN
from penstock.testing import Broker
from polling import eventually


def test_lines_and_none(broker: Broker) -> None:
    site = Site(Upstream(f"http://{broker.http}", PLAIN), broker.registry, PLAIN, False)
    with pytest.raises(NotFound):
        export_dead(site, "nosuch", "")
    with penstock.Admin(broker.registry) as admin, penstock.Producer(broker.registry) as producer:
        admin.create_topic("%DLQ%out", 1)
        eventually(lambda: "%DLQ%out" in admin.topics(system=True))
        assert list(export_dead(site, "out", "")) == []
        for body in (b"</script>", b"\xff"):
            producer.send(penstock.Message("%DLQ%out", body))
    rows = [json.loads(line) for line in export_dead(site, "out", "")]
    assert [row.get("body", row.get("bodyBase64")) for row in rows] == ["</script>", "/w=="]
    assert len(list(export_dead(site, "out", "script"))) == 1
