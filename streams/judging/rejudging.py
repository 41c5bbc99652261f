"""Scoring an exchange again: unscored exchanges on request, and revisions of exchanges whose source has new content.

Either way the request is a record, so that a replay asks again at the same position. Revisions:

1. They are for sources that Driftline reads itself (traces, transcripts). Exchanges sent over HTTP under a known id are compared as usual.
2. A revision keeps the time and the session of the first one, so that no count by day or by session changes.
3. A revision comes with a request to score it, under the present turn and sampling, as a rejudgement does. The request precedes the
   exchange: if only the request became durable, the exchange still differs, and both are published again.
4. An exchange without a decision has no turn for a request to name: its revision waits. It does not wait if the exchange will never be
   decided on, because its project was not audited when it came.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict, replace

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import max_cost, usd_of
from audit.diagnosis.duplicate_rules import is_read
from audit.exchanges.prompts import thinking_question, tier2_question
from audit.exchanges.questions import estimate, with_earlier
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.lazy import duckdb
from schemas.records import Exchange, JudgingRequest
from streams.judging.judged_stages import Subject, recorded_in

AT_ONCE = 200
"""Exchanges that are read and requested in one commit."""


def not_audited(policy: Policy) -> list[str]:
    """Return the projects whose audit is switched off: a request for one of them would have no effect."""
    return [name for name in policy.projects if not policy.for_project(name).settings.enabled]


def unscored(
    store: Store, project: str | None, reason: str | None, limit: int, *, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the unscored exchanges, oldest first, with the fields for requesting them again.

    The reason cost_cap selects the exchanges that a cap left unscored. `without` names projects to leave out.
    """
    values = {"project": project, "reason": reason, "without": list(without), "limit": limit}
    return query_rows(store.cursor(), "unscored_exchanges", values)


def judging_requests(store: Store, rows: Sequence[dict[str, Any]], now: datetime) -> list[JudgingRequest]:
    """Return a request for each of the rows of `unscored`: the next revision of its score is asked for.

    Each request carries the recorded judgements of the exchange, as many as fit a record.
    """
    by_id = {(row["connection"], row["exchange_id"]): row for row in rows}
    recorded = recorded_in(store)(list(by_id))
    requests = [
        _scoring_request(exchange, by_id[exchange.connection, exchange.exchange_id], now)
        for exchange in exchanges_of(store, rows)
    ]
    return [with_earlier(request, recorded.get((request.connection, request.exchange_id), ())) for request in requests]


def exchanges_of(store: Store, rows: Sequence[dict[str, Any]]) -> Iterator[Exchange]:
    """Yield the exchanges that the rows name, a few hundred at a time."""
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        wanted = [{"connection": row["connection"], "exchange_id": row["exchange_id"]} for row in part]
        yield from query_records(store.cursor(), "exchange_records", Exchange, {"exchanges": wanted})


@dataclass(frozen=True)
class BulkEstimate:
    """The estimated calls and costs of judging exchanges.

    It counts Tier 2 for each exchange and Tier 2.5 if there is thinking. Tier 3 depends on the answers to those.
    """

    exchanges: int
    calls: int
    expected_usd: float
    at_most_usd: float
    unpriced: int
    """Exchanges whose judge has no known price; the sums leave them out."""


def estimate_bulk(exchanges: Iterator[Exchange], policy: Policy) -> BulkEstimate:
    """Estimate the calls and costs of judging the exchanges again."""
    count = calls = unpriced = expected = most = 0
    for exchange in exchanges:
        project = policy.for_project(exchange.project)
        questions = [tier2_question(exchange, project)]
        if exchange.agent_thinking and project.settings.thinking_block_analysis:
            questions.append(thinking_question(exchange, project))
        if project.price is None:
            unpriced += 1
        else:
            expected += sum(estimate(question, project.price, cached=count > 0).nano or 0 for question in questions)
            most += sum(max_cost(question, project.price) for question in questions)
        count += 1
        calls += len(questions)
    return BulkEstimate(count, calls, usd_of(expected), usd_of(most), unpriced)


TOLD = (
    "agent", "user_message", "agent_response", "agent_thinking", "agent_model", "input_tokens", "output_tokens", "stop_reason",
    "outcome", "multi_user", "tags", "labels",
)  # fmt: skip
"""The fields of a turn whose content in the source may change later."""


UNDECIDED = timedelta(hours=1)
"""The age from which an exchange without a decision is assumed to belong to a project that was not audited."""


@dataclass
class Revisions:
    """The records to publish for some exchanges: new, known or conflicting exchanges unchanged, the others as revisions."""

    records: list[Exchange | JudgingRequest] = field(default_factory=list)
    """Records for the topic exchanges, to be published together and in this order."""
    revised: int = 0
    """The number of further revisions among them."""
    waiting: list[Exchange] = field(default_factory=list)
    """Exchanges that differ from the stored ones, which have no decision yet: publish them again later."""


def revise(
    store: Store,
    policy: Policy,
    exchanges: Sequence[Exchange],
    now: datetime,
    *,
    may_revise: Callable[[Exchange], bool] = lambda _: True,
) -> Revisions:
    """Return the records for exchanges that were read again from their source.

    If the source now differs, `may_revise` gets the stored exchange and decides. If it refuses, the exchange is published unchanged, and
    the log reports a conflict. A withdrawn exchange gives no further records.
    """
    with contextlib.closing(store.cursor()) as cursor:
        stored = newest_revisions(cursor, [(exchange.connection, exchange.exchange_id) for exchange in exchanges])
        changed = [
            exchange
            for exchange in exchanges
            if (before := stored.get((exchange.connection, exchange.exchange_id))) is not None
            and _differs(before, exchange)
            and may_revise(before)
        ]
        decisions = _decisions(cursor, changed)
    recorded = recorded_in(store)([(exchange.connection, exchange.exchange_id) for exchange in changed])
    revisions, changes = Revisions(), set(map(id, changed))
    for exchange in exchanges:
        subject = exchange.connection, exchange.exchange_id
        if id(exchange) not in changes:
            if subject not in stored or not stored[subject].withdrawn:
                revisions.records.append(exchange)
            continue
        before, decision = stored[subject], decisions.get(subject)
        is_audited = policy.for_project(exchange.project).settings.enabled and now < before.ingested_at + UNDECIDED
        if decision is None and not exchange.withdrawn and is_audited:
            revisions.waiting.append(exchange)
            continue
        revision = replace(exchange, revision=before.revision + 1, occurred_at=before.occurred_at, session_id=before.session_id)
        if decision is not None and not revision.withdrawn:
            revisions.records.append(with_earlier(_scoring_request(revision, decision, now), recorded.get(subject, ())))
        revisions.records.append(revision)
        revisions.revised += 1
    return revisions


def newest_revisions(cursor: duckdb.DuckDBPyConnection, subjects: Sequence[Subject]) -> dict[Subject, Exchange]:
    """Return the newest revision of each known exchange, withdrawn or not."""
    if not subjects:
        return {}
    stored = query_records(cursor, "newest_revisions", Exchange, {"exchanges": _wanted(subjects)})
    return {(exchange.connection, exchange.exchange_id): exchange for exchange in stored}


def _differs(before: Exchange, exchange: Exchange) -> bool:
    """Return whether the same source now has other content; accounts of one exchange from two sources are compared by other rules."""
    if before.withdrawn or exchange.withdrawn:
        return not before.withdrawn
    if is_read(asdict(before)) != is_read(asdict(exchange)):
        return False
    return any(getattr(before, name) != getattr(exchange, name) for name in TOLD)


def _decisions(cursor: duckdb.DuckDBPyConnection, exchanges: Sequence[Exchange]) -> dict[Subject, dict[str, Any]]:
    if not exchanges:
        return {}
    wanted = _wanted([(exchange.connection, exchange.exchange_id) for exchange in exchanges])
    rows = query_rows(cursor, "decisions_in_force", {"exchanges": wanted})
    return {(row["connection"], row["exchange_id"]): row for row in rows}


def _wanted(subjects: Sequence[Subject]) -> list[dict[str, str]]:
    return [{"connection": connection, "exchange_id": exchange_id} for connection, exchange_id in subjects]


def _scoring_request(exchange: Exchange, decision: dict[str, Any], now: datetime) -> JudgingRequest:
    return JudgingRequest(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=decision["revision"] + 1,
        exchange=encode(exchange),
        turn_number=decision["turn_number"],
        sampling_reason=decision["sampling_reason"],
        sampling_probability=decision["sampling_probability"] or 0.0,
        ingested_at=now,
    )
