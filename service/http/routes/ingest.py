"""Exchanges over HTTP: one, or up to a thousand in one call as an array or one per line.

A record is built from its body, and the answer from the record's outcome. In a batch, each record has its own result, in the
order of the call: its outcome, or its index with the reason for the refusal. A faulty record does not stop the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Response
from pydantic import ValidationError

from analytics.identity.duplicate_matching import find_contradictions
from audit.exchanges.labels import labels_json, read_labels
from audit.fingerprints import canonical_json, digest
from audit.redaction import Redactor
from schemas.bounds import CLOCK_TOLERANCE, MAX_ADMITTED_BYTES, MAX_DEPTH, is_too_deep
from schemas.errors import BoundsError, RecordError
from schemas.records import Exchange, Label
from service.setup.access import Holder
from service.text.answers import Answer
from service.text.links import EXCHANGES, INGEST
from service.web.authentication import Connection
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented, problems_at
from service.web.json_routes import BatchRoute, FaultyLine, JsonRoute, answering
from service.web.models import ExchangesBody, IngestBody
from service.write.outcomes import (
    CostCap,
    ExchangeOutcomes,
    LeftOutExchange,
    QueuedExchange,
    Refused,
    RefusedExchange,
    ScoredExchange,
    Tier1,
)
from streams.engine.record_intake import QUEUED, IngestResult, RecordIntake
from streams.log.log import WRITTEN
from streams.sources.exchange_builder import ExchangeDraft, ExchangeSettings, RedactedTexts, build_exchange
from streams.sources.openclaw.text import unwrap
from streams.sources.openclaw.tree import outcome_of

router = APIRouter(route_class=JsonRoute, tags=["records"])
TOPIC = "exchanges"
MAX_TEXTS = MAX_ADMITTED_BYTES - 16 * 1024
"""Bytes of an exchange's texts; the rest of a record is for its ids and names."""
_SENT_AS = {
    "session_id": "session_id",
    "agent": "agent",
    "multi_user": "multi_user",
    "occurred_at": "exchange.timestamp",
    "user_message": "exchange.user_message.content",
    "agent_response": "exchange.agent_response.content",
    "agent_thinking": "exchange.agent_response.thinking",
    "agent_model": "exchange.agent_response.model",
    "input_tokens": "exchange.agent_response.usage.input_tokens",
    "output_tokens": "exchange.agent_response.usage.output_tokens",
    "stop_reason": "exchange.agent_response.stop_reason",
    "turn_number": "exchange.turn_number",
    "labels": "exchange.labels",
}
"""The path of a record's field in the sender's body. Content without its own field is not named."""
IngestAnswer = ScoredExchange | LeftOutExchange | QueuedExchange
_DUPLICATE: dict[int | str, dict[str, Any]] = {
    200: answering(IngestAnswer, "The exchange is known: the first answer is repeated")
}


@router.post(INGEST, status_code=201, responses=_DUPLICATE | documented(400, 408, 409, 413, 415))
async def ingest(body: IngestBody, caller: Connection, services: Services, response: Response) -> IngestAnswer:
    """Accept an exchange. It is durable once the request is answered; 409 if its id is stored with different content."""
    engine = services.engine
    require_audit(engine, caller)
    exchange = exchange_of(body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        result = await engine.ingest_exchange(exchange)
    services.metrics.ingested((outcome_of_ingest(result),))
    if result.outcome == "conflict":
        differing = await services.ask(lambda cursor: find_contradictions(cursor, TOPIC, exchange))
        raise ApiError(409, "conflict", conflict_words(differing))
    if result.outcome != WRITTEN:
        response.status_code = 200
    return answer_of(exchange.exchange_id, result, project_note(body.project, caller))


def outcome_of_ingest(result: IngestResult) -> str:
    """Return the outcome under which to count a sent exchange: known, conflict, or the name of its answer."""
    return result.outcome if result.outcome != WRITTEN else _kind_of_answer(result)


def require_audit(engine: RecordIntake, caller: Holder) -> str:
    """Return the project of the caller's records; 403 if the policy switches its audit off."""
    project = caller.project or ""
    if not engine.policy.for_project(project).settings.enabled:
        raise ApiError(403, "audit_disabled", f"the policy switches the audit of project {project} off")
    return project


def exchange_of(body: IngestBody, caller: Holder, redactor: Redactor, now: datetime) -> Exchange:
    """Return the record of an exchange: unwrapped, without secrets, and filed by the token.

    Raises ApiError for a time in the future (400), and if markers of secrets have made it too large for a record (413).
    """
    exchange = body.exchange
    if exchange.timestamp > now + CLOCK_TOLERANCE:
        raise ApiError(400, "invalid", "exchange.timestamp: lies more than a day in the future")
    labels = _read_record_labels(exchange.labels, redactor)
    answer, usage = exchange.agent_response, exchange.agent_response.usage
    question, names = exchange.user_message.content, [answer.model, answer.stop_reason, body.agent]
    unwrapped = unwrap(question)
    texts = [question, answer.content, answer.thinking or "", *filter(None, names)]
    redact = redactor.redact_function(texts if unwrapped.text == question else [unwrapped.text, *texts])
    content = ExchangeDraft(
        exchange_id=exchange.id,
        session_id=body.session_id,
        at=exchange.timestamp,
        question=question,
        answer=answer.content,
        outcome=outcome_of(answer.content, answer.stop_reason),
        thinking=answer.thinking,
        agent=body.agent,
        turn_number=exchange.turn_number,
        model=answer.model,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        stop_reason=answer.stop_reason,
        multi_user=body.multi_user,
        labels=labels,
    )
    settings = ExchangeSettings(
        caller.name,
        caller.project or "",
        now,
        redact,
        agent=caller.agent,
        unwrap=lambda _: unwrapped,
        max_text_bytes=None,
        max_total_bytes=MAX_TEXTS,
    )
    try:
        return build_exchange(content, settings, partial(_digest_content, body, labels))
    except BoundsError as error:
        raise ApiError(413, "too_large", f"exchange: {error}") from None


def _read_record_labels(labels: Any, redactor: Redactor) -> tuple[Label, ...]:
    try:
        return read_labels(labels, redactor, "exchange.labels")
    except BoundsError as error:
        raise ApiError(400, "invalid", str(error)) from None


def _digest_content(body: IngestBody, labels: tuple[Label, ...], clean: RedactedTexts) -> str:
    """Return the digest of all content sent with an exchange, without secrets.

    Any other content under the same id is a conflict, not a duplicate. The agent counts under the name that was sent.
    """
    exchange, answer = body.exchange, body.exchange.agent_response
    usage = None if answer.usage is None else [answer.usage.input_tokens, answer.usage.output_tokens]
    texts, names = (clean.question, clean.answer, clean.thinking), (clean.agent, clean.model)
    sent = [*texts, exchange.timestamp.isoformat(), body.session_id, exchange.turn_number, *names, usage, clean.multi_user]
    # A missing value of a newer field does not change the digest, so older digests stay valid.
    sent += [] if answer.stop_reason is None else [answer.stop_reason]
    return digest(canonical_json([*sent, labels_json(labels)] if labels else sent))


def conflict_words(differing: Sequence[str]) -> str:
    """Explain to the sender that another exchange already has the id; `differing` are fields of the record."""
    named = ", ".join(_SENT_AS[name] for name in differing if name in _SENT_AS)
    differences = f" (it differs in {named})" if named else ""
    return (
        f"exchange.id: the log has an exchange with this id and other content, or of another session{differences}. That one is kept; "
        "send another exchange under another id"
    )


def agent_of(caller: Holder, named: str | None, redactor: Redactor) -> str | None:
    """Return the agent of a record: the connection's own, or the one in the body, redacted like any other text."""
    return caller.agent or (None if named is None else redactor.redact(named)[0])


def project_note(named: Any, caller: Holder) -> dict[str, str]:
    """Return the note for a body that names another project than the token: the token's project counts.

    The sent name is not repeated, because it may be a misplaced secret.
    """
    if named is None or named == caller.project:
        return {}
    note = f"the project in the body is ignored: the token of {caller.name} files its records under {caller.project}"
    return {"project": caller.project or "", "note": note}


def answer_of(exchange_id: str, result: IngestResult, more: Mapping[str, str]) -> IngestAnswer:
    """Return the answer for a new exchange and for a duplicate; `more` is added to it."""
    again = {"duplicate": True} if result.outcome == "known" else {}
    common: dict[str, Any] = {"exchange_id": exchange_id, "tier1": _build_tier1(result.tier1_score, result.tier1_flags)}
    common |= {**again, **more}
    kind = _kind_of_answer(result)
    if kind == "scored":
        return ScoredExchange(scored=True, score_id=result.score_id, reason=result.reason, anomaly=result.anomaly, **common)
    if kind == "queued":
        return QueuedExchange(scored=None, score_id=result.score_id, reason="queued", anomaly=result.anomaly, **common)
    if kind == "sampled_out":
        return LeftOutExchange(scored=False, reason=result.reason, **common)
    cap = CostCap(current_cost=result.spent_usd, cap=result.cap_usd)
    return LeftOutExchange(scored=False, reason="cost_cap_exceeded", cost_cap=cap, **common)


@lru_cache
def _build_tier1(score: float, flags: tuple[str, ...]) -> Tier1:
    return Tier1(score=score, flags=flags)


def _kind_of_answer(result: IngestResult) -> str:
    """Return the name of the answer: queued, sampled_out, cost_cap or scored."""
    if result.reason == QUEUED:
        return "queued"
    if not result.sampled:
        return "sampled_out"
    return "cost_cap" if result.capped else "scored"


Kind = TypeVar("Kind")
Refusal = TypeVar("Refusal", bound=Refused)


@dataclass
class Batch(Generic[Kind, Refusal]):
    """The result of reading a call: records with their indexes and notes for their answers, and refusals by index."""

    records: list[Kind] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)

    def read(
        self, body: Sequence[Any], refused: type[Refusal], read: Callable[[Any, int], tuple[Kind, dict[str, str]] | Refusal]
    ) -> None:
        """Read each value of a body with its index, as a record with a note or as a refusal."""
        for index, value in enumerate(body):
            if isinstance(value, FaultyLine):
                self.refused[index] = refused(error=f"[{index}]: {value.detail}", code=value.code)
                continue
            record_or_refusal = read(value, index)
            if isinstance(record_or_refusal, Refused):
                self.refused[index] = record_or_refusal
            else:
                record, note = record_or_refusal
                self.records.append(record)
                self.indexes.append(index)
                self.notes.append(note)

    def results(self, answers: Mapping[int, Answer]) -> list[Any]:
        """Return the results in the order of the call; `answers` are the answers to records, by index."""
        results: dict[int, Answer] = {**answers, **self.refused}
        return [results[index] for index in sorted(results)]


_MAX_EXPLAINED_CONFLICTS = 10
"""Maximum number of conflicts per batch whose differing fields are named, because the log is searched for each."""


async def ingest_exchanges(body: ExchangesBody, caller: Connection, services: Services) -> ExchangeOutcomes:
    """Accept up to a thousand exchanges of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    Exchanges are durable once the request is answered. The answer has a result for each exchange, in order: the answer of `POST
    ingest`, or an error.
    """
    engine = services.engine
    require_audit(engine, caller)
    batch = await to_thread.run_sync(read_batch, body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        ingested = await engine.ingest_exchanges(batch.records)
    answers = batch.results(await _answers(services, batch, ingested))
    results = [result for result in ingested if isinstance(result, IngestResult)]
    services.metrics.ingested(map(outcome_of_ingest, results))
    counts = Counter(result.outcome for result in results)
    refused = sum(isinstance(answer, RefusedExchange) for answer in answers)
    return ExchangeOutcomes(accepted=counts["written"], known=counts["known"], refused=refused, results=answers)


# A batch checks the depth of each record by itself, so its endpoint has another class than the router's.
router.add_api_route(
    EXCHANGES,
    ingest_exchanges,
    methods=["POST"],
    status_code=201,
    responses=documented(400, 408, 413, 415),
    route_class_override=BatchRoute,
)


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
        return exchange_of(body, caller, redactor, now), project_note(body.project, caller)
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
            ask = partial(find_contradictions, topic=TOPIC, record=record)
            differing = await services.ask(ask) if conflicts <= _MAX_EXPLAINED_CONFLICTS else ()
            answers[index] = RefusedExchange(error=f"[{index}].{conflict_words(differing)}", code="conflict")
        else:
            answers[index] = answer_of(record.exchange_id, result, notes)
    return answers
