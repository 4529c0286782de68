"""nsqd's options as data: their names, and their values as /config shows them."""

from __future__ import annotations

import logging

import pytest

from penstock.config import BrokerConfig
from penstock.fronts.flags import NSQD, NSQLOOKUPD, broadcast_address, join, node_id, nsqd_value, set_log_level


def test_every_setting_that_an_option_names_is_one_of_ours() -> None:
    config = BrokerConfig()
    for option in NSQD:
        if option.setting and option.setting not in ("nsq", "http", "https"):
            assert hasattr(config, option.setting), option.flag
    assert len({option.name for option in NSQD}) == len(NSQD)
    assert {"tcp-address", "http-address"} <= {option.flag for option in NSQLOOKUPD}


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("msg_timeout", {}, 60_000_000_000),
        ("id", {}, 7),
        ("tcp_address", {"nsq_port": 5, "host": "::1"}, "[::1]:5"),
        ("auth_http_addresses", {"auth_http_address": "a:1,b:2"}, ["a:1", "b:2"]),
        ("e2e_processing_latency_percentiles", {"e2e_processing_latency_percentile": "0.5,0.99"}, [0.99, 0.5]),
        ("log_level", {"log_level": "warn"}, 3),
        ("tls_required", {"tls_required": "tcp-https"}, 1),
    ],
)
def test_values_as_nsqd_shows_them(name: str, settings: dict[str, object], value: object) -> None:
    assert nsqd_value(BrokerConfig(**settings), name, 7) == value  # type: ignore[arg-type]


def test_no_such_option() -> None:
    with pytest.raises(KeyError):
        nsqd_value(BrokerConfig(), "nothing", 7)


def test_names_of_this_machine() -> None:
    assert node_id(5, "any") == 5
    assert 0 <= node_id(-1, "any") < 1024
    assert node_id(-1, "any") == node_id(-1, "any")
    assert broadcast_address(BrokerConfig(broadcast_address="x.test")) == "x.test"
    assert broadcast_address(BrokerConfig(host="10.0.0.1")) == "10.0.0.1"
    assert broadcast_address(BrokerConfig(host="0.0.0.0")) not in ("", "0.0.0.0")
    assert (join("a", 1), join("::1", 2)) == ("a:1", "[::1]:2")


def test_log_levels_of_nsqd() -> None:
    before = logging.getLogger("penstock").level
    try:
        set_log_level("fatal")
        assert logging.getLogger("penstock").level == logging.CRITICAL
    finally:
        logging.getLogger("penstock").setLevel(before)
