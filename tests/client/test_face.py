"""`client.face`: start, close and with, of every blocking client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock import Admin, Producer, PullConsumer, PushConsumer
from penstock.client.face import Client
from penstock.errors import ClientError, Closed


@pytest.mark.parametrize("kind", [Admin, Producer, PullConsumer, PushConsumer])
def test_they_are_all_of_one_kind(kind: type[Client]) -> None:
    assert issubclass(kind, Client)


def test_with_starts_and_closes(registry: str) -> None:
    with Admin(registry) as admin:
        assert admin.brokers()
    with pytest.raises(Closed):
        admin.brokers()
    with pytest.raises(ClientError), Admin("127.0.0.1:1"):
        pass


FORKS = """
import os, signal, sys, threading
import penstock
from penstock import Message, Producer, PullConsumer, PushConsumer

registry, topic = sys.argv[1:]
got = threading.Semaphore(0)
producer = Producer(registry).start()
producer.send(Message(topic, b"1"))
pull = PullConsumer(registry).start()
admin = penstock.Admin(registry).start()
consumer = PushConsumer("face-forks", registry, start="first", listener=lambda message: got.release()).start()
consumer.subscribe(topic)
assert got.acquire(timeout=60)
child = os.fork()
if not child:
    for call in (
        lambda: producer.send(Message(topic, b"x")), lambda: producer.send_nowait(Message(topic, b"x")), producer.flush,
        lambda: pull.getmany(1), admin.brokers, lambda: consumer.subscribe("other"),
    ):
        try:
            call()
        except RuntimeError as error:
            assert "after a fork make new ones" in str(error)
        else:
            os._exit(1)
    for client in (producer, pull, admin, consumer):
        client.close()
    with Producer(registry) as own:
        own.send(Message(topic, b"2"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert got.acquire(timeout=60)
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
os.kill(child, signal.SIGTERM)  # as a pool ends its workers
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
producer.send(Message(topic, b"3"))
assert got.acquire(timeout=60)
for client in (producer, pull, admin, consumer):
    client.close()
print("whole")
"""


def test_what_a_child_process_does_with_its_parents_clients(registry: str, fresh: Callable[[str], str]) -> None:
    """Nothing: both would write into one connection, and one read the other's answers."""
    told = subprocess.run(
        [sys.executable, "-c", FORKS, registry, fresh("face")], capture_output=True, text=True, timeout=120
    )
    assert (told.stdout, told.returncode) == ("whole\n", 0), told.stderr
