"""One exchange as it was received: its texts without secrets, its scores, and the questions to the judge."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from service.http.answers.project_answers import Moment, ScoreAnswer
from service.http.routes.scores import PROJECT
from service.read.scores import score_by_id
from service.text.members import Document
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.models import ConnectionName, Id
from service.web.response_models import Answer

router = APIRouter(tags=["reading"])
ExchangeId = Annotated[Id, Path(description="Id from its sender; slashes need no escaping.", examples=["deploy-0114:7"])]
OfConnection = Annotated[
    ConnectionName | None,
    Query(description="Connection of the exchange: ids are unique within a connection. Required if several have the id."),
]
Row = dict[str, Any]


class ExchangeAnswer(Answer):
    """One user message with the agent's answer."""

    id: str
    connection: str
    project: str
    agent: str | None
    session_id: str
    turn_number: int | None
    timestamp: Moment
    ingested_at: Moment
    user_message: str = Field(description="Secrets are taken out.")
    agent_response: str
    agent_thinking: str | None
    agent_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    outcome: str = Field(examples=["answered", "no_response"])
    tags: list[str]
    labels: dict[str, str] = Field(description="Names and values from its sender.", examples=[{"agent_version": "1.4.0"}])


class JudgementAnswer(Answer):
    """A question to the judge, and how it ended."""

    id: str
    purpose: str = Field(examples=["tier2", "thinking", "tier3"])
    model: str
    outcome: str = Field(examples=["answered", "refused", "timeout"])
    attempts: int
    judged_at: Moment
    cost_usd: float | None
    simulated: bool


class ExchangeDetailAnswer(Answer):
    """An exchange and everything about it; the score is null until there is one."""

    exchange: ExchangeAnswer
    score: ScoreAnswer | None
    judgements: list[JudgementAnswer]


@router.get(f"{PROJECT}/exchanges/{{exchange_id:path}}", responses=documented(404, 409))
async def exchange(
    _: Reader,
    project: VisibleProject,
    services: Services,
    response: Response,
    exchange_id: ExchangeId,
    connection: OfConnection = None,
) -> ExchangeDetailAnswer:
    """Return one exchange with its texts, score and judgements. 409 if several connections of the project have the id."""
    asked = {"project": project, "exchange": exchange_id, "connection": connection}
    found = await services.ask(lambda cursor: _found(cursor, asked))
    response.headers["Cache-Control"] = "no-store"
    return found


def _found(cursor: duckdb.DuckDBPyConnection, asked: Row) -> ExchangeDetailAnswer:
    rows = query_rows(cursor, "exchange_detail", asked)
    if not rows:
        raise ApiError(404, "not_found", "the project has no exchange with this id")
    if len(rows) > 1:
        names = ", ".join(row["connection"] for row in rows[:5])
        raise ApiError(409, "ambiguous", f"connection: is missing; several have an exchange with this id: {names}")
    [row] = rows
    score: Document | None = row["score_id"] and score_by_id(cursor, asked["project"], row["score_id"], row["occurred_at"])
    subject = [{"connection": row["connection"], "subject_id": row["exchange_id"]}]
    judgements = query_rows(cursor, "judgements_of", {"subjects": subject})
    return ExchangeDetailAnswer(
        exchange=_exchange(row),
        score=ScoreAnswer.model_validate(score) if score else None,
        judgements=[_judgement(one) for one in judgements],
    )


def _exchange(row: Row) -> ExchangeAnswer:
    labels = {one["name"]: one["value"] for one in row["labels"]}
    return ExchangeAnswer.model_validate({**row, "id": row["exchange_id"], "timestamp": row["occurred_at"], "labels": labels})


def _judgement(row: Row) -> JudgementAnswer:
    return JudgementAnswer.model_validate({**row, "id": row["judgement_id"], "model": row["requested_model"]})
