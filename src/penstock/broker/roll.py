"""The in-sync set as the engine has it, and as it was asked for: whoever stands in either must have a message before it counts.

    fit to be in, or not any more ─▶ wanted ─▶ asked (counted from here on) ─▶ known (answers may go without those left out)

So the engine never names a node that lacks something acknowledged, however late an answer of it comes, or if none comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping


class Roll:
    """See the module. Nodes are names with loss numbers; `ring` is called when the engine is to be asked."""

    def __init__(self, node: str, known: Mapping[str, int], patient_until_ms: int, ring: Callable[[], None]) -> None:
        self._node = node
        self._own = known[node]
        self.known = dict(known)
        self.wanted = dict(known)
        self._asked: list[dict[str, int]] = []  # all of which the engine may have made its own, or yet make
        self._patient_until_ms = patient_until_ms  # those in the set may connect until then
        self._seen: set[str] = set()  # those who have
        self._ring = ring
        self.changes = 0  # of what is asked, or known

    @property
    def counted(self) -> set[str]:
        """The other nodes that must have what is confirmed."""
        return {node for some in (self.known, *self._asked) for node in some} - {self._node}

    @property
    def maybe_alone(self) -> bool:
        """Whether this node may be the whole set, by now: then it confirms only what it has flushed."""
        return any(len(some) == 1 for some in (self.known, *self._asked))

    def rests(self, mono_ms: int) -> bool:
        """Whether the set is as it is wanted, and nobody is waited for."""
        return not self._asked and self.wanted == self.known and mono_ms >= self._patient_until_ms

    def holds(self, node: str, loss: int) -> bool:
        """Whether a node is in the set, with this loss number."""
        return self.known.get(node) == loss

    def propose(self, fit: Mapping[str, int], connected: Collection[str], mono_ms: int, *, whole: bool) -> None:
        """These other nodes are fit to be in the set. `whole`: what is confirmed is on the own disk, too."""
        wanted = {self._node: self._own, **fit}
        if mono_ms < self._patient_until_ms:
            self._seen.update(connected)
            wanted |= {node: loss for node, loss in self.known.items() if node not in self._seen}
        if len(wanted) == 1 and not whole:
            wanted = dict(self.known)
        self.wanted = wanted
        if wanted != self.known and not self._asked:
            self._ring()

    def ask(self, wanted: Mapping[str, int]) -> None:
        """The engine is asked for this set: how that ends is not known until `settle`."""
        self._asked.append(dict(wanted))
        self.changes += 1

    def settle(self, known: Mapping[str, int]) -> None:
        """The engine has this set, and nothing that was asked for is under way: it could not be carried out any more."""
        self.known, self._asked = dict(known), []
        self.changes += 1
