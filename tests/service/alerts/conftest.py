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
    """Yield one store for every test, because creating one takes longer than querying it."""
    with Store(None) as store:
        yield store


@pytest.fixture
def desk(one_store: Store) -> Iterator[Desk]:
    """Yield a desk with an empty outbox and no channel."""
    with one_store.transaction() as transaction:
        transaction.clear_tables(["alerts", "incidents", "judgements", "project_checks"])
    with asyncio.Runner() as loop:
        yield Desk(one_store, loop)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver that accepts everything."""
    with receiving() as accepting:
        yield accepting


@pytest.fixture
def other() -> Iterator[Receiver]:
    """Yield a second receiver."""
    with receiving() as accepting:
        yield accepting
