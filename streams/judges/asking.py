"""One question on its way to a judge: what has come of it so far, and the verdict that it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from audit.cost.prices import PromptBound, Usage, believable
from audit.exchanges.questions import Invalid, Question
from audit.prompts.answer_json import answer_in
from streams.judges.failures import PROVIDER_ERROR, Failure, one_line
from streams.judges.protocol import CallBudget, Verdict
from streams.judges.response_parsing import Message

MAX_ANSWER = 64 * 1024
"""Characters of an answer that are kept; a longer one cannot be used."""
INVALID = "invalid"
_ENDINGS = {
    "refusal": ("refused", "the judge refused to answer"),
    "max_tokens": ("cut_off", "the answer was cut off at max_tokens"),
    "model_context_window_exceeded": ("cut_off", "the answer was cut off at the end of the context window"),
}
"""Stop reasons that are failures of the judge: outcome and words."""


@dataclass(slots=True)
class Asking:
    """One question being asked, and what came of it so far."""

    question: Question
    budget: CallBudget
    ends_at: float
    """The deadline, on the clock of `Waiting.now`."""
    attempts: int = 0
    """Calls that were made."""
    errors: list[str] = field(default_factory=list)
    """The error of each call that did not count."""
    trouble: str = PROVIDER_ERROR
    """Outcome if the last error stays the last word."""
    is_unreadable: bool = False
    """True if the last error is an answer that cannot be read."""
    usages: list[Usage] = field(default_factory=list)
    """The tokens of each call, as far as they are known."""
    seconds: float = 0.0
    """Wall time of the calls."""
    simulated: bool = False
    """True if a simulated judge answered any of them."""
    last: Message | None = None
    """The last message that came."""
    bound: PromptBound | None = None
    """The assumed upper bound of the last call's prompt; None: a token for each byte."""

    def failed(self, outcome: str, words: str, *, unreadable: bool = False) -> None:
        """A call did not count."""
        self.trouble = outcome
        self.is_unreadable = unreadable or outcome == INVALID
        self.errors.append(words)

    def is_beyond_bound(self, came: Message) -> bool:
        """Tell whether the last call's prompt exceeded its assumed bound, as far as that can be true."""
        used = came.usage
        return (
            self.bound is not None
            and used is not None
            and believable(used, self.question)
            and used.prompt_tokens > self.bound.tokens
        )

    def settle(self, came: Message | Failure) -> None:
        """Pay for a call; an error that the API answered instead of running it costs nothing."""
        if isinstance(came, Failure):
            if came.billed:
                self.budget.spend(None, self.question.model)
            return
        self.last = came
        if came.usage is not None:
            self.usages.append(came.usage)
        self.budget.spend(came.usage, came.model)

    def unanswered(self, message: Message) -> Verdict | None:
        """The verdict on a message that holds no answer to read: a refusal, a cut, no text or too much of it. None when there is one."""
        if (ending := _ENDINGS.get(message.stop_reason or "")) is not None:
            return self.verdict(*ending)
        text = (message.text or "").strip()
        if text and len(text) <= MAX_ANSWER:
            return None
        self.failed(INVALID, "the answer is too long" if text else "the answer has no text")
        return self.gives_up()

    def read(self, message: Message) -> str | Invalid:
        """The part of a message that answers the question; one that cannot be used does not count."""
        answer = answer_in((message.text or "").strip(), self.question.schema, self.question.read)
        if isinstance(answer, Invalid):
            self.failed(INVALID, one_line(f"the answer cannot be used: {'; '.join(answer.problems)}"))
        return answer

    def verdict(self, outcome: str, error: str | None = None, answer: str | None = None) -> Verdict:
        """Return the verdict with this outcome."""
        last = self.last
        came = last.text[:MAX_ANSWER] if last is not None and last.text is not None else None
        return Verdict(
            outcome=outcome,
            answer=came if answer is None else answer,
            model=last.model if last else None,
            stop_reason=last.stop_reason if last else None,
            error=error,
            attempts=self.attempts,
            attempt_errors=tuple(self.errors),
            usage=_sum(self.usages),
            latency_ms=round(self.seconds * 1000),
            simulated=self.simulated,
        )

    def gives_up(self) -> Verdict:
        """The verdict when the last error is the last word."""
        return self.verdict(self.trouble, self.errors[-1])


def _sum(usages: list[Usage]) -> Usage | None:
    """Tokens over several calls; None when nothing is known of any."""
    if not usages:
        return None
    return Usage(
        input_tokens=sum(one.input_tokens for one in usages),
        output_tokens=sum(one.output_tokens for one in usages),
        cache_write_tokens=sum(one.cache_write_tokens for one in usages),
        cache_read_tokens=sum(one.cache_read_tokens for one in usages),
    )
