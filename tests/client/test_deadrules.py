"""`client.deadrules`: what a rule names, and that a group's name holds it."""

from __future__ import annotations

import pytest

from penstock.client.deadrules import FORMER, GROUP, ID, MATCH_BYTES_MAX, TEXT, Rule, matches, rule_of
from penstock.message import ReceivedMessage


def letter(**properties: str) -> ReceivedMessage:
    return ReceivedMessage("%DLQ%g", b"body of k, once u1", 0, 7, 100, properties=properties, store_host="127.0.0.1:1")


@pytest.mark.parametrize("kind", [TEXT, ID, FORMER])
@pytest.mark.parametrize("text", ["", "k", "ü/?", "x" * MATCH_BYTES_MAX, " "])
def test_a_groups_name_holds_the_rule(text: str, kind: str) -> None:
    rule = Rule(text, kind)
    assert rule_of(rule.group) == (rule if text else Rule())
    assert len(rule.group) <= 255


def test_other_groups_hold_none() -> None:
    names = ("g", f"{GROUP}-", f"{GROUP}-!", f"{GROUP}-_w", f"{GROUP}er", f"{GROUP}_", f"{GROUP}|!", f"{GROUP}%aw")
    assert [rule_of(name) for name in names] == [None] * len(names)
    with pytest.raises(ValueError, match="at most"):
        _ = Rule("ü" * MATCH_BYTES_MAX).group


def test_what_matches() -> None:
    message = letter(KEYS="a b", DLQ_REASON="rejected", DLQ_DETAIL="no such customer")
    texts = ("", "a", "body", "ab", "KEYS", "rejected", "such cust")
    assert [matches(message, text) for text in texts] == [True, True, True, False, False, True, True]
    assert [Rule(text, FORMER).matches(message) for text in texts] == [True, True, True, False, False, False, False]


def test_an_id_is_that_of_the_letter_and_no_text() -> None:
    assert [Rule(text, ID).matches(letter(UNIQ_KEY="u1", KEYS="k")) for text in ("u1", "k", "u")] == [
        True,
        False,
        False,
    ]
    assert not Rule("u1", ID).matches(letter(UNIQ_KEY="u2"))
