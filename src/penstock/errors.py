"""Every exception of the house: whose fault it is, and what each protocol says of it.

`WireError`  the peer broke the protocol: answer if one can, close the connection.
`Refused`    understood and not done; it carries its code in each protocol and the connection lives.
`StoreError` the disk failed: the broker turns unhealthy and refuses writes.
`Closed`     used after close.
`ClientError` what our clients raise; `retryable` says whether the same call may go through later.
"""

from __future__ import annotations

from collections.abc import Mapping

INTERRUPTED = 130  # the exit code of what Ctrl-C has ended, as a shell has it


class PenstockError(Exception):
    """The root of the tree. `hint` is a sentence that says what to do next, or empty."""

    hint = ""


class WireError(PenstockError):
    """Bytes that no correct peer sends; `limit` is the name of the one they break, or empty."""

    def __init__(self, message: str = "", limit: str = ""):
        super().__init__(message)
        self.limit = limit


class Refused(PenstockError):
    """A request that was understood and is not done.

    `remoting` is the RocketMQ response code, `nsq` the NSQ error code, `http` the HTTP status.
    """

    def __init__(self, message: str, *, remoting: int = 1, nsq: str = "E_INVALID", http: int = 400, hint: str = ""):
        super().__init__(message)
        self.remoting = remoting
        self.nsq = nsq
        self.http = http
        self.hint = hint


class OtherKind(Refused):
    """The topic cannot be made: one of the name is there, and of the other kind."""


class LimitReached(Refused):
    """A request that is not done because there is too much already."""


class StoreError(PenstockError):
    """The disk, or what is on it, failed."""


class DiskFull(StoreError):
    """No room for a segment: writes are refused until there is."""


class NoDescriptor(StoreError):
    """A file could not be opened, for too many are, or the system has no memory: that passes, and nothing was done to it."""


class Corrupt(StoreError):
    """Bytes in a file of ours that cannot be right."""

    def __init__(self, path: object, offset: int, why: str):
        super().__init__(f"{path} at byte {offset}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


class Locked(StoreError):
    """Another process holds the data folder."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


NOT_OPEN = "the client is closed, or was never started: a `with` block does that, or `start()`"


class Closed(PenstockError):
    """Used after close, or before the start."""


class ConfigError(PenstockError):
    """A setting that cannot be obeyed."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class ClientError(PenstockError):
    """What a client call may raise; `code` is the broker's response code where there was one, else 0."""

    code = 0
    retryable = False


# How access control says no: RocketMQ's with code 1, which it says of many things, and NSQ's.
NO_USER = "No accessKey is configured"
BAD_SIGNATURE = "Check signature failed for accessKey="
NO_RIGHT = "No default permission for "
NO_ADMIN = "Need admin permission for request code="
OF_A_SLAVE = "this broker is a slave"  # how a refusal of what is the master's begins
_DENIALS = (NO_USER, BAD_SIGNATURE, NO_RIGHT, NO_ADMIN, "No acl config for ", "E_UNAUTHORIZED", "E_AUTH_")


class BrokerRefused(ClientError):
    """The broker or registry answered with an error code. `denied`: this user may not; `of_slave`: its master may do it."""

    def __init__(self, code: int, remark: str):
        super().__init__(f"refused with code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.denied = code in (1, 16) and any(text in remark for text in _DENIALS)
        self.of_slave = remark.startswith(OF_A_SLAVE)
        # Code 1 is RocketMQ's word for many things; what it says of a name or a number will be so again.
        lasting = any(
            text in remark for text in ("The specified ", "is illegal", "illegal characters", "is not a number")
        )
        self.retryable = code in (2, 14) or (code == 1 and not lasting and not self.denied)

    def __reduce__(self) -> tuple[type[BrokerRefused], tuple[int, str]]:
        return type(self), (self.code, self.remark)


class NoRoute(ClientError):
    """No broker serves the topic, as far as the registry knows."""


class NotEverywhere(ClientError):
    """A change that some brokers made and others did not, or a question that some answered; `missed` says why, by broker name."""

    def __init__(
        self,
        missed: Mapping[str, Exception],
        hint: str = "What is done stays done: call it again when the others are there.",
    ):
        super().__init__("; ".join(f"not at broker {name}: {why}" for name, why in missed.items()))
        self.missed = dict(missed)
        self.hint = hint
        self.retryable = all(getattr(why, "retryable", False) or isinstance(why, NoRoute) for why in missed.values())


class NotFound(ClientError):
    """What was named is not there: a group, a channel, a message."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class TimedOut(ClientError):
    """No answer in time; whether the request was carried out is unknown."""

    retryable = True


class BufferFull(ClientError):
    """As much is under way as the producer's `buffer_bytes` allows; nothing was sent."""

    retryable = True


class ConnectionLost(ClientError):
    """The connection broke before the answer; whether the request was carried out is unknown."""

    retryable = True


class NotConnected(ConnectionLost):
    """There was no connection: the request was certainly not carried out."""


class NotTrusted(NotConnected):
    """The peer's certificate is none that is trusted here, or not one for its name: waiting does not change that."""

    retryable = False
