"""Judging unscored exchanges again: the request is a record, so that a replay asks again at the same position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import usd_of, worst_case
from audit.exchanges.prompts import thinking_question, tier2_question
from audit.exchanges.questions import estimate, with_earlier
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest
from streams.judging.judged_stages import recorded_in

AT_ONCE = 200
"""Exchanges that are read and requested in one commit."""


def not_audited(policy: Policy) -> list[str]:
    """The projects whose audit is switched off: a request for one of them would have no effect."""
    return [name for name in policy.projects if not policy.for_project(name).settings.enabled]


def unscored(
    store: Store, project: str | None, reason: str | None, limit: int, *, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The unscored exchanges, oldest first, with the fields for requesting them again.

    The reason cost_cap selects the exchanges that a cap left unscored. `without` names projects to leave out.
    """
    values = {"project": project, "reason": reason, "without": list(without), "limit": limit}
    return query_rows(store.cursor(), "unscored_exchanges", values)


def judging_requests(store: Store, rows: Sequence[dict[str, Any]], now: datetime) -> list[JudgingRequest]:
    """A request for each of the rows of `unscored`: the next revision of its score is asked for.

    Each request carries the recorded judgements of the exchange, as many as fit a record.
    """
    by_id = {(row["connection"], row["exchange_id"]): row for row in rows}
    recorded = recorded_in(store)(list(by_id))
    requests = [
        _request(exchange, by_id[exchange.connection, exchange.exchange_id], now) for exchange in exchanges_of(store, rows)
    ]
    return [with_earlier(request, recorded.get((request.connection, request.exchange_id), ())) for request in requests]


def _request(exchange: Exchange, row: dict[str, Any], now: datetime) -> JudgingRequest:
    return JudgingRequest(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=row["revision"] + 1,
        exchange=encode(exchange),
        turn_number=row["turn_number"],
        sampling_reason=row["sampling_reason"],
        sampling_probability=row["sampling_probability"] or 0.0,
        ingested_at=now,
    )


def exchanges_of(store: Store, rows: Sequence[dict[str, Any]]) -> Iterator[Exchange]:
    """The exchanges that the rows name, a few hundred at a time."""
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
    """Exchanges whose judge has no known price; they count in no sum."""


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
            most += sum(worst_case(question, project.price) for question in questions)
        count += 1
        calls += len(questions)
    return BulkEstimate(count, calls, usd_of(expected), usd_of(most), unpriced)
