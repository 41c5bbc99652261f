"""The state of the installation: version, size, lag and dead letters."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from analytics.queries import query_rows
from analytics.store.store import Store
from service.setup.version import version
from service.web.context import ApiContext
from service.web.response_models import Answer
from streams.log.ownership import is_fed_by_kafka
from streams.stage_progress import lagging


class LagAnswer(Answer):
    """A stage that has not read everything."""

    stage: str = Field(examples=["scoring"])
    behind: int = Field(description="Records that it has not read.", examples=[120])


class LettersAnswer(Answer):
    """Open dead letters of one stage and reason."""

    stage: str
    reason: str
    letters: int
    last_at: datetime


class InstallationAnswer(Answer):
    """The state of the installation."""

    version: str = Field(examples=["0.2.0"])
    ready: bool
    not_ready_because: str | None
    judge: str = Field(description="Who judges.", examples=["live"])
    kafka: bool = Field(
        description="Whether records go through Kafka; workers then score them, and their lag is theirs to tell."
    )
    database_bytes: int | None = Field(description="Of the DuckDB file; null for one in memory.")
    access_bytes: int = Field(description="Of the file of tokens and the audit log.")
    lag: list[LagAnswer] = Field(description="Stages that have not read everything.")
    dead_letters: list[LettersAnswer] = Field(description="Records that were set aside, by stage and reason.")


async def installed(services: ApiContext) -> InstallationAnswer:
    """Return the state of the installation."""
    engine, store = services.engine, services.engine.store
    state = engine.state()
    nothing = dict.fromkeys(("stage", "reason", "source", "since"))
    letters = await services.ask(lambda cursor: query_rows(cursor, "letter_reasons", nothing))
    fed = is_fed_by_kafka(store)
    lag = await services.ask(lambda _: [] if fed else lagging(store))
    return InstallationAnswer(
        version=version(),
        ready=state.ready,
        not_ready_because=state.why_not or None,
        judge=engine.judge_name,
        kafka=fed,
        database_bytes=_size(store),
        access_bytes=services.access.path.stat().st_size,
        lag=[LagAnswer(stage=one.stage, behind=one.end - one.position) for one in lag],
        dead_letters=[
            LettersAnswer(stage=row["stage"], reason=row["reason"], letters=row["letters"], last_at=row["last_at"])
            for row in letters
        ],
    )


def _size(store: Store) -> int | None:
    return None if store.path is None or not store.path.exists() else store.path.stat().st_size
