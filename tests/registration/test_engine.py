"""Settings of an engine: those that can be, and those that cannot, before any port is opened."""

from __future__ import annotations

import pytest

from penstock.config import BrokerConfig
from penstock.errors import ConfigError
from penstock.registration.engine import check_engine, endpoints_of


def settings(**more: object) -> BrokerConfig:
    return BrokerConfig(**({"engine": "etcd://h:1", "ha_port": 0} | more))  # type: ignore[arg-type]


def test_members() -> None:
    assert endpoints_of(settings(engine="etcd://h1:2379,h2,[::1]:9")) == (
        False,
        [("h1", 2379), ("h2", 2379), ("::1", 9)],
    )
    assert endpoints_of(settings(engine="etcds://h1:1;h2:2")) == (True, [("h1", 1), ("h2", 2)])
    check_engine(settings(engine_user="u", engine_password_file="f"))
    check_engine(BrokerConfig())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"engine": "h1:2379"}, "etcd://"), ({"engine": "http://h1:2379"}, "etcd://"), ({"engine": "etcd://"}, "member"),
        ({"engine": "etcd://a:1,,b:2"}, "member"), ({"engine": "etcd://a:x"}, "member"), ({"engine": "etcd://a:1/v3"}, "member"),
        ({"engine": "etcd://root:geheim@a:1"}, "engine_user"), ({"lease_ms": 3_999}, "lease_ms"),
        ({"lease_ms": 60_001}, "lease_ms"), ({"ha_port": -1}, "ha_port"), ({"engine_user": "u"}, "engine_password_file"),
        ({"engine_password_file": "f"}, "engine_user"), ({"engine_ca_file": "f"}, "TLS"),
        ({"engine": "etcds://a", "engine_cert": "f"}, "engine_key"), ({"engine_prefix": "x"}, "engine_prefix"),
        ({"engine_prefix": "/x/"}, "engine_prefix"), ({"engine_prefix": "/x\n"}, "engine_prefix"),
    ],
)  # fmt: skip
def test_what_cannot_be(more: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_engine(settings(**more))
    assert says in f"{error.value} {error.value.hint}"
    assert "geheim" not in f"{error.value} {error.value.hint}"
