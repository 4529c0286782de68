"""`limits`: a quarter of the memory where nothing is said, and which addresses are free."""

from __future__ import annotations

import psutil
import pytest

from penstock.limits import Limits, is_loopback


def test_memory() -> None:
    assert Limits(memory_bytes_max=5).memory_bytes == 5
    assert Limits().memory_bytes == pytest.approx(psutil.virtual_memory().total / 4, rel=0.01)


@pytest.mark.parametrize(
    ("host", "free"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("", True),
        ("10.0.0.1", False),
        ("[2001:db8::1]", False),
    ],
)
def test_loopback(host: str, free: bool) -> None:
    assert is_loopback(host) is free
