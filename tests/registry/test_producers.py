"""nsqlookupd's tables: names stay, producers go with their connection, silence and tombstones hide them."""

from __future__ import annotations

from penstock.registry.producers import Producer, ProducerTables


def producer(name: str = "a") -> Producer:
    return Producer(f"{name}:1", name, name, 4150, 4151, "1.3.0")


def tables() -> tuple[ProducerTables, Producer]:
    made, one = ProducerTables(1_000, 100), producer()
    made.identify(one, 0)
    made.register(one, "t")
    made.register(one, "t", "c")
    made.register(one, "t", "e#ephemeral")
    return made, one


def test_names_stay_and_ephemeral_ones_go() -> None:
    made, one = tables()
    assert set(made.channels["t"]) == {"c", "e#ephemeral"}
    made.unregister(one, "t", "c")
    made.unregister(one, "t", "e#ephemeral")
    assert set(made.channels["t"]) == {"c"}
    assert one.topics == {"t": set()}
    assert one.peer_info()["broadcast_address"] == "a"


def test_a_second_producer_of_a_topic() -> None:
    made, one = tables()
    other = producer("b")
    made.identify(other, 5)
    made.register(other, "t")
    assert set(made.topics["t"]) == {one, other}
    made.unregister(one, "t")
    assert set(made.topics["t"]) == {other}
    assert one.topics == {}
