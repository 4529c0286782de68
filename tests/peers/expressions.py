"""Expressions of the filter language, and properties for them, at random."""

from __future__ import annotations

import random

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
