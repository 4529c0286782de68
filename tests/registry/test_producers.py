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


def test_ephemeral_names_go_with_the_connection_of_the_last_who_has_them() -> None:
    """nsqlookupd keeps them for ever; with names that are made for each connection the table was full one day."""
    (made, one), other = tables(), producer("b")
    made.identify(other, 0)
    made.register(other, "t", "e#ephemeral")
    made.register(one, "p#ephemeral", "c")
    made.register(one, "t", "c")
    made.lost(one)
    assert (set(made.topics), set(made.channels)) == ({"t"}, {"t"})
    assert made.channels_of("t") == ["c", "e#ephemeral"]
    made.lost(other)
    assert (made.channels_of("t"), made.lookup("t", 5)) == (["c"], [])


def test_the_channels_of_an_ephemeral_topic_go_with_it() -> None:
    """nsqlookupd keeps those that are not ephemeral themselves: the next topic of the name would have them at every nsqd, as
    channels that nobody reads.
    """
    made, one = tables()
    made.register(one, "p#ephemeral", "c")
    made.unregister(one, "p#ephemeral")
    assert (made.channels_of("p#ephemeral"), made.lookup("p#ephemeral", 5)) == ([], None)


def test_a_second_producer_of_a_topic() -> None:
    made, one = tables()
    other = producer("b")
    made.identify(other, 5)
    made.register(other, "t")
    assert set(made.topics["t"]) == {one, other}
    made.unregister(one, "t")
    assert set(made.topics["t"]) == {other}
    assert one.topics == {}


def test_a_master_of_an_older_epoch_is_left_out() -> None:
    made = ProducerTables(1_000, 100)
    nodes = {name: producer(name) for name in ("old", "new", "other")}
    for node, of in zip(nodes.values(), ("set", "set", "another"), strict=True):
        node.lead(of, 1)
        made.identify(node, 0)
        made.register(node, "t")
    old, new, other = nodes.values()
    assert made.lookup("t", 0) == [old, new, other]
    made.lead(new, "set", 2)  # its connection stands, though its machine is gone
    assert made.lookup("t", 0) == [new, other]
    assert made.tombstoned(old, "t", 0)
    made.lost(new)  # whoever it was: nobody is newer now
    assert made.lookup("t", 0) == [old, other]
    made.lost(old)
    again = producer("old")
    again.lead("set", 1)
    made.identify(again, 0)
    made.register(again, "t")
    assert made.lookup("t", 0) == [other, again]
