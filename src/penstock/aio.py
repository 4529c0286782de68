"""The asyncio clients under their public names: `penstock.aio.Producer` and so on."""

from penstock.client.aio import Admin, Delivery, Producer, PullConsumer, PushConsumer

__all__ = ["Admin", "Delivery", "Producer", "PullConsumer", "PushConsumer"]
