"""Revising: an exchange of which its source tells more becomes the next revision of itself, and is scored again as what it was.

1. A revision is for sources that Driftline reads itself (traces, transcripts). What is sent over HTTP under a known id is compared as ever.
2. The time and the session of an exchange are those of its first revision, so that nothing that is counted by day or by session moves.
3. With a revision goes a request to score it, under the turn and the sampling that are in force, as a rejudgement has one. The request
   stands before the exchange: where only it became durable, the exchange still differs, and both are brought again.
4. An exchange that is not decided on yet has no turn that a request could name: its revision waits, but not for one of which nothing is
   decided, because its project was not audited when it came.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict, replace

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.diagnosis.duplicate_rules import is_read
from audit.exchanges.questions import with_earlier
from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.lazy.duckdb import duckdb
from schemas.records import Exchange, JudgingRequest
from streams.judging.judged_stages import Subject, recorded_in

TOLD = (
    "agent", "user_message", "agent_response", "agent_thinking", "agent_model", "input_tokens", "output_tokens", "stop_reason",
    "outcome", "multi_user", "tags", "labels",
)  # fmt: skip
"""The fields that a source tells of a turn and may tell otherwise later."""


UNDECIDED = timedelta(hours=1)
"""The age from which on an exchange that nothing is decided on is taken for one of a project that was not audited."""


@dataclass
class Revisions:
    """The records that some exchanges become: those that are new, known or in conflict as they are, the others as revisions."""

    records: list[Exchange | JudgingRequest] = field(default_factory=list)
    """To be published on the topic exchanges, together and in this order."""
    revised: int = 0
    """How many of them are further revisions."""
    waiting: list[Exchange] = field(default_factory=list)
    """Exchanges that differ from what is stored and that nothing is decided on yet: they are to be brought again."""


def revise(
    store: Store,
    policy: Policy,
    exchanges: Sequence[Exchange],
    now: datetime,
    *,
    may_revise: Callable[[Exchange], bool] = lambda _: True,
) -> Revisions:
    """Return the records that exchanges, read anew from their source, become.

    `may_revise` is asked with the stored exchange where the source now tells something else. Where it refuses, the exchange stays as it
    is, and the log reports a conflict. Of one that was withdrawn nothing more is made.
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
            revisions.records.append(with_earlier(_request(revision, decision, now), recorded.get(subject, ())))
        revisions.records.append(revision)
        revisions.revised += 1
    return revisions


def newest_revisions(cursor: duckdb.DuckDBPyConnection, subjects: Sequence[Subject]) -> dict[Subject, Exchange]:
    """The newest revision of each exchange that is known, withdrawn or not."""
    if not subjects:
        return {}
    stored = query_records(cursor, "newest_revisions", Exchange, {"exchanges": _wanted(subjects)})
    return {(exchange.connection, exchange.exchange_id): exchange for exchange in stored}


def _differs(before: Exchange, exchange: Exchange) -> bool:
    """Tell whether the same source tells something else now; two accounts of one exchange are compared by rules of their own."""
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


def _request(exchange: Exchange, decision: dict[str, Any], now: datetime) -> JudgingRequest:
    return JudgingRequest(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=decision["revision"] + 1,
        exchange=encode(exchange),
        turn_number=decision["turn_number"],
        sampling_reason=decision["sampling_reason"],
        sampling_probability=decision["sampling_probability"],
        ingested_at=now,
    )
