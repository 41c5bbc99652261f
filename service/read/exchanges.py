"""An exchange: its texts as received, without secrets, its scores, and the questions to the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.read.scores import Score, score_by_id
from service.text.answers import Answer, Moment


class Exchange(Answer, frozen=True):
    """One user message with the agent's answer."""

    exchange_id: str = field(name="id")
    connection: str
    project: str
    agent: str | None
    session_id: str
    turn_number: int | None
    occurred_at: Moment = field(name="timestamp")
    ingested_at: Moment
    user_message: Annotated[str, Meta(description="Secrets are taken out.")]
    agent_response: str
    agent_thinking: str | None
    agent_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    outcome: Annotated[str, Meta(examples=["answered", "no_response"])]
    tags: list[str]
    labels: Annotated[
        dict[str, str], Meta(description="Names and values from its sender.", examples=[{"agent_version": "1.4.0"}])
    ]


class Judgement(Answer, frozen=True):
    """A question to the judge, and how it ended."""

    judgement_id: str = field(name="id")
    purpose: Annotated[str, Meta(examples=["tier2", "thinking", "tier3"])]
    requested_model: str = field(name="model")
    outcome: Annotated[str, Meta(examples=["answered", "refused", "timeout"])]
    attempts: int
    judged_at: Moment
    cost_usd: float | None
    simulated: bool


class ExchangeDetail(Answer, frozen=True):
    """An exchange with its scores and judgements; the score is null until there is one."""

    exchange: Exchange
    score: Score | None
    judgements: list[Judgement]


def exchanges_by_id(
    cursor: duckdb.DuckDBPyConnection, project: str, exchange_id: str, connection: str | None
) -> list[ExchangeDetail]:
    """Return a project's exchanges with this id: one per connection that uses it, or only the named connection's."""
    values = {"project": project, "exchange": exchange_id, "connection": connection}
    return [_detail(cursor, row) for row in query_rows(cursor, "exchange_detail", values)]


def _detail(cursor: duckdb.DuckDBPyConnection, row: Mapping[str, Any]) -> ExchangeDetail:
    subjects = [{"connection": row["connection"], "subject_id": row["exchange_id"]}]
    return ExchangeDetail(
        exchange=Exchange.of(row, labels={label["name"]: label["value"] for label in row["labels"]}),
        score=row["score_id"] and score_by_id(cursor, row["project"], row["score_id"], row["occurred_at"]),
        judgements=[Judgement.of(judged) for judged in query_rows(cursor, "judgements_of", {"subjects": subjects})],
    )
