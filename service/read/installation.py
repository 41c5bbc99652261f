"""The state of the installation: version, size, lag and dead letters."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from analytics.store.store import Store
from schemas.lazy import duckdb
from service.read.dead_letters import LetterReason, letter_reasons
from service.setup.access.access import AccessStore
from service.setup.version import version
from service.text.answers import Answer
from streams.engine.record_intake import RecordIntake
from streams.log.log import is_fed_by_kafka
from streams.stage_progress import lagging


class Lag(Answer, frozen=True):
    """A stage with unread records."""

    stage: Annotated[str, Meta(examples=["scoring"])]
    behind: Annotated[int, Meta(description="Records that it has not read.", examples=[120])]


class Installation(Answer, frozen=True):
    """The state of the installation."""

    version: Annotated[str, Meta(examples=["0.2.0"])]
    ready: bool
    not_ready_because: str | None
    judge: Annotated[str, Meta(description="Who judges.", examples=["live"])]
    kafka: Annotated[
        bool, Meta(description="Whether records go through Kafka; workers then score them, and their lag is theirs to tell.")
    ]
    database_bytes: Annotated[int | None, Meta(description="Of the DuckDB file; null for one in memory.")]
    access_bytes: Annotated[int, Meta(description="Of the file of tokens and the audit log.")]
    lag: Annotated[list[Lag], Meta(description="Stages that have not read everything.")]
    dead_letters: Annotated[list[LetterReason], Meta(description="Records that were set aside, by stage and reason.")]


def installation(cursor: duckdb.DuckDBPyConnection, engine: RecordIntake, access: AccessStore) -> Installation:
    """Return the state of the installation of a server."""
    store, state = engine.store, engine.state()
    is_fed = is_fed_by_kafka(store)
    return Installation(
        version=version(),
        ready=state.ready,
        not_ready_because=state.why_not or None,
        judge=engine.judge_name,
        kafka=is_fed,
        database_bytes=_size(store),
        access_bytes=access.path.stat().st_size,
        lag=[] if is_fed else [Lag(stage=one.stage, behind=one.end - one.position) for one in lagging(store)],
        dead_letters=letter_reasons(cursor),
    )


def _size(store: Store) -> int | None:
    return None if store.path is None or not store.path.exists() else store.path.stat().st_size
