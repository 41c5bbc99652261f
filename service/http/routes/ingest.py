"""Exchanges over HTTP: builds the record from a body, and the answer from the record's outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from fastapi import APIRouter, Response

from analytics.identity.duplicate_matching import contradictions
from audit.exchanges.labels import labels_json, read_labels
from audit.fingerprints import canonical_json, digest
from audit.redaction import Redactor
from schemas.bounds import CLOCK_TOLERANCE, MAX_ADMITTED_BYTES
from schemas.errors import BoundsError
from schemas.records import Exchange, Label
from service.setup.access.access import Holder
from service.text.links import INGEST
from service.web.answering import answering
from service.web.authentication import Connection
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.models import IngestBody
from service.write.outcomes import CostCap, LeftOutExchange, QueuedExchange, ScoredExchange, Tier1
from streams.engine.record_intake import QUEUED, IngestResult, RecordIntake
from streams.log.admission import WRITTEN
from streams.sources.exchange_builder import Clean, ExchangeDraft, Filing, build_exchange
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
    """Take an exchange. It is durable when this is answered; 409 if its id is known with other content."""
    engine = services.engine
    require_audit(engine, caller)
    exchange = exchange_of(body, caller, engine.redactor, engine.now())
    with durable_or_refused():
        result = await engine.take_exchange(exchange)
    services.metrics.ingested((outcome_of_ingest(result),))
    if result.outcome == "conflict":
        differing = await services.ask(lambda cursor: contradictions(cursor, TOPIC, exchange))
        raise ApiError(409, "conflict", conflict_words(differing))
    if result.outcome != WRITTEN:
        response.status_code = 200
    return answer_of(exchange.exchange_id, result, filed_elsewhere(body.project, caller))


def outcome_of_ingest(result: IngestResult) -> str:
    """Return the outcome under which to count a sent exchange: known, conflict, or the name of its answer."""
    return result.outcome if result.outcome != WRITTEN else _answered(result)


def require_audit(engine: RecordIntake, caller: Holder) -> str:
    """Return the project of the caller's records; 403 if the policy switches its audit off."""
    project = caller.project or ""
    if not engine.policy.for_project(project).settings.enabled:
        raise ApiError(403, "audit_disabled", f"the policy switches the audit of project {project} off")
    return project


def exchange_of(body: IngestBody, caller: Holder, redactor: Redactor, now: datetime) -> Exchange:
    """Return the record of an exchange: unwrapped, without secrets, and filed by the token.

    ApiError for a time in the future (400), and if markers of secrets have made it too large for a record (413).
    """
    exchange = body.exchange
    if exchange.timestamp > now + CLOCK_TOLERANCE:
        raise ApiError(400, "invalid", "exchange.timestamp: lies more than a day in the future")
    labels = _labels_of(exchange.labels, redactor)
    answer, usage = exchange.agent_response, exchange.agent_response.usage
    question, names = exchange.user_message.content, [answer.model, answer.stop_reason, body.agent]
    unwrapped = unwrap(question)
    texts = [question, answer.content, answer.thinking or "", *filter(None, names)]
    redact = redactor.redacting(texts if unwrapped.text == question else [unwrapped.text, *texts])
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
    filing = Filing(
        caller.name,
        caller.project or "",
        now,
        redact,
        agent=caller.agent,
        unwrap=lambda _: unwrapped,
        longest=None,
        most=MAX_TEXTS,
    )
    try:
        return build_exchange(content, filing, partial(_content_digest, body, labels))
    except BoundsError as error:
        raise ApiError(413, "too_large", f"exchange: {error}") from None


def _labels_of(labels: Any, redactor: Redactor) -> tuple[Label, ...]:
    try:
        return read_labels(labels, redactor, "exchange.labels")
    except BoundsError as error:
        raise ApiError(400, "invalid", str(error)) from None


def _content_digest(body: IngestBody, labels: tuple[Label, ...], clean: Clean) -> str:
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
    words = f" (it differs in {named})" if named else ""
    return (
        f"exchange.id: the log has an exchange with this id and other content, or of another session{words}. That one is kept; "
        "send another exchange under another id"
    )


def agent_of(caller: Holder, named: str | None, redactor: Redactor) -> str | None:
    """Return the agent of a record: the connection's own, or the one in the body, redacted like any other text."""
    return caller.agent or (None if named is None else redactor.redact(named)[0])


def filed_elsewhere(named: Any, caller: Holder) -> dict[str, str]:
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
    common: dict[str, Any] = {"exchange_id": exchange_id, "tier1": _tier1(result.tier1_score, result.tier1_flags)}
    common |= {**again, **more}
    kind = _answered(result)
    if kind == "scored":
        return ScoredExchange(scored=True, score_id=result.score_id, reason=result.reason, anomaly=result.anomaly, **common)
    if kind == "queued":
        return QueuedExchange(scored=None, score_id=result.score_id, reason="queued", anomaly=result.anomaly, **common)
    if kind == "sampled_out":
        return LeftOutExchange(scored=False, reason=result.reason, **common)
    cap = CostCap(current_cost=result.spent_usd, cap=result.cap_usd)
    return LeftOutExchange(scored=False, reason="cost_cap_exceeded", cost_cap=cap, **common)


@lru_cache
def _tier1(score: float, flags: tuple[str, ...]) -> Tier1:
    return Tier1(score=score, flags=flags)


def _answered(result: IngestResult) -> str:
    """Return the name of the answer: queued, sampled_out, cost_cap or scored."""
    if result.reason == QUEUED:
        return "queued"
    if not result.sampled:
        return "sampled_out"
    return "cost_cap" if result.capped else "scored"
