"""RocketMQ's access control on the wire (rocketmq.md §14.3): a request names its user and proves that it knows the secret.

The signature covers the values of the ext fields and the body, not the request code, and nothing expires: it tells who
wrote the request, it does not keep a listener from sending it again. That is TLS's part.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

from penstock.wire.remoting import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
_UNSIGNED = frozenset((SIGNATURE, "_UNIQUE_KEY_QUERY"))  # the second is a note of the Java client to itself


def signature(secret: str, fields: Mapping[str, str], body: bytes) -> str:
    """The signature of a request with these ext fields: HMAC-SHA1, base64, over their values by ascending name and the body."""
    values = "".join(fields[name] for name in sorted(fields) if name not in _UNSIGNED)
    content = values.encode("utf-8", "surrogatepass") + body
    return b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def sign(request: RemotingCommand, user: str, secret: str) -> None:
    """Make it a request of this user: its fields and body must not change any more."""
    request.ext[ACCESS_KEY] = user
    request.ext[SIGNATURE] = signature(secret, request.ext, request.body)


def is_signed(request: RemotingCommand, secret: str) -> bool:
    """Whether the writer of this request knew the secret; takes the same time for every wrong signature."""
    proof = signature(secret, request.ext, request.body)
    return hmac.compare_digest(proof.encode(), request.ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass"))
