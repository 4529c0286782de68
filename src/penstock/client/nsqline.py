"""One NSQ connection with plain blocking sockets, for publishing: a command, then its answer."""

from __future__ import annotations

import os
import socket
import ssl

import cython

from penstock.client import nsqframes
from penstock.client.line import SHORT_BYTES, Doubt, TimedSocket, connect
from penstock.client.nsqframes import FrameParser, refusal
from penstock.client.routes import NSQ_PORT, MessageQueue
from penstock.errors import ConnectionLost, NotTrusted, TimedOut
from penstock.security import PLAIN, Security
from penstock.version import __version__
from penstock.wire.addresses import split_address
from penstock.wire.nsq import ERROR

if cython.compiled:
    from cython.cimports.penstock.octets import monotonic_s
else:
    from penstock.octets import monotonic_s


class NsqLine(TimedSocket):
    """A connection that has said who it is. Without heartbeats: whoever holds it may be busy for minutes."""

    def __init__(self, address: str, timeout_s: float, security: Security = PLAIN, doubt: Doubt | None = None) -> None:
        to = split_address(address, NSQ_PORT)
        super().__init__(connect(to, timeout_s, PLAIN), timeout_s, doubt)  # TLS begins within
        self._address = address
        self._parser = FrameParser()
        about = {
            "client_id": f"{socket.gethostname()}@{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"penstock/{__version__}",
            "heartbeat_interval": -1,
            "tls_v1": security.tls,
        }
        try:
            answer = self.call(nsqframes.greeting(about), timeout_s)
            told = {}  # an OK: it negotiates nothing
            if answer != b"OK" or security.tls:
                told = nsqframes.welcome(answer, security, address)
            if security.context is not None:
                self._wrap(security.context, to[0], timeout_s)
            if told.get("auth_required") and security.user:  # else the certificate has said it
                self.call(security.nsq_auth, timeout_s)
        except BaseException:
            self.close()
            raise

    def _wrap(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """TLS from here on; its first word is OK."""
        try:
            self._socket.settimeout(self._patience)  # Python's, which a handshake keeps
            self._use(context.wrap_socket(self._socket, server_hostname=host), timeout_s)
        except (OSError, ValueError) as error:
            kind = NotTrusted if isinstance(error, ssl.SSLCertVerificationError) else ConnectionLost
            raise kind(f"cannot connect to {self._address}: {error}") from error
        self.call(b"", timeout_s)

    def call(self, command: bytes, timeout_s: float, queue: MessageQueue | None = None) -> bytes:
        """The answer to a command, of a topic's broker where one is named. BrokerRefused; TimedOut and ConnectionLost leave the
        line unusable.
        """
        deadline = monotonic_s() + timeout_s
        self._begin(queue)
        try:
            self._send(command, timeout_s)
            while True:
                data = self._some(SHORT_BYTES, deadline, 0)
                if self._parser.is_ok(data):
                    return b"OK"
                for frame in self._parser.feed(data):
                    if frame.kind == ERROR:
                        raise refusal(frame.data.decode("utf-8", "replace"))
                    if frame.data != nsqframes.HEARTBEAT:
                        return frame.data
                if self._parser.error is not None:
                    raise self._parser.error
        except (BlockingIOError, TimeoutError):
            raise TimedOut(f"{self._address} did not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectionLost(f"the connection to {self._address} broke: {error}") from error
