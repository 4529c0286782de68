"""An LMDB data file read without LMDB, which trusts what it maps: a damaged page number ends the process there.

`LmdbFile.check` walks everything that is reachable: both meta pages, every tree of pages, the list of free pages. It
holds all of it against what LMDB's own format says (mdb.c, 0.9): a file that passes gives LMDB nothing to stumble over.
`pairs` gives what can still be read of a file that does not pass.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct, unpack_from
from typing import NamedTuple

_PAGE = Struct("<QHHHH")  # number, padding, flags, lower, upper
_META = Struct("<IIQQ")  # magic, version, address, map size
_DB = Struct("<IHHQQQQQ")  # padding (page size in the first), flags, depth, branches, leaves, overflows, entries, root
_TAIL = Struct("<QQ")  # last page, transaction
_NODE = Struct("<HHHH")  # size or page, low; high; flags; key size
_U64 = Struct("<Q")
_U32 = Struct("<I")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUB = 1, 2
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEAD = 16
_NONE = (1 << 64) - 1
_KEY_MAX = 511
_INTEGER_KEY = 8
_BEYOND_MAX = 64 << 20  # pages given out at the end and never written


class Damaged(Exception):
    """The file is not as LMDB writes it."""


class Tree(NamedTuple):
    """One database of the file."""

    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class LmdbFile:
    """See the module. A context manager: the mapping goes with it. Damaged, when there are not even meta pages."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise Damaged(f"{path} is no file")  # a named pipe: its opening would wait for a writer
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise Damaged(str(error)) from error
        try:
            self.size = os.fstat(fd).st_size
            self.data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path.name}: {error}") from error
        finally:
            os.close(fd)
        self.page_size = 0
        self.last = 0
        self.free = self.main = Tree(0, 0, 0, 0, 0, 0, _NONE)
        self._used: set[int] = {0, 1}
        self._counted = [0, 0, 0]  # branch, leaf and overflow pages of the tree that is walked
        try:
            self._read_meta()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.data.close()

    def __enter__(self) -> LmdbFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- meta pages ------------------------------------------------------------------------------------------------

    def _read_meta(self) -> None:
        size = self.page_size = _U32.unpack(self._bytes(40, 4))[0]
        if size < 512 or size > 1 << 16 or size & (size - 1):
            raise Damaged(f"a page of {size} bytes")
        newest = -1
        for number in (0, 1):
            base = number * size
            page, _, flags, _, _ = _PAGE.unpack(self._bytes(base, _HEAD))
            magic, version, address, _ = _META.unpack(self._bytes(base + 16, 24))
            if (page, flags, magic, version, address) != (number, _META_PAGE, _MAGIC, _VERSION, 0):
                raise Damaged(f"meta page {number}")
            free, main = (self._tree(self._bytes(base + at, 48)) for at in (40, 88))
            if _U32.unpack(self._bytes(base + 40, 4))[0] != size or free.flags != _INTEGER_KEY or main.flags != 0:
                raise Damaged(f"meta page {number}: other settings")
            last, transaction = _TAIL.unpack(self._bytes(base + 136, 16))
            if transaction > newest:
                newest, self.last, self.free, self.main = transaction, last, free, main
        if (self.last + 1) * size > self.size + _BEYOND_MAX:
            raise Damaged(f"{self.last + 1} pages in a file of {self.size} bytes")

    @staticmethod
    def _tree(data: bytes) -> Tree:
        return Tree(*_DB.unpack(data)[1:])

    def _bytes(self, at: int, count: int) -> bytes:
        if at + count > self.size:
            raise Damaged(f"the file ends at {self.size}, before {at + count}")
        return self.data[at : at + count]

    # -- pages -----------------------------------------------------------------------------------------------------

    def _page(self, number: int, flags: int) -> bytes:
        """A page of this kind; each is met once."""
        at = number * self.page_size
        if number < 2 or number > self.last or at + self.page_size > self.size:
            raise Damaged(f"page {number} of {self.last + 1}")
        data = self.data[at : at + self.page_size]
        page, _, found, _, _ = _PAGE.unpack_from(data)
        if page != number or found != flags:
            raise Damaged(f"page {number} says it is page {page}, kind {found}")
        if number in self._used:
            raise Damaged(f"page {number} is used twice")
        self._used.add(number)
        return data

    def _nodes(self, number: int, flags: int) -> tuple[bytes, list[tuple[int, int, int, int, bytes]]]:
        """A page, and (where its data begins, low, high, flags, key) of each of its nodes."""
        data, size = self._page(number, flags), self.page_size
        _, _, _, lower, upper = _PAGE.unpack_from(data)
        if not _HEAD <= lower <= upper <= size or lower & 1:
            raise Damaged(f"page {number}: room from {lower} to {upper}")
        found = []
        unpack = _NODE.unpack_from
        for node in unpack_from(f"<{(lower - _HEAD) >> 1}H", data, _HEAD):
            if node < upper or node + 8 > size or node & 1:
                raise Damaged(f"page {number}: a node at {node}")
            low, high, kind, key_size = unpack(data, node)
            stop = node + 8 + key_size
            if key_size > _KEY_MAX or stop > size:
                raise Damaged(f"page {number}: a key of {key_size} bytes")
            found.append((stop, low, high, kind, data[stop - key_size : stop]))
        return data, found

    def _leaf(self, number: int) -> list[tuple[bytes, bytes, int]]:
        """(key, value, flags) of each node of a leaf page, overflow pages taken in."""
        end = self.page_size
        data, nodes = self._nodes(number, _LEAF)
        found = []
        for at, low, high, kind, key in nodes:
            size = low | high << 16
            if kind == _BIG:
                if at + 8 > end:
                    raise Damaged(f"page {number}: a node behind its end")
                found.append((key, self._overflow(_U64.unpack_from(data, at)[0], size), kind))
            elif (kind == 0 or kind == _SUB) and at + size <= end:
                found.append((key, data[at : at + size], kind))
            else:
                raise Damaged(f"page {number}: a node of kind {kind} and {size} bytes")
        return found

    def _overflow(self, number: int, size: int) -> bytes:
        pages = _U32.unpack_from(self._page(number, _OVERFLOW), 12)[0]
        if pages != (_HEAD + size + self.page_size - 1) // self.page_size or number + pages - 1 > self.last:
            raise Damaged(f"page {number}: {pages} pages for {size} bytes")
        for more in range(number + 1, number + pages):
            if more in self._used:
                raise Damaged(f"page {more} is used twice")
            self._used.add(more)
        self._counted[2] += pages
        return self._bytes(number * self.page_size + _HEAD, size)

    # -- trees -----------------------------------------------------------------------------------------------------

    def walk(self, tree: Tree) -> Iterator[tuple[bytes, bytes, int]]:
        """Every (key, value, flags) of a tree in the order of its keys. Damaged, as soon as something is not right."""
        integer = bool(tree.flags & _INTEGER_KEY)
        self._counted = counted = [0, 0, 0]
        if tree.root == _NONE:
            if (tree.depth, tree.entries) != (0, 0):
                raise Damaged("a tree without a root")
            return
        entries = 0
        last: bytes | None = None
        for leaf, low, high in self._leaves(tree.root, tree.depth, None, None, integer):
            for key, value, kind in self._leaf(leaf):
                if integer:
                    if len(key) != 8:
                        raise Damaged(f"page {leaf}: a key of {len(key)} bytes")
                    key = key[::-1]  # as numbers are ordered
                if (last is not None and key <= last) or (low is not None and key < low) or (high and key >= high):
                    raise Damaged(f"page {leaf}: keys out of order")
                last = key
                entries += 1
                yield key, value, kind
        if (*counted, entries) != (tree.branches, tree.leaves, tree.overflows, tree.entries):
            raise Damaged("a tree has not as many pages and entries as it says")

    def _leaves(
        self, number: int, depth: int, low: bytes | None, high: bytes | None, integer: bool
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        if depth < 1 or depth > 32:
            raise Damaged(f"a tree of depth {depth}")
        if depth == 1:
            self._counted[1] += 1
            yield number, low, high
            return
        self._counted[0] += 1
        nodes = [(a | b << 16 | c << 32, key) for _, a, b, c, key in self._nodes(number, _BRANCH)[1]]
        if integer:
            nodes = [(child, key[::-1]) for child, key in nodes]
        if not nodes:
            raise Damaged(f"page {number}: no branches")
        for n, (child, key) in enumerate(nodes):
            begin = low if n == 0 else key
            end = nodes[n + 1][1] if n + 1 < len(nodes) else high
            yield from self._leaves(child, depth - 1, begin, end, integer)

    def trees(self) -> dict[bytes, Tree]:
        """The named databases."""
        found = {}
        for key, value, kind in self.walk(self.main):
            if kind != _SUB or len(value) != 48:
                raise Damaged(f"{key!r} is no database")
            found[key] = self._tree(value)
            if found[key].flags:
                raise Damaged(f"database {key!r} with flags {found[key].flags}")
        return found

    def check_free(self) -> None:
        """After all trees were walked: no free page is in use, or named twice."""
        free: set[int] = set()
        for _, value, _ in self.walk(self.free):
            if len(value) < 8 or len(value) & 7:
                raise Damaged("a list of free pages of another size")
            count = _U64.unpack_from(value)[0]
            if len(value) < 8 + 8 * count:
                raise Damaged(f"a list of {count} free pages")
            for n in range(count):
                page = _U64.unpack_from(value, 8 + 8 * n)[0]
                if page in free:
                    raise Damaged(f"page {page} is free twice")
                free.add(page)
        if any(page < 2 or page > self.last for page in free) or not free.isdisjoint(self._used):
            raise Damaged("a free page is in use")

    def pairs(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What can be read of a database, by whole pages that make sense; of the rest nothing."""
        self._used = {0, 1}
        self._counted = [0, 0, 0]
        try:
            tree = self.trees().get(name)
        except Damaged:
            tree = None
        yield from self._some(tree.root, tree.depth) if tree is not None else ()

    def _some(self, number: int, depth: int) -> Iterator[tuple[bytes, bytes]]:
        if not 1 <= depth <= 32:
            return
        try:
            if depth == 1:
                yield from [(key, value) for key, value, kind in self._leaf(number) if kind != _SUB]
                return
            children = [a | b << 16 | c << 32 for _, a, b, c, _ in self._nodes(number, _BRANCH)[1]]
        except Damaged:
            return
        for child in children:
            yield from self._some(child, depth - 1)
