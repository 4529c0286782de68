"""The rules of a replica set that an engine leads, as a model: its transactions, leases that end at any moment, answers that are
lost, power cuts; the failsafe mode, staged rows, publishes, and what is reserved of a queue. Searched as `replication` is.

    V1   two logs are the same up to where their tables of epochs say that they are
    V2   what was acknowledged at level `pair` is in the log of every node that may claim
    V3   what was confirmed once is confirmed for good, wherever
    V4   one node at a time answers at the levels that wait for nobody
    V5   numbers of epochs rise along a log, starts do not fall
    V6   confirmed by the master is at most what each node of the set has
    V7   an offset that a reader has seen never means another message
    V10  the set is never empty                     V11  the epoch of the engine never falls
    SEAL what was answered to a SEAL can be published by every node that may claim

Clocks are not in it: a step may come at any moment, but for what the arithmetic of leases says comes later than another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

BEGIN, DONE, RESERVED = -1, -2, 1_000  # records that are no messages; RESERVED + n: offsets below n may be shown
AHEAD = 2  # so many offsets are reserved at once
BY_LEASE, BY_FAVOUR = 1, 2
Epoch = tuple[int, int]


class Rules(NamedTuple):
    """Each is a rule that the brokers follow; a mutant follows all but one."""

    union: bool = True  # waited for is who was asked for, too, in or out, until the answer is known
    alone_flushed: bool = True  # a master that is, or may be, alone confirms what it has flushed
    shrink_flushed: bool = True  # the last slave is let go of when all that is confirmed is flushed
    claim_flushed: bool = True
    claim_inside: bool = True  # only who is in the set
    loss_compared: bool = True  # with the loss number that it had when it was taken in
    loss_checked: bool = True  # and that is the one of the session that was looked at
    reach: bool = True  # who comes in has all that is confirmed
    reach_epoch: bool = True  # and all that there was when the master began
    no_longer_asked: bool = True  # before a question counts as over it is kept from being answered
    term_first: bool = True  # a master stops before its lease is over
    favour_of_all: bool = True
    same_by_favour: bool = True  # the set is not changed meanwhile
    favour_kept: bool = True
    start_waits: bool = True  # who has just started does not know what it has promised
    reserve: bool = True  # nobody is shown an offset that is not reserved and confirmed
    raise_ends: bool = True  # a new master goes on behind what was reserved
    seal_all: bool = True
    enter_with_rows: bool = True
    hold_publish: bool = True  # confirmed never stands within a publish


class Node(NamedTuple):
    """What one node has; a crash leaves log, table, loss number and staged rows."""

    up: bool = True
    log: tuple[int, ...] = ()
    table: tuple[Epoch, ...] = ()
    flushed: int = 0
    loss: int = 0
    known: int = 0  # confirmed
    lead: int = 0  # the epoch it is the master of
    term: int = 0
    members: frozenset[int] = frozenset()  # as the engine was heard last
    asked: tuple[bool, int, int] | None = None  # in or out, who, its loss number; until the answer is known
    revision: int = 0
    promised: bool = False
    waits: bool = False
    rows: bool = False  # staged
    next: int = 0  # offset


class Session(NamedTuple):
    """Of one slave."""

    master: int
    to: int
    table: tuple[Epoch, ...]
    loss: int
    running: bool = False
    written: int = 0
    rows: bool = False


class Request(NamedTuple):
    """On its way to the engine."""

    revision: int
    enter: bool
    node: int
    loss: int


class Engine(NamedTuple):
    revision: int = 1
    epoch: int = 1
    master: int = 0
    seat: bool = True
    in_sync: frozenset[tuple[int, int]] = frozenset()  # (node, loss number)
    losses: tuple[int, ...] = ()
    flying: frozenset[Request] = frozenset()


class State(NamedTuple):
    nodes: tuple[Node, ...]
    sessions: tuple[Session | None, ...]
    engine: Engine
    acked: frozenset[tuple[int, int]] = frozenset()
    sure: tuple[int, ...] = ()  # the longest log that was ever confirmed
    offsets: frozenset[tuple[int, int]] = frozenset()  # (message, offset)
    seen: frozenset[tuple[int, int]] = frozenset()  # by readers
    sealed: bool = False
    forked: bool = False
    writes: int = 0
    crashes: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Bounds:
    nodes: int = 2
    writes: int = 2
    epochs: int = 3
    crashes: int = 1
    losses: int = 1
    favours: bool = False
    stages: bool = False
    readers: bool = False
    changes: bool = True  # of the set
    together: bool = False  # begin with a set of all
    states: int = 60_000


def first(bounds: Bounds) -> State:
    """Node 0 leads, alone or with all in its set."""
    n, table = bounds.nodes, ((1, 0),)
    members = frozenset(range(n) if bounds.together else [0])
    leader = Node(lead=1, term=BY_LEASE, table=table, members=members, revision=1)
    slaves = (Node(table=table),) * (n - 1)
    session = Session(0, 0, table, 0, running=True)
    engine = Engine(in_sync=frozenset((one, 0) for one in members), losses=(0,) * n)
    return State((leader, *slaves), (None, *((session,) * (n - 1) if bounds.together else (None,) * (n - 1))), engine)


def put(state: State, i: int, **changes: object) -> State:
    node = state.nodes[i]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(nodes=(*state.nodes[:i], node, *state.nodes[i + 1 :]))


def link(state: State, s: int, session: Session | None) -> State:
    return state._replace(sessions=(*state.sessions[:s], session, *state.sessions[s + 1 :]))


def alone(state: State, i: int) -> State:
    """Node i has no connection any more."""
    for s, session in enumerate(state.sessions):
        if session is not None and i in (s, session.master):
            state = link(state, s, None)
    return state


def down(state: State, i: int, **changes: object) -> State:
    lost = {"up": False, "known": 0, "lead": 0, "term": 0, "asked": None, "promised": False, "waits": False}
    return put(alone(state, i), i, **{**lost, **changes})


def shared_end(one: Node, other: Node) -> int:
    count = 0
    for mine, theirs in zip(one.table, other.table, strict=False):
        if mine != theirs:
            break
        count += 1
    starts = [table[count][1] for table in (one.table, other.table) if count < len(table)]
    return min([len(one.log), len(other.log), *starts])


def waited_for(node: Node, i: int, rules: Rules) -> frozenset[int]:
    members = node.members | {i}
    if node.asked is None:
        return members
    enter, who, _ = node.asked
    if enter:
        return members | {who} if rules.union else members
    return members if rules.union else members - {who}


def may_be_alone(node: Node, i: int) -> bool:
    left = node.members - ({node.asked[1]} if node.asked and not node.asked[0] else set())
    return node.members <= {i} or left <= {i}


def confirmed(state: State, i: int, rules: Rules) -> int:
    """How much the master i may call confirmed now."""
    node = state.nodes[i]
    written = [len(node.log)]
    for s in waited_for(node, i, rules) - {i}:
        session = state.sessions[s]
        written.append(session.written if session and session.master == i and session.running else 0)
    end = min(written)
    if may_be_alone(node, i) and rules.alone_flushed:
        end = min(end, node.flushed)
    if BEGIN in node.log and rules.hold_publish:
        at = node.log.index(BEGIN)
        if at < end and DONE not in node.log[:end]:
            end = at
    return max(end, node.known)


def may_claim(state: State, i: int, rules: Rules) -> bool:
    """What the engine holds lets this node stand once the seat is free."""
    engine, node = state.engine, state.nodes[i]
    names = {one for one, _ in engine.in_sync}
    if not rules.claim_inside or names == {i}:
        return True
    return (i, node.loss) in engine.in_sync if rules.loss_compared else i in names


def steps(state: State, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    """Every step that can come next."""
    engine = state.engine
    holder = state.nodes[engine.master]
    if engine.seat and not (rules.term_first and holder.lead == engine.epoch and holder.term == BY_LEASE):
        yield "the lease ends", state._replace(engine=engine._replace(seat=False))
    for request in engine.flying:
        left = engine.flying - {request}
        yield f"the engine does not hear {request}", state._replace(engine=engine._replace(flying=left))
        is_it = not request.enter or not rules.loss_checked or engine.losses[request.node] == request.loss
        if request.revision == engine.revision and is_it:
            others = frozenset(one for one in engine.in_sync if one[0] != request.node)
            loss = request.loss if rules.loss_checked else engine.losses[request.node]
            held = others | {(request.node, loss)} if request.enter else others
            after = engine._replace(revision=engine.revision + 1, in_sync=held, flying=left)
            yield f"the engine takes {request}", state._replace(engine=after)
    for i, node in enumerate(state.nodes):
        yield from life(state, i, node, bounds)
        if not node.up:
            continue
        if node.flushed < len(node.log):
            yield f"{i} flushes", put(state, i, flushed=len(node.log))
        if node.lead:
            yield from led(state, i, node, rules, bounds)
        else:
            yield from following(state, i, node, rules, bounds)


def life(state: State, i: int, node: Node, bounds: Bounds) -> Iterator[tuple[str, State]]:
    if not node.up:
        losses = state.engine.losses
        engine = state.engine._replace(losses=(*losses[:i], node.loss, *losses[i + 1 :]))
        if engine.master == i:  # its former self is dead: it gives its lease up
            engine = engine._replace(seat=False)
        yield f"{i} starts", put(state._replace(engine=engine), i, up=True, waits=bounds.favours)
        return
    if state.crashes < bounds.crashes:
        yield f"{i} is killed", down(state, i)._replace(crashes=state.crashes + 1)
    if state.losses < bounds.losses and node.flushed < len(node.log):
        cut = down(state, i, log=node.log[: node.flushed], loss=node.loss + 1)
        yield f"{i} loses power", cut._replace(losses=state.losses + 1)
    if node.waits and not any(one.term == BY_FAVOUR for one in state.nodes):
        yield f"{i} has waited for a lease", put(state, i, waits=False)
    if node.promised and not any(one.term == BY_FAVOUR for one in state.nodes):
        yield f"the promise of {i} is over", put(state, i, promised=False)


def led(state: State, i: int, node: Node, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    engine = state.engine
    open_publish = BEGIN in node.log and DONE not in node.log
    if state.writes < bounds.writes and not open_publish:
        name = state.writes + 1
        after = put(state, i, log=(*node.log, name), next=node.next + 1)
        yield f"{i} writes", after._replace(writes=name, offsets=state.offsets | {(name, node.next)})
    end = confirmed(state, i, rules)
    waited = waited_for(node, i, rules)
    acked = state.acked | ({(n, node.log[n]) for n in range(end)} if len(waited) > 1 else set())
    if end > node.known or acked != state.acked:
        common = min(end, len(state.sure))
        forked = state.forked or node.log[:common] != state.sure[:common]
        sure = node.log[:end] if end > len(state.sure) else state.sure
        after = put(state, i, known=end)._replace(acked=acked, sure=sure, forked=forked)
        yield f"{i} confirms {end}", after
    if engine.master != i or engine.epoch != node.lead:
        yield f"{i} hears of another master", put(alone(state, i), i, lead=0, term=0, asked=None, known=0)
    elif node.asked is not None or node.revision != engine.revision:
        under_way = any(one.revision == engine.revision for one in engine.flying)
        now = engine._replace(revision=engine.revision + 1) if under_way and rules.no_longer_asked else engine
        members = frozenset(one for one, _ in now.in_sync)
        heard = put(state._replace(engine=now), i, asked=None, members=members, revision=now.revision)
        yield f"{i} reads the set", heard
    elif bounds.changes and (node.term != BY_FAVOUR or not rules.same_by_favour):
        yield from asks(state, i, node, rules)
    if node.term:
        yield f"the term of {i} is over", put(state, i, term=0)
    if bounds.favours:
        yield from favours(state, i, node, rules)
    if bounds.readers:
        yield from shows(state, i, node, rules)
    if bounds.stages:
        yield from stages(state, i, node, waited, rules)


def asks(state: State, i: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """The master asks for another set."""
    for s, session in enumerate(state.sessions):
        if s == i:
            continue
        if s in node.members:
            last = node.members <= {i, s}
            if not last or node.flushed >= node.known or not rules.shrink_flushed:
                yield f"{i} asks to leave {s} out", question(state, i, False, s, 0)
        elif session is not None and session.master == i and session.running:
            reached = session.written >= node.known or not rules.reach
            reached &= session.written >= node.table[-1][1] or not rules.reach_epoch
            if reached and (session.rows or not node.rows or not rules.enter_with_rows):
                yield f"{i} asks to take {s} in", question(state, i, True, s, session.loss)


def question(state: State, i: int, enter: bool, s: int, loss: int) -> State:
    engine = state.engine
    request = Request(state.nodes[i].revision, enter, s, loss)
    asked = state._replace(engine=engine._replace(flying=engine.flying | {request}))
    return put(asked, i, asked=(enter, s, loss))


def favours(state: State, i: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """The engine is away: the master goes on while everybody who could stand says that he does not."""
    if node.term == BY_LEASE:
        others = waited_for(node, i, rules) - {i}
        here = {
            s for s in others if (one := state.sessions[s]) and one.master == i and one.running and state.nodes[s].up
        }
        if here == others or (here and not rules.favour_of_all):
            after = put(state, i, term=BY_FAVOUR)
            for s in here:
                after = put(after, s, promised=True)
            yield f"{i} goes on by favour", after
    elif node.term == BY_FAVOUR and state.engine.seat and state.engine.epoch == node.lead:
        yield f"{i} renews its lease", put(state, i, term=BY_LEASE)


def shows(state: State, i: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """Readers of a topic whose messages wait for nobody, and what is reserved for them."""
    reserved = max((one - RESERVED for one in node.log if one >= RESERVED), default=0)
    if node.next >= reserved:
        yield f"{i} reserves", put(state, i, log=(*node.log, RESERVED + node.next + AHEAD))
    shown = max((one - RESERVED for one in node.log[: node.known] if one >= RESERVED), default=0)
    offsets = dict(state.offsets)
    for name in node.log:
        if 0 < name < RESERVED and (offsets[name] < shown or not rules.reserve) and node.term:
            after = state._replace(seen=state.seen | {(offsets[name], name)})
            if after != state:
                yield f"a reader of {i} sees {name}", after


def stages(state: State, i: int, node: Node, waited: frozenset[int], rules: Rules) -> Iterator[tuple[str, State]]:
    """Rows are staged, sealed and published."""
    if not node.rows and not state.sealed:
        yield f"{i} stages", put(state, i, rows=True)
    if node.rows and not state.sealed:
        told = all((one := state.sessions[s]) and one.master == i and one.rows for s in waited - {i})
        if told or not rules.seal_all:
            yield f"{i} seals", state._replace(sealed=True)
    if node.rows and state.sealed and BEGIN not in node.log:
        yield f"{i} begins to publish", put(state, i, log=(*node.log, BEGIN))
    if BEGIN in node.log and DONE not in node.log:
        yield f"{i} has published", put(state, i, log=(*node.log, DONE))


def following(state: State, s: int, node: Node, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, State]]:
    engine, session = state.engine, state.sessions[s]
    free = not engine.seat and engine.epoch < bounds.epochs and not (node.promised and rules.favour_kept)
    if free and may_claim(state, s, rules) and not (node.waits and rules.start_waits and engine.master != s):
        yield f"{s} claims", claimed(state, s, rules)
    if session is None:
        for m, master in enumerate(state.nodes):
            newer = node.table and node.table[-1][0] > master.lead
            if master.up and master.lead and not newer:
                to = shared_end(master, node)
                yield f"{s} is accepted by {m}", link(state, s, Session(m, to, master.table, node.loss))
        return
    yield f"{s} is cut off", link(state, s, None)
    master = state.nodes[session.master]
    if not session.running:
        if session.to < len(node.log):
            if session.to >= min(node.flushed, node.known):
                flushed = min(node.flushed, session.to)
                yield (
                    f"{s} cuts at {session.to}",
                    put(link(state, s, None), s, log=node.log[: session.to], flushed=flushed),
                )
        else:
            followed = put(state, s, table=session.table)
            yield f"{s} follows", link(followed, s, session._replace(running=True, written=0))
        return
    if len(node.log) < len(master.log):
        yield f"{s} copies", put(state, s, log=(*node.log, master.log[len(node.log)]))
    if session.written < len(node.log):
        yield f"{s} acknowledges", link(state, s, session._replace(written=len(node.log)))
    known = max(node.known, min(master.known, len(node.log)))
    if known != node.known:
        yield f"{s} hears what is confirmed", put(state, s, known=known)
    if bounds.stages and master.rows and not node.rows:
        yield f"{s} mirrors", put(state, s, rows=True)
    if node.rows and not session.rows:
        yield f"{s} says what it mirrors", link(state, s, session._replace(rows=True))


def claimed(state: State, s: int, rules: Rules) -> State:
    """The engine takes it for the master, and it begins its epoch."""
    engine, node = state.engine, state.nodes[s]
    others = frozenset(one for one in engine.in_sync if one[0] not in (s, engine.master))
    epoch, revision = engine.epoch + 1, engine.revision + 1
    after = engine._replace(revision=revision, epoch=epoch, master=s, seat=True, in_sync=others | {(s, node.loss)})
    log = node.log
    if BEGIN in log and DONE not in log:
        log = log[: log.index(BEGIN)]
    offsets = dict(state.offsets)
    ends = [offsets[name] + 1 for name in log if 0 < name < RESERVED]
    if rules.raise_ends:
        ends += [name - RESERVED for name in log if name >= RESERVED]
    flushed = len(log) if rules.claim_flushed else min(len(log), node.flushed)
    members = frozenset(one for one, _ in after.in_sync)
    kept = tuple(one for one in node.table if one[1] <= len(log))  # of the others it has nothing
    return put(
        alone(state._replace(engine=after), s), s, log=log, flushed=flushed, table=(*kept, (epoch, len(log))), lead=epoch,
        term=BY_LEASE, members=members, asked=None, revision=revision, next=max(ends, default=0), promised=False,
    )  # fmt: skip


def wrong(before: State, state: State, rules: Rules) -> str:
    """Which invariant does not hold after this step; empty when all do."""
    engine = state.engine
    if state.forked:
        return "V3"
    if not engine.in_sync:
        return "V10"
    if engine.epoch < before.engine.epoch:
        return "V11"
    if sum(node.term > 0 for node in state.nodes) > 1:
        return "V4"
    if len(dict(state.seen)) < len(state.seen):
        return "V7"
    for i, node in enumerate(state.nodes):
        starts, numbers = [start for _, start in node.table], [number for number, _ in node.table]
        if starts != sorted(starts) or numbers != sorted(set(numbers)) or numbers[-1] > engine.epoch:
            return f"V5 at {i}"
        if may_claim(state, i, Rules()):
            if any(node.log[n : n + 1] != (name,) for n, name in state.acked):
                return f"V2 at {i}"
            if state.sealed and not node.rows and DONE not in node.log:
                return f"SEAL at {i}"
        for j in range(i):
            end = shared_end(node, state.nodes[j])
            if node.log[:end] != state.nodes[j].log[:end]:
                return f"V1 of {j} and {i}"
        if node.known > len(node.log):
            return f"V3 at {i}"
    master = state.nodes[engine.master]
    if master.lead == engine.epoch:
        for i, loss in engine.in_sync:
            if state.nodes[i].loss == loss and len(state.nodes[i].log) < master.known:
                return f"V6 at {i}"
    return claim_wrong(before, state)


def claim_wrong(before: State, state: State) -> str:
    """V2 of who does claim, whether it might or not."""
    for i, node in enumerate(state.nodes):
        begins = node.lead > before.nodes[i].lead
        if begins and any(node.log[n : n + 1] != (name,) for n, name in state.acked):
            return f"V2 at {i}, which claims"
    return ""


class Found(NamedTuple):
    states: int
    all_of_them: bool
    violation: str = ""
    path: tuple[str, ...] = ()


def explore(rules: Rules, bounds: Bounds) -> Found:
    """Breadth first, until a violation, the last state, or as many as the bounds allow."""
    begin = first(bounds)
    came: dict[State, tuple[State | None, str]] = {begin: (None, "")}
    queue = deque([begin])
    while queue:
        state = queue.popleft()
        for name, after in steps(state, rules, bounds):
            if after in came:
                continue
            came[after] = state, name
            if violation := wrong(state, after, rules):
                return Found(len(came), False, violation, path_to(came, after))
            queue.append(after)
        if len(came) >= bounds.states:
            return Found(len(came), False)
    return Found(len(came), True)


def path_to(came: dict[State, tuple[State | None, str]], state: State) -> tuple[str, ...]:
    names, at = [], state
    while (before := came[at])[0] is not None:
        names.append(before[1])
        at = before[0]
    return tuple(reversed(names))


ALONE, PAIR = Bounds(), Bounds(together=True)
TRIO = Bounds(nodes=3, together=True, writes=0, losses=0, crashes=1, favours=True)
ROWS = Bounds(together=True, writes=0, losses=0, stages=True)
JOINS = replace(ROWS, together=False)
SEEN = Bounds(together=True, losses=0, epochs=2, readers=True, changes=False, states=120_000)
LOST = Bounds(writes=1, crashes=0, epochs=1)
THREE = Bounds(nodes=3, together=True, writes=1)
BOUNDS = {"alone": ALONE, "three": THREE, "pair": PAIR, "trio": TRIO, "rows": ROWS, "joins": JOINS, "seen": SEEN}
MUTANTS = {
    "union": PAIR, "alone_flushed": ALONE, "shrink_flushed": PAIR, "claim_flushed": PAIR, "claim_inside": ALONE,
    "loss_compared": PAIR, "loss_checked": LOST, "reach": ALONE, "reach_epoch": PAIR, "no_longer_asked": PAIR,
    "term_first": TRIO, "favour_of_all": TRIO, "same_by_favour": TRIO, "favour_kept": TRIO, "start_waits": TRIO,
    "reserve": SEEN, "raise_ends": SEEN, "seal_all": ROWS, "enter_with_rows": JOINS, "hold_publish": ROWS,
}  # fmt: skip


def without(name: str) -> Rules:
    """All rules but one."""
    return Rules()._replace(**{name: False})


def search(states: int, tell: Callable[[str], None]) -> None:
    """The rules as they are, in each setting, and then without each. SystemExit for a violation, or a rule nobody needs."""
    for name, bounds in BOUNDS.items():
        found = explore(Rules(), replace(bounds, states=states))
        tell(f"model with an engine, {name}: {found.states:,} states{', all there are' if found.all_of_them else ''}")
        if found.violation:
            raise SystemExit(f"{found.violation}: {' → '.join(found.path)}")
    for name, bounds in MUTANTS.items():
        found = explore(without(name), replace(bounds, states=max(states, bounds.states)))
        tell(f"model with an engine, without {name}: {found.violation or 'nothing'} after {found.states:,} states")
        if not found.violation:
            raise SystemExit(f"without {name} nothing goes wrong")
