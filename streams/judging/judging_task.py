"""A task on its way to its judgement: what is known of its subject, and the questions that need no call.

Each question is settled in this order: a recorded judgement; an answer that was taken over; no price for the model while there is a cap; the
cap; nobody to ask. A replay goes the same way, so that a miss comes out as it did before. A judge that can be asked tries as long as the cap leaves room for the
least that a call takes, and what comes of that is recorded; where there is nobody, the cap must leave room for a token for each byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from audit.cost.prices import ModelPrice, least_case, worst_case
from audit.cost.session_ledger import Ledger
from audit.exchanges.judgements import COST_CAP, UNKNOWN_PRICE, recorded_reply
from audit.exchanges.outcomes import NO_JUDGE, TierState
from audit.exchanges.questions import Question, Reply
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.records import Judgement

Judging = Generator[Question, Reply, Any]
"""Yields questions, takes a reply to each, and returns the record that comes of them."""


class KeptCalls(msgspec.Struct, frozen=True, array_like=True):
    """What was recorded of a turn that may be judged again as one of its session's last."""

    turn: int
    subject_id: str
    judgements: tuple[bytes, ...]
    """Encoded."""


class JudgedState(msgspec.Struct, frozen=True, array_like=True):
    """What a stage that asks a judge keeps of one session."""

    next_offset: int = 0
    spent: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Nano-USD its judge calls have cost, where one cap holds for all of them."""
    kept: tuple[KeptCalls, ...] = ()
    """What was recorded of its newest turns that may be judged again when it closes, ascending; only where no store can tell."""

    def recorded_of(self, subject_id: str) -> list[Judgement]:
        """What is kept of a subject. What cannot be read counts for nothing: at worst a question is asked again."""
        found: list[Judgement] = []
        for message in (message for one in self.kept if one.subject_id == subject_id for message in one.judgements):
            with contextlib.suppress(RecordError):
                record = decode(message)
                found += [record] if isinstance(record, Judgement) else []
        return found


STATE = msgspec.msgpack.Decoder(JudgedState)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingTask:
    """One subject to judge, with what was recorded of it and the money that there is for it."""

    connection: str
    project: str
    session_id: str
    subject_id: str
    """Id of the exchange or of the evaluation, unique within the connection."""
    revision: int
    """Revision of what comes of it."""
    price: ModelPrice | None
    """What the judge's model costs; None is unknown."""
    ledger: Ledger
    recorded: Sequence[Judgement]
    """What was recorded about the subject up to this revision, whatever the question, in order."""
    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, told what was recorded."""
    batched: bool = False
    """Whether its questions go through the batch API, and cost what that costs."""
    taken_over: Sequence[Judgement] = ()
    """Answers that were given about something else, which the subject may rest on, too: they were paid for there."""
    unasked_state: TierState | None = None
    """What a question is whose answer was not recorded, where nobody is asked; None: the judge may be asked."""
    asked: list[Judgement] = field(default_factory=list)
    """What came of the questions that were asked, in order."""

    def judging(self) -> Judging:
        """The questions about the subject, one by one, and what comes of the replies."""
        return self.begin(self.recorded)

    def earlier(self, question: Question) -> tuple[Judgement, ...]:
        """What was recorded of this question."""
        return tuple(one for one in self.recorded if one.fingerprint == question.fingerprint)

    def settle(self, question: Question, earlier: Sequence[Judgement]) -> Reply | None:
        """The reply where no call is needed or worth trying; None where the judge is to be asked.

        What a call takes at most is found out on the way to it, and a call that the cap forbids then is recorded.
        """
        is_tried = not self.batched and self.unasked_state is None
        return self._settle(question, earlier, is_tried=is_tried)

    def unasked(self, question: Question) -> Reply:
        """The reply where there is nobody to ask."""
        earlier = self.earlier(question)
        return self._settle(question, earlier, is_tried=False) or Reply(state=NO_JUDGE, judgements=earlier)

    def _settle(self, question: Question, earlier: Sequence[Judgement], *, is_tried: bool) -> Reply | None:
        found = recorded_reply(earlier, self.revision) or self._taken_over(question, earlier)
        if found is not None:
            return found
        state = question.fallback or self._forbidden(question, is_tried=is_tried) or self.unasked_state
        return Reply(state=state, judgements=tuple(earlier)) if state else None

    def _taken_over(self, question: Question, earlier: Sequence[Judgement]) -> Reply | None:
        found = next((one for one in self.taken_over if one.fingerprint == question.fingerprint), None)
        return None if found is None else Reply(text=found.answer or "", judgements=(*earlier, found))

    def _forbidden(self, question: Question, *, is_tried: bool) -> TierState | None:
        """Why the cap forbids the call; None where it does not."""
        if self.ledger.cap is None:
            return None
        if self.price is None:
            return UNKNOWN_PRICE
        least = least_case(question, self.price) if is_tried else worst_case(question, self.price, batched=self.batched)
        return None if self.ledger.can_reserve(least) else COST_CAP
