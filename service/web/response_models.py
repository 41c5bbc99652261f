"""Answers, field by field, in camelCase: one definition for answering and for the documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Answer(BaseModel):
    """The base of every answer: names in camelCase."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, alias_generator=to_camel)


Duplicate = Annotated[Literal[True] | None, Field(description="Set if the exchange was known already.")]
FiledUnder = Annotated[str | None, Field(description="Project of the exchange; set if the body names another one.")]
WhyThere = Annotated[str | None, Field(description="Why it is in this project; set with the project.")]


class Tier1(Answer):
    """The result of the rules: 1 - flags / checks, and the checks that fired."""

    score: float
    flags: tuple[str, ...]


class CostCap(Answer):
    """The session's spending and its cap, in USD."""

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
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class LeftOutAnswer(Answer):
    """The exchange is durable and will not be judged: sampled out, or its session has spent its cap."""

    exchange_id: str
    scored: Literal[False] = False
    reason: str = Field(examples=["sampling_skip", "cost_cap_exceeded"])
    tier1: Tier1
    cost_cap: CostCap | None = Field(None, description="Set when the reason is cost_cap_exceeded.")
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class QueuedAnswer(Answer):
    """The exchange is durable; a worker scores it, and the scores show the result."""

    exchange_id: str
    score_id: str
    scored: None = None
    reason: Literal["queued"] = "queued"
    tier1: Tier1
    anomaly: bool
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class Refused(Answer):
    """A refused item of many: the code of the reason, and the reason in words."""

    error: str
    code: str = Field(examples=["invalid", "conflict"])


class RefusedExchange(Refused):
    """The exchange was refused: the code of the reason, and the reason in words."""


class ExchangesAnswer(Answer):
    """The outcome of a batch: new exchanges, known ones, refused ones, and the result of each in order."""

    accepted: int
    known: int
    refused: int
    results: list[ScoredAnswer | LeftOutAnswer | QueuedAnswer | RefusedExchange]


class RefusedEvent(Answer):
    """An event that was refused: its place in the batch, and why."""

    index: int
    error: str


class EventsAnswer(Answer):
    """The outcome of a batch: new events, known events, events that were set aside."""

    accepted: int
    known: int
    refused: list[RefusedEvent]
    project: str | None = Field(None, description="Project of the exchanges; set if the body names another one.")
    note: str | None = Field(None, description="Why they are in this project; set with the project.")


class TakenEvent(Answer):
    """The event is durable."""

    event_id: str
    duplicate: Literal[True] | None = Field(None, description="Set if the event was known already.")
    project: str | None = Field(None, description="Project of the event; set if the body names another one.")
    note: WhyThere = None


class RefusedBulkEvent(Refused):
    """The event was refused: the code of the reason, and the reason in words."""


class BulkEventsAnswer(Answer):
    """The outcome of events in bulk: new ones, known ones, refused ones, and the result of each in order."""

    accepted: int
    known: int
    refused: int
    results: list[TakenEvent | RefusedBulkEvent]


class Done(Answer):
    """It is done."""

    ok: Literal[True] = True


class Requested(Answer):
    """The request; it is carried out in the background."""

    requested: int
