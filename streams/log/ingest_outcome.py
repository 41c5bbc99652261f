"""Ingest outcome: accepted or known, sampled or left out and why, Tier 1's findings, whether money is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost.prices import least_case, usd_of
from audit.exchanges.judgements import COST_CAP
from audit.exchanges.outcomes import anomaly_reasons, score_id
from audit.exchanges.tier1 import check_structure
from audit.injection.detection import tamper_reasons
from audit.policy.policy import Policy, ProjectPolicy
from audit.prompts.exchange_prompts import tier2_bound, tier2_question
from schemas.errors import RecordError
from schemas.records import Exchange, Score
from streams.judging.judged_stages import SCORING
from streams.judging.judged_state import STATE
from streams.log.admission import FEW
from streams.log.log_writer import KNOWN, WRITTEN, Committed
from streams.stage_batches import session_key

QUEUED = "queued"
"""The reason where no decision is there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of an exchange that was sent."""

    fate: str
    """written, known (with the same content) or conflict (with other content; nothing was taken)."""
    score_id: str
    sampled: bool
    reason: str
    """Of the sampling."""
    tier1_score: float
    tier1_flags: tuple[str, ...]
    anomaly: bool
    """As far as the rules tell; the judge may add to it later."""
    capped: bool = False
    """Whether the session's cap leaves no room for judging it."""
    spent_usd: float = 0.0
    cap_usd: float | None = None
    """The session's cap; None is none."""


def placed(encoded: Sequence[bytes | RecordError], fates: Iterable[str]) -> list[str | RecordError]:
    """The fate of each record, or why it may not be written; `fates` are of those that may, in their order."""
    following = iter(fates)
    return [message if isinstance(message, RecordError) else next(following) for message in encoded]


async def outcomes(
    exchanges: Sequence[Exchange], fates: Sequence[str | RecordError], committed: Committed, policy: Policy, store: Store
) -> list[Taken | RecordError]:
    """Return what became of each exchange, or why it may not be written."""
    # A few that are new are told of sooner than a thread has begun; of a known one the tables are asked.
    if len(exchanges) <= FEW and KNOWN not in fates:
        return _outcomes(exchanges, fates, committed, policy, store)
    return await asyncio.to_thread(_outcomes, exchanges, fates, committed, policy, store)


def _outcomes(
    exchanges: Sequence[Exchange], fates: Sequence[str | RecordError], committed: Committed, policy: Policy, store: Store
) -> list[Taken | RecordError]:
    return [
        fate if isinstance(fate, RecordError) else taken(exchange, fate, committed, policy, store)
        for exchange, fate in zip(exchanges, fates, strict=True)
    ]


def one_of(results: Sequence[Taken | RecordError]) -> Taken:
    """What became of a single exchange; raises why it may not be written."""
    (result,) = results
    if isinstance(result, RecordError):
        raise result
    return result


def taken(exchange: Exchange, fate: str, committed: Committed, policy: Policy, store: Store) -> Taken:
    """What to tell of an exchange with this fate, and of what was decided on it."""
    project, subject = policy.for_project(exchange.project), (exchange.connection, exchange.exchange_id)
    decision = committed.decisions.get(subject)
    if fate == WRITTEN and (score := decision if isinstance(decision, Score) else committed.scores.get(subject)):
        told = _scored(score, sampled=decision is not score)
        return _with_cap(told, exchange, project, committed.spent.get(session_key(exchange), 0))
    told = _by_the_rules(exchange, fate, project)
    if fate == KNOWN:
        return _as_before(told, exchange, project, store)
    if fate != WRITTEN or decision is None:
        return told
    told = replace(told, sampled=True, reason=decision.sampling_reason)
    return _with_cap(told, exchange, project, committed.spent.get(session_key(exchange), 0))


def _scored(score: Score, *, sampled: bool) -> Taken:
    """Return what to tell of an exchange that has its score already: one that sampling left out, or that no judge is asked about."""
    return Taken(
        fate=WRITTEN,
        score_id=score.score_id,
        sampled=sampled,
        reason=score.sampling_reason,
        tier1_score=score.tier1_score,
        tier1_flags=score.tier1_flags,
        anomaly=score.anomaly,
    )


def _by_the_rules(exchange: Exchange, fate: str, project: ProjectPolicy) -> Taken:
    """What the exchange itself tells."""
    tier1 = check_structure(exchange.user_message, exchange.agent_response, project.methodology)
    return Taken(
        fate=fate,
        score_id=score_id(exchange.connection, exchange.exchange_id),
        sampled=False,
        reason=QUEUED,
        tier1_score=tier1.score,
        tier1_flags=tier1.flags,
        anomaly=bool(anomaly_reasons(tier1.flags, {}, None, tamper_reasons(exchange))),
    )


def _as_before(told: Taken, exchange: Exchange, project: ProjectPolicy, store: Store) -> Taken:
    """What was told when the exchange came first."""
    wanted = [{"connection": exchange.connection, "exchange_id": exchange.exchange_id}]
    rows = query_rows(store.cursor(), "ingest_outcome", {"exchanges": wanted})
    if not rows:
        return told
    (row,) = rows
    told = replace(
        told,
        sampled=row["sampled"],
        reason=row["reason"],
        tier1_score=row["tier1_score"],
        tier1_flags=tuple(row["tier1_flags"]),
    )
    if row["disposition"] == COST_CAP.state:
        cap = None if project.cap is None else usd_of(project.cap)
        return replace(told, capped=True, spent_usd=usd_of(_spent(store, exchange)), cap_usd=cap)
    return told if row["disposition"] else _with_cap(told, exchange, project, _spent(store, exchange))


def _spent(store: Store, exchange: Exchange) -> int:
    """Nano-USD that the session has spent: by its state, or by what was recorded where workers on Kafka keep that."""
    key = session_key(exchange)
    with store.transaction() as transaction:
        states = transaction.states(SCORING.name, [key])
    if key in states:
        return STATE.decode(states[key]).spent
    values = {
        "connection": exchange.connection,
        "session": exchange.session_id,
        "purposes": sorted(SCORING.purposes),
    }
    return sum(row["nano_usd"] for row in query_rows(store.cursor(), "session_spent", values))


def _with_cap(told: Taken, exchange: Exchange, project: ProjectPolicy, spent: int) -> Taken:
    """Whether the session's cap leaves room for the least that the first call takes, by what is committed: that only grows."""
    if project.cap is None or not told.sampled:
        return told
    price, left = project.price, project.cap - spent
    # A bound settles nearly all of them; a question takes as long to make as everything else here together.
    capped = (
        price is not None
        and least_case(tier2_bound(exchange, project), price) > left
        and least_case(tier2_question(exchange, project), price) > left
    )
    return replace(told, capped=capped, spent_usd=usd_of(spent), cap_usd=usd_of(project.cap))
