"""An outbox over a real store, and receivers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.alerting import Desk
from support.receivers import Receiver, receiving

from analytics.store.store import Store


@pytest.fixture(scope="session")
def one_store() -> Iterator[Store]:
    """One store for every test, because making one takes longer than asking it."""
    with Store(None) as store:
        yield store


@pytest.fixture
def desk(one_store: Store) -> Iterator[Desk]:
    """A desk with an empty outbox and no channel."""
    with one_store.transaction() as transaction:
        transaction.forget(["alerts", "incidents", "judgements"])
    with asyncio.Runner() as loop:
        yield Desk(one_store, loop)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes everything."""
    with receiving() as one:
        yield one


@pytest.fixture
def other() -> Iterator[Receiver]:
    """Another one."""
    with receiving() as one:
        yield one
