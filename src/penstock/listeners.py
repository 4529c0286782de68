"""Bound sockets: on an address that nobody else reaches, unless somebody said so."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from penstock.errors import ConfigError
from penstock.fronts.flags import join
from penstock.fronts.soundness import REACHED, check_reach


def bind(host: str, port: int, insecure: bool, flag: str, reached: str = REACHED) -> socket.socket:
    """A bound socket; a host with a slash in it is the path of a Unix socket.

    ConfigError where another machine could reach it and nobody said it may (`reached` says how), or the port is taken.
    """
    if "/" in host:
        return _bind_path(host)
    check_reach(host, insecure, reached)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, TypeError) as error:  # of a name with odd bytes
        listener.close()
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {ascii(host)[1:-1]}:{port}: {why}", _advice(error, flag)) from None
    return listener


def _advice(error: OSError | TypeError, flag: str) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"Stop what listens there, or choose {flag}; 0 is any free port."
    if code in (errno.EACCES, errno.EPERM):
        return f"This user may not listen on that port: choose {flag}; 0 is any free port."
    return "Give an address of this machine: 127.0.0.1 is reached from this machine alone."


class Ports:
    """Ports that a server keeps while it is started anew. A second socket is bound to each, before the first one listens, which
    never does: while it is open the system gives the port to nobody else who asks for any, be it to listen or to connect.
    """

    def __init__(self) -> None:
        self._kept: dict[str, socket.socket] = {}

    def bind(self, name: str, host: str, port: int, insecure: bool, flag: str) -> socket.socket:
        """As `bind`; the port is kept under this name from now on."""
        listener = bind(host, port, insecure, flag)
        if name not in self._kept and listener.family != socket.AF_UNIX:
            kept = self._kept[name] = socket.socket(listener.family, socket.SOCK_STREAM)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # a system that does not allow it: it is ours while somebody listens
                kept.bind(listener.getsockname())
        return listener

    def give_up(self) -> None:
        """Nobody listens there any more."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()


def _bind_path(path: str) -> socket.socket:
    """A Unix socket; the file that a killed process left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode) and listener.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
        listener.close()
    except FileNotFoundError:
        listener.close()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}", "Stop what listens there.") from None
    return listener


def address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else join(*name[:2])


def port_of(address: str) -> int:
    """The port of an address, -1 of a Unix socket."""
    return -1 if "/" in address else int(address.rpartition(":")[2])
