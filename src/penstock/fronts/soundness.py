"""Whether settings can hold: what a start refuses, but for ports that are taken and what the data folder holds.

A start asks before it opens anything, `penstock config check` asks nothing else, so that the two say the same.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from penstock.access.rights import read_rights
from penstock.broker.replica import check_role, placed
from penstock.broker.rules import topic_rules
from penstock.broker.topics import check_topic_name
from penstock.config import BrokerConfig, RegistryConfig, parts
from penstock.disk.files import Files
from penstock.errors import ConfigError, Refused
from penstock.fronts.flags import LEVELS
from penstock.log.options import delay_levels
from penstock.logs import FORMATS
from penstock.security import security_of
from penstock.tls import door, server_tls, share_certificate
from penstock.wire.addresses import REGISTRY_PORT, split_address
from penstock.wire.layout import TOPIC_BYTES_MAX
from penstock.wire.names import REPLY_SUFFIX

_HOST = re.compile(r"[\w.-]+")
_DOORS = ("remoting_tls", "ha_tls", "registry_tls", "lookup_tls")
_PORTS = {
    "remoting_port": "host", "nsq_port": "nsq_host", "http_port": "http_host", "https_port": "https_host",
    "ha_port": "ha_host", "registry_port": "host", "lookup_port": "lookup_host", "lookup_http_port": "lookup_http_host",
}  # fmt: skip
_LISTENERS = ("host", "nsq_host", "http_host", "https_host", "ha_host", "lookup_host", "lookup_http_host")


def check_settings(broker: BrokerConfig | None, registry: RegistryConfig | None) -> None:
    """ConfigError for what cannot hold."""
    for role in (registry, broker):
        if role is not None:
            _check_words(role)
    if broker is not None:
        _check_broker(broker)
    _check_ports(broker, registry)


def check_addresses(broker: BrokerConfig | None, registry: RegistryConfig | None) -> None:
    """ConfigError for what is no address. Asked by our own commands; nsqd tells its log, and goes on."""
    for role in (registry, broker):
        for name in _LISTENERS:
            _check_host(name, getattr(role, name, ""))
    for name in ("registry", "lookupd_tcp_address", "ha_master", "statsd_address"):
        for address in parts(getattr(broker, name, "")):
            try:
                split_address(address, REGISTRY_PORT if name == "registry" else 0)  # the others have no usual port
            except ValueError as error:
                raise ConfigError(f"{name}: {error}", "As 10.0.0.7:9876 or [::1]:9876.") from None


def check_files(broker: BrokerConfig | None, registry: RegistryConfig | None) -> None:
    """ConfigError for files that are named and cannot be used: users, certificates, secrets. Of two that run together the
    registry has the broker's certificate, users and `insecure`.
    """
    if registry is not None and broker is not None:
        registry = share_certificate(broker, registry)
    open_to_others = False
    for role in (broker, registry):
        if role is None:
            continue
        open_to_others |= role.insecure or read_rights(role.users, role.data).on
        tls = server_tls(role)
        for name in _DOORS:
            if hasattr(role, name):
                door(getattr(role, name), name, tls)
        for name in _LISTENERS:
            host = getattr(role, name, "")
            if (host or name == "host") and "/" not in host and hasattr(role, name):
                check_reach(host, open_to_others)
    if broker is not None:
        security_of(broker.security or None)


REACHED = "Bind to 127.0.0.1, make users with `penstock user add`, or say --set insecure=true if that is what you want."


def check_reach(host: str, insecure: bool, hint: str = REACHED) -> None:
    """ConfigError, with this hint, where another machine could reach it and nobody said it may."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not insecure:
        raise ConfigError(
            f"{host or 'every address'} can be reached from other machines, and there is no authentication", hint
        )


def _check_ports(*roles: BrokerConfig | RegistryConfig | None) -> None:
    """No port of one address is meant for two listeners."""
    taken: dict[tuple[str, int], str] = {}
    there = [one for one in roles if one is not None]
    more = " `penstock broker` runs without a registry (`config check --role broker`)." if len(there) > 1 else ""
    for role in there:
        for name, own in _PORTS.items():
            host, port = getattr(role, own, "") or role.host, getattr(role, name, 0)
            if port < 1 or "/" in host or (name == "https_port" and not (role.tls_cert or role.tls_key)):
                continue
            if (other := taken.setdefault((host, port), name)) != name:
                raise ConfigError(
                    f"{name} and {other} are both {port}", f"Each wants one of its own; 0 is any free port.{more}"
                )


def _check_words(role: BrokerConfig | RegistryConfig) -> None:
    if role.log_level not in LEVELS:
        raise ConfigError(f"log_level cannot be {role.log_level!r}", f"It is one of {', '.join(LEVELS)}.")
    if role.log_format not in FORMATS:
        raise ConfigError(f"log_format cannot be {role.log_format!r}", f"It is one of {', '.join(FORMATS)}.")


def _check_host(name: str, host: str) -> None:
    """An address, a name or a path; a number that is no address is neither."""
    if not host or "/" in host:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host) or host.replace(".", "").isdigit():
            raise ConfigError(
                f"{name} cannot be {host!r}", "It is an address of this machine, without a port."
            ) from None


def _check_broker(config: BrokerConfig) -> None:
    check_role(config)
    if not config.engine:
        placed(config, Files(), Path(config.data))
    topic_rules(config.topic)
    for name, suffix in (("broker_name", ""), ("cluster_name", REPLY_SUFFIX)):
        text = getattr(config, name)
        try:
            check_topic_name(text.encode() + suffix.encode() if text else b"")
        except Refused:
            most = TOPIC_BYTES_MAX - len(suffix)
            hint = f"It is 1 to {most} letters, digits, - _ % and |, for it is a topic's name as well."
            raise ConfigError(f"{name} cannot be {text!r}", hint) from None
    try:
        delay_levels(config.message_delay_level)
    except ValueError as error:
        raise ConfigError(
            f"message_delay_level cannot be {config.message_delay_level!r}: {error}", "As 1s 5s 1m 2h."
        ) from None
    try:
        sound = all(0 < float(part) <= 1 for part in parts(config.e2e_processing_latency_percentile))
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(
            f"e2e_processing_latency_percentile cannot be {config.e2e_processing_latency_percentile!r}", "As 0.99;0.5."
        )
    if config.auth_http_request_method.lower() not in ("get", "post"):
        raise ConfigError(
            f"auth_http_request_method cannot be {config.auth_http_request_method!r}", "It is get or post."
        )
