"""Who may ask the console, and what a browser may do with its answers.

    Host      an address, localhost, this machine's name, or one that was allowed: a foreign name that points here (DNS
              rebinding) gets 403
    Origin    of a POST: this console itself, or none
    token     of a POST: in the form, and made from the session's cookie

No page asks another host for anything, is shown in a frame, or runs a script that is written in it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable

SESSION = "penstock_session"
_HOST = re.compile(r"(?:\[([^][]*)\]|([^][:]*))(?::\d{0,5})?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """The rules of one console."""

    def __init__(self, allowed_hosts: Iterable[str] = ()) -> None:
        self._hosts = {name.lower() for name in (*allowed_hosts, "localhost", socket.gethostname()) if name}
        self._key = secrets.token_bytes(32)

    def host_is_ours(self, host: str) -> bool:
        """Whether a Host header names this console."""
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1] or found[2]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._hosts
        return True

    @staticmethod
    def origin_is_ours(origin: str | None, host: str) -> bool:
        """Whether a POST comes from a page of ours; programs that are no browsers say nothing."""
        return origin is None or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    @staticmethod
    def new_session() -> str:
        """For a browser that has none."""
        return secrets.token_urlsafe(24)

    def token(self, session: str) -> str:
        """What a form of this session holds."""
        return hmac.new(self._key, session.encode("utf-8", "replace"), "sha256").hexdigest()

    def token_is_right(self, session: str, token: str) -> bool:
        """Whether a form was ours."""
        return bool(session) and hmac.compare_digest(self.token(session).encode(), token.encode("utf-8", "replace"))
