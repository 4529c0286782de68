"""What stands here of `arenas.h` is for the type checker: an uncompiled build has no sheets and calls none of it."""

from __future__ import annotations

from typing import Any


def arena_new(size: int) -> Any:
    """Memory of that size; its size is -1 when there is none to be had."""
    raise NotImplementedError


def arena_bytes(arena: Any) -> Any:
    """Its bytes."""
    raise NotImplementedError


def arena_words(arena: Any) -> Any:
    """The same as 32-bit integers."""
    raise NotImplementedError


def arena_quads(arena: Any) -> Any:
    """The same as 64-bit integers."""
    raise NotImplementedError


def arena_size(arena: Any) -> int:
    """In bytes; -1 of none."""
    raise NotImplementedError


def arena_idle(arena: Any) -> bool:
    """Whether no batch lies in it that anybody holds."""
    raise NotImplementedError


def arena_drop(arena: Any) -> None:
    """Let go of it; the memory is freed when nobody holds a batch in it any more."""
    raise NotImplementedError


def batch_new(arena: Any, rows: int, columns: int) -> Any:
    """A batch in an arena, its columns still to be set; its address is 0 when there was no memory for it."""
    raise NotImplementedError


def batch_column(batch: Any, column: int, nulls: int, bits: int, values: int, data: int) -> None:
    """Set a column by positions in the arena; bits or data below 0: there is no such buffer."""
    raise NotImplementedError


def batch_address(batch: Any) -> int:
    """What Arrow imports the batch from; whoever imports it lets go of it."""
    raise NotImplementedError
