"""Batches of up to a thousand exchanges over HTTP: an array, or one per line. A wrong one does not stop the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter
from pydantic import ValidationError

from analytics.identity.duplicate_matching import contradictions
from audit.redaction import Redactor
from schemas.bounds import MAX_DEPTH, is_too_deep
from schemas.errors import RecordError
from schemas.records import Exchange
from service.http.routes.bulk import Batch
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
from service.setup.access.access import Holder
from service.text.links import EXCHANGES
from service.web.authentication import Connection
from service.web.bodies import BatchRoute
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented, problems_at
from service.web.models import ExchangesBody, IngestBody
from service.write.outcomes import ExchangeOutcomes, RefusedExchange
from streams.engine.record_intake import IngestResult

_EXPLAINED = 10
"""Maximum number of conflicts per batch whose differing fields are named, because the log is searched for each."""


router = APIRouter(route_class=BatchRoute, tags=["records"])


@router.post(EXCHANGES, status_code=201, responses=documented(400, 408, 413, 415))
async def take_exchanges(body: ExchangesBody, caller: Connection, services: Services) -> ExchangeOutcomes:
    """Take up to a thousand exchanges of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    They are durable when this is answered. Each has its own result, in order: as `POST ingest` answers it, or an error.
    """
    engine = services.engine
    require_audit(engine, caller)
    batch = await to_thread.run_sync(read_batch, body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        ingested = await engine.take_exchanges(batch.records)
    answers = batch.results(await _answers(services, batch, ingested))
    results = [result for result in ingested if isinstance(result, IngestResult)]
    services.metrics.ingested(map(outcome_of_ingest, results))
    counts = Counter(result.outcome for result in results)
    refused = sum(isinstance(answer, RefusedExchange) for answer in answers)
    return ExchangeOutcomes(accepted=counts["written"], known=counts["known"], refused=refused, results=answers)


def read_batch(body: Sequence[Any], caller: Holder, redactor: Redactor, now: datetime) -> Batch[Exchange, RefusedExchange]:
    """Return the records of a body, each without secrets."""
    batch = Batch[Exchange, RefusedExchange]()
    batch.read(body, RefusedExchange, lambda value, index: _read(value, index, caller, redactor, now))
    return batch


def _read(
    value: Any, index: int, caller: Holder, redactor: Redactor, now: datetime
) -> tuple[Exchange, dict[str, str]] | RefusedExchange:
    """Return the record of one value of a batch, with a note for its answer; or the reason why it is refused."""
    if is_too_deep(value, MAX_DEPTH):
        return RefusedExchange(error=f"[{index}]: nests deeper than {MAX_DEPTH} levels", code="too_deep")
    try:
        body = IngestBody.model_validate(value)
        return exchange_of(body, caller, redactor, now), filed_elsewhere(body.project, caller)
    except ValidationError as error:
        return RefusedExchange(error=problems_at(index, error), code="invalid")
    except ApiError as error:
        return RefusedExchange(error=f"[{index}].{error.detail}", code=error.code)


async def _answers(
    services: ApiContext, batch: Batch[Exchange, RefusedExchange], ingested: Sequence[IngestResult | RecordError]
) -> dict[int, IngestAnswer | RefusedExchange]:
    """Return the answer to each record, by its index in the body."""
    answers: dict[int, IngestAnswer | RefusedExchange] = {}
    conflicts = 0
    for index, record, notes, result in zip(batch.indexes, batch.records, batch.notes, ingested, strict=True):
        if isinstance(result, RecordError):
            answers[index] = RefusedExchange(error=f"[{index}]: {result}", code="invalid")
        elif result.outcome == "conflict":
            conflicts += 1
            ask = partial(contradictions, topic=TOPIC, record=record)
            differing = await services.ask(ask) if conflicts <= _EXPLAINED else ()
            answers[index] = RefusedExchange(error=f"[{index}].{conflict_words(differing)}", code="conflict")
        else:
            answers[index] = answer_of(record.exchange_id, result, notes)
    return answers
