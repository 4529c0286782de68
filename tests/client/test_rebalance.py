"""`client.rebalance`: the parts of all clients are disjoint and complete, and the same everywhere."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.rebalance import average, changes, circle, fixed
from penstock.client.routes import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", i) for i in range(count)]


@given(
    st.integers(0, 40),
    st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=12),
    st.sampled_from([average, circle]),
)
def test_parts_are_disjoint_and_complete(count: int, ids: set[str], strategy: object) -> None:
    clients = sorted(ids)
    parts = [list(strategy(me, queues(count), clients)) for me in clients]  # type: ignore[operator]
    assert sorted(q for part in parts for q in part) == queues(count)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_as_java_does() -> None:
    ids = ["c1", "c2", "c3"]
    assert [q.queue_id for q in average("c1", queues(8), ids)] == [0, 1, 2]
    assert [q.queue_id for q in average("c2", queues(8), ids)] == [3, 4, 5]
    assert [q.queue_id for q in average("c3", queues(8), ids)] == [6, 7]
    assert [q.queue_id for q in circle("c2", queues(8), ids)] == [1, 4, 7]
    assert list(average("c3", queues(2), ids)) == []
    assert list(average("stranger", queues(2), ids)) == []
    assert list(circle("stranger", queues(2), ids)) == []


def test_the_seed_example() -> None:
    assert [len(average(me, queues(24), ["a", "b"])) for me in ("a", "b")] == [12, 12]
    assert len(average("a", queues(24), ["a"])) == 24


def test_fixed_and_changes() -> None:
    mine = fixed([queues(3)[1], MessageQueue("gone", "a", 0)])
    assert list(mine("me", queues(3), [])) == [queues(3)[1]]
    other = MessageQueue("U", "a", 0)
    assigned = {queues(3)[0]: 1, queues(3)[1]: 1, other: 1}
    assert changes(assigned, queues(3)[1:], "T") == ([queues(3)[0]], [queues(3)[2]])
