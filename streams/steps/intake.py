"""The intake stage: Tier 1 and sampling on every exchange, one decision each.

1. A sampled exchange becomes a scoring task, any other gets its score at once. The newest turns stay in the session's state; when the
   session closes, its last turns become tasks with the next revision, whatever sampled them before, but for its first turns. So does
   an exchange that a person asked to have judged again. A further revision of an exchange is scored by the request that comes with it,
   under the turn and the sampling of the first; it counts as no turn of its own.
2. Tier 1, disagreement and tampering begin with one first look over the batch's texts (`audit.exchanges.unremarkable`), then with one
   each over what that leaves; a rule looks at single exchanges only where these say so.
3. Tasks and states carry exchanges in their encoding: the one that the batch was delivered with, if it has any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from audit.exchanges.outcomes import LEFT_OUT, RULE_VERSION, Sampled, structural_score
from audit.exchanges.sampling import (
    LAST_TURNS,
    SAMPLING_SKIP,
    Candidate,
    Decision,
    SamplingState,
    ask_again,
    close,
    decide,
    may_disagree,
    revised,
    without,
)
from audit.exchanges.tier1 import Tier1Result, check_structure, check_structures, clean_result
from audit.exchanges.unremarkable import remarkable
from audit.injection.detection import may_tamper
from audit.policy.policy import Policy, ProjectPolicy
from schemas.codec.single_object import encode
from schemas.records import Exchange, JudgingRequest, Record, Score, ScoringTask, SessionClosed
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, encoded_exchange, session_key


class Arrival(NamedTuple):
    """An exchange, with what the rules over its batch say of it."""

    exchange: Exchange
    encoded: bytes
    tier1: Tier1Result
    may_disagree: bool = True
    tampering: tuple[str, ...] | None = None
    """The answer of `tamper_reasons`, where that is known."""

    @classmethod
    def earlier(cls, encoded: bytes, policy: ProjectPolicy) -> Arrival:
        """An exchange that came before, from its encoding."""
        exchange = encoded_exchange(encoded)
        tier1 = check_structure(exchange.user_message, exchange.agent_response, policy.methodology)
        return cls(exchange, encoded, tier1)


class Arrivals:
    """The exchanges of a batch, and the policies of its projects."""

    def __init__(self, rows: Iterable[tuple[int, str, Record]], encodings: Mapping[int, bytes], policy: Policy) -> None:
        """`rows` are offset, session and record; `encodings` what `StageBatch.encodings` gives."""
        self._policy = policy
        self._policies: dict[str, ProjectPolicy] = {}
        exchanges = {offset: record for offset, _, record in rows if isinstance(record, Exchange)}
        listed = list(exchanges.values())
        noted = remarkable(listed)
        disagreeing = {noted[row] for row in may_disagree([listed[place].agent_response for place in noted])}
        suspects = {noted[row] for row in may_tamper([listed[place] for place in noted])}
        tier1 = self._tier1(exchanges, set(noted))
        self._by_offset = {
            offset: Arrival(
                exchange,
                encodings.get(offset) or encode(exchange),
                tier1[offset],
                may_disagree=place in disagreeing,
                tampering=None if place in suspects else (),
            )
            for place, (offset, exchange) in enumerate(exchanges.items())
        }

    def policy_of(self, project: str) -> ProjectPolicy:
        """The policy in force for a project."""
        found = self._policies.get(project)
        if found is None:
            found = self._policies[project] = self._policy.for_project(project)
        return found

    def at(self, offset: int) -> Arrival:
        """The exchange at an offset of the batch."""
        return self._by_offset[offset]

    def _tier1(self, exchanges: Mapping[int, Exchange], noted: Container[int]) -> dict[int, Tier1Result]:
        """The results of Tier 1 by offset, for the exchanges of each methodology at once.

        `noted` are the places of those in which a structural check may find something.
        """
        found: dict[int, Tier1Result] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        clean: dict[int, Tier1Result] = {}
        for place, (offset, exchange) in enumerate(exchanges.items()):
            methodology = self.policy_of(exchange.project).methodology
            known = id(methodology)
            if methodology.tier1 or place in noted:
                groups[known].append(offset)
            else:
                found[offset] = clean.get(known) or clean.setdefault(known, clean_result(methodology))
        for offsets in groups.values():
            texts = [(exchanges[offset].user_message, exchanges[offset].agent_response) for offset in offsets]
            methodology = self.policy_of(exchanges[offsets[0]].project).methodology
            found |= zip(offsets, check_structures(texts, methodology), strict=True)
        return found


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
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome

    def _take(self, session: IntakeState, offset: int, record: Record, arrivals: Arrivals) -> Iterator[tuple[str, Record]]:
        if not isinstance(record, (Exchange, SessionClosed, JudgingRequest)):
            return
        policy = arrivals.policy_of(record.project)
        if not policy.settings.enabled:
            return
        if isinstance(record, SessionClosed):
            yield from self._close(session, policy)
        elif isinstance(record, JudgingRequest):
            yield self._ask_again(session, record, policy)
        elif record.withdrawn:
            session.sampling = without(session.sampling, record.exchange_id)
        elif record.revision:
            # A request to score it came with it: that says what was decided on the first revision.
            session.sampling = revised(session.sampling, record.exchange_id, arrivals.at(offset).encoded)
        else:
            yield self._decide(session, arrivals.at(offset), policy)

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
            record=arrival.encoded,
            may_disagree=arrival.may_disagree,
        )
        decision, session.sampling = decide(session.sampling, candidate, policy.settings.sampling)
        if decision.sampled:
            return "scoring-tasks", _task(arrival, policy, decision, revision=0)
        return "scores", _left_out(arrival, policy, decision, revision=0)

    def _ask_again(self, session: IntakeState, request: JudgingRequest, policy: ProjectPolicy) -> tuple[str, Record]:
        """The task or the score of an exchange that is scored again, as it was decided on first."""
        asked = Decision(
            sampled=request.sampling_reason != SAMPLING_SKIP,
            reason=request.sampling_reason,
            probability=request.sampling_probability,
            turn=request.turn_number,
        )
        decision, revision, session.sampling = ask_again(session.sampling, request.exchange_id, asked, request.revision)
        arrival = Arrival.earlier(request.exchange, policy)
        if decision.sampled:
            task = _task(arrival, policy, decision, revision=revision)
            return "scoring-tasks", msgspec.structs.replace(task, earlier_judgements=request.earlier_judgements)
        return "scores", _left_out(arrival, policy, decision, revision=revision)

    def _close(self, session: IntakeState, policy: ProjectPolicy) -> Iterator[tuple[str, Record]]:
        """Tasks for the session's last turns."""
        parked, session.sampling = close(session.sampling, policy.settings.sampling)
        for turn in parked:
            decision = Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=turn.turn)
            yield "scoring-tasks", _task(Arrival.earlier(turn.record, policy), policy, decision, revision=turn.revision)


def _left_out(arrival: Arrival, policy: ProjectPolicy, decision: Decision, *, revision: int) -> Score:
    """The score of an exchange that is not sampled."""
    sampled = Sampled(revision, decision.turn, decision.reason, None, arrival.tier1.score, arrival.tier1.flags)
    return structural_score(sampled, arrival.exchange, policy, LEFT_OUT, arrival.tampering)


def _task(arrival: Arrival, policy: ProjectPolicy, decision: Decision, *, revision: int) -> ScoringTask:
    """The task for an exchange."""
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
    )
