"""Questions on their way through a batch, and the verdicts that they come to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from audit.exchanges.questions import Invalid
from streams.judges.asking import Asking
from streams.judges.batch.calls import Patience
from streams.judges.batch.plans import Asked, Plan
from streams.judges.failures import Failure
from streams.judges.protocol import Verdict
from streams.judges.requests import Rung
from streams.judges.response_parsing import Message, is_simulated


@dataclass(slots=True, eq=False)
class Pending:
    """A question that waits for its verdict."""

    asked: Asked
    asking: Asking
    rung: Rung = Rung.STRUCTURED
    """The format that it was asked for last; not known of a question that an earlier process asked."""

    @property
    def fingerprint(self) -> str:
        """Of the question."""
        return self.asking.question.fingerprint

    def without_money(self) -> Verdict:
        """The verdict when the call budget refuses."""
        return self.asking.verdict("cost_cap", "the session's cost cap leaves no room for another call")

    def failed(self, failure: Failure) -> Verdict:
        """The verdict on a request that came to no message; charged in full unless it is known to be free."""
        self.asking.attempts += 1
        self.asking.settle(failure)
        self.asking.failed(failure.outcome, failure.words, unreadable=failure.unreadable)
        return self.asking.gives_up()

    def answered(self, message: Message) -> Verdict:
        """The verdict on a message; what it used is charged, whatever it says."""
        asking = self.asking
        asking.attempts += 1
        asking.simulated |= is_simulated({}, message.model)
        asking.settle(message)
        if (verdict := asking.unanswered(message)) is not None:
            return verdict
        answer = asking.read(message)
        return asking.gives_up() if isinstance(answer, Invalid) else asking.verdict("answered", answer=answer)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch under way, and those of its questions that are waited for, by custom id."""

    plan: Plan
    batch_id: str
    pending: dict[str, Pending]
    began: float
    """The time when this process began to wait, on the clock of `Waiting.now`."""
    patience: Patience
    taken_up: bool = False
    """True if an earlier process made it."""
    cancelled: bool = False
    """True if the API was asked to cancel it."""
    seconds: float = 0.0
    """Seconds that it took."""
    lost: str | None = None
    """The reason why its results will never come."""
    is_whole: bool = True
    """True if all of its questions are waited for: it is not needed afterwards."""


async def reserved(group: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Those of the questions for which money is set aside now, and those for which there is none. What a call budget raises is raised."""
    granted = await asyncio.gather(*(one.asking.budget.reserve() for one in group), return_exceptions=True)
    for answer in granted:
        if isinstance(answer, BaseException):
            raise answer
    funded = [one for one, answer in zip(group, granted, strict=True) if answer]
    return funded, [one for one, answer in zip(group, granted, strict=True) if not answer]
