"""Outcomes of delivered records and of other requests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from service.text.answers import Answer, any_of

Always = Annotated[bool, Meta(extra_json_schema={"const": True})]
Never = Annotated[bool, Meta(extra_json_schema={"const": False})]
Duplicate = Annotated[Always | None, Meta(description="Set if the exchange was known already.")]
FiledUnder = Annotated[str | None, Meta(description="Project of the exchange; set if the body names another one.")]
WhyThere = Annotated[str | None, Meta(description="Why it is in this project; set with the project.")]


class Tier1(Answer, frozen=True):
    """The result of the rules: 1 - flags / checks, and the checks that fired."""

    score: float
    flags: tuple[str, ...]


class CostCap(Answer, frozen=True):
    """The session's cost so far and its cap, in USD."""

    current_cost: float
    cap: float | None


class ScoredExchange(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The exchange is durable and will be judged."""

    exchange_id: str
    score_id: str
    scored: Always
    reason: Annotated[str, Meta(examples=["first_turns"])]
    tier1: Tier1
    anomaly: bool
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class LeftOutExchange(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The exchange is durable and will not be judged: it was not sampled, or a cap was reached."""

    exchange_id: str
    scored: Never
    reason: Annotated[str, Meta(examples=["sampling_skip", "cost_cap_exceeded", "project_day_cap"])]
    tier1: Tier1
    cost_cap: Annotated[CostCap | None, Meta(description="Set when the reason is cost_cap_exceeded.")] = None
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class QueuedExchange(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The exchange is durable; a worker will score it, and the result appears among the scores."""

    exchange_id: str
    score_id: str
    scored: None
    reason: Annotated[str, Meta(extra_json_schema={"const": "queued"})]
    tier1: Tier1
    anomaly: bool
    duplicate: Duplicate = None
    project: FiledUnder = None
    note: WhyThere = None


class Refused(Answer, frozen=True):
    """A refused item of many: the code of the reason, and its description."""

    error: str
    code: Annotated[str, Meta(examples=["invalid", "conflict"])]


class RefusedExchange(Refused, frozen=True):
    """The exchange was refused: the code of the reason, and its description."""


class ExchangeOutcomes(Answer, frozen=True):
    """The outcome of a batch: new exchanges, known ones, refused ones, and the result of each in order."""

    accepted: int
    known: int
    refused: int
    results: list[
        Annotated[Any, Meta(extra_json_schema=any_of(ScoredExchange, LeftOutExchange, QueuedExchange, RefusedExchange))]
    ]


class RefusedEvent(Answer, frozen=True):
    """A refused event: its place in the batch, and the reason."""

    index: int
    error: str


class EventOutcomes(Answer, frozen=True, omit_defaults=True):
    """The outcome of a batch: new events, known events, and events that became dead letters."""

    accepted: int
    known: int
    refused: list[RefusedEvent]
    project: Annotated[str | None, Meta(description="Project of the exchanges; set if the body names another one.")] = None
    note: Annotated[str | None, Meta(description="Why they are in this project; set with the project.")] = None


class TakenEvent(Answer, frozen=True, omit_defaults=True):
    """The event is durable."""

    event_id: str
    duplicate: Annotated[Always | None, Meta(description="Set if the event was known already.")] = None
    project: Annotated[str | None, Meta(description="Project of the event; set if the body names another one.")] = None
    note: WhyThere = None


class RefusedBulkEvent(Refused, frozen=True):
    """The event was refused: the code of the reason, and its description."""


class BulkEventOutcomes(Answer, frozen=True):
    """The outcome of events in bulk: new ones, known ones, refused ones, and the result of each in order."""

    accepted: int
    known: int
    refused: int
    results: list[Annotated[Any, Meta(extra_json_schema=any_of(TakenEvent, RefusedBulkEvent))]]


class Done(Answer, frozen=True):
    """The request was carried out."""

    ok: Always = True


class RequestedJudgements(Answer, frozen=True):
    """The accepted request, which is carried out in the background."""

    requested: int
