"""Who may connect: limits in all and for each address, and what is said of those who may not."""

from __future__ import annotations

import logging
import resource

import pytest

from penstock.admission import SPARE, Admission
from penstock.errors import WireError
from penstock.limits import FILES_KEPT, Limits


def test_addresses_of_other_machines_have_a_limit_of_their_own_and_loopback_has_none() -> None:
    limits = Limits()
    limits.max_connections_per_address = 3
    admission = Admission(limits, lambda: 0, lambda: False)
    strangers = [admission.admit(f"192.0.2.7:{port}") for port in range(4)]
    neighbours = [admission.admit(f"127.0.0.1:{port}") for port in range(4)]
    admission.dismiss("192.0.2.7:0")
    strangers.append(admission.admit("192.0.2.7:9"))
    assert (strangers, neighbours) == ([True, True, True, False, True], [True] * 4)
    assert admission.count == 7


def test_some_get_in_beyond_the_limit_and_where_memory_is_short() -> None:
    limits = Limits()
    limits.max_connections = 2
    short = [False]
    admission = Admission(limits, lambda: 0, lambda: short[0])
    assert [admission.admit("127.0.0.1:1") for _ in range(3)] == [True, True, False]
    assert [admission.admit("127.0.0.1:1", spare=True) for _ in range(SPARE + 1)] == [True] * SPARE + [False]
    admission.dismiss("127.0.0.1:1")
    short[0] = True
    admission.dismiss("127.0.0.1:1")
    assert admission.admit("127.0.0.1:1", spare=True)
    for _ in range(SPARE):
        admission.dismiss("127.0.0.1:1")
    assert not admission.admit("127.0.0.1:1")
    assert limits.reached["connections"] == 2
    assert limits.reached["memory"] == 1


def test_connections_leave_descriptors_to_files(caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be opened to be flushed ends the storing: idle connections must not bring that about."""
    limits = Limits()
    admission = Admission(limits, lambda: 0, lambda: False)
    last = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1
    for descriptor, spare, admitted in (
        (last - FILES_KEPT, False, True),
        (last - FILES_KEPT + 1, False, False),
        (last - FILES_KEPT // 2, True, True),
        (last - FILES_KEPT // 2 + 1, True, False),
        (last, False, False),
    ):
        assert admission.admit("127.0.0.1:1", spare=spare, descriptor=descriptor) is admitted
    assert limits.reached["connections"] == 3
    assert "raise the limit of open files" in caplog.text
    assert admission.count == 2


def test_a_peer_that_comes_again_and_again_is_written_down_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [5_000]
    admission = Admission(Limits(), lambda: now[0], lambda: False)
    with caplog.at_level(logging.WARNING, "penstock.net"):
        for _ in range(3):
            admission.rejected("192.0.2.7:1", WireError("no frame"))
        admission.rejected("192.0.2.8:1", WireError("no frame"))
        now[0] += 1_000
        admission.rejected("192.0.2.7:2", WireError("no frame"))
    assert [record.args[0] for record in caplog.records if record.args] == ["192.0.2.7:1", "192.0.2.8:1", "192.0.2.7:2"]  # type: ignore[index]
