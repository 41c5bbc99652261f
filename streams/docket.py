"""An exchange on its way through the cascade: what is known of it, and the questions that need no call.

Each question is settled in this order: a recorded judgement; no price for the model while there is a cap; the cap; nobody to ask. A replay
goes the same way, so that a miss comes out as it did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from audit.judgements import COST_CAP, UNKNOWN_PRICE, charged, recorded_reply
from audit.ledger import Ledger
from audit.outcomes import NO_JUDGE
from audit.policy import Policy, ProjectPolicy
from audit.prices import worst_case
from audit.questions import Question, Reply
from schemas.records import Exchange, Judgement, ScoringTask
from streams.batches import encoded_exchange


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
    """What was recorded about the exchange, whatever the question, in order."""
    ledger: Ledger

    @classmethod
    def of(cls, task: ScoringTask, policy: Policy, recorded: Sequence[Judgement], ledger: Ledger) -> Docket:
        """The docket of a task; RecordError when it holds no exchange."""
        exchange = encoded_exchange(task.exchange)
        return cls(task=task, exchange=exchange, policy=policy.for_project(task.project), recorded=recorded, ledger=ledger)

    def earlier(self, question: Question) -> tuple[Judgement, ...]:
        """What was recorded of this question, for this revision of the score or one before it."""
        return tuple(
            one
            for one in self.recorded
            if one.fingerprint == question.fingerprint and one.subject_revision <= self.task.revision
        )

    def settle(self, question: Question) -> Reply | None:
        """The reply where no call is needed or allowed; None where the judge is to be asked.

        What was recorded is charged to the session: it was paid for.
        """
        earlier = self.earlier(question)
        self.ledger.charge(charged(earlier, self.task.revision))
        found = recorded_reply(earlier, self.task.revision)
        if found is not None:
            return found
        price = self.policy.price
        if self.ledger.cap is None:
            return None
        if price is None:
            return Reply(state=UNKNOWN_PRICE, judgements=earlier)
        if not self.ledger.can_reserve(worst_case(question, price)):
            return Reply(state=COST_CAP, judgements=earlier)
        return None

    def unasked(self, question: Question) -> Reply:
        """The reply where there is nobody to ask."""
        return self.settle(question) or Reply(state=NO_JUDGE, judgements=self.earlier(question))
