"""Exchanges over HTTP: one per call, or up to a thousand as an array or as lines.

The answer to a batch has a result for each exchange, in the order of the call: its outcome, or its index with the reason for the
refusal. A faulty exchange does not stop the others.
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
from audit.exchanges.context import OK, UNANSWERED
from audit.exchanges.labels import labels_json, read_labels
from audit.fingerprints import canonical_json, digest
from audit.redaction import Redactor
from audit.spending import SHARED_CAPS
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
from streams.sources.exchange_builder import DraftCall, ExchangeDraft, ExchangeSettings, RedactedTexts, build_exchange
from streams.sources.openclaw.text import unwrap
from streams.sources.openclaw.tree import outcome_of

router = APIRouter(route_class=JsonRoute, tags=["records"])
TOPIC = "exchanges"
MAX_TEXT_BYTES = MAX_ADMITTED_BYTES - 16 * 1024
"""Maximum bytes of an exchange's texts. The rest of a record is for its ids and names."""
_BODY_FIELDS = {
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
"""The field of the body for each field of a record. Content without its own field has no entry."""
IngestAnswer = ScoredExchange | LeftOutExchange | QueuedExchange
_DUPLICATE: dict[int | str, dict[str, Any]] = {
    200: answering(IngestAnswer, "The exchange is already stored; this repeats the first answer")
}


@router.post(INGEST, status_code=201, responses=_DUPLICATE | documented(400, 408, 409, 413, 415))
async def ingest(body: IngestBody, caller: Connection, services: Services, response: Response) -> IngestAnswer:
    """Accept an exchange. It is durable once the request is answered. 409 if its id is stored with different content."""
    engine = services.engine
    require_audit(engine, caller)
    exchange = exchange_of(body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        result = await engine.ingest_exchange(exchange)
    services.metrics.ingested((outcome_of_ingest(result),))
    if result.outcome == "conflict":
        differing = await services.ask(lambda cursor: find_contradictions(cursor, TOPIC, exchange))
        raise ApiError(409, "conflict", describe_conflict(differing))
    if result.outcome != WRITTEN:
        response.status_code = 200
    return answer_of(exchange.exchange_id, result, project_note(body.project, caller))


def outcome_of_ingest(result: IngestResult) -> str:
    """Return the outcome of an exchange for the metrics: known, conflict, or the name of its answer."""
    return result.outcome if result.outcome != WRITTEN else _kind_of_answer(result)


def require_audit(engine: RecordIntake, caller: Holder) -> str:
    """Return the project of the caller's records; 403 if the policy switches its audit off."""
    project = caller.project or ""
    if not engine.policy.for_project(project).settings.enabled:
        raise ApiError(403, "audit_disabled", f"the policy switches the audit of project {project} off")
    return project


def exchange_of(body: IngestBody, caller: Holder, redactor: Redactor, now: datetime) -> Exchange:
    """Return the record of an exchange: unwrapped, without secrets, and in the project of the token.

    Raises ApiError for a time in the future (400), and if markers of secrets have made it too large for a record (413).
    """
    if body.exchange.timestamp > now + CLOCK_TOLERANCE:
        raise ApiError(400, "invalid", "exchange.timestamp: lies more than a day in the future")
    labels = _read_record_labels(body.exchange.labels, redactor)
    unwrapped = unwrap(body.exchange.user_message.content)
    settings = ExchangeSettings(
        caller.name,
        caller.project or "",
        now,
        redactor.redact_function(_texts_to_redact(body, unwrapped.text)),
        agent=caller.agent,
        unwrap=lambda _: unwrapped,
        max_text_bytes=None,
        max_total_bytes=MAX_TEXT_BYTES,
    )
    try:
        return build_exchange(_draft_exchange(body, labels), settings, partial(_digest_content, body, labels))
    except BoundsError as error:
        raise ApiError(413, "too_large", f"exchange: {error}") from None


def _texts_to_redact(body: IngestBody, unwrapped_question: str) -> list[str]:
    """Return all texts of an exchange that may contain secrets, including the question without its wrapper."""
    question = body.exchange.user_message.content
    answer = body.exchange.agent_response
    texts = [question, answer.content, answer.thinking or ""]
    texts += [name for name in (answer.model, answer.stop_reason, body.agent) if name]
    texts += [text for call in _draft_calls(body) for text in call.texts()]
    return texts if unwrapped_question == question else [unwrapped_question, *texts]


def _draft_exchange(body: IngestBody, labels: tuple[Label, ...]) -> ExchangeDraft:
    exchange = body.exchange
    answer = exchange.agent_response
    usage = answer.usage
    return ExchangeDraft(
        exchange_id=exchange.id,
        session_id=body.session_id,
        at=exchange.timestamp,
        question=exchange.user_message.content,
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
        tool_calls=_draft_calls(body),
    )


def _draft_calls(body: IngestBody) -> tuple[DraftCall, ...]:
    return tuple(
        DraftCall(
            name=call.name,
            arguments=call.arguments,
            result=call.result,
            outcome=call.outcome or (UNANSWERED if call.result is None else OK),
        )
        for call in body.exchange.tool_calls
    )


def _read_record_labels(labels: Any, redactor: Redactor) -> tuple[Label, ...]:
    try:
        return read_labels(labels, redactor, "exchange.labels")
    except BoundsError as error:
        raise ApiError(400, "invalid", str(error)) from None


def _digest_content(body: IngestBody, labels: tuple[Label, ...], redacted: RedactedTexts) -> str:
    """Return the digest of an exchange's content, with the texts redacted and the agent's name as sent.

    Different content under the same id is a conflict, not a duplicate.
    """
    exchange = body.exchange
    answer = exchange.agent_response
    content: list[Any] = [
        redacted.question,
        redacted.answer,
        redacted.thinking,
        exchange.timestamp.isoformat(),
        body.session_id,
        exchange.turn_number,
        redacted.agent,
        redacted.model,
        None if answer.usage is None else [answer.usage.input_tokens, answer.usage.output_tokens],
        redacted.multi_user,
    ]
    # A missing value of a newer field does not change the digest, so older digests stay valid.
    if answer.stop_reason is not None:
        content.append(answer.stop_reason)
    if labels:
        content.append(labels_json(labels))
    if redacted.tool_calls:
        calls = [[call.name, call.arguments, call.result, call.outcome] for call in redacted.tool_calls]
        content.append({"tool_calls": calls, "omitted": redacted.omitted_tool_calls})
    return digest(canonical_json(content))


def describe_conflict(differing: Sequence[str]) -> str:
    """Explain that another exchange already has the id. `differing` are the record's fields that differ."""
    fields = ", ".join(_BODY_FIELDS[name] for name in differing if name in _BODY_FIELDS)
    differences = f" (it differs in {fields})" if fields else ""
    return (
        f"exchange.id: an exchange with this id is stored with different content or in another session{differences}. It is kept; "
        "send this exchange with another id"
    )


def agent_of(caller: Holder, sent_agent: str | None, redactor: Redactor) -> str | None:
    """Return the agent of a record: the connection's agent if it has one, otherwise the redacted name in the body."""
    if caller.agent:
        return caller.agent
    return None if sent_agent is None else redactor.redact(sent_agent)[0]


def project_note(sent_project: Any, caller: Holder) -> dict[str, str]:
    """Return the note for an answer whose body names another project than the token, which is ignored.

    The sent name is not repeated, because it may be a misplaced secret.
    """
    if sent_project is None or sent_project == caller.project:
        return {}
    note = f"the project in the body is ignored: the token of {caller.name} files its records under {caller.project}"
    return {"project": caller.project or "", "note": note}


def answer_of(exchange_id: str, result: IngestResult, note: Mapping[str, str]) -> IngestAnswer:
    """Return the answer for a new exchange or a duplicate, with the fields of the note."""
    common: dict[str, Any] = {"exchange_id": exchange_id, "tier1": _build_tier1(result.tier1_score, result.tier1_flags), **note}
    if result.outcome == "known":
        common["duplicate"] = True
    kind = _kind_of_answer(result)
    if kind == "scored":
        return ScoredExchange(scored=True, score_id=result.score_id, reason=result.reason, anomaly=result.anomaly, **common)
    if kind == "queued":
        return QueuedExchange(scored=None, score_id=result.score_id, reason="queued", anomaly=result.anomaly, **common)
    if kind == "sampled_out" or result.reason in SHARED_CAPS:
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


BatchRecord = TypeVar("BatchRecord")
Refusal = TypeVar("Refusal", bound=Refused)


@dataclass
class Batch(Generic[BatchRecord, Refusal]):
    """The records of a call with their indexes and the notes for their answers, and the refusals by index."""

    records: list[BatchRecord] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)

    def read(
        self,
        body: Sequence[Any],
        refusal_type: type[Refusal],
        read_value: Callable[[Any, int], tuple[BatchRecord, dict[str, str]] | Refusal],
    ) -> None:
        """Read each value of a body with its index, as a record with a note or as a refusal."""
        for index, value in enumerate(body):
            if isinstance(value, FaultyLine):
                self.refused[index] = refusal_type(error=f"[{index}]: {value.detail}", code=value.code)
                continue
            record_or_refusal = read_value(value, index)
            if isinstance(record_or_refusal, Refused):
                self.refused[index] = record_or_refusal
            else:
                record, note = record_or_refusal
                self.records.append(record)
                self.indexes.append(index)
                self.notes.append(note)

    def results(self, answers: Mapping[int, Answer]) -> list[Any]:
        """Return the answers to the records, which are given by index, and the refusals in the order of the call."""
        results: dict[int, Answer] = {**answers, **self.refused}
        return [results[index] for index in sorted(results)]


_MAX_EXPLAINED_CONFLICTS = 10
"""Maximum number of conflicts per batch whose differing fields are named, because the log is searched for each."""


async def ingest_exchanges(body: ExchangesBody, caller: Connection, services: Services) -> ExchangeOutcomes:
    """Accept up to a thousand exchanges of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    Exchanges are durable once the request is answered. The answer has a result for each exchange, in order: either the answer of
    `POST ingest` or an error.
    """
    engine = services.engine
    require_audit(engine, caller)
    batch = await to_thread.run_sync(read_batch, body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        ingested = await engine.ingest_exchanges(batch.records)
    answers = batch.results(await _build_answers(services, batch, ingested))
    results = [result for result in ingested if isinstance(result, IngestResult)]
    services.metrics.ingested(map(outcome_of_ingest, results))
    counts = Counter(result.outcome for result in results)
    refused = sum(isinstance(answer, RefusedExchange) for answer in answers)
    return ExchangeOutcomes(accepted=counts["written"], known=counts["known"], refused=refused, results=answers)


# Each record of a batch is checked for its depth separately, so the endpoint does not use the class of the router.
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
    batch.read(body, RefusedExchange, lambda value, index: _read_exchange(value, index, caller, redactor, now))
    return batch


def _read_exchange(
    value: Any, index: int, caller: Holder, redactor: Redactor, now: datetime
) -> tuple[Exchange, dict[str, str]] | RefusedExchange:
    """Return the record of one value of a batch with the note for its answer, or its refusal."""
    if is_too_deep(value, MAX_DEPTH):
        return RefusedExchange(error=f"[{index}]: nests deeper than {MAX_DEPTH} levels", code="too_deep")
    try:
        body = IngestBody.model_validate(value)
        return exchange_of(body, caller, redactor, now), project_note(body.project, caller)
    except ValidationError as error:
        return RefusedExchange(error=problems_at(index, error), code="invalid")
    except ApiError as error:
        return RefusedExchange(error=f"[{index}].{error.detail}", code=error.code)


async def _build_answers(
    services: ApiContext, batch: Batch[Exchange, RefusedExchange], ingested: Sequence[IngestResult | RecordError]
) -> dict[int, IngestAnswer | RefusedExchange]:
    """Return the answer to each record, by its index in the body."""
    answers: dict[int, IngestAnswer | RefusedExchange] = {}
    conflicts = 0
    for index, record, note, result in zip(batch.indexes, batch.records, batch.notes, ingested, strict=True):
        if isinstance(result, RecordError):
            answers[index] = RefusedExchange(error=f"[{index}]: {result}", code="invalid")
        elif result.outcome == "conflict":
            conflicts += 1
            differing: Sequence[str] = ()
            if conflicts <= _MAX_EXPLAINED_CONFLICTS:
                differing = await services.ask(partial(find_contradictions, topic=TOPIC, record=record))
            answers[index] = RefusedExchange(error=f"[{index}].{describe_conflict(differing)}", code="conflict")
        else:
            answers[index] = answer_of(record.exchange_id, result, note)
    return answers
