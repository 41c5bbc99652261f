"""The intake stage: Tier 1 and sampling on every exchange, one decision each.

A sampled exchange becomes a scoring task, any other gets its score at once. The newest turns stay in the session's state; when the
session closes, its last turns become tasks with the next revision, whatever sampled them before, but for its first turns. So does
an exchange that a person asked to have judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from audit.exchanges.outcomes import LEFT_OUT, RULE_VERSION, structural_score
from audit.exchanges.sampling import LAST_TURNS, Candidate, Decision, SamplingState, ask_again, close, decide, resolved
from audit.policy.policy import Policy, ProjectPolicy
from schemas.records import Exchange, JudgingRequest, Record, ScoringTask, SessionClosed
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, session_key
from streams.steps.arrivals import Arrival, Arrivals


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
        rows = list(batch.records())
        arrivals = Arrivals(rows, batch.encodings(), self._policy)
        outcome = StepOutcome()
        for offset, key, record in rows:
            session = sessions.setdefault(key, IntakeState())
            if offset < session.next_offset:
                continue
            outcome.records += self._take(session, offset, record, arrivals)
            session.next_offset = offset + 1
        for key in {key for _, key, _ in rows}:
            sessions[key].sampling = resolved(sessions[key].sampling, arrivals.encoded)
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome

    def _take(self, session: IntakeState, offset: int, record: Record, arrivals: Arrivals) -> Iterator[tuple[str, Record]]:
        if not isinstance(record, (Exchange, SessionClosed, JudgingRequest)):
            return
        policy = arrivals.policy_of(record.project)
        if not policy.settings.enabled:
            return
        if isinstance(record, Exchange):
            yield self._decide(session, arrivals.at(offset), policy)
        elif isinstance(record, SessionClosed):
            yield from self._close(session, policy, arrivals)
        else:
            asked = Decision(
                sampled=True, reason=record.sampling_reason, probability=record.sampling_probability, turn=record.turn_number
            )
            decision, revision, session.sampling = ask_again(session.sampling, record.exchange_id, asked, record.revision)
            task = _task(Arrival.earlier(record.exchange, policy), policy, decision, revision=revision)
            yield "scoring-tasks", msgspec.structs.replace(task, earlier_judgements=record.earlier_judgements)

    def _decide(self, session: IntakeState, arrival: Arrival, policy: ProjectPolicy) -> tuple[str, Record]:
        """The task or the score of one exchange."""
        exchange = arrival.exchange
        candidate = Candidate(
            session=session_key(exchange),
            exchange_id=exchange.exchange_id,
            revision=0,
            turn_number=exchange.turn_number,
            agent_response=exchange.agent_response,
            output_tokens=exchange.output_tokens,
            tier1_flags=arrival.tier1.flags,
            record=arrival.name,
            may_disagree=arrival.may_disagree,
        )
        decision, session.sampling = decide(session.sampling, candidate, policy.settings.sampling)
        if decision.sampled:
            return "scoring-tasks", _task(arrival, policy, decision, revision=0)
        task = _task(arrival, policy, decision, revision=0, encoded=b"")
        return "scores", structural_score(task, exchange, policy, LEFT_OUT)

    def _close(self, session: IntakeState, policy: ProjectPolicy, arrivals: Arrivals) -> Iterator[tuple[str, Record]]:
        """Tasks for the session's last turns."""
        parked, session.sampling = close(session.sampling, policy.settings.sampling)
        for turn in parked:
            decision = Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=turn.turn)
            arrival = arrivals.parked(turn.record, policy)
            yield "scoring-tasks", _task(arrival, policy, decision, revision=turn.revision)


def _task(
    arrival: Arrival, policy: ProjectPolicy, decision: Decision, *, revision: int, encoded: bytes | None = None
) -> ScoringTask:
    """The task for an exchange; `encoded` where another one than its encoding is to be in it."""
    exchange = arrival.exchange
    return ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=revision,
        exchange=arrival.encoded if encoded is None else encoded,
        turn_number=decision.turn,
        sampling_reason=decision.reason,
        sampling_probability=decision.probability or 0.0,
        tier1_score=arrival.tier1.score,
        tier1_flags=arrival.tier1.flags,
        methodology=policy.methodology.name,
        rule_version=RULE_VERSION,
        policy_digest=policy.digest,
    )
