"""Penstock: a message queue for Python and Spark."""

import os as _os
import sys as _sys
from typing import TYPE_CHECKING

from penstock.version import __version__ as __version__

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.client.blocking import Producer as Producer
    from penstock.client.blocking import PullConsumer as PullConsumer
    from penstock.client.blocking import PushConsumer as PushConsumer
    from penstock.client.blockingadmin import Admin as Admin
    from penstock.client.handout import Delivery as Delivery
    from penstock.client.results import Reject as Reject
    from penstock.client.results import Retry as Retry
    from penstock.client.results import SendReceipt as SendReceipt
    from penstock.client.results import SendStatus as SendStatus
    from penstock.client.routes import MessageQueue as MessageQueue
    from penstock.client.tracecontext import context_of as context_of
    from penstock.client.tracecontext import with_context as with_context
    from penstock.embedded import Broker as Broker
    from penstock.errors import PenstockError as Error  # noqa: F401
    from penstock.message import Message as Message
    from penstock.message import ReceivedMessage as ReceivedMessage
    from penstock.security import Security as Security

if _os.environ.get("PENSTOCK_PURE") == "1":
    # The compiled modules lie beside their sources and would win; this finder puts the sources first.
    from importlib.machinery import ModuleSpec as _ModuleSpec
    from importlib.util import spec_from_file_location as _spec_from_file_location
    from pathlib import Path as _Path

    class _SourceFinder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> "_ModuleSpec | None":
            if not name.startswith("penstock."):
                return None
            source = _Path(__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return _spec_from_file_location(name, source) if source.is_file() else None

    _sys.meta_path.insert(0, _SourceFinder)  # type: ignore[arg-type]

# Public names, imported when first used: a broker needs no client, a client no broker.
_PUBLIC = {
    "Broker": "penstock.embedded",
    "Admin": "penstock.client.blockingadmin",
    "Delivery": "penstock.client.handout",
    "Error": "penstock.errors",
    "Message": "penstock.message",
    "MessageQueue": "penstock.client.routes",
    "Producer": "penstock.client.blocking",
    "PullConsumer": "penstock.client.blocking",
    "PushConsumer": "penstock.client.blocking",
    "ReceivedMessage": "penstock.message",
    "Reject": "penstock.client.results",
    "Retry": "penstock.client.results",
    "Security": "penstock.security",
    "SendReceipt": "penstock.client.results",
    "SendStatus": "penstock.client.results",
    "context_of": "penstock.client.tracecontext",
    "with_context": "penstock.client.tracecontext",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "aio":
        return import_module("penstock.aio")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value: object = getattr(import_module(_PUBLIC[name]), "PenstockError" if name == "Error" else name)
    globals()[name] = value
    return value
