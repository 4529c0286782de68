"""Where something listens, as people write it: `host`, `host:port`, `[v6]:port`."""

from __future__ import annotations

import re

from penstock.limits import PORT_MAX

REGISTRY_PORT = 9876
_NO_HOST = re.compile(r"[^\w.-]")  # letters of all languages are fine: a name may be one of those
_PORT = re.compile(r"[0-9]{1,5}")


def split_address(text: str, port: int = REGISTRY_PORT) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[v6]:port`` as (host, port). ValueError when it is none, TypeError when it is no text."""
    if not isinstance(text, str):
        raise TypeError(f"an address is text, not {text!r}")
    text = text.strip()
    host, colon, tail = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, tail = text, str(port)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    fits = _is_v6(host) if bracketed or ":" in host else host and _NO_HOST.search(host) is None
    if not fits or not _PORT.fullmatch(tail) or not 0 < int(tail) <= PORT_MAX:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(tail)


def host_in(text: str) -> str:
    """The host of `host`, `host:port`, `v6` or `[v6]:port`, as it stands before a port: an IPv6 address in brackets."""
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return f"[{text}]" if text.count(":") > 1 else text.partition(":")[0]


def _is_v6(host: str) -> bool:
    """Whether it is an IPv6 address, with its zone if it has one."""
    from ipaddress import AddressValueError, IPv6Address

    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True
