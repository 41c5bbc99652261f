"""The intake stage: Tier 1 and sampling on every exchange, one decision each.

1. A sampled exchange becomes a scoring task; any other exchange gets its score at once. The newest turns stay in the session's state.
   When the session closes, its last turns become tasks with the next revision, even if they were not sampled before, except for its
   first turns. An exchange that a person asked to judge again also becomes a task. A later revision of an exchange comes with a request
   that scores it, with the turn and the sampling of the first revision. It does not count as another turn.
   The session's state also has excerpts of its newest turns, and each task has those before its exchange.
2. Tasks and states hold exchanges in encoded form: with the original bytes, if the batch has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from audit.exchanges.context import RememberedTurn, remember, replace_turn, turns_before
from audit.exchanges.outcomes import NOT_SAMPLED, RULE_VERSION, Sampled, structural_score
from audit.exchanges.sampling import (
    LAST_TURNS,
    SAMPLING_SKIP,
    Candidate,
    Decision,
    SamplingState,
    close,
    decide,
    decide_again,
    drop_deferred,
    replace_deferred,
)
from audit.exchanges.tier1 import Tier1Result, check_structure
from audit.injection import tamper_reasons
from audit.policy import Policy, ProjectPolicy
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest, Record, Score, ScoringTask, SessionClosed
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, decode_exchange, session_key_of


class Arrival(NamedTuple):
    """An exchange, its encoding, and the results of its structural checks."""

    exchange: Exchange
    encoded: bytes
    tier1: Tier1Result

    @classmethod
    def of(cls, exchange: Exchange, encoded: bytes, policy: ProjectPolicy) -> Arrival:
        """Check an exchange, and return it with the results."""
        tier1 = check_structure(exchange.user_message, exchange.agent_response, policy.methodology)
        return cls(exchange, encoded, tier1)


class IntakeState(msgspec.Struct, array_like=True):
    """The state of one session in the stage."""

    sampling: SamplingState = SamplingState()
    next_offset: int = 0
    turns: tuple[RememberedTurn, ...] = ()


class IntakeStep:
    """The stage's step; see `streams.stage_batches.Step`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode = msgspec.msgpack.Decoder(IntakeState)

    def __call__(self, batch: StageBatch | RecordBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Decide on the batch's exchanges and on the last turns of the sessions that close in it."""
        sessions = {key: self._decode.decode(state) for key, state in states.items()}
        encodings = batch.encodings()
        outcome = StepOutcome()
        for offset, key, record in batch.records():
            session = sessions.setdefault(key, IntakeState())
            if offset < session.next_offset:
                continue
            outcome.records += self._process(session, record, encodings.get(offset))
            session.next_offset = offset + 1
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome

    def _process(self, session: IntakeState, record: Record, encoded: bytes | None) -> Iterator[tuple[str, Record]]:
        if not isinstance(record, (Exchange, SessionClosed, JudgingRequest)):
            return
        policy = self._policy.for_project(record.project)
        if not policy.settings.enabled:
            return
        if isinstance(record, SessionClosed):
            yield from self._close(session, policy)
        elif isinstance(record, JudgingRequest):
            yield self._score_again(session, record, policy)
        elif record.withdrawn:
            session.sampling = drop_deferred(session.sampling, record.exchange_id)
            session.turns = tuple(turn for turn in session.turns if turn.exchange_id != record.exchange_id)
        elif record.revision:
            # The request that follows scores it, by the decision on the first revision.
            session.sampling = replace_deferred(session.sampling, record.exchange_id, encoded or encode(record))
            session.turns = replace_turn(session.turns, record, policy.settings.context)
        else:
            yield self._decide(session, Arrival.of(record, encoded or encode(record), policy), policy)

    def _decide(self, session: IntakeState, arrival: Arrival, policy: ProjectPolicy) -> tuple[str, Record]:
        """Return the task or the score of one exchange."""
        exchange = arrival.exchange
        session_key = session_key_of(exchange)
        tampering = tamper_reasons(exchange)
        candidate = Candidate.of(
            exchange,
            session=session_key,
            tier1_flags=arrival.tier1.flags,
            is_tampering=bool(tampering),
            record=arrival.encoded,
        )
        sampling, context = policy.settings.sampling, policy.settings.context
        decision, session.sampling = decide(session.sampling, candidate, sampling)
        # When the session closes, its last turns are judged, each with the turns before it.
        kept = sampling.always_score_last + context.turns + 1
        session.turns = remember(session.turns, exchange, decision.turn, kept=kept, settings=context)
        if decision.sampled:
            return "scoring-tasks", _scoring_task(arrival, policy, decision, session, revision=0)
        return "scores", _unsampled_score(arrival, policy, decision, tampering, revision=0)

    def _score_again(self, session: IntakeState, request: JudgingRequest, policy: ProjectPolicy) -> tuple[str, Record]:
        """Return the task or the score of an exchange that is scored again, by the first decision."""
        requested = Decision(
            sampled=request.sampling_reason != SAMPLING_SKIP,
            reason=request.sampling_reason,
            probability=request.sampling_probability,
            turn=request.turn_number,
        )
        decision, revision, session.sampling = decide_again(session.sampling, request.exchange_id, requested, request.revision)
        arrival = Arrival.of(decode_exchange(request.exchange), request.exchange, policy)
        if decision.sampled:
            task = _scoring_task(arrival, policy, decision, session, revision=revision)
            turns = request.earlier_turns or task.earlier_turns
            return "scoring-tasks", msgspec.structs.replace(
                task, earlier_judgements=request.earlier_judgements, earlier_turns=turns
            )
        return "scores", _unsampled_score(arrival, policy, decision, tamper_reasons(arrival.exchange), revision=revision)

    def _close(self, session: IntakeState, policy: ProjectPolicy) -> Iterator[tuple[str, Record]]:
        """Yield tasks for the session's last turns."""
        deferred, session.sampling = close(session.sampling, policy.settings.sampling)
        for turn in deferred:
            decision = Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=turn.turn)
            arrival = Arrival.of(decode_exchange(turn.record), turn.record, policy)
            yield "scoring-tasks", _scoring_task(arrival, policy, decision, session, revision=turn.revision)
        session.turns = session.turns[max(0, len(session.turns) - policy.settings.context.turns) :]


def _unsampled_score(
    arrival: Arrival, policy: ProjectPolicy, decision: Decision, tampering: tuple[str, ...], *, revision: int
) -> Score:
    """Return the score of an unsampled exchange."""
    sampled = Sampled(revision, decision.turn, decision.reason, None, arrival.tier1.score, arrival.tier1.flags)
    return structural_score(sampled, arrival.exchange, policy, NOT_SAMPLED, tampering=tampering)


def _scoring_task(
    arrival: Arrival, policy: ProjectPolicy, decision: Decision, session: IntakeState, *, revision: int
) -> ScoringTask:
    """Return the task for an exchange, with the turns before it that the session's state has."""
    exchange = arrival.exchange
    return ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=revision,
        exchange=arrival.encoded,
        turn_number=decision.turn,
        sampling_reason=decision.reason,
        sampling_probability=decision.probability or 0.0,
        tier1_score=arrival.tier1.score,
        tier1_flags=arrival.tier1.flags,
        methodology=policy.methodology.name,
        rule_version=RULE_VERSION,
        policy_digest=policy.digest,
        earlier_turns=turns_before(session.turns, exchange.exchange_id, policy.settings.context.turns),
    )
