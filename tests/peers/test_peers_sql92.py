"""The filter language beside RocketMQ 4.9.7's own, on expressions and messages made at random."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from peers.expressions import Maker
from peers.rocketmq_broker import Installed
from penstock.errors import Refused
from penstock.testing import Broker
from penstock.wire.sql92 import compile_selector

COUNT = 10_000


def ours(text: str, properties: dict[str, str]) -> str:
    try:
        return "yes" if compile_selector(text).matches(properties) else "no"
    except Refused:
        return "refused"


def test_it_is_rocketmqs(tmp_path: Path) -> None:
    maker = Maker(11)
    cases = [(maker.expression(3), maker.properties()) for _ in range(COUNT)]
    lines = ["\t".join([text, *(word for pair in properties.items() for word in pair)]) for text, properties in cases]
    (tmp_path / "cases").write_text("\n".join(lines) + "\n")
    answers = [line["answer"] for line in Installed().client("", tmp_path).run("select", "", str(tmp_path / "cases"))]
    assert len(answers) == COUNT
    assert min(Counter(answers).values()) > COUNT // 20
    other = [(case, theirs, ours(*case)) for case, theirs in zip(cases, answers, strict=True) if ours(*case) != theirs]
    assert not other[:5]


def test_the_java_client_gets_what_it_subscribes_to(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        client = Installed().client(broker.registry, tmp_path)
        got = client.run("subscribe", "Selected", "60", "n BETWEEN 10 AND 19 OR n IN ('3', '40')")
    assert sorted(line["n"] for line in got) == [3, *range(10, 20), 40, 60]
