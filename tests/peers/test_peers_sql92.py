"""The filter language beside RocketMQ 4.9.7's own, on expressions and messages made at random."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from peers.rocketmq_broker import Installed
from penstock.errors import Refused
from penstock.testing import Broker
from penstock.wire.sql92 import compile_selector

COUNT = 10_000
NAMES = ("a", "b", "c", "TAGS", "_x$1")
VALUES = ("1", "10", "-3", "10.5", "abc", "", "true", "TRUE", "5E3", "1e400", "9223372036854775808", "0", "NaN", " 7 ", "it's",
          "7f", "0x10", "+5", "Infinity", "-0.0")  # fmt: skip
LITERALS = ("1", "0", "10", "10.5", ".5", "5E3", "2.", "1L", "'abc'", "'it''s'", "''", "TRUE", "false", "NULL", "0.0", "'10'",
            "9223372036854775807", "9223372036854775808", "1e-400", "1e400", "5e-324")  # fmt: skip


class Maker:
    """Expressions by the grammar, most of which compile."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> str:
        return self.random.choice([*NAMES, *NAMES, "1", "10", "5E3", "10.5", "-3", "-0.5", "+7"])

    def unary(self, depth: int) -> str:
        chance = self.random.random()
        if chance < 0.05:
            return self.random.choice("-+") + self.unary(depth)
        if chance < 0.1:
            return "NOT " + self.unary(depth)
        if chance < 0.6:
            return self.random.choice(NAMES)
        if chance < 0.8 or depth <= 0:
            return self.random.choice(LITERALS)
        return f"({self.expression(depth - 1)})"

    def condition(self, depth: int) -> str:
        pick, chance = self.random.choice, self.random.random()
        if chance < 0.3:
            return self.number() + pick([" > ", " >= ", "<", "<="]) + self.number()
        if chance < 0.5:
            return self.unary(depth) + pick([" = ", "<>"]) + self.unary(depth)
        if chance < 0.6:
            return f"{pick(NAMES)} {pick(['BETWEEN', 'not between'])} {self.number()} and {self.number()}"
        if chance < 0.7:
            members = ",".join(pick(["'abc'", "'1'", "'it''s'", "'10'"]) for _ in range(self.random.randint(1, 3)))
            return f"{pick(NAMES)} {pick(['IN', 'not in'])} ({members})"
        if chance < 0.8:
            return self.unary(depth) + pick([" IS NULL", " is not null"])
        if chance < 0.95:
            return f"({self.expression(depth - 1)})" if depth > 0 else pick(NAMES)
        return self.unary(depth)

    def expression(self, depth: int) -> str:
        made = self.condition(depth)
        while self.random.random() < 0.35:
            made += self.random.choice([" AND ", " OR ", " and ", " /* or */ or "]) + self.condition(depth)
        return made

    def properties(self) -> dict[str, str]:
        return {name: self.random.choice(VALUES) for name in NAMES if self.random.random() < 0.7}


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
