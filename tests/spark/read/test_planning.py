"""Which offsets are read: against a cluster that is a dict."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError, NoRoute
from penstock.spark.read import planning
from penstock.spark.read.options import parse
from penstock.spark.read.planning import FROM, DataLoss, Range

A0, A1 = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)
B0 = MessageQueue("t", "broker-b", 0)
U0 = MessageQueue("u", "broker-a", 0)


class Cluster:
    """Queues with (oldest, durable end); message n of a queue is stored at 1000 + n ms."""

    def __init__(self, known: dict[MessageQueue, tuple[int, int]], groups: dict[Any, int] | None = None) -> None:
        self.known, self.groups = known, groups or {}

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.known})

    def queues(self, topic: str) -> list[MessageQueue]:
        found = sorted(queue for queue in self.known if queue.topic == topic)
        if not found:
            raise NoRoute(topic)
        return found

    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]:
        low, high = self.known[queue]
        return low, high if durable else high + 5

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        low, high = self.offsets(queue, durable=False)
        return min(max(timestamp_ms - 1000, low), high)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        return self.groups.get((group, queue))


CLUSTER = Cluster({A0: (10, 100), A1: (0, 50), B0: (0, 7), U0: (5, 5)})
ONE = Cluster({A0: (10, 100), A1: (0, 50)})


def starts(cluster: Cluster = ONE, stream: bool = True, **given: str) -> dict[MessageQueue, int]:
    options = parse({"subscribe": "t", **given})
    known = planning.bounds(cluster, planning.find_queues(cluster, options))
    return planning.starts(cluster, options, known, stream=stream)


def ends(cluster: Cluster = ONE, **given: str) -> dict[MessageQueue, int]:
    options = parse({"subscribe": "t", **given})
    known = planning.bounds(cluster, planning.find_queues(cluster, options))
    return planning.ends(cluster, options, known)


def test_defaults_are_earliest_for_a_batch_and_latest_for_a_stream() -> None:
    assert starts(stream=False) == {A0: 10, A1: 0}
    assert starts() == {A0: 100, A1: 50}
    assert starts(startingOffsets="earliest") == {A0: 10, A1: 0}
    assert ends() == {A0: 100, A1: 50}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"t": {"0": 23, "1": -2}}, {A0: 23, A1: 0}),
        ({"t": {"0": -1}}, {A0: 100, A1: 0}),
        ({"t": {"broker-a": {"0": 23}}}, {A0: 23, A1: 0}),
        ({"t": {"broker-a": "latest"}}, {A0: 100, A1: 50}),
        ({"t": "latest"}, {A0: 100, A1: 50}),
        ({"t": {"1": "latest"}}, {A0: 10, A1: 50}),
    ],
)
def test_json_positions_may_be_partial(given: Any, expected: Any) -> None:
    assert starts(startingOffsets=json.dumps(given)) == expected
    assert starts(stream=False, startingOffsets=json.dumps(given)) == expected


def test_the_same_queue_id_at_two_brokers_must_name_the_broker() -> None:
    with pytest.raises(ConfigError, match="several brokers"):
        starts(CLUSTER, startingOffsets='{"t": {"0": 23}}')
    assert starts(CLUSTER, startingOffsets='{"t": {"0": -1}}') == {A0: 100, A1: 0, B0: 7}
    given = '{"t": {"broker-a": {"0": 23}, "broker-b": {"0": 3}}}'
    assert starts(CLUSTER, startingOffsets=given) == {A0: 23, A1: 0, B0: 3}
    assert ends(CLUSTER, endingOffsets=given) == {A0: 23, A1: 50, B0: 3}


@pytest.mark.parametrize(
    "given", ['{"x": {"0": 1}}', '{"t": {"9": 1}}', '{"t": {"0": -3}}', '{"t": {"0": "soon"}}', '{"t": {"0": true}}']
)
def test_positions_that_cannot_be_meant_are_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        starts(startingOffsets=given)


def test_a_batch_that_is_to_end_before_it_begins_is_refused() -> None:
    def demand(begin: Any, end: Any, cluster: Cluster = ONE, **more: str) -> None:
        offsets = {"startingOffsets": json.dumps(begin), "endingOffsets": json.dumps(end)}
        options = parse({"subscribe": "t", **offsets, **more})
        planning.demand_order(options, planning.find_queues(cluster, options))

    for loss in ("true", "false"):
        with pytest.raises(ConfigError) as caught:
            demand({"t": {"0": 12, "1": 30}}, {"t": {"0": 90, "1": 20}}, failOnDataLoss=loss)
        assert str(caught.value).startswith(
            "t queue 1 at broker-a is to be read from offset 30 (startingOffsets) to 20 (endingOffsets)"
        )
    with pytest.raises(ConfigError, match=r"t queue 0 at broker-b .* offset 3 .* to 0 "):
        demand({"t": {"broker-b": {"0": 3}}}, {"t": {"broker-b": {"0": 0}}}, CLUSTER)
    # Nothing to read is no contradiction, and of words, and of moments, which win, only the store knows where they are.
    demand({"t": {"0": 20}}, {"t": {"0": 20}})
    demand({"t": {"0": -1}}, {"t": {"0": 20}})
    demand({"t": {"0": 30}}, {"t": {"0": -1, "1": 5}})
    demand({"t": {"0": 30}}, {"t": {"0": 20}}, startingTimestamp="1000")
    demand({"t": {"0": 30}}, {"t": {"0": 20}}, endingTimestamp="1040")


def test_offsets_that_are_gone_fail_or_are_held_within_what_is_there() -> None:
    given = '{"t": {"0": 3, "1": 60}}'
    with pytest.raises(DataLoss):
        starts(startingOffsets=given)
    assert starts(startingOffsets=given, failOnDataLoss="false") == {A0: 10, A1: 50}


def test_moments_win_over_offsets() -> None:
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 1030}}'}
    assert starts(**both) == {A0: 30, A1: 0}
    assert starts(**both, startingTimestamp="1040") == {A0: 40, A1: 40}
    assert starts(startingTimestamp="1970-01-01T00:00:01.020Z") == {A0: 20, A1: 20}
    assert ends(endingTimestamp="1040") == {A0: 40, A1: 40}
    assert ends(endingOffsetsByTimestamp='{"t": {"0": 1030}}') == {A0: 30, A1: 50}
    assert ends(endingTimestamp="99999") == {A0: 100, A1: 50}


def test_no_message_from_a_moment_on_is_an_error_unless_latest_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="no message"):
        starts(startingTimestamp="1070")  # queue 1 ends at 50
    assert starts(startingTimestamp="1070", startingOffsetsByTimestampStrategy="latest") == {A0: 70, A1: 50}
    assert starts(startingTimestamp="1052") == {A0: 52, A1: 50}  # there, but not durable yet


def test_a_group_says_where_to_begin() -> None:
    cluster = Cluster(ONE.known, {("g", A0): 42})
    assert starts(cluster, startingGroup="g") == {A0: 42, A1: 0}


def test_queues_by_pattern_and_by_assignment() -> None:
    find = lambda **given: planning.find_queues(CLUSTER, parse(given))  # noqa: E731
    assert find(subscribePattern="[tu]") == [A0, A1, B0, U0]
    assert find(subscribe="u, t") == [A0, A1, B0, U0]
    assert find(path="u") == [U0]
    assert find(assign='{"t": [0]}') == [A0, B0]
    assert find(assign='{"t": {"broker-a": [0, 1]}, "u": [0]}') == [A0, A1, U0]
    with pytest.raises(ConfigError, match="no queue 7"):
        find(assign='{"t": [7]}')
    for nothing in (
        "[]",
        "{}",
        "[true]",
        '["0"]',
        '{"broker-a": []}',
        "null",
    ):  # of which some read nothing, or queue 1
        with pytest.raises(ConfigError, match="t must map to a list of queue ids"):
            find(assign=f'{{"t": {nothing}}}')
    with pytest.raises(NoRoute):
        find(subscribe="nowhere")


# -- offsets as JSON


offsets = st.dictionaries(
    st.builds(MessageQueue, st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 12)), st.integers(0, 1 << 62)
)


@given(at=offsets)
def test_json_keeps_positions_and_has_one_spelling(at: dict[MessageQueue, int]) -> None:
    nested = planning.to_json(at)
    assert planning.from_json(nested) == at
    other = planning.to_json(dict(reversed(list(at.items()))))
    assert json.dumps(other) == json.dumps(nested)


# -- micro-batches


def test_nothing_new_gives_the_start_itself() -> None:
    start = planning.to_json({A0: 100, A1: 50})
    assert planning.advance(start, ONE.known, {A0: 100, A1: 50}) is start
    assert planning.advance(start, ONE.known, {A0: 90, A1: 50}) is start


def test_queues_that_are_away_keep_their_position_and_new_ones_begin_at_their_oldest() -> None:
    start = planning.to_json({A1: 5, U0: 5})
    end = planning.advance(start, ONE.known, {A0: 20, A1: 6})
    assert planning.from_json(end) == {A0: 20, A1: 6, U0: 5}
    assert end[FROM] == planning.to_json({A0: 10})
    ranges = planning.between(start, end, parse({"subscribe": "t"}))
    assert ranges == [Range(A0, 10, 20), Range(A1, 5, 6)]
    assert planning.advance(end, ONE.known, {A0: 20, A1: 6}) is end
    assert FROM not in planning.advance(end, ONE.known, {A0: 21, A1: 6})


def test_a_broker_is_away_whose_topic_others_have() -> None:
    """A topic that no broker has may be deleted, or is not read any more; a queue less is no broker less."""
    b0, elsewhere = MessageQueue("t", "b", 0), MessageQueue("gone", "c", 0)
    assert planning.away({A0: 1, A1: 1, b0: 1, elsewhere: 1}, {A0}) == {"b": ["t"]}
    assert planning.away({A0: 1}, {A0, b0}) == {}


def test_a_range_that_goes_back_is_data_loss() -> None:
    start, end = planning.to_json({A0: 9, A1: 0}), planning.to_json({A0: 3, A1: 2})
    with pytest.raises(DataLoss):
        planning.between(start, end, parse({"subscribe": "t"}))
    assert planning.between(start, end, parse({"subscribe": "t", "failOnDataLoss": "false"})) == [Range(A1, 0, 2)]


@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=6), most=st.integers(1, 2000))
def test_a_limit_is_split_in_proportion(counts: list[int], most: int) -> None:
    queues = {MessageQueue("t", "b", i): n for i, n in enumerate(counts)}
    shares = planning.limited(queues, most)
    assert sum(shares.values()) == min(most, sum(counts))
    for queue, share in shares.items():
        assert 0 <= share <= queues[queue]
        assert abs(share - min(most / max(sum(counts), 1), 1) * queues[queue]) <= len(queues)
        assert share or not queues[queue] or most < len([n for n in counts if n])


def test_a_queue_with_little_does_not_wait_for_those_with_much() -> None:
    counts = {A0: 10_000_000, A1: 5, B0: 0}
    assert planning.limited(counts, 1000) == {A0: 999, A1: 1, B0: 0}
    assert planning.limited(counts, 1) == {A0: 1, A1: 0, B0: 0}


@given(
    sizes=st.lists(st.integers(1, 500), max_size=5),
    least=st.one_of(st.none(), st.integers(1, 20)),
    most=st.one_of(st.none(), st.integers(1, 90)),
)
def test_pieces_cover_the_ranges_once_in_order(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = [Range(MessageQueue("t", "b", i), 7, 7 + n) for i, n in enumerate(sizes)]
    pieces = planning.cut(ranges, least, most)
    assert pieces == sorted(pieces) == planning.cut(ranges, least, most)
    for r in ranges:
        mine = [p for p in pieces if p.queue == r.queue]
        assert (mine[0].start, mine[-1].end) == (r.start, r.end)
        assert all(a.end == b.start for a, b in pairwise(mine))
    if least and sum(sizes) >= least:
        assert len(pieces) >= min(least, sum(sizes))
    if most:
        assert all(p.end - p.start <= most for p in pieces)


def test_more_partitions_than_a_driver_can_hold_are_refused() -> None:
    few, many = [Range(A0, 0, 30)], [Range(A0, 0, 3_000_000), Range(B0, 5, 3_000_000_000)]
    assert len(planning.cut(few, 10**18, None)) == 30
    assert 1_000 <= len(planning.cut(many, 1_000, None)) <= 1_002
    for least, most in ((10**18, None), (None, 1), (2_000_000, 10**18)):
        with pytest.raises(ConfigError, match="Spark partitions: 1000000 at most"):
            planning.cut(many, least, most)


@pytest.mark.parametrize(
    "offset",
    [
        None, 5, [1], "earliest", {"t": 5}, {"t": {"0": 5}}, {"t": {"a": {"q": 1}}}, {"t": {"a": {"0": "5"}}},
        {"t": {"a": {"0": None}}}, {"t": {"a": {"0": 1.5}}}, {"t": {"a": {"0": True}}}, {"t": {"a": {"0": -1}}},
        {"t": {"a": {"0": 1 << 63}}}, {FROM: 5}, {FROM: {"t": {"a": {"0": -1}}}}, {FROM: {FROM: {"t": 5}}},
        {FROM: {FROM: {FROM: {}}}},
    ],
)  # fmt: skip
def test_an_offset_that_is_none_is_told(offset: object) -> None:
    with pytest.raises(
        planning.BadOffset, match=r"^the checkpoint holds an offset that is none of this source: "
    ) as bad:
        planning.check_offset(offset)
    assert "Put back the file" in bad.value.hint


@pytest.mark.parametrize(
    "offset",
    [{}, {FROM: {}}, {"t": {}}, {"t": {"a": {"0": 0, "17": (1 << 63) - 1}}, FROM: {"t": {"a": {"0": 7}}, FROM: {}}},
     {FROM: {FROM: {"t": {"a": {"0": -5}}}}}],
)  # fmt: skip
def test_an_offset_of_this_source_passes(offset: object) -> None:
    planning.check_offset(offset)
