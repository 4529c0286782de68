"""The asyncio client. Each object belongs to the event loop it was started in."""

from penstock.client.aio.admin import Admin
from penstock.client.aio.delivery import Delivery
from penstock.client.aio.producer import Producer
from penstock.client.aio.pull import PullConsumer
from penstock.client.aio.push import PushConsumer

__all__ = ["Admin", "Delivery", "Producer", "PullConsumer", "PushConsumer"]
