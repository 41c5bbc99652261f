"""Ownership of a database: either the embedded runner fills it through a write-ahead log, or a sink fills it from Kafka, never both."""

from __future__ import annotations

import contextlib
from pathlib import Path

from analytics.store.positions import watermarks_of
from analytics.store.store import Store
from schemas.errors import SettingsError
from schemas.registry import topics

SINK = "sink"
"""Consumer whose watermarks are the positions read from Kafka."""


def log_folder(database: Path) -> Path:
    """Return the folder of a database's write-ahead log; it exists while a server has the database, and after a server was killed."""
    return database.with_name(f"{database.name}.ahead")


def is_fed_by_kafka(store: Store) -> bool:
    """Whether a sink has ever read topics into the database."""
    with contextlib.closing(store.cursor()) as cursor:
        return bool(watermarks_of(cursor, SINK))


def require_embedded(store: Store) -> None:
    """SettingsError if records come from Kafka: records written directly would be on no topic, and no worker would see them."""
    if is_fed_by_kafka(store):
        raise SettingsError(
            f"{store.path} is filled from Kafka",
            hint="Its server takes records, ends of sessions and what is to be judged again over HTTP (/docs), and evaluates: "
            "`driftline evaluate --server`. `driftline serve` and `driftline rebuild` have it with --kafka. Or name another database "
            "with --db.",
        )


def require_kafka(store: Store) -> None:
    """SettingsError if the database has records that did not come from Kafka."""
    if any(store.end_of(topic) for topic in topics()) and not is_fed_by_kafka(store):
        raise SettingsError(
            f"{store.path} holds records that did not come from Kafka",
            hint="Name a new database with --db, or leave out --kafka and DRIFTLINE_KAFKA.",
        )
