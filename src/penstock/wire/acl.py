"""RocketMQ's access control on the wire (rocketmq.md §14.3): a request names its user and proves that it knows the secret.

The signature covers the values of the ext fields and the body, not the request code, and nothing expires: it tells who
wrote the request, it does not keep a listener from sending it again. That is TLS's part.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha1

from penstock.wire.remoting import RemotingCommand

_BLOCK_BYTES = 64  # of SHA-1
_WRITERS = 16  # users of one process whose requests it signs
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
_UNSIGNED = frozenset((SIGNATURE, "_UNIQUE_KEY_QUERY"))  # the second is a note of the Java client to itself


def signature(secret: str, fields: Mapping[str, str], body: bytes) -> str:
    """The signature of a request with these ext fields: HMAC-SHA1, base64, over their values by ascending name and the body."""
    return b64encode(hmac.digest(secret.encode(), _covered(fields, body), "sha1")).decode()


def _covered(fields: Mapping[str, str], body: bytes) -> bytes:
    values = "".join([fields[name] for name in sorted(fields) if name not in _UNSIGNED])
    return values.encode("utf-8", "surrogatepass") + body


class Proof:
    """A user's secret, made ready once for many signatures."""

    def __init__(self, secret: str) -> None:
        key = secret.encode()
        if len(key) > _BLOCK_BYTES:
            key = sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        # HMAC by RFC 2104, with both hashes begun: a third of what one call of `hmac` costs.
        self._inner = sha1(key.translate(_INNER), usedforsecurity=False).copy
        self._outer = sha1(key.translate(_OUTER), usedforsecurity=False).copy

    def proves(self, content: bytes | bytearray, told: bytes) -> bool:
        """Whether this is the signature of the content; takes the same time for every wrong one."""
        return hmac.compare_digest(self.of(content), told)

    def of(self, content: bytes | bytearray) -> bytes:
        """The signature of this content."""
        inner, outer = self._inner(), self._outer()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


_proof_of = lru_cache(_WRITERS)(Proof)


def sign(request: RemotingCommand, user: str, secret: str) -> None:
    """Make it a request of this user: its fields and body must not change any more."""
    request.ext[ACCESS_KEY] = user
    request.ext[SIGNATURE] = _proof_of(secret).of(_covered(request.ext, request.body)).decode()


def is_signed(request: RemotingCommand, secret: str) -> bool:
    """Whether the writer of this request knew the secret; takes the same time for every wrong signature."""
    proof = signature(secret, request.ext, request.body)
    return hmac.compare_digest(proof.encode(), request.ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass"))
