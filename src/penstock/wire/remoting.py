"""RocketMQ's remoting frames, for both ends: bytes to commands and commands to bytes.

`wire.frames` draws a frame and cuts it. A `CommandParser` is fed with bytes in any cutting and gives the commands that
are complete. Nothing is allocated from a length before the bytes arrived. The broker's hot path reads headers in place
instead (`fronts`).
"""

from __future__ import annotations

from collections.abc import Container
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, TypedDict, Unpack

import msgspec

from penstock.errors import WireError
from penstock.wire.codes import LanguageCode
from penstock.wire.fastjson import BAD_JSON, DEPTH_MAX, check_depth
from penstock.wire.frames import FrameCutter
from penstock.words import BINARY, EXT_KEYS_MAX, HEADER_BYTES_MAX, JSON

VERSION = 409  # V4_9_8

ROOM_BYTES_MIN = 65_536  # to receive in
ROOM_BYTES_KEPT = 2 << 20  # a larger buffer is given back once it is empty

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

_PREFIX = Struct(">II")
_BINARY = Struct(">hBhii")  # code, language, version, opaque, flag
_I32 = Struct(">i")
_I16 = Struct(">h")

_LANGUAGE_NAMES = {int(code): code.name for code in LanguageCode}
_LANGUAGES = {code.name: int(code) for code in LanguageCode}

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Writer(TypedDict, total=False):
    """Who wrote a command: Penstock in Python, where it is not given."""

    language: int
    version: int


class RemotingCommand:
    """A request or a response; `ext` is the code's own header, all text."""

    __slots__ = ("body", "code", "ext", "flag", "language", "opaque", "remark", "serialize", "version")

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        serialize: int = JSON,
        **writer: Unpack[Writer],
    ) -> None:
        self.code = code
        self.ext = {} if ext is None else ext
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = writer.get("language", LanguageCode.PYTHON)
        self.version = writer.get("version", VERSION)
        self.serialize = serialize

    @property
    def response(self) -> bool:
        """Whether it answers something."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def oneway(self) -> bool:
        """Whether it wants no answer, not even an error."""
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self, code: int = 0, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> RemotingCommand:
        """The answer to this request: same opaque, same header type."""
        return RemotingCommand(
            code,
            ext,
            body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            language=LanguageCode.JAVA,
            serialize=self.serialize,
        )

    def number(self, opaque: int) -> int:
        """It is sent as this request; returns the number as it stands in the header."""
        self.opaque = opaque & 0x7FFFFFFF
        return self.opaque

    def ask_nothing(self) -> None:
        """It is one-way: nobody waits for an answer."""
        self.flag |= FLAG_ONEWAY

    def rewrite(self, serialize: int, names: Container[str]) -> None:
        """In this form, with the ext fields of these names only."""
        self.serialize = serialize
        self.ext = {name: value for name, value in self.ext.items() if name in names}

    def become(self, code: int, remark: str) -> None:
        """The answer is another one after all."""
        self.code = code
        self.remark = remark

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotingCommand) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "response" if self.response else "oneway" if self.oneway else "request"
        size = len(self.body)
        return f"<{kind} code={self.code} opaque={self.opaque} remark={self.remark!r} ext={self.ext} {size} bytes>"


class _HeaderOut(msgspec.Struct, gc=False):
    """The JSON header we write; `remark` and `extFields` are left out when there are none."""

    code: int
    flag: int
    language: str
    opaque: int
    version: int
    serializeTypeCurrentRPC: str
    extFields: dict[str, str] | msgspec.UnsetType
    remark: str | msgspec.UnsetType


class _HeaderIn(msgspec.Struct, gc=False):
    """The JSON header we read."""

    code: _Int32 = 0
    extFields: dict[str, str | int | float | bool | None] | None = None
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


class _HeaderAny(msgspec.Struct, gc=False):
    """The same, with ext values of any JSON type: what Java would turn into their text."""

    code: _Int32 = 0
    extFields: dict[str, Any] | None = None
    flag: _Int32 = 0
    language: object = None
    opaque: _Int32 = 0
    remark: object = None
    version: _Int32 = 0


_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(_HeaderIn).decode
_decode_any = msgspec.json.Decoder(_HeaderAny).decode


def encode(command: RemotingCommand) -> bytes:
    """The whole frame."""
    header = _json_header(command) if command.serialize == JSON else _binary_header(command)
    size = len(header)
    return b"".join((_PREFIX.pack(4 + size + len(command.body), command.serialize << 24 | size), header, command.body))


def _json_header(command: RemotingCommand) -> bytes:
    return _encode_json(
        _HeaderOut(
            command.code,
            command.flag,
            _LANGUAGE_NAMES.get(command.language, "OTHER"),
            command.opaque,
            command.version,
            "JSON",
            command.ext or msgspec.UNSET,
            msgspec.UNSET if command.remark is None else command.remark,
        )
    )


def _binary_header(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    for key, value in command.ext.items():
        k, v = key.encode(), value.encode()
        parts += (_I16.pack(len(k)), k, _I32.pack(len(v)), v)
    ext = b"".join(parts)
    # In JSON it has 32 bits; Java casts it to a short.
    version = int.from_bytes((command.version & 0xFFFF).to_bytes(2), signed=True)
    return b"".join(
        (
            _BINARY.pack(command.code, command.language, version, command.opaque, command.flag),
            _I32.pack(len(remark)),
            remark,
            _I32.pack(len(ext)),
            ext,
        )
    )


def decode(
    serialize: int, header: bytes, body: bytes = b"", fields_max: int = EXT_KEYS_MAX, depth_max: int = DEPTH_MAX
) -> RemotingCommand:
    """The command of one frame, its parts already cut. WireError when the header is not one."""
    if serialize == JSON:
        return _read_json(header, body, fields_max, depth_max)
    if serialize == BINARY:
        return _read_binary(header, body, fields_max)
    raise WireError(f"serialize type {serialize}")


def _read_json(header: bytes, body: bytes, fields_max: int, depth_max: int) -> RemotingCommand:
    check_depth(header, depth_max)
    try:
        try:
            fields: _HeaderIn | _HeaderAny = _decode_json(header)
        except msgspec.ValidationError:  # sound JSON, unusual types
            fields = _decode_any(header)
    except BAD_JSON as error:
        raise WireError(f"bad header: {error}") from None
    ext: dict[str, Any] = fields.extFields or {}
    if len(ext) > fields_max:
        raise WireError(f"{len(ext)} ext fields, at most {fields_max}", "header_fields")
    for key, value in ext.items():
        if type(value) is not str:
            ext = {key: _text(value) for key, value in ext.items() if value is not None}
            break
    language = fields.language
    if not isinstance(language, int):
        language = _LANGUAGES.get(language, LanguageCode.OTHER) if isinstance(language, str) else LanguageCode.OTHER
    elif language not in _LANGUAGE_NAMES:
        language = LanguageCode.OTHER
    remark = fields.remark
    return RemotingCommand(
        fields.code,
        ext,
        body,
        opaque=fields.opaque,
        flag=fields.flag,
        remark=remark if remark is None or isinstance(remark, str) else _text(remark),
        language=language,
        version=fields.version,
        serialize=JSON,
    )


def _text(value: object) -> str:
    """An ext value as Java would read it into a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _encode_json(value).decode()


def _read_binary(header: bytes, body: bytes, fields_max: int) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY.unpack_from(header)
        remark, at = _take(header, _BINARY.size, 4)
        raw, at = _take(header, at, 4)
        if at != len(header):
            raise WireError("bytes after the ext fields")
        ext: dict[str, str] = {}
        at = 0
        while at < len(raw):
            key, at = _take(raw, at, 2)
            value, at = _take(raw, at, 4)
            ext[key.decode()] = value.decode()
            if len(ext) > fields_max:
                raise WireError(f"more than {fields_max} ext fields", "header_fields")
        text = remark.decode() if remark else None
    except (StructError, UnicodeDecodeError) as error:
        raise WireError(f"bad binary header: {error}") from None
    return RemotingCommand(
        code,
        ext,
        body,
        opaque=opaque,
        flag=flag,
        remark=text,
        language=language if language in _LANGUAGE_NAMES else LanguageCode.OTHER,
        version=version,
        serialize=BINARY,
    )


def _take(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    """The bytes behind a length of `width` bytes at `at`, and the position after them."""
    length = (_I32 if width == 4 else _I16).unpack_from(data, at)[0]
    start = at + width
    if not 0 <= length <= len(data) - start:
        raise WireError(f"length {length} beyond the header")
    return data[start : start + length], start + length


class CommandParser:
    """Bytes in any cutting to commands.

    After bytes that no correct peer sends, `error` is set and nothing more is read: the `feed` that met them still
    returns the commands before them, or raises when there are none, and so does every later `feed`.
    """

    __slots__ = ("_buffer", "_cutter", "_end", "error")

    def __init__(self, *, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        self._buffer = bytearray()  # what has come stands at its start, `_end` bytes
        self._end = 0
        self._cutter = FrameCutter(header_bytes_max)
        self.error: WireError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """The commands that became complete. WireError when the peer is wrong: close the connection."""
        size = len(data)
        if self.error is None:
            self._make_room(size)
            self._buffer[self._end : self._end + size] = data
        return self.came(size)

    def room(self) -> memoryview:
        """Where to receive bytes, for `came`."""
        self._make_room(ROOM_BYTES_MIN)
        return memoryview(self._buffer)[self._end :]

    def came(self, size: int) -> list[RemotingCommand]:
        """So many bytes were received in the room; as `feed`."""
        commands: list[RemotingCommand] = []
        if self.error is None:
            self._end += size
            try:
                self._read(commands)
            except WireError as error:
                self.error = error
                self._buffer = bytearray()
                self._end = 0
        if self.error is not None and not commands:
            raise self.error
        return commands

    def _make_room(self, size: int) -> None:
        """Free bytes at the end. A frame's length alone makes no room: it grows with what has come, by a half at least."""
        least = self._end + size
        if least > len(self._buffer):
            wanted = max(least, min(self._cutter.need, 2 * least))
            grown = bytearray(wanted)  # a new one: the old one may be exported
            grown[: self._end] = memoryview(self._buffer)[: self._end]
            self._buffer = grown

    def _read(self, commands: list[RemotingCommand]) -> None:
        at = 0
        cutter, end = self._cutter, self._end
        with memoryview(self._buffer) as whole, whole[:end] as view:
            while cutter.cut(view, at):
                split = cutter.header + cutter.size
                commands.append(
                    decode(cutter.kind, bytes(view[cutter.header : split]), bytes(view[split : cutter.end]))
                )
                at = cutter.end
            left = end - at
            if at and left:
                whole[:left] = bytes(view[at:])
        self._end = left
        if not left and len(self._buffer) > ROOM_BYTES_KEPT:
            self._buffer = bytearray()
