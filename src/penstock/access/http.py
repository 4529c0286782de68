"""Who asks over HTTP: a name and a secret (Basic), a token (Bearer), a client certificate, or an address."""

from __future__ import annotations

import binascii
from base64 import b64decode

from penstock.access.rights import Rights
from penstock.access.users import User


def user_of(rights: Rights, authorization: bytes, remote: str, certificate: str) -> User | None:
    """The user that this Authorization header proves; without one, that of the connection."""
    scheme, _, rest = authorization.strip().partition(b" ")
    if not scheme:
        return rights.by_connection(remote, certificate)
    if scheme.lower() == b"bearer":
        return rights.of_token(rest.strip().decode("utf-8", "replace"), remote)
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, secret = b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return rights.of_password(name, secret, remote) if colon else None
