"""What a person asks of a replica set that has an engine, at any of its nodes: no failover for a while, or forget a node.

Whatever is asked is tried until the engine has it; who asked is answered then. The master finds the change in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from penstock.broker.mastership import Mastership, Told
from penstock.errors import LimitReached, PenstockError, Refused
from penstock.registration.election import Election

WISHES_MAX = 16

Wish = Callable[[], Awaitable[dict[str, object]]]


class Caretaker:
    """See the module. `begin`: something is about to happen that no read began."""

    def __init__(self, begin: Callable[[], None], mastership: Mastership, election: Election) -> None:
        self._begin = begin
        self._mastership = mastership
        self._election = election
        self._wishes: asyncio.Queue[tuple[Wish, Told]] = asyncio.Queue(WISHES_MAX)
        mastership.tend_by(self)

    def pause(self, paused: bool, told: Told) -> None:
        """No failover unless somebody asks for it, or as ever again. LimitReached."""

        async def wish() -> dict[str, object]:
            changed = await self._election.amend(lambda state: replace(state, paused=paused))
            return {"changed": changed}

        self._put(wish, told)

    def forget(self, node: str, dry_run: bool, told: Told) -> None:
        """Know nothing of a node any more. LimitReached."""

        async def wish() -> dict[str, object]:
            view = await self._election.look()
            if view.state is not None and node in view.state.in_sync:
                raise Refused(
                    f"node {node} is in sync as the engine has it, and may be the only one with what was acknowledged: "
                    "a master takes it out; without one penstock ha promote --accept-loss does"
                )
            address = self._mastership.forget(node, dry_run=dry_run)
            if node in view.losses and not dry_run:
                await self._election.forget(node, view.losses)
            return {"address": address, "engine": node in view.losses}

        self._put(wish, told)

    def _put(self, wish: Wish, told: Told) -> None:
        try:
            self._wishes.put_nowait((wish, told))
        except asyncio.QueueFull:
            raise LimitReached("too much is asked of the engine already: ask again") from None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            wish, told = await self._wishes.get()
            found: dict[str, object] | PenstockError
            try:
                found = await wish()
            except PenstockError as error:
                found = error
            self._begin()
            told(found)
