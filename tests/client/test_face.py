"""`client.face`: start, close and with, of every blocking client."""

from __future__ import annotations

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
