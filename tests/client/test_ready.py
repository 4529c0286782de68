"""`client.ready`: a limit shared out."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.ready import share_ready


@given(st.integers(0, 500), st.lists(st.text(), unique=True, max_size=20), st.integers(0, 100))
def test_the_limit_is_used_and_kept(limit: int, names: list[str], turn: int) -> None:
    shares = share_ready(limit, names, turn)
    assert sum(shares.values()) == (limit if names else 0)
    assert all(abs(a - b) <= 1 for a in shares.values() for b in shares.values())


def test_everybody_has_a_turn() -> None:
    names = list("abcde")
    had = {name for turn in range(0, 10, 2) for name, count in share_ready(2, names, turn).items() if count}
    assert had == set(names)
    assert share_ready(2, names, 3) == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1}
