"""An exchange on its way through the cascade: what is known of it, and the questions that need no call.

Each question is settled in this order: a recorded judgement; no price for the model while there is a cap; the cap; nobody to ask. A replay
goes the same way, so that a miss comes out as it did before.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from audit.cascade import cascade
from audit.judgements import COST_CAP, UNKNOWN_PRICE, charged, recorded_reply
from audit.ledger import Ledger
from audit.outcomes import NO_JUDGE, TierState
from audit.policy import Policy, ProjectPolicy
from audit.prices import worst_case
from audit.questions import Question, Reply
from schemas.records import Exchange, Judgement, Score, ScoringTask
from streams.batches import encoded_exchange
from streams.recorded import known_of


class ScoringState(msgspec.Struct, frozen=True, array_like=True):
    """What the scoring stage keeps of one session."""

    next_offset: int = 0
    spent: int = 0
    """Nano-USD its judge calls have cost."""


STATE = msgspec.msgpack.Decoder(ScoringState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Docket:
    """One exchange to judge, with what was recorded of it and the money its session has."""

    task: ScoringTask
    exchange: Exchange
    policy: ProjectPolicy
    recorded: Sequence[Judgement]
    """What was recorded about the exchange up to this revision, whatever the question, in order."""
    ledger: Ledger
    batched: bool = False
    """Whether its questions go through the batch API, and cost what that costs."""

    @classmethod
    def of(
        cls, task: ScoringTask, policy: Policy, recorded: Sequence[Judgement], ledger: Ledger, *, batched: bool = False
    ) -> Docket:
        """The docket of a task; RecordError when it holds no exchange, or judgements of another one.

        What was recorded for this revision is charged to the session, whatever was asked then: it was paid for.
        """
        exchange = encoded_exchange(task.exchange)
        recorded = known_of(task, recorded)
        ledger.charge(charged(recorded, task.revision))
        project = policy.for_project(task.project)
        return cls(task=task, exchange=exchange, policy=project, recorded=recorded, ledger=ledger, batched=batched)

    def judging(self) -> Generator[Question, Reply, Score]:
        """The cascade over the exchange."""
        return cascade(self.task, self.exchange, self.policy, self.recorded)

    def earlier(self, question: Question) -> tuple[Judgement, ...]:
        """What was recorded of this question."""
        return tuple(one for one in self.recorded if one.fingerprint == question.fingerprint)

    def settle(self, question: Question, earlier: Sequence[Judgement]) -> Reply | None:
        """The reply where no call is needed or allowed; None where the judge is to be asked."""
        found = recorded_reply(earlier, self.task.revision)
        if found is not None:
            return found
        state = question.fallback or self._forbidden(question)
        return Reply(state=state, judgements=tuple(earlier)) if state else None

    def unasked(self, question: Question) -> Reply:
        """The reply where there is nobody to ask."""
        earlier = self.earlier(question)
        return self.settle(question, earlier) or Reply(state=NO_JUDGE, judgements=earlier)

    def _forbidden(self, question: Question) -> TierState | None:
        """Why the cap forbids the call; None where it does not."""
        price = self.policy.price
        if self.ledger.cap is None:
            return None
        if price is None:
            return UNKNOWN_PRICE
        return None if self.ledger.can_reserve(worst_case(question, price, batched=self.batched)) else COST_CAP
