"""Batches of up to a thousand exchanges over HTTP: an array, or one per line. A wrong one does not stop the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import TypeAdapter, ValidationError

from analytics.identity.duplicate_matching import contradictions
from audit.redaction.redactor import Redactor
from schemas.bounds.limits import MAX_DEPTH, is_too_deep
from schemas.errors import RecordError
from schemas.records import Exchange
from service.access.access import Holder
from service.http.auth.authentication import Connection
from service.http.bounds import EXCHANGES
from service.http.context import ApiContext, Services, durable_or_refused
from service.http.documents.bodies import BulkRoute
from service.http.documents.models import ExchangesBody, IngestBody
from service.http.documents.response_models import ExchangesAnswer, RefusedExchange
from service.http.errors import ApiError, documented, problems_at
from service.http.hot_routes import Answered, Call, answered_with, decode_bulk, quick, read_whole, sound
from service.http.routes.ingest import (
    TOPIC,
    IngestAnswer,
    answer_of,
    conflict_words,
    exchange_of,
    filed_elsewhere,
    outcome_of_ingest,
    require_audit,
)
from streams.engine.record_intake import Taken

_EXCHANGES: TypeAdapter[list[Any]] = TypeAdapter(ExchangesBody)
_EXPLAINED = 10
"""Conflicts of a batch whose differing fields are named: the log is searched for each."""


router = APIRouter(route_class=BulkRoute, tags=["records"])


@dataclass
class Batch:
    """The result of reading a body: the records with their places in it, and the answers that need no log."""

    records: list[Exchange] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    refused: dict[int, RefusedExchange] = field(default_factory=dict)


@router.post(EXCHANGES, status_code=201, response_model_exclude_unset=True, responses=documented(400, 408, 413, 415))
async def take_exchanges(body: ExchangesBody, caller: Connection, services: Services) -> ExchangesAnswer:
    """Take up to a thousand exchanges of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    They are durable when this is answered. Each has its own result, in order: as `POST ingest` answers it, or an error.
    """
    return await _take(body, caller, services)


@quick(EXCHANGES)
async def take_quickly(call: Call) -> Answered | None:
    """Take exchanges, from bytes to bytes."""
    given = sound(lambda: _EXCHANGES.validate_python(decode_bulk(call)))
    return None if given is None else answered_with(201, await _take(given, call.caller, call.services, len(call.body)))


async def _take(body: Sequence[Any], caller: Holder, services: ApiContext, size: float = math.inf) -> ExchangesAnswer:
    """Take exchanges of a body of so many bytes; return the answer."""
    engine = services.engine
    require_audit(engine, caller)
    batch = await read_whole(size, read_batch, body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        outcomes = await engine.take_exchanges(batch.records) if batch.records else []
    answers = await _answers(services, batch, outcomes)
    results = [batch.refused.get(place) or answers[place] for place in range(len(body))]
    taken = [outcome for outcome in outcomes if isinstance(outcome, Taken)]
    services.metrics.ingested(map(outcome_of_ingest, taken))
    counts = Counter(outcome.fate for outcome in taken)
    refused = sum(isinstance(one, RefusedExchange) for one in results)
    return ExchangesAnswer(accepted=counts["written"], known=counts["known"], refused=refused, results=results)


def read_batch(body: Sequence[Any], caller: Holder, redactor: Redactor, now: datetime) -> Batch:
    """Return the records of a body, each without secrets."""
    batch = Batch()
    for place, value in enumerate(body):
        found = _read(value, place, caller, redactor, now)
        if isinstance(found, RefusedExchange):
            batch.refused[place] = found
        else:
            record, notes = found
            batch.records.append(record)
            batch.places.append(place)
            batch.notes.append(notes)
    return batch


def _read(
    value: Any, place: int, caller: Holder, redactor: Redactor, now: datetime
) -> tuple[Exchange, dict[str, str]] | RefusedExchange:
    """Return the record of one value of a batch, with a note for its answer; or the reason why it is refused."""
    if is_too_deep(value, MAX_DEPTH):
        return RefusedExchange(error=f"[{place}]: nests deeper than {MAX_DEPTH} levels", code="too_deep")
    try:
        given = IngestBody.model_validate(value)
        return exchange_of(given, caller, redactor, now), filed_elsewhere(given.project, caller)
    except ValidationError as error:
        return RefusedExchange(error=problems_at(place, error), code="invalid")
    except ApiError as error:
        return RefusedExchange(error=f"[{place}].{error.detail}", code=error.code)


async def _answers(
    services: ApiContext, batch: Batch, outcomes: Sequence[Taken | RecordError]
) -> dict[int, IngestAnswer | RefusedExchange]:
    """Return the answer to each record, by its place in the body."""
    found: dict[int, IngestAnswer | RefusedExchange] = {}
    conflicts = 0
    for place, record, notes, outcome in zip(batch.places, batch.records, batch.notes, outcomes, strict=True):
        if isinstance(outcome, RecordError):
            found[place] = RefusedExchange(error=f"[{place}]: {outcome}", code="invalid")
        elif outcome.fate == "conflict":
            conflicts += 1
            ask = partial(contradictions, topic=TOPIC, record=record)
            differing = await services.ask(ask) if conflicts <= _EXPLAINED else ()
            found[place] = RefusedExchange(error=f"[{place}].{conflict_words(differing)}", code="conflict")
        else:
            found[place] = answer_of(record.exchange_id, outcome, notes)
    return found
