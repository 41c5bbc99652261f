"""Scoring exchanges again: unscored ones on request, and ones whose source has new content.

In both cases the request is a record, so that a replay judges the exchange again at the same position. Revisions of exchanges:

1. Only sources that Driftline reads itself (traces, transcripts) make revisions. An exchange that is sent over HTTP again is compared
   with the stored one as usual.
2. A revision keeps the time and the session of the stored exchange, so that no count by day or session changes.
3. A revision is published with a request to score it, which names the current turn and sampling of the stored exchange. The request precedes
   the revision: if only the request became durable, the exchange still differs, and both are published again.
4. The revision of an exchange without a sampling decision waits, because its request has no turn to name. It does not wait if there will
   be no decision, because auditing was switched off for the project when the exchange arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import max_cost, usd_of
from audit.diagnosis.duplicate_rules import is_read
from audit.exchanges.context import RememberedTurn, remember
from audit.exchanges.prompts import ExchangeQuestions
from audit.exchanges.questions import add_earlier_judgements, estimate
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.lazy import duckdb
from schemas.records import EarlierTurn, Exchange, JudgingRequest
from streams.judging.judged_stages import Subject, judgement_reader
from streams.stage_batches import session_key_of

REQUEST_BATCH_SIZE = 200
"""Exchanges per query and per commit of requests."""


def unaudited_projects(policy: Policy) -> list[str]:
    """Return the projects for which auditing is switched off, so that a request would have no effect."""
    return [name for name in policy.projects if not policy.for_project(name).settings.enabled]


def list_unscored(
    store: Store, project: str | None, reason: str | None, limit: int, *, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the unscored exchanges, oldest first, with the fields that a request needs.

    `reason` selects the exchanges that are unscored for it, for example cost_cap. `without` names projects to leave out.
    """
    values = {"project": project, "reason": reason, "without": list(without), "limit": limit}
    return query_rows(store.cursor(), "unscored_exchanges", values)


def build_requests(store: Store, rows: Sequence[dict[str, Any]], now: datetime) -> list[JudgingRequest]:
    """Return a request for the next revision of the score of each exchange from `list_unscored`.

    Each request carries the recorded judgements of its exchange, as many as fit into a record, and the earlier turns of its task.
    """
    by_subject = {(row["connection"], row["exchange_id"]): row for row in rows}
    recorded = judgement_reader(store)(list(by_subject))
    turns = read_earlier_turns(store, list(by_subject))
    requests: list[JudgingRequest] = []
    for exchange in read_exchanges(store, rows):
        subject = exchange.connection, exchange.exchange_id
        request = _build_request(exchange, by_subject[subject], now, turns.get(subject, ()))
        requests.append(add_earlier_judgements(request, recorded.get(subject, ())))
    return requests


def read_exchanges(store: Store, rows: Sequence[dict[str, Any]]) -> Iterator[Exchange]:
    """Yield the exchanges that the rows name, reading `REQUEST_BATCH_SIZE` at a time."""
    for start in range(0, len(rows), REQUEST_BATCH_SIZE):
        subjects = [(row["connection"], row["exchange_id"]) for row in rows[start : start + REQUEST_BATCH_SIZE]]
        yield from query_records(store.cursor(), "exchange_records", Exchange, {"exchanges": _exchange_keys(subjects)})


@dataclass(frozen=True)
class BulkEstimate:
    """The estimated calls and costs of judging exchanges.

    Tier 2 counts for each exchange, and Tier 2.5 for each one with thinking. Tier 3 does not count, because it depends on their answers.
    """

    exchanges: int
    calls: int
    expected_usd: float
    at_most_usd: float
    unpriced: int
    """Exchanges whose judge has no known price; the costs leave them out."""


def read_earlier_turns(store: Store, subjects: Sequence[Subject]) -> dict[Subject, tuple[EarlierTurn, ...]]:
    """Return the earlier turns that the newest task of each exchange carries; exchanges without a task are left out."""
    if not subjects:
        return {}
    with contextlib.closing(store.cursor()) as cursor:
        rows = query_rows(cursor, "earlier_turns", {"exchanges": _exchange_keys(subjects)})
    return {(row["connection"], row["exchange_id"]): convert(row["earlier_turns"], tuple[EarlierTurn, ...]) for row in rows}


def estimate_bulk(
    exchanges: Iterator[Exchange], policy: Policy, turns: Mapping[Subject, tuple[EarlierTurn, ...]] | None = None
) -> BulkEstimate:
    """Estimate the calls and costs of judging the exchanges again.

    `turns` are the earlier turns of exchanges that have a task. If None, they are taken from the exchanges of the same session before.
    """
    remembered: dict[str, tuple[RememberedTurn, ...]] = {}
    count = 0
    calls = 0
    unpriced = 0
    expected = 0
    at_most = 0
    for exchange in exchanges:
        project = policy.for_project(exchange.project)
        context = project.settings.context
        if turns is None:
            key = session_key_of(exchange)
            earlier_turns = tuple(remembered_turn.turn for remembered_turn in remembered.get(key, ()))
            remembered[key] = remember(remembered.get(key, ()), exchange, 0, kept=context.turns, settings=context)
        else:
            earlier_turns = turns.get(_subject_of(exchange), ())
        exchange_questions = ExchangeQuestions(exchange, project, earlier_turns=earlier_turns)
        questions = [exchange_questions.tier2()]
        if exchange.agent_thinking and project.settings.thinking_block_analysis:
            questions.append(exchange_questions.thinking())
        prices = [project.price_of(question.model) for question in questions]
        if None in prices:
            unpriced += 1
        for question, price in zip(questions, prices, strict=True):
            if price is not None and None not in prices:
                expected += estimate(question, price, cached=count > 0).nano or 0
                at_most += max_cost(question, price)
        count += 1
        calls += len(questions)
    return BulkEstimate(count, calls, usd_of(expected), usd_of(at_most), unpriced)


REVISABLE_FIELDS = (
    "agent", "user_message", "agent_response", "agent_thinking", "agent_model", "input_tokens", "output_tokens", "stop_reason",
    "outcome", "multi_user", "tags", "labels",
)  # fmt: skip
"""The fields whose content may change in the source after the exchange was read."""
_CALL_FIELDS = ("tool_calls", "omitted_tool_calls")
"""They count only if the stored exchange has tool calls: an exchange from before they were recorded is not judged again for that."""
MAX_DECISION_AGE = timedelta(hours=1)
"""An older exchange without a sampling decision is assumed to belong to a project that was not audited when it arrived."""


@dataclass
class Revisions:
    """The records to publish for exchanges that were read again: revisions of changed ones, and all others as they are."""

    records: list[Exchange | JudgingRequest] = field(default_factory=list)
    """Records for the topic exchanges, to be published together and in this order."""
    revised: int = 0
    """The number of revisions among them."""
    waiting: list[Exchange] = field(default_factory=list)
    """Changed exchanges that have no sampling decision yet; call `revise` for them again later."""


def revise(
    store: Store,
    policy: Policy,
    exchanges: Sequence[Exchange],
    now: datetime,
    *,
    may_revise: Callable[[Exchange], bool] = lambda _: True,
) -> Revisions:
    """Return the records to publish for exchanges that were read again from their source.

    If a source has new content, `may_revise` gets the stored exchange and decides whether to revise it. If it refuses, the exchange is
    published as it is, and the log reports a conflict. A stored exchange that was withdrawn gives no further records.
    """
    with contextlib.closing(store.cursor()) as cursor:
        stored = newest_revisions(cursor, [_subject_of(exchange) for exchange in exchanges])
        changed: list[Exchange] = []
        for exchange in exchanges:
            previous = stored.get(_subject_of(exchange))
            if previous is not None and _differs(previous, exchange) and may_revise(previous):
                changed.append(exchange)
        decisions = _read_decisions(cursor, changed)
    changed_subjects = [_subject_of(exchange) for exchange in changed]
    recorded = judgement_reader(store)(changed_subjects)
    turns = read_earlier_turns(store, changed_subjects)
    changed_ids = {id(exchange) for exchange in changed}
    revisions = Revisions()
    for exchange in exchanges:
        subject = _subject_of(exchange)
        if id(exchange) not in changed_ids:
            if subject not in stored or not stored[subject].withdrawn:
                revisions.records.append(exchange)
            continue
        previous = stored[subject]
        decision = decisions.get(subject)
        is_audited = policy.for_project(exchange.project).settings.enabled
        expects_decision = is_audited and now < previous.ingested_at + MAX_DECISION_AGE
        if decision is None and not exchange.withdrawn and expects_decision:
            revisions.waiting.append(exchange)
            continue
        revision = replace(
            exchange, revision=previous.revision + 1, occurred_at=previous.occurred_at, session_id=previous.session_id
        )
        if decision is not None and not revision.withdrawn:
            request = _build_request(revision, decision, now, turns.get(subject, ()))
            revisions.records.append(add_earlier_judgements(request, recorded.get(subject, ())))
        revisions.records.append(revision)
        revisions.revised += 1
    return revisions


def newest_revisions(cursor: duckdb.DuckDBPyConnection, subjects: Sequence[Subject]) -> dict[Subject, Exchange]:
    """Return the newest revision of each stored exchange, even if it was withdrawn."""
    if not subjects:
        return {}
    stored = query_records(cursor, "newest_revisions", Exchange, {"exchanges": _exchange_keys(subjects)})
    return {_subject_of(exchange): exchange for exchange in stored}


def _subject_of(exchange: Exchange) -> Subject:
    return exchange.connection, exchange.exchange_id


def _differs(previous: Exchange, exchange: Exchange) -> bool:
    """Return whether the source of a stored exchange has new content.

    If the two come from different sources (one sent, one read), they do not differ here: other rules compare them.
    """
    if previous.withdrawn or exchange.withdrawn:
        return not previous.withdrawn
    if is_read(asdict(previous)) != is_read(asdict(exchange)):
        return False
    fields = (*REVISABLE_FIELDS, *_CALL_FIELDS) if previous.tool_calls else REVISABLE_FIELDS
    return any(getattr(previous, name) != getattr(exchange, name) for name in fields)


def _read_decisions(cursor: duckdb.DuckDBPyConnection, exchanges: Sequence[Exchange]) -> dict[Subject, dict[str, Any]]:
    """Return the current sampling decision of each exchange that has one."""
    if not exchanges:
        return {}
    keys = _exchange_keys([_subject_of(exchange) for exchange in exchanges])
    rows = query_rows(cursor, "decisions_in_force", {"exchanges": keys})
    return {(row["connection"], row["exchange_id"]): row for row in rows}


def _exchange_keys(subjects: Sequence[Subject]) -> list[dict[str, str]]:
    """Return the parameter that names exchanges in a query."""
    return [{"connection": connection, "exchange_id": exchange_id} for connection, exchange_id in subjects]


def _build_request(
    exchange: Exchange, decision: dict[str, Any], now: datetime, earlier_turns: tuple[EarlierTurn, ...]
) -> JudgingRequest:
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
        earlier_turns=earlier_turns,
    )
