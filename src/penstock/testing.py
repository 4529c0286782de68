"""For the tests of programs that use Penstock: a real broker on free ports, in milliseconds, gone afterwards.

    from penstock.testing import Broker

    def test_orders():
        with Broker() as broker:
            with penstock.Producer(broker.registry) as producer: ...
"""

from penstock.clock import FakeClock
from penstock.embedded import ThreadedBroker as Broker

__all__ = ["Broker", "FakeClock"]
