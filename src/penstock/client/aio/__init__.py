"""The asyncio client. Each object belongs to the event loop it was started in."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.aio.admin import Admin
    from penstock.client.aio.delivery import Delivery
    from penstock.client.aio.producer import Producer
    from penstock.client.aio.pull import PullConsumer
    from penstock.client.aio.push import PushConsumer

__all__ = ["Admin", "Delivery", "Producer", "PullConsumer", "PushConsumer"]

# Imported when first used: a command that asks one thing is done before a consumer would be imported.
_PUBLIC = {
    "Admin": "admin",
    "Delivery": "delivery",
    "Producer": "producer",
    "PullConsumer": "pull",
    "PushConsumer": "push",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _PUBLIC:
        raise AttributeError(f"module 'penstock.client.aio' has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
