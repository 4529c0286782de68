"""What `penstock doctor` says: who can reach which listener, by what encryption, and who must say who it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.access import usersfile
from penstock.access.rights import check_folder
from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import ConfigError
from penstock.limits import is_loopback
from penstock.tls import server_tls, share_certificate

Row = dict[str, object]
REGISTRYS = ("registry", "lookup", "lookup http")


def rows(broker: BrokerConfig, registry: RegistryConfig) -> list[Row]:
    """A row for each listener that these settings open; `advice` says what to do, or is empty. ConfigError."""
    check_folder(broker.data)
    registry = share_certificate(broker, registry)
    users, trouble = _users(Path(broker.users))
    found: list[Row] = []
    for name, host, port, tls in _listeners(broker, registry):
        here = "/" in host or host == "localhost" or (host != "" and is_loopback(host))
        advice = trouble
        if name == "ha" and not here:
            advice = "it will not start: set ha_secret_file"
            if broker.ha_secret_file:
                advice = "replication is not encrypted: let it run over a network of your own, or a tunnel"
        insecure = registry.insecure if name in REGISTRYS else broker.insecure
        if not advice and not here and not users and not insecure:
            advice = "it will not start: make users with `penstock user add`, or bind to 127.0.0.1"
        elif not advice and not here and tls in ("off", "no certificate"):
            advice = "whoever listens can read along: set tls_cert and tls_key"
        elif not advice and not here and tls == "optional":
            advice = "plain connections are taken: require TLS"
        found.append(
            {
                "listener": name,
                "address": host if "/" in host else f"{host}:{port}",
                "reached_by": "this machine" if here else "others",
                "tls": tls,
                "users": users,
                "advice": advice,
            }
        )
    if broker.engine:
        found += engine_rows(broker)
    return found


def engine_rows(broker: BrokerConfig) -> list[Row]:
    """A row for each member of the engine: whether it answers, and what to do when it does not."""
    from penstock.registration.engine import check_engine, endpoints_of
    from penstock.registration.etcd import try_member

    found: list[Row] = []
    try:
        check_engine(broker)
        tls, members = endpoints_of(broker)
    except ConfigError as error:
        return [_engine_row("", "", f"it will not start: {error}. {error.hint}")]
    for member in members:
        address, trouble = try_member(broker, member)
        advice = ""
        if trouble:
            advice = f"it does not answer ({trouble}): is it running, and reached from here by this address?"
        elif not tls and not is_loopback(member[0]):
            advice = "whoever listens can read along, and change who is the master: write etcds://"
        found.append(_engine_row(address, "required" if tls else "off", advice))
    if len(members) == 2:
        found[-1]["advice"] = found[-1]["advice"] or "two members stop when one does: have one or three"
    return found


def _engine_row(address: str, tls: str, advice: str) -> Row:
    return {"listener": "engine", "address": address, "reached_by": "", "tls": tls, "users": "", "advice": advice}


def _users(path: Path) -> tuple[int, str]:
    try:
        return len(usersfile.read(path)), ""
    except ConfigError as error:
        return 0, f"the file of users cannot be used: {error}"


def _listeners(broker: BrokerConfig, registry: RegistryConfig) -> Iterator[tuple[str, str, int, str]]:
    """(name, host, port, TLS) of each port that is opened."""
    certificate = server_tls(broker) is not None
    nsq_tls = "required" if broker.tls_required in ("true", "tcp-https") else "optional"
    for name, host, port, tls in (
        ("remoting", broker.host, broker.remoting_port, broker.remoting_tls),
        ("nsq", broker.nsq_host or broker.host, broker.nsq_port, nsq_tls),
        (
            "http",
            broker.http_host or broker.host,
            broker.http_port,
            "refused" if broker.tls_required == "true" else "off",
        ),
        ("ha", broker.ha_host or broker.host, broker.ha_port, "off"),
        ("https", broker.https_host or broker.host, broker.https_port if certificate else -1, "required"),
    ):
        if port >= 0 or "/" in host:
            yield name, host, port, tls if certificate or tls == "off" else "no certificate"
    certificate = server_tls(registry) is not None
    for name, host, port, tls in (
        ("registry", registry.host, registry.registry_port, registry.registry_tls),
        ("lookup", registry.lookup_host or registry.host, registry.lookup_port, registry.lookup_tls),
        ("lookup http", registry.lookup_http_host or registry.host, registry.lookup_http_port, registry.lookup_tls),
    ):
        if port >= 0 or "/" in host:
            yield name, host, port, tls if certificate or tls == "off" else "no certificate"
