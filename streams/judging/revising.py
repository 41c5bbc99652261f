"""Revising: if the source of an exchange has more about it later, the exchange gets a new revision, which is scored with the same sampling.

1. Revisions are for sources that Driftline reads itself (traces, transcripts). Exchanges sent over HTTP under a known id are compared as
   usual.
2. A revision keeps the time and the session of the first one, so that no count by day or by session changes.
3. A revision comes with a request to score it, under the present turn and sampling, as a rejudgement does. The request precedes the
   exchange: if only the request became durable, the exchange still differs, and both are published again.
4. An exchange without a decision has no turn for a request to name: its revision waits. It does not wait if the exchange will never be
   decided on, because its project was not audited when it came.
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
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.lazy import duckdb
from schemas.records import Exchange, JudgingRequest
from streams.judging.judged_stages import Subject, recorded_in

TOLD = (
    "agent", "user_message", "agent_response", "agent_thinking", "agent_model", "input_tokens", "output_tokens", "stop_reason",
    "outcome", "multi_user", "tags", "labels",
)  # fmt: skip
"""The fields of a turn whose content in the source may change later."""


UNDECIDED = timedelta(hours=1)
"""The age from which on an exchange without a decision is taken to belong to a project that was not audited."""


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
            revisions.records.append(with_earlier(_request(revision, decision, now), recorded.get(subject, ())))
        revisions.records.append(revision)
        revisions.revised += 1
    return revisions


def newest_revisions(cursor: duckdb.DuckDBPyConnection, subjects: Sequence[Subject]) -> dict[Subject, Exchange]:
    """The newest revision of each known exchange, withdrawn or not."""
    if not subjects:
        return {}
    stored = query_records(cursor, "newest_revisions", Exchange, {"exchanges": _wanted(subjects)})
    return {(exchange.connection, exchange.exchange_id): exchange for exchange in stored}


def _differs(before: Exchange, exchange: Exchange) -> bool:
    """Tell whether the same source now has other content; accounts of one exchange from two sources are compared by other rules."""
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
