"""What stands here of `arenas.h` is for the type checker: an uncompiled build has no sheets and calls none of it."""

from __future__ import annotations

from penstock.spark.kernel.buffers import Ints, Longs, Octets


class Arena:
    """Memory of C's, here only as a type."""


class Batch:
    """An Arrow record batch of C's, here only as a type."""


def arena_new(size: int) -> Arena:
    """Memory of that size; its size is -1 when there is none to be had."""
    raise NotImplementedError


def arena_bytes(arena: Arena) -> Octets:
    """Its bytes."""
    raise NotImplementedError


def arena_words(arena: Arena) -> Ints:
    """The same as 32-bit integers."""
    raise NotImplementedError


def arena_quads(arena: Arena) -> Longs:
    """The same as 64-bit integers."""
    raise NotImplementedError


def arena_size(arena: Arena) -> int:
    """In bytes; -1 of none."""
    raise NotImplementedError


def arena_idle(arena: Arena) -> bool:
    """Whether no batch lies in it that anybody holds."""
    raise NotImplementedError


def arena_drop(arena: Arena) -> None:
    """Let go of it; the memory is freed when nobody holds a batch in it any more."""
    raise NotImplementedError


def batch_new(arena: Arena, rows: int, columns: int) -> Batch:
    """A batch in an arena, its columns still to be set; its address is 0 when there was no memory for it."""
    raise NotImplementedError


def batch_column(batch: Batch, column: int, nulls: int, bits: int, values: int, data: int) -> None:
    """Set a column by positions in the arena; bits or data below 0: there is no such buffer."""
    raise NotImplementedError


def batch_address(batch: Batch) -> int:
    """What Arrow imports the batch from; whoever imports it lets go of it."""
    raise NotImplementedError
