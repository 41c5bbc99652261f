"""Record intake: senders' records are accepted, durable on return, and audited, in this process or by workers on Kafka.

The answers to senders (`IngestResult`), the ending of sessions and rejudging are the same in both. The two differ in where records become
durable, and in when the tables show them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import msgspec
from msgspec.structs import replace

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import least_case, usd_of
from audit.exchanges.outcomes import anomaly_reasons, score_id
from audit.exchanges.prompts import tier2_bound, tier2_question
from audit.exchanges.questions import COST_CAP
from audit.exchanges.tier1 import check_structure
from audit.injection import tamper_reasons
from audit.policy import Policy, ProjectPolicy
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.errors import DriftlineError, RecordError
from schemas.records import Exchange, Record, Score
from streams.judging.judged_stages import SCORING, STATE
from streams.judging.judging_partition import JudgeCalls
from streams.judging.rejudging import AT_ONCE, judging_requests, not_audited, unscored
from streams.log.admission import CONFLICT, KNOWN, WRITTEN, Accepted, Committed, Submission, admissible, encode_each
from streams.stage_batches import session_key
from streams.upkeep.closing import SessionEnds, idle_closings


@dataclass(frozen=True)
class EngineLimits:
    """The engine's limits, and the interval between checks for idle sessions."""

    waiting: int = 2_000
    """Submissions that may wait for a commit."""
    at_once: int = 256
    """Submissions in one commit."""
    flush_seconds: float = 0.5
    """Seconds that a record may be in the log alone if nobody asks for it."""
    idle_check: float = 60.0
    """Seconds between two checks for idle sessions."""


@dataclass(frozen=True)
class Published:
    """The result of publishing: how many records were written, how many were known, and the indexes of those in conflict."""

    written: int
    known: int
    conflicts: list[int]
    outcomes: Sequence[str] = ()
    """The outcome of each record; empty if only their numbers were counted."""

    @classmethod
    def of(cls, outcomes: Sequence[str]) -> Self:
        """Count the outcomes of records."""
        conflicts = [index for index, outcome in enumerate(outcomes) if outcome == CONFLICT]
        return cls(outcomes.count(WRITTEN), outcomes.count(KNOWN), conflicts, outcomes)


@dataclass(frozen=True)
class EngineState:
    """The engine's health and queues."""

    ready: bool
    why_not: str
    queues: Mapping[str, int]
    """Queue lengths: `commits` (submissions), `tasks` (exchanges to score), `evaluations` (to make), `sessions` (with tasks or evaluations
    in progress); with Kafka `sink` (records not in the tables yet), `unlanded` (those that were sent to this process), `producing` (calls
    that wait for the broker)."""
    judge_calls: Mapping[str, int]
    """Questions asked since the start, by outcome."""
    spent_usd: float
    """The cost of these questions, as far as prices are known."""


_REST = 20
"""The pause between two checks for idle sessions, as a multiple of the last check's duration, which grows with the records."""
QUEUED = "queued"
"""The reason while there is no decision yet."""


class IngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of sending an exchange: the answer to its sender."""

    outcome: str
    """written, known (with the same content) or conflict (with other content; nothing was stored)."""
    score_id: str
    sampled: bool
    reason: str
    """Sampling reason."""
    tier1_score: float
    tier1_flags: tuple[str, ...]
    anomaly: bool
    """Whether the rules found an anomaly; the judge may find more later."""
    capped: bool = False
    """Whether the session's cap leaves no room for judging it."""
    spent_usd: float = 0.0
    cap_usd: float | None = None
    """The session's cap; None means no cap."""


log = logging.getLogger(__name__)


class RecordIntake(ABC):
    """See the module. After BusyError or BrokerError nothing was acknowledged, and the sender may try again. Belongs to one event loop.

    `judge_name` is the judge's display name.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        judge_name: str,
        limits: EngineLimits | None = None,
    ) -> None:
        self.store = store
        self.policy = policy
        self.redactor = redactor
        self.now = now
        self.judge_name = judge_name
        self.broken = asyncio.Event()
        """Set when only a new process can continue."""
        self.has_more: Callable[[], None] = lambda: None
        """Called in the event loop whenever the tables may have more records."""
        self._limits = limits or EngineLimits()
        self._calls = JudgeCalls()
        self._ends = SessionEnds(store, now, self._close)

    @property
    @abstractmethod
    def has_judge(self) -> bool:
        """Whether there is a judge."""

    @abstractmethod
    async def start(self) -> None:
        """Finish the work of the last process, then run in the background."""

    @abstractmethod
    async def stop(self, grace: float = 20.0) -> None:
        """Finish the work in progress, for `grace` seconds at most. A second call with less grace shortens the stop."""

    @abstractmethod
    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything that is on the topic at this moment. Raises BusyError if that takes too long."""

    @abstractmethod
    async def flush(self, topic: str | None = None) -> None:
        """Flush this process's own log to the tables, if it has pending records of the topic (None: of any topic).

        On Kafka there is no such log.
        """

    @abstractmethod
    async def commit(self, submission: Submission) -> None:
        """Make a stage's records durable as if they came from outside, with its states and positions; known records are skipped.

        In one process this is all or nothing. On Kafka the records go to their topics first, and then states and positions to the
        tables: after an interruption the stage makes the same records again.
        """

    @abstractmethod
    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """Return the position up to which the tables have a topic, by partition."""

    @abstractmethod
    def failure(self) -> DriftlineError:
        """Return the error that broke the intake, with a hint."""

    async def take_exchange(self, exchange: Exchange) -> IngestResult:
        """Accept an exchange. Raises RecordError if it may not be written."""
        committed = await self._commit_records("exchanges", [exchange], [admissible(exchange)])
        (result,) = await self._build_results([exchange], committed)
        return result

    async def take_exchanges(self, exchanges: Sequence[Exchange]) -> list[IngestResult | RecordError]:
        """Accept exchanges together, durable on return: the result of each, or the reason why it may not be written."""
        encoded = await asyncio.to_thread(encode_each, exchanges)
        pairs = zip(exchanges, encoded, strict=True)
        admitted = [(exchange, message) for exchange, message in pairs if isinstance(message, bytes)]
        records = [exchange for exchange, _ in admitted]
        committed = await self._commit_records("exchanges", records, [message for _, message in admitted])
        results = iter(await self._build_results(records, committed))
        return [message if isinstance(message, RecordError) else next(results) for message in encoded]

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Accept records from outside. Known records are skipped, so that sending twice changes nothing. Raises RecordError as above."""
        messages = list[bytes]()
        for message in await asyncio.to_thread(encode_each, records):
            if isinstance(message, RecordError):
                raise message
            messages.append(message)
        return await self.publish_admitted(topic, records, messages)

    async def publish_admitted(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Published:
        """Like `publish`, for records that `streams.log.admission.admissible` has already encoded."""
        return Published.of((await self._commit_records(topic, records, messages)).outcomes[topic])

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended, once the tables have its last records; False if the session has no records."""
        await self._flush_session(connection, session_id)
        return await self._ends.end(connection, session_id)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Request that unscored exchanges are judged again; returns their number."""
        await self.flush()
        without = not_audited(self.policy)
        rows = await asyncio.to_thread(unscored, self.store, project, reason, limit, without=without)
        written = 0
        for start in range(0, len(rows), AT_ONCE):
            # A score can reach the tables before its judgements, and a missing answer would be paid for again.
            await self.wait_for_tables("judgements")
            requests = await asyncio.to_thread(judging_requests, self.store, rows[start : start + AT_ONCE], self.now())
            written += (await self.publish("exchanges", requests)).written
        return written

    @abstractmethod
    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:
        """Return the pending events of a session, which the store does not show yet: id and position."""

    def state(self) -> EngineState:
        """Return the present health and queues."""
        why_not = self._why_not()
        return EngineState(not why_not, why_not, self._queues(), self._calls.outcomes, self._calls.spent_usd)

    @abstractmethod
    async def _commit_records(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        """Make the new records durable; the messages are the encoded records."""

    @abstractmethod
    async def _flush_session(self, connection: str, session_id: str) -> None:
        """Return when the store shows all accepted records of a session."""

    @abstractmethod
    async def _shows_now(self) -> bool:
        """Return whether the store shows everything accepted until now, so that idle sessions can be identified."""

    @abstractmethod
    def _why_not(self) -> str:
        """Return the reason why no records are accepted; empty if they are."""

    @abstractmethod
    def _queues(self) -> Mapping[str, int]:
        """See `EngineState.queues`."""

    async def _build_results(self, exchanges: Sequence[Exchange], committed: Committed) -> list[IngestResult]:
        """Return the results of exchanges that were committed together."""
        if KNOWN in committed.outcomes["exchanges"]:
            # The decision on a known exchange may have to be read from the tables.
            return await asyncio.to_thread(_ingest_results, exchanges, committed, self.policy, self.store)
        return _ingest_results(exchanges, committed, self.policy, self.store)

    async def _close(self, ended: Accepted) -> None:
        """Record that sessions ended."""
        for topic, messages in ended.messages.items():
            await self.publish(topic, [decode(message) for message in messages])

    async def _close_idle_sessions(self) -> None:
        """Periodically record the end of sessions without records for longer than the session gap."""
        pause = self._limits.idle_check
        while True:
            await asyncio.sleep(pause)
            began = asyncio.get_running_loop().time()
            try:
                parts = idle_closings(self.store, self.policy, self.now()) if await self._shows_now() else ()
                looked = await asyncio.to_thread(list, parts)
                pause = max(self._limits.idle_check, _REST * (asyncio.get_running_loop().time() - began))
                for part in looked:
                    await self._close(part)
            except Exception:
                log.exception("sessions that fell idle could not be closed; trying again in %.0f s", pause)


def _ingest_results(exchanges: Sequence[Exchange], committed: Committed, policy: Policy, store: Store) -> list[IngestResult]:
    """Return the results of exchanges that were committed together."""
    outcomes = committed.outcomes["exchanges"]
    return [
        _ingest_result(exchange, outcome, committed, policy, store)
        for exchange, outcome in zip(exchanges, outcomes, strict=True)
    ]


def _ingest_result(exchange: Exchange, outcome: str, committed: Committed, policy: Policy, store: Store) -> IngestResult:
    """Return the result of an exchange with this outcome, from the present or the earlier decision."""
    project, subject = policy.for_project(exchange.project), (exchange.connection, exchange.exchange_id)
    # A repetition can be in the same commit as the first delivery, which the tables may not have yet.
    decision = None if outcome == CONFLICT else committed.decisions.get(subject)
    if isinstance(decision, Score):
        return _result_of_score(decision, outcome)
    result = _check_by_rules(exchange, outcome, project)
    if decision is None:
        return _restore_first_result(result, exchange, project, store) if outcome == KNOWN else result
    result = replace(
        result,
        sampled=True,
        reason=decision.sampling_reason,
        tier1_score=decision.tier1_score,
        tier1_flags=decision.tier1_flags,
    )
    return _apply_cap(result, exchange, project, committed.spent.get(session_key(exchange), 0))


def _result_of_score(score: Score, outcome: str) -> IngestResult:
    """Return the result of an exchange that was not sampled."""
    return IngestResult(
        outcome=outcome,
        score_id=score.score_id,
        sampled=False,
        reason=score.sampling_reason,
        tier1_score=score.tier1_score,
        tier1_flags=score.tier1_flags,
        anomaly=score.anomaly,
    )


def _check_by_rules(exchange: Exchange, outcome: str, project: ProjectPolicy) -> IngestResult:
    """Return the result from the exchange alone: checked by the rules of Tier 1, undecided."""
    tier1 = check_structure(exchange.user_message, exchange.agent_response, project.methodology)
    return IngestResult(
        outcome=outcome,
        score_id=score_id(exchange.connection, exchange.exchange_id),
        sampled=False,
        reason=QUEUED,
        tier1_score=tier1.score,
        tier1_flags=tier1.flags,
        anomaly=bool(anomaly_reasons(tier1.flags, {}, None, tamper_reasons(exchange))),
    )


def _restore_first_result(result: IngestResult, exchange: Exchange, project: ProjectPolicy, store: Store) -> IngestResult:
    """Return the result of the first delivery of the exchange; `result` if nothing is decided yet."""
    wanted = [{"connection": exchange.connection, "exchange_id": exchange.exchange_id}]
    rows = query_rows(store.cursor(), "ingest_outcome", {"exchanges": wanted})
    if not rows:
        return result
    (row,) = rows
    result = replace(
        result,
        sampled=row["sampled"],
        reason=row["reason"],
        tier1_score=row["tier1_score"],
        tier1_flags=tuple(row["tier1_flags"]),
    )
    if row["disposition"] == COST_CAP.state:
        cap = None if project.cap is None else usd_of(project.cap)
        return replace(result, capped=True, spent_usd=usd_of(_load_spent(store, exchange)), cap_usd=cap)
    return result if row["disposition"] else _apply_cap(result, exchange, project, _load_spent(store, exchange))


def _load_spent(store: Store, exchange: Exchange) -> int:
    """Return the nano-USD that the session has spent: from its state, or from the recorded calls if the states are with workers on Kafka."""
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


def _apply_cap(result: IngestResult, exchange: Exchange, project: ProjectPolicy, spent: int) -> IngestResult:
    """Add whether the session's cap leaves room for the cheapest first call, given the committed spending, which only grows."""
    if project.cap is None or not result.sampled:
        return result
    price, left = project.price, project.cap - spent
    # The bound decides nearly all cases, and building the question is as slow as everything else here.
    capped = (
        price is not None
        and least_case(tier2_bound(exchange, project), price) > left
        and least_case(tier2_question(exchange, project), price) > left
    )
    return replace(result, capped=capped, spent_usd=usd_of(spent), cap_usd=usd_of(project.cap))
