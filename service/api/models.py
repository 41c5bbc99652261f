"""What is sent and answered, field by field: the one definition for checking and for the documentation.

Types are strict: a number in quotes is no number. Fields that are not known are ignored, so that a sender may know more than we do.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from audit.times import parse_timestamp
from schemas.limits import NAME
from service.api.settings import MAX_EVENTS
from streams.sources.documents import MAX_ID

MAX_COUNT = 2**53
"""Largest number of tokens: the largest integer that every JSON reader keeps exactly."""


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds U+0000, which is no text")
    return text


def _named(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise ValueError("holds control characters")
    return text


def _moment(value: Any) -> datetime:
    try:
        moment = parse_timestamp(value)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("timestamp: ")) from None
    if moment is None:
        raise ValueError("is missing")
    return moment


Text = Annotated[str, AfterValidator(_without_nul)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID), AfterValidator(_named)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ConnectionName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    PlainSerializer(datetime.isoformat),
    WithJsonSchema(
        {
            "description": "ISO 8601 (UTC without an offset), or seconds, milli- or microseconds since 1970; years 2000 to 2099.",
            "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}],
        }
    ),
]
Ignored = Annotated[Any, Field(description="Ignored: the token decides.", json_schema_extra={"deprecated": True})]


class Body(BaseModel):
    """What every body has in common."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class UserMessage(Body):
    """What the user said."""

    content: Text


class Usage(Body):
    """Tokens of the answer; what is missing stays missing, 0 stays 0."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None


class AgentResponse(Body):
    """What the agent answered; the content may be empty."""

    content: Text
    thinking: Text | None = None
    model: Id | None = None
    usage: Usage | None = None


class ExchangeBody(Body):
    """One user message with the agent's answer."""

    id: Id = Field(description="Unique within the connection.")
    timestamp: Moment
    turn_number: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Turn within the session; else counted."
    )
    user_message: UserMessage
    agent_response: AgentResponse


class IngestBody(Body):
    """One exchange of one session."""

    session_id: Id
    exchange: ExchangeBody
    connection_id: Ignored = None
    project: Ignored = None
    agent: Id | None = Field(None, description="Name of the agent; a connection that has one of its own wins.")
    multi_user: bool = Field(False, description="Whether several users take part.")

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "session_id": "deploy-0114",
                    "exchange": {
                        "id": "deploy-0114:7",
                        "timestamp": "2026-10-01T09:07:00Z",
                        "turn_number": 7,
                        "user_message": {"content": "Please restart the worker."},
                        "agent_response": {
                            "content": "Done: worker 3 is up again.",
                            "thinking": "Only worker 3 was down.",
                            "model": "claude-sonnet-4-5",
                            "usage": {"input_tokens": 812, "output_tokens": 64},
                        },
                    },
                }
            ]
        },
    )


class EventsBody(Body):
    """A batch of runtime events of one session, in order."""

    session_id: Id
    agent: Id | None = Field(None, description="Name of the agent; a connection that has one of its own wins.")
    first_seq: Annotated[int, Field(ge=0, lt=2**53)] | None = Field(
        None, description="Position of the first event in its session. Without it every event needs an event_id of its own."
    )
    events: Annotated[list[Any], Field(min_length=1, max_length=MAX_EVENTS, description="Objects; each is judged by itself.")]

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "session_id": "deploy-0114",
                    "first_seq": 0,
                    "events": [
                        {"event": "tool_call", "tool": "exec", "args": {"command": "ls"}, "timestamp": "2026-10-01T09:00:00Z"}
                    ],
                }
            ]
        },
    )


class SessionBody(Body):
    """Names a session. An operator says whose it is; a connection's own are meant otherwise."""

    session_id: Id
    connection: ConnectionName | None = None


class FinalizeBody(Body):
    """Whose session it is: needed from an operator, ignored from a connection."""

    connection: ConnectionName | None = None


class Answer(BaseModel):
    """What every answer has in common: names in camelCase."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, alias_generator=to_camel)


class Tier1(Answer):
    """What the rules say: 1 - flags / checks, and the checks that fired."""

    score: float
    flags: tuple[str, ...]


class CostCap(Answer):
    """What the session has spent and may spend, in USD."""

    current_cost: float
    cap: float | None


class ScoredAnswer(Answer):
    """The exchange is durable and will be judged."""

    exchange_id: str
    score_id: str
    scored: Literal[True] = True
    reason: str = Field(examples=["first_turns"])
    tier1: Tier1
    anomaly: bool
    duplicate: Literal[True] | None = Field(None, description="Set when the log had the exchange already.")


class LeftOutAnswer(Answer):
    """The exchange is durable and will not be judged: sampled out, or its session has spent its cap."""

    exchange_id: str
    scored: Literal[False] = False
    reason: str = Field(examples=["sampling_skip", "cost_cap_exceeded"])
    tier1: Tier1
    cost_cap: CostCap | None = Field(None, description="Set when the reason is cost_cap_exceeded.")
    duplicate: Literal[True] | None = Field(None, description="Set when the log had the exchange already.")


class QueuedAnswer(Answer):
    """The exchange is durable; what becomes of it is decided elsewhere, and read from the scores."""

    exchange_id: str
    score_id: str
    scored: None = None
    reason: Literal["queued"] = "queued"
    tier1: Tier1
    anomaly: bool


class RefusedEvent(Answer):
    """An event that was not taken: its place in the batch, and why."""

    index: int
    error: str


class EventsAnswer(Answer):
    """What became of a batch: new events, events the log had, events that were set aside."""

    accepted: int
    known: int
    refused: list[RefusedEvent]


class Done(Answer):
    """It is done."""

    ok: Literal[True] = True


class ScoresAnswer(Answer):
    """Scores, newest exchange first."""

    scores: list[dict[str, Any]]
    count: int


class AnomaliesAnswer(Answer):
    """Scores with an anomaly, newest exchange first."""

    anomalies: list[dict[str, Any]]
    count: int
