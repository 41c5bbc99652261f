"""Finished sessions for tests, put into the tables as a source would have brought them."""

from __future__ import annotations

from typing import Any

import msgspec
from builders import closing, exchange

from analytics.store import Store
from schemas.codec import encode
from schemas.records import Record
from streams.admission import Accepted

SONNET, HAIKU = "claude-sonnet-4-5", "claude-haiku-4-5"


def filled(store: Store, *records: tuple[str, Record]) -> Store:
    """The store with the records appended to their topics."""
    accepted = Accepted()
    for topic, record in records:
        accepted.add(topic, encode(record))
    with store.transaction() as transaction:
        for topic, messages in accepted.messages.items():
            transaction.append(topic, messages)
    return store


def session(name: str, number: int = 1, model: str = SONNET, **fields: Any) -> list[tuple[str, Record]]:
    """A finished session of one exchange, the `number`-th to end; the fields are those of the exchange."""
    project, connection = fields.get("project", "ops"), fields.get("connection", "local")
    end = msgspec.structs.replace(closing(name, number), connection=connection, project=project)
    return [("exchanges", exchange(name, number, agent_model=model, **fields)), ("exchanges", end)]
