"""What may lie between the bytes of an NSQ connection and its commands: TLS, deflate, snappy (nsq.md §3).

A layer opens what comes from the socket, a piece at a time, so that what expands is worked off before more of it is
made; and closes what goes there, each flush whole. Layers are asked from the socket inwards.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from penstock.errors import WireError

PIECE = 64 << 10
SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_MAX = 65536 + 4 + 16 + 65536 // 6


class Layered(Protocol):
    """A connection, as its layers see it."""

    layers: list[Layer]

    def end(self) -> None:
        """The peer has ended it."""

    def raw(self, data: bytes) -> None:
        """Bytes of a layer itself."""

    def wake(self) -> None:
        """There is something to be written."""


class Layer:
    """The shape of one: `session.layers` are asked in order."""

    name = ""
    shaking = False  # it cannot carry anything yet
    cipher = version = ""  # of TLS

    def __init__(self, session: Layered) -> None:
        self.session = session

    def opened(self, data: bytes) -> Iterator[bytes]:
        """The innermost bytes of what came from outside."""
        for piece in self.pieces(data):
            yield from self._through(piece)

    def _through(self, piece: bytes) -> Iterator[bytes]:
        layers = self.session.layers
        inner = layers.index(self) + 1
        if inner < len(layers):
            yield from layers[inner].opened(piece)
        else:
            yield piece

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What this layer makes of the bytes."""
        raise NotImplementedError

    def closed(self, data: bytes) -> bytes:
        """The bytes as they go out, to be read without waiting for more."""
        raise NotImplementedError


class Tls(Layer):
    """The server's side of TLS; `then` is called when the peers have shaken hands."""

    name = "tls"

    def __init__(self, session: Layered, context: ssl.SSLContext, then: Callable[[], None]) -> None:
        super().__init__(session)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._then = then
        self.shaking = True
        self.cipher = self.version = ""

    @property
    def connection(self) -> ssl.SSLObject:
        """What OpenSSL knows of it."""
        return self._tls

    def pieces(self, data: bytes) -> Iterator[bytes]:
        self._in.write(data)
        try:
            if self.shaking:
                self._tls.do_handshake()
                self.shaking = False
                self.cipher = (self._tls.cipher() or ("", "", 0))[0]
                self.version = (self._tls.version() or "").replace("TLSv", "TLS").replace("TLS1.0", "TLS1")
                self.session.raw(self._out.read())
                self._then()
            while True:
                piece = self._tls.read(PIECE)
                if not piece:
                    self.session.end()
                    break
                yield piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.session.raw(self._out.read())  # the alert
            raise WireError(f"TLS: {error.reason}") from error
        self.session.raw(self._out.read())
        self.session.wake()

    def closed(self, data: bytes) -> bytes:
        if self.shaking:
            return b""
        if data:
            self._tls.write(data)
        return self._out.read()


class Deflate(Layer):
    """Raw deflate, one stream each way, a sync flush with every write."""

    name = "deflate"

    def __init__(self, session: Layered, level: int) -> None:
        super().__init__(session)
        self._open = zlib.decompressobj(-15)
        self._close = zlib.compressobj(level, zlib.DEFLATED, -15)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                piece = self._open.decompress(data, PIECE)
                data = self._open.unconsumed_tail
                if piece:
                    yield piece
                elif self._open.eof or not data:
                    break
        except zlib.error as error:
            raise WireError(f"deflate: {error}") from error

    def closed(self, data: bytes) -> bytes:
        return self._close.compress(data) + self._close.flush(zlib.Z_SYNC_FLUSH) if data else b""


class Snappy(Layer):
    """Snappy's framing format: the identifier once, then chunks of at most 64 KiB."""

    name = "snappy"

    def __init__(self, session: Layered) -> None:
        super().__init__(session)
        import cramjam

        self._codec: Any = cramjam.snappy
        self._error: type[Exception] = cramjam.DecompressionError
        self._rest = b""
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        data = self._rest + data
        at = 0
        while len(data) - at >= 4:
            kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
            if size > _CHUNK_MAX and kind < 0x80:
                raise WireError(f"snappy: a chunk of {size} bytes")
            if len(data) - at - 4 < size:
                break
            if kind in (0, 1):
                try:
                    yield bytes(self._codec.decompress(SNAPPY_IDENTIFIER + data[at : at + 4 + size]))
                except self._error as error:
                    raise WireError(f"snappy: {error}") from error
            elif kind < 0x80:
                raise WireError(f"snappy: a chunk of type {kind}")
            at += 4 + size
        self._rest = data[at:]
        if len(self._rest) > (1 << 20):
            raise WireError("snappy: a chunk that does not end")

    def closed(self, data: bytes) -> bytes:
        if not data:
            return b""
        framed = bytes(self._codec.compress(data))
        if self._begun:
            return framed[len(SNAPPY_IDENTIFIER) :]
        self._begun = True
        return framed
