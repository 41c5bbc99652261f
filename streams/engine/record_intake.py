"""Record intake: accepting senders' records, durable on return. They are audited in this process or by workers on Kafka.

The answers to senders (`IngestResult`), the ending of sessions and rejudging are the same in both cases. Subclasses decide where records
become durable and when the tables show them.
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

from analytics.deletion.text_keys import ForgetTexts
from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import min_budget, usd_of
from audit.exchanges.outcomes import score_id
from audit.exchanges.prompts import tier2_bound, tier2_question
from audit.exchanges.questions import COST_CAP
from audit.exchanges.tier1 import check_structure
from audit.injection import injection_reasons, tamper_reasons
from audit.policy import Policy, ProjectPolicy
from audit.redaction import Redactor
from audit.spending import SHARED_CAPS
from schemas.codec.single_object import decode
from schemas.errors import DriftlineError, RecordError
from schemas.records import EarlierTurn, Exchange, Record, Score
from streams.judging.judged_stages import SCORING, STATE
from streams.judging.judging_partition import JudgeCalls
from streams.judging.rejudging import REQUEST_BATCH_SIZE, build_requests, list_unscored, unaudited_projects
from streams.log.admission import EncodedRecords, encode_each, encode_validated
from streams.log.log import CONFLICT, KNOWN, WRITTEN, CommitResult, Submission
from streams.stage_batches import session_key_of
from streams.upkeep.closing import SessionEnds, idle_closings


@dataclass(frozen=True)
class EngineLimits:
    """The engine's limits, and the interval between checks for idle sessions."""

    max_waiting: int = 2_000
    """Submissions that may wait for a commit; further records are refused."""
    max_group_size: int = 256
    """Submissions in one commit."""
    flush_seconds: float = 0.5
    """Seconds that a record may be in the log alone if nobody asks for it."""
    idle_check_seconds: float = 60.0
    """Seconds between two checks for idle sessions."""


@dataclass(frozen=True)
class PublishResult:
    """The numbers of records that were written and already known, and the indexes of records in conflict."""

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
    not_ready_reason: str
    queues: Mapping[str, int]
    """Queue lengths: `commits` (submissions), `tasks` (exchanges to score), `evaluations` (requests), `sessions` (with tasks or
    evaluations in progress); with Kafka `sink` (records that are not in the tables yet), `unlanded` (the part of these that this process
    accepted), `producing` (calls that wait for the broker)."""
    judge_calls: Mapping[str, int]
    """Questions asked since the start, by outcome."""
    spent_usd: float
    """The cost of these questions, without those whose price is unknown."""
    erased: Mapping[str, int]
    """Records of erased sessions that were read from topics since the start, and skipped, by topic."""


_IDLE_CHECK_PAUSE_FACTOR = 20
"""The shortest pause between two checks for idle sessions, as a multiple of the last check's duration, which grows with the records."""
QUEUED = "queued"
"""The sampling reason of an exchange that is not decided yet."""


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
    """Whether the rules found an anomaly. The judge may find more later."""
    capped: bool = False
    """Whether the rest of the session's cap is too small for judging it."""
    spent_usd: float = 0.0
    cap_usd: float | None = None
    """The session's cap; None means no cap."""


log = logging.getLogger(__name__)


class RecordIntake(ABC):
    """See the module. After BusyError or BrokerError nothing was acknowledged, and the sender may try again.

    Belongs to one event loop. `judge_name` is the judge's display name.
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
        self._ends = SessionEnds(store, now, self._publish_closings)

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
        """Make a stage's records durable with its states and positions; known records are skipped, as if they came from a sender.

        In one process the commit is atomic. On Kafka the records go to their topics first, then states and positions to the tables;
        after an interruption in between, the stage makes the same records again.
        """

    @abstractmethod
    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """Return the position up to which the tables have a topic, by partition."""

    @property
    @abstractmethod
    def forget_texts(self) -> ForgetTexts | None:
        """What makes texts on the topics unreadable; None if the topics are not encrypted, or there are none."""

    @abstractmethod
    def failure(self) -> DriftlineError:
        """Return the error that broke the intake, with a hint."""

    async def ingest_exchange(self, exchange: Exchange) -> IngestResult:
        """Accept an exchange. Raises RecordError if it breaks its contract."""
        committed = await self._commit_records("exchanges", [exchange], [encode_validated(exchange)])
        (result,) = await self._build_results([exchange], committed)
        return result

    async def ingest_exchanges(self, exchanges: Sequence[Exchange]) -> list[IngestResult | RecordError]:
        """Accept exchanges together, durable on return. Return the result of each, or the error if it breaks its contract."""
        encoded = await asyncio.to_thread(encode_each, exchanges)
        records: list[Exchange] = []
        messages: list[bytes] = []
        for exchange, message in zip(exchanges, encoded, strict=True):
            if isinstance(message, bytes):
                records.append(exchange)
                messages.append(message)
        committed = await self._commit_records("exchanges", records, messages)
        results = iter(await self._build_results(records, committed))
        return [message if isinstance(message, RecordError) else next(results) for message in encoded]

    async def publish(self, topic: str, records: Sequence[Record]) -> PublishResult:
        """Accept records from outside. Known records are skipped, so sending twice changes nothing. Raises the first RecordError."""
        messages = list[bytes]()
        for message in await asyncio.to_thread(encode_each, records):
            if isinstance(message, RecordError):
                raise message
            messages.append(message)
        return await self.publish_admitted(topic, records, messages)

    async def publish_admitted(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> PublishResult:
        """Like `publish`, for records that `streams.log.admission.encode_validated` has already encoded."""
        committed = await self._commit_records(topic, records, messages)
        return PublishResult.of(committed.outcomes[topic])

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended, once the tables have its last records; False if the session has no records."""
        await self._flush_session(connection, session_id)
        return await self._ends.end(connection, session_id)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Request that unscored exchanges are judged again; returns their number."""
        await self.flush()
        excluded = unaudited_projects(self.policy)
        rows = await asyncio.to_thread(list_unscored, self.store, project, reason, limit, without=excluded)
        written = 0
        for start in range(0, len(rows), REQUEST_BATCH_SIZE):
            # A score can reach the tables before its judgements, and a missing judgement would be paid for again.
            await self.wait_for_tables("judgements")
            requests = await asyncio.to_thread(build_requests, self.store, rows[start : start + REQUEST_BATCH_SIZE], self.now())
            written += (await self.publish("exchanges", requests)).written
        return written

    @abstractmethod
    def pending_events(self, connection: str, session_id: str) -> Mapping[str, int]:
        """Return the position of each event of a session that is not in the tables yet, by event id."""

    def state(self) -> EngineState:
        """Return the present health and queues."""
        not_ready_reason = self._not_ready_reason()
        return EngineState(
            not not_ready_reason,
            not_ready_reason,
            self._queues(),
            self._calls.outcomes,
            self._calls.spent_usd,
            self._erased(),
        )

    @abstractmethod
    async def _commit_records(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> CommitResult:
        """Make the new records durable; the messages are the encoded records."""

    @abstractmethod
    async def _flush_session(self, connection: str, session_id: str) -> None:
        """Return when the store shows all accepted records of a session."""

    @abstractmethod
    async def _refresh_store(self) -> bool:
        """Return whether the store shows everything that was accepted before, so that idle sessions can be identified."""

    @abstractmethod
    def _not_ready_reason(self) -> str:
        """Return the reason why no records are accepted; empty if they are."""

    @abstractmethod
    def _erased(self) -> Mapping[str, int]:
        """Return the numbers of skipped records; see `EngineState.erased`."""

    @abstractmethod
    def _queues(self) -> Mapping[str, int]:
        """See `EngineState.queues`."""

    async def _build_results(self, exchanges: Sequence[Exchange], committed: CommitResult) -> list[IngestResult]:
        """Return the results of exchanges that were committed together."""
        if KNOWN in committed.outcomes["exchanges"]:
            # The decision on a known exchange may have to be read from the tables.
            return await asyncio.to_thread(_build_ingest_results, exchanges, committed, self.policy, self.store)
        return _build_ingest_results(exchanges, committed, self.policy, self.store)

    async def _publish_closings(self, closings: EncodedRecords) -> None:
        """Publish the records that end sessions."""
        for topic, messages in closings.messages.items():
            await self.publish(topic, [decode(message) for message in messages])

    async def _close_idle_sessions(self) -> None:
        """Periodically record the end of sessions that had no records for longer than the session gap."""
        loop = asyncio.get_running_loop()
        pause = self._limits.idle_check_seconds
        while True:
            await asyncio.sleep(pause)
            started = loop.time()
            try:
                if not await self._refresh_store():
                    continue
                batches = await asyncio.to_thread(list, idle_closings(self.store, self.policy, self.now()))
                pause = max(self._limits.idle_check_seconds, _IDLE_CHECK_PAUSE_FACTOR * (loop.time() - started))
                for closings in batches:
                    await self._publish_closings(closings)
            except Exception:
                log.exception("idle sessions could not be closed; trying again in %.0f s", pause)


def _build_ingest_results(
    exchanges: Sequence[Exchange], committed: CommitResult, policy: Policy, store: Store
) -> list[IngestResult]:
    """Return the results of exchanges that were committed together."""
    outcomes = committed.outcomes["exchanges"]
    return [
        _build_ingest_result(exchange, outcome, committed, policy, store)
        for exchange, outcome in zip(exchanges, outcomes, strict=True)
    ]


def _build_ingest_result(
    exchange: Exchange, outcome: str, committed: CommitResult, policy: Policy, store: Store
) -> IngestResult:
    """Return the result of an exchange, from the decision in this commit or an earlier one."""
    project = policy.for_project(exchange.project)
    # A repetition can be in the same commit as the first delivery, which the tables may not have yet.
    decision = None if outcome == CONFLICT else committed.decisions.get((exchange.connection, exchange.exchange_id))
    if isinstance(decision, Score):
        return _build_unsampled_result(decision, outcome)
    result = _build_undecided_result(exchange, outcome, project)
    if decision is None:
        return _restore_first_result(result, exchange, project, store) if outcome == KNOWN else result
    result = replace(
        result,
        sampled=True,
        reason=decision.sampling_reason,
        tier1_score=decision.tier1_score,
        tier1_flags=decision.tier1_flags,
    )
    return _apply_cap(result, exchange, project, committed.spent.get(session_key_of(exchange), 0), decision.earlier_turns)


def _build_unsampled_result(score: Score, outcome: str) -> IngestResult:
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


def _build_undecided_result(exchange: Exchange, outcome: str, project: ProjectPolicy) -> IngestResult:
    """Return the result of an exchange that is checked by the rules of Tier 1 but not decided yet."""
    tier1 = check_structure(exchange.user_message, exchange.agent_response, project.methodology)
    return IngestResult(
        outcome=outcome,
        score_id=score_id(exchange.connection, exchange.exchange_id),
        sampled=False,
        reason=QUEUED,
        tier1_score=tier1.score,
        tier1_flags=tier1.flags,
        anomaly=bool(tier1.flags or tamper_reasons(exchange) or injection_reasons(exchange)),
    )


def _restore_first_result(result: IngestResult, exchange: Exchange, project: ProjectPolicy, store: Store) -> IngestResult:
    """Return the result of the first delivery of the exchange; `result` if nothing is decided yet."""
    subject = {"connection": exchange.connection, "exchange_id": exchange.exchange_id}
    rows = query_rows(store.cursor(), "ingest_outcome", {"exchanges": [subject]})
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
    if row["cap"] in SHARED_CAPS:
        return replace(result, capped=True, reason=row["cap"])
    if row["disposition"] == COST_CAP.state:
        cap = None if project.cap is None else usd_of(project.cap)
        return replace(result, capped=True, spent_usd=usd_of(_load_spent(store, exchange)), cap_usd=cap)
    return result if row["disposition"] else _apply_cap(result, exchange, project, _load_spent(store, exchange))


def _load_spent(store: Store, exchange: Exchange) -> int:
    """Return the nano-USD that the session has spent: from its state, or from the recorded calls if workers on Kafka keep the state."""
    key = session_key_of(exchange)
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


def _apply_cap(
    result: IngestResult, exchange: Exchange, project: ProjectPolicy, spent: int, earlier_turns: Sequence[EarlierTurn] = ()
) -> IngestResult:
    """Add the session's cap, and whether the rest of it is too small for the cheapest first call. `spent` only grows."""
    if project.cap is None or not result.sampled:
        return result
    price = project.price
    remaining = project.cap - spent
    # Check the cheap bound first: it decides nearly all cases, and building the question takes as long as the rest of this result.
    capped = (
        price is not None
        and min_budget(tier2_bound(exchange, project), price) > remaining
        and min_budget(tier2_question(exchange, project, earlier_turns), price) > remaining
    )
    return replace(result, capped=capped, spent_usd=usd_of(spent), cap_usd=usd_of(project.cap))
