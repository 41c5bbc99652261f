"""The intake stage: Tier 1 and sampling on every exchange, one decision each.

A sampled exchange becomes a scoring task, any other gets its score at once. The newest turns stay in the session's state; when the
session closes, its last turns become tasks with the next revision, whatever sampled them before, but for its first turns. So does
an exchange that somebody asked to have judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from audit.exchanges.outcomes import LEFT_OUT, RULE_VERSION, structural_score
from audit.exchanges.sampling import LAST_TURNS, Candidate, Decision, SamplingState, ask_again, close, decide
from audit.exchanges.tier1 import Tier1Result, check_structure
from audit.policy.policy import Policy, ProjectPolicy
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest, Record, ScoringTask, SessionClosed
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, encoded_exchange, session_key


class IntakeState(msgspec.Struct, array_like=True):
    """The state of one session in the stage."""

    sampling: SamplingState = SamplingState()
    next_offset: int = 0


class IntakeStep:
    """The stage's step; see `streams.stage_batches.Step`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode = msgspec.msgpack.Decoder(IntakeState)

    def __call__(self, batch: StageBatch | RecordBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Decide on the batch's exchanges and on the last turns of the sessions that close in it."""
        sessions = {key: self._decode.decode(state) for key, state in states.items()}
        outcome = StepOutcome()
        for offset, key, record in batch.records():
            session = sessions.setdefault(key, IntakeState())
            if offset < session.next_offset:
                continue
            outcome.records += self._take(session, record)
            session.next_offset = offset + 1
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome

    def _take(self, session: IntakeState, record: Record) -> Iterator[tuple[str, Record]]:
        if not isinstance(record, (Exchange, SessionClosed, JudgingRequest)):
            return
        policy = self._policy.for_project(record.project)
        if not policy.settings.enabled:
            return
        if isinstance(record, Exchange):
            yield self._decide(session, record, policy)
        elif isinstance(record, SessionClosed):
            yield from self._close(session, policy)
        else:
            asked = Decision(
                sampled=True, reason=record.sampling_reason, probability=record.sampling_probability, turn=record.turn_number
            )
            decision, revision, session.sampling = ask_again(session.sampling, record.exchange_id, asked, record.revision)
            _, task = _later_task(record.exchange, policy, decision, revision=revision)
            yield "scoring-tasks", msgspec.structs.replace(task, earlier_judgements=record.earlier_judgements)

    def _decide(self, session: IntakeState, exchange: Exchange, policy: ProjectPolicy) -> tuple[str, Record]:
        """The task or the score of one exchange."""
        tier1 = check_structure(exchange.user_message, exchange.agent_response, policy.methodology)
        candidate = Candidate(
            session=session_key(exchange),
            exchange_id=exchange.exchange_id,
            revision=0,
            turn_number=exchange.turn_number,
            agent_response=exchange.agent_response,
            output_tokens=exchange.output_tokens,
            tier1_flags=tier1.flags,
            record=encode(exchange),
        )
        decision, session.sampling = decide(session.sampling, candidate, policy.settings.sampling)
        task = _task(exchange, candidate.record, policy, decision, tier1, revision=0)
        return ("scoring-tasks", task) if decision.sampled else ("scores", structural_score(task, exchange, policy, LEFT_OUT))

    def _close(self, session: IntakeState, policy: ProjectPolicy) -> Iterator[tuple[str, Record]]:
        """Tasks for the session's last turns."""
        parked, session.sampling = close(session.sampling, policy.settings.sampling)
        for turn in parked:
            decision = Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=turn.turn)
            yield _later_task(turn.record, policy, decision, revision=turn.revision)


def _later_task(encoded: bytes, policy: ProjectPolicy, decision: Decision, *, revision: int) -> tuple[str, ScoringTask]:
    """The task for an exchange that came earlier."""
    exchange = encoded_exchange(encoded)
    tier1 = check_structure(exchange.user_message, exchange.agent_response, policy.methodology)
    return "scoring-tasks", _task(exchange, encoded, policy, decision, tier1, revision=revision)


def _task(
    exchange: Exchange, encoded: bytes, policy: ProjectPolicy, decision: Decision, tier1: Tier1Result, *, revision: int
) -> ScoringTask:
    return ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=revision,
        exchange=encoded,
        turn_number=decision.turn,
        sampling_reason=decision.reason,
        sampling_probability=decision.probability or 0.0,
        tier1_score=tier1.score,
        tier1_flags=tier1.flags,
        methodology=policy.methodology.name,
        rule_version=RULE_VERSION,
        policy_digest=policy.digest,
    )
