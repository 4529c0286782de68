"""For the tests of programs that use Penstock: a real broker on free ports, in milliseconds, gone afterwards.

In a test: ``with Broker() as broker, penstock.Producer(broker.registry) as producer: …``
"""

from penstock.clock import FakeClock
from penstock.embedded import ThreadedBroker as Broker

__all__ = ["Broker", "FakeClock"]
