"""A finished session as the run that a case is held against: a pure function of its records.

1. Abandoned exchanges are no part of the run, nor are events that belong to them; what they cost is. Heartbeats are no turns
   of a run that has others.
2. The run ended as its last exchange did. Without any exchange, an event may tell the final answer and the status.
3. A failure is an error that nothing mended (`audit.evaluation.view.trace`), an end in an error, or a cause of the diagnosis.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from audit.cost.prices import ModelPrice
from audit.evaluation.run import Failure, Run, Status, Turn
from audit.evaluation.spending import UNKNOWN, spending_of
from audit.evaluation.view.identifiers import identifiers_of
from audit.evaluation.view.trace import OpenError, Trace, trace_of
from schemas.records import Exchange, FailureCause

_STATUSES: frozenset[str] = frozenset(get_args(Status))
_ENDS: Mapping[Status, str] = {"error": "The run ended in an error.", "aborted": "The run was aborted."}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecords:
    """The records of one session, the newest version of each."""

    connection: str
    project: str
    session_id: str
    exchanges: Sequence[Exchange]
    """In any order."""
    events: Sequence[Mapping[str, Any]]
    """Payloads of its AgentEvents, in the order of the log."""
    trust: int | None = None
    """Trust score of the diagnosis; None without evidence."""
    failure_causes: Sequence[FailureCause] = ()
    """The findings of the diagnosis."""
    closed_at: datetime | None = None
    """The end of the session, where it is known."""
    is_whole: bool = True
    """True if these are all its exchanges and events."""


def run_of(session: SessionRecords, prices: Mapping[str, ModelPrice]) -> Run:
    """The run; `prices` are one's own prices of models, before the shipped ones."""
    exchanges = sorted(session.exchanges, key=lambda one: (one.occurred_at, one.turn_number or 0, one.exchange_id))
    abandoned = {exchange.exchange_id for exchange in exchanges if "abandoned" in exchange.tags}
    active = [exchange for exchange in exchanges if exchange.exchange_id not in abandoned]
    # An id may be anything here, even what no set can be asked for.
    trace = trace_of(event for event in session.events if str(event.get("exchange_id")) not in abandoned)
    turns = _turns(active, trace)
    status = turns[-1].status if turns else trace.final_status or "no_response"
    model = _last([exchange.agent_model for exchange in active]) or _last(_texts(session.events, "model"))
    spending = spending_of(exchanges, session.events, model, prices) if session.is_whole else UNKNOWN
    times = [*(exchange.occurred_at for exchange in exchanges), *filter(None, (trace.first_at, trace.last_at))]
    return Run(
        connection=session.connection,
        project=session.project,
        session_id=session.session_id,
        agent=_last([exchange.agent for exchange in exchanges]) or _last(_texts(session.events, "agent")),
        model=model,
        identifiers=identifiers_of(session.connection, session.session_id, exchanges, session.events),
        turns=turns,
        steps=tuple(trace.steps),
        failures=tuple(_failures(session, trace, active, status)),
        artifacts=tuple(trace.artifacts.values()),
        status=status,
        trust=session.trust,
        input_tokens=spending.input_tokens,
        output_tokens=spending.output_tokens,
        reported_tokens=spending.reported_tokens,
        cost_usd=spending.cost_usd,
        started_at=min(times, default=None),
        ended_at=max(times, default=session.closed_at),
        has_events=bool(session.events),
        is_whole=session.is_whole,
    )


def _turns(active: Sequence[Exchange], trace: Trace) -> tuple[Turn, ...]:
    asked = [exchange for exchange in active if "heartbeat" not in exchange.tags] or active
    turns = tuple(Turn(exchange.user_message, exchange.agent_response, _status(exchange)) for exchange in asked)
    if turns or not trace.final_text:
        return turns
    return (Turn("", trace.final_text, trace.final_status or "answered"),)


def _status(exchange: Exchange) -> Status:
    """The outcome, where it is one that is known; a newer source may have others."""
    if exchange.outcome in _STATUSES:
        return exchange.outcome  # type: ignore[return-value]
    return "answered" if exchange.agent_response.strip() else "no_response"


def _failures(session: SessionRecords, trace: Trace, active: Sequence[Exchange], status: Status) -> Iterator[Failure]:
    """Errors in the order of the log, the end of the run where no error tells of it, then the causes of the diagnosis."""
    errors = [error.failure for error in _unmended(trace.errors, active)]
    yield from errors
    if status in _ENDS and not errors:
        yield Failure(status, _ENDS[status])
    yield from (Failure(cause.type, cause.description) for cause in session.failure_causes)


def _unmended(errors: Sequence[OpenError], active: Sequence[Exchange]) -> Iterator[OpenError]:
    """The errors that no answer mended: those that name a tool, and those whose exchange and all after it were not answered.

    The exchange of an error is the one it names, else the last that began before it; where neither is known, the last of all.
    """
    begins = [exchange.occurred_at for exchange in active]
    places = {exchange.exchange_id: place for place, exchange in enumerate(active)}
    last_answer = max((place for place, exchange in enumerate(active) if _status(exchange) == "answered"), default=-1)
    for error in errors:
        begun = len(active) if error.at is None else bisect_right(begins, error.at)
        if error.tool is not None or last_answer < places.get(error.exchange_id or "", max(begun - 1, 0)):
            yield error


def _texts(events: Sequence[Mapping[str, Any]], name: str) -> list[str | None]:
    values = [event.get(name) for event in events]
    return [value for value in values if isinstance(value, str)]


def _last(values: Sequence[str | None]) -> str | None:
    """The last that is not blank."""
    return next((value for value in reversed(values) if value and value.strip()), None)
