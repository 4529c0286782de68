"""The rules of replication as a model: every state that a few steps can reach, and what must hold in each.

A node is its log, its table of epochs and the few facts it keeps; a session is what a master knows of one slave. One step is what
one frame, one call or one crash does: handshake, cut and first copy are three. `explore` searches breadth first, and
returns the steps that lead to a violation. A `Rules` with one rule left out is a mutant: the search must find what that breaks.

    V1  two logs are the same up to where their tables of epochs say that they are
    V2  what was acknowledged at level `pair` is in the log of a node that begins to lead
    V3  no node cuts what it had confirmed by itself, or knew to be confirmed
    V5  numbers of epochs rise along a log, starts do not fall
    V6  confirmed by a master is at most what each slave in sync has written

What the operator vouches for is part of it: nobody is promoted while another node is up as a master, and the old master stays
stopped until the new one leads. Without an engine a slave of
three that was cut off before its master was lost does not know what the other one acknowledged, and its promotion is
refused only while that one has it: so power cuts are searched with two nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

Entry = tuple[int, int]  # (position, number of the write)
Epoch = tuple[int, int, int]  # (number, tag, start)


class Rules(NamedTuple):
    """Each is a rule that the brokers follow; a mutant follows all but one."""

    cut_at_shared_end: bool = True  # KIP-101: not at what is confirmed
    compare_tags: bool = True
    note_alone: bool = True  # before a master confirms by itself
    join_epochs: bool = True  # a slave takes the master's table over
    end_of_shared: bool = True  # a log that goes on where the master's does not is cut before anything is copied
    all_members: bool = True  # all slaves in sync must have written
    enter_confirmed: bool = True  # a slave comes into the set with all that is confirmed
    give_first: bool = True  # a master that changes places is a slave before the other one is the master
    loss_leaves: bool = True  # who may have lost the end of its log was not in sync
    flush_before: bool = True  # a promoted node has flushed its log
    needs_in_sync: bool = True  # only who was in sync is promoted
    keeps_safe: bool = True  # nothing safe is cut
    intent: bool = True  # the cut is written down before it begins


class Node(NamedTuple):
    """What one node has; what a crash leaves of it: all but `up`, `known`."""

    up: bool = False
    master: bool = False  # its role
    led: bool = False
    alone: bool = False
    told: bool = False  # its master said that it was in sync
    log: tuple[int, ...] = ()
    flushed: int = 0
    epochs: tuple[Epoch, ...] = ()
    known: int = 0  # confirmed, as far as it knows
    cut: int = -1  # an intent
    sure: int = 0  # ghost: what it has ever confirmed or known to be


class Session(NamedTuple):
    """Of one slave; `to`: where they part, `table`: the master's epochs as it accepted."""

    master: int
    to: int
    table: tuple[Epoch, ...]
    running: bool = False
    written: int = 0  # as the master was told
    in_sync: bool = False
    given: bool = False  # the master's place is the slave's


class State(NamedTuple):
    """All nodes, the session of each as a slave, the acknowledged, and what may still happen."""

    nodes: tuple[Node, ...]
    sessions: tuple[Session | None, ...]
    acked: frozenset[Entry] = frozenset()
    writes: int = 0
    epochs: int = 0
    crashes: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Bounds:
    nodes: int = 2
    writes: int = 2
    epochs: int = 3
    crashes: int = 2
    losses: int = 1
    states: int = 150_000


def first(bounds: Bounds) -> State:
    """Node 0 leads epoch 1 of an empty log, the others are empty slaves."""
    leader = Node(up=True, master=True, led=True, alone=True, epochs=((1, 1, 0),))
    n = bounds.nodes
    return State((leader, *(Node(up=True) for _ in range(n - 1))), (None,) * n, epochs=1)


def three(bounds: Bounds) -> State:
    """Node 0 leads, the other two are in sync."""
    session = Session(0, 0, ((1, 1, 0),), running=True, in_sync=True)
    slave = Node(up=True, told=True, epochs=((1, 1, 0),))
    return State((first(bounds).nodes[0]._replace(alone=False), slave, slave), (None, session, session), epochs=1)


def forked(bounds: Bounds) -> State:
    """Nodes 1 and 2 were promoted at once, without a message in their logs; node 0 follows 1."""
    tables = [((1, 1, 0), (2, tag, 0)) for tag in (2, 3)]
    one, two = (Node(up=True, master=True, led=True, alone=True, epochs=table) for table in tables)
    follows = Session(1, 0, tables[0], running=True)
    return State((Node(up=True, epochs=tables[0]), one, two), (follows, None, None), epochs=3)


BEGINNINGS = {"first": first, "three": three, "forked": forked}


def common(ours: tuple[Epoch, ...], theirs: tuple[Epoch, ...], tags: bool) -> int:
    count = 0
    for mine, other in zip(ours, theirs, strict=False):
        if (mine if tags else (mine[0], mine[2])) != (other if tags else (other[0], other[2])):
            break
        count += 1
    return count


def shared_end(one: Node, other: Node, tags: bool = True) -> int:
    count = common(one.epochs, other.epochs, tags)
    starts = [table[count][2] for table in (one.epochs, other.epochs) if count < len(table)]
    return min([len(one.log), len(other.log), *starts])


def put(state: State, i: int, node: Node, **more: object) -> State:
    nodes = (*state.nodes[:i], node, *state.nodes[i + 1 :])
    return state._replace(nodes=nodes, **more)  # type: ignore[arg-type]


def link(state: State, s: int, session: Session | None) -> State:
    return state._replace(sessions=(*state.sessions[:s], session, *state.sessions[s + 1 :]))


def down(state: State, i: int, node: Node, rules: Rules) -> State:
    """The process of node i ends, with every session it has."""
    for s, session in enumerate(state.sessions):
        if session is not None and i in (s, session.master):
            state = link(state, s, None)
    return put(state, i, node._replace(up=False, known=0))


def steps(state: State, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    """Every step that can come next."""
    for i, node in enumerate(state.nodes):
        if state.losses < bounds.losses and node.flushed < len(node.log):
            lost = node._replace(log=node.log[: node.flushed], told=node.told and not rules.loss_leaves)
            if node.led:  # it does not start by itself: the operator lets it follow
                lost = lost._replace(master=False)
            yield f"{i} loses power", down(state, i, lost, rules)._replace(losses=state.losses + 1)
        if not node.up and node.master and node.led and any(one.master and not one.led for one in state.nodes):
            continue  # the old master stays stopped until the new one leads
        if not node.up:
            yield f"{i} starts", started(state, i, rules)
            continue
        if node.flushed < len(node.log):
            yield f"{i} flushes", put(state, i, node._replace(flushed=len(node.log)))
        if state.crashes < bounds.crashes:
            yield f"{i} is killed", down(state, i, node, rules)._replace(crashes=state.crashes + 1)
        yield from (
            led_steps(state, i, node, rules, bounds) if node.master else slave_steps(state, i, node, rules, bounds)
        )


def started(state: State, i: int, rules: Rules) -> State:
    node = state.nodes[i]
    if node.cut >= 0:
        node = node._replace(log=node.log[: node.cut], flushed=min(node.flushed, node.cut), cut=-1)
    node = node._replace(up=True)
    if node.master and not node.led:
        tag = state.epochs + 1
        kept = tuple(epoch for epoch in node.epochs if epoch[2] <= len(node.log))
        number = node.epochs[-1][0] + 1
        node = node._replace(led=True, epochs=(*kept, (number, tag, len(node.log))))
        state = state._replace(epochs=tag)
    if node.master:
        node = node._replace(alone=rules.note_alone, told=False)
    return put(state, i, node)


def led_steps(state: State, i: int, node: Node, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    if state.writes < bounds.writes:
        fresh = node._replace(log=(*node.log, state.writes + 1))
        yield f"{i} writes", put(state, i, fresh, writes=state.writes + 1)
    for j, other in enumerate(state.nodes):
        if other.up and other.master and other.epochs[-1][0] > node.epochs[-1][0]:
            yield f"{i} hears of {j}", down(state, i, node._replace(master=False), rules)
    members = [(s, one) for s, one in enumerate(state.sessions) if one is not None and one.master == i and one.running]
    counted = [one.written for _, one in members if one.in_sync]
    if counted:
        written = min(len(node.log), (min if rules.all_members else max)(counted))
        acked = state.acked | {(n, node.log[n]) for n in range(written)}
        known = max(node.known, written)
        fresh = node._replace(alone=False, known=known, sure=max(node.sure, known))
        after = put(state, i, fresh, acked=acked)
    else:
        known = max(node.known, node.flushed)
        after = put(state, i, node._replace(alone=rules.note_alone, known=known, sure=max(node.sure, known)))
    if after != state:
        yield f"{i} settles", after
    for s, one in members:
        caught_up = one.written >= (node.known if rules.enter_confirmed else 0)
        if not one.in_sync and caught_up and (one.written == len(node.log) or not rules.enter_confirmed):
            yield f"{s} is in sync", link(state, s, one._replace(in_sync=True))
        slave = state.nodes[s]
        if (
            one.in_sync
            and one.written == len(node.log) == node.flushed == slave.flushed
            and state.epochs < bounds.epochs
            and not one.given
        ):
            giving = node._replace(master=not rules.give_first, alone=False)
            yield f"{i} gives its place to {s}", link(put(state, i, giving), s, one._replace(given=True))
        if one.in_sync:
            yield f"{s} is out of sync", link(state, s, one._replace(in_sync=False))


def slave_steps(state: State, s: int, node: Node, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    session = state.sessions[s]
    if any(one is not None and one.master == s for one in state.sessions):  # it has given its place away
        yield f"{s} starts anew", down(state, s, node, rules)
        return
    if session is None:
        for m, master in enumerate(state.nodes):
            if master.up and master.master and accepted(master, node, rules):
                to = shared_end(master, node, rules.compare_tags)
                if not rules.cut_at_shared_end:
                    to = min(to, node.known)
                if not rules.end_of_shared:
                    to = len(node.log)
                yield f"{s} is accepted by {m}", link(state, s, Session(m, to, master.epochs))
        if promotable(state, s, rules) and state.epochs < bounds.epochs:
            flushed = len(node.log) if rules.flush_before else node.flushed
            fresh = node._replace(master=True, led=False, flushed=flushed)
            yield f"{s} is promoted", down(state, s, fresh, rules)
        return
    yield f"{s} is cut off", link(state, s, None)
    master = state.nodes[session.master]
    if session.given and len(node.log) == len(master.log):
        yield f"{s} takes the place", down(state, s, node._replace(master=True, led=False), rules)
    if not (master.master or session.given):
        return
    if not session.running:
        if session.to < len(node.log):
            safe = node.flushed if node.led and node.alone else min(node.flushed, node.known)
            if session.to >= safe or not rules.keeps_safe:
                if rules.intent:
                    yield f"{s} cuts at {session.to}", down(state, s, node._replace(cut=session.to), rules)
                else:  # and a process that ends midway has the old end again, under the new table
                    fresh = node._replace(epochs=session.table, led=False, alone=False)
                    yield f"{s} cuts half", down(state, s, fresh, rules)
        else:
            epochs = session.table if rules.join_epochs else node.epochs or session.table
            fresh = node._replace(epochs=epochs, led=False, alone=False)
            yield f"{s} follows", link(put(state, s, fresh), s, session._replace(running=True))
        return
    if len(node.log) < len(master.log):
        fresh = node._replace(log=(*node.log, master.log[len(node.log)]))
        yield f"{s} copies", put(state, s, fresh)
    if session.written < len(node.log):
        yield f"{s} acknowledges", link(state, s, session._replace(written=len(node.log)))
    if node.told != session.in_sync:
        yield f"{s} hears whether it is in sync", put(state, s, node._replace(told=session.in_sync))
    known = max(node.known, min(master.known, len(node.log)))
    if known != node.known:
        yield f"{s} hears what is confirmed", put(state, s, node._replace(known=known, sure=max(node.sure, known)))


def accepted(master: Node, node: Node, rules: Rules) -> bool:
    """Whether a master takes this slave."""
    if node.epochs and node.epochs[-1][0] > master.epochs[-1][0]:
        return False
    if node.log and not common(master.epochs, node.epochs, rules.compare_tags):
        return False
    held = [epoch for epoch in node.epochs if epoch[2] < len(node.log)]
    if not rules.compare_tags or not held:
        return True
    return held[-1] in master.epochs or held[-1][0] < master.epochs[-1][0]


def promotable(state: State, s: int, rules: Rules) -> bool:
    """Whether an operator's promotion is carried out: others that answer have no more of the log."""
    node = state.nodes[s]
    if not node.epochs or node.known > len(node.log) or node.cut >= 0:
        return False
    if any(other.up and other.master for other in state.nodes):
        return False
    rank = node.epochs[-1][0], len(node.log)
    others = [other for i, other in enumerate(state.nodes) if i != s and not (other.master and other.led)]
    if any(other.epochs and (other.epochs[-1][0], len(other.log)) > rank for other in others):
        return False
    return node.told or not rules.needs_in_sync


def wrong(before: State, state: State) -> str:
    """Which invariant does not hold after this step; empty when all do."""
    for i, node in enumerate(state.nodes):
        if node.led and not before.nodes[i].led and any(node.log[n : n + 1] != (number,) for n, number in state.acked):
            return f"V2 at {i}"
        starts = [epoch[2] for epoch in node.epochs]
        numbers = [epoch[0] for epoch in node.epochs]
        if starts != sorted(starts) or numbers != sorted(set(numbers)):
            return f"V5 at {i}"
        if node.sure > len(node.log) and not state.losses:
            return f"V3 at {i}"
        for j in range(i):
            end = shared_end(node, state.nodes[j])
            if node.log[:end] != state.nodes[j].log[:end]:
                return f"V1 of {j} and {i}"
    for s, session in enumerate(state.sessions):
        if session is not None and session.in_sync and session.written < state.nodes[session.master].known:
            return f"V6 at {s}"
    return ""


class Found(NamedTuple):
    """How many states were seen, whether that was all, and what went wrong after which steps."""

    states: int
    all_of_them: bool
    violation: str = ""
    path: tuple[str, ...] = ()


def explore(rules: Rules, bounds: Bounds, beginning: str = "first") -> Found:
    """Breadth first, until a violation, the last state, or as many as the bounds allow."""
    begin = BEGINNINGS[beginning](bounds)
    came: dict[State, tuple[State | None, str]] = {begin: (None, "")}
    queue = deque([begin])
    while queue:
        state = queue.popleft()
        for name, after in steps(state, rules, bounds):
            if after in came:
                continue
            came[after] = state, name
            if violation := wrong(state, after):
                return Found(len(came), False, violation, path_to(came, after))
            queue.append(after)
        if len(came) >= bounds.states:
            return Found(len(came), False)
    return Found(len(came), True)


def path_to(came: dict[State, tuple[State | None, str]], state: State) -> tuple[str, ...]:
    names = []
    at: State | None = state
    while at is not None:
        at, name = came[at]
        names.append(name)
    return tuple(reversed(names))[1:]


MUTANTS = tuple(Rules._fields)


def search(states: int, tell: Callable[[str], None]) -> None:
    """The rules as they are, from each beginning, and then without each. SystemExit for a violation, or a rule nobody needs."""
    for beginning, bounds in BOUNDS.items():
        found = explore(Rules(), replace(bounds, states=states, writes=3, crashes=3), beginning)
        tell(f"model, {beginning}: {found.states:,} states{', all there are' if found.all_of_them else ''}")
        if found.violation:
            raise SystemExit(f"{found.violation}: {' → '.join(found.path)}")
    for name in MUTANTS:
        found = explore(rules_without(name), *bounds_of(name))
        tell(f"model, without {name}: {found.violation or 'nothing'} after {found.states:,} states")
        if not found.violation:
            raise SystemExit(f"without {name} nothing goes wrong")


TWO, THREE = Bounds(states=60_000), Bounds(nodes=3, losses=0, states=40_000)
BOUNDS = {"first": TWO, "three": THREE, "forked": THREE}


def bounds_of(name: str) -> tuple[Bounds, str]:
    """Where and how far to search for what goes wrong without this rule."""
    beginning = {"compare_tags": "forked", "all_members": "three"}.get(name, "first")
    return BOUNDS[beginning], beginning


def rules_without(name: str | None) -> Rules:
    """The rules, or all but one."""
    return Rules()._replace(**{name: False}) if name else Rules()
