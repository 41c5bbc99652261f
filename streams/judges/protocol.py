"""The protocol between the scoring worker and a judge, and the credentials of the judge's API in the environment.

This module does not import the API's client, because many modules need it that never ask a judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from audit.cost import PromptBound, Usage
from audit.exchanges.questions import Question

SIMULATED_HEADER = "x-driftline-simulated"
"""The header of every response of a simulated judge, with the value 1."""
SIMULATED_MODEL = "driftline-simulated-judge"
"""The model name that a simulated judge reports."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a reasoning model thinks before it answers."""


class ModelTraits(NamedTuple):
    """The properties of a model that its requests depend on."""

    model: str | None = None
    """The model that the API is asked for; None is the name in the question."""
    cache_minimum: int | None = None
    """Tokens of the shortest prefix that the model caches; None if unknown."""
    switch_off_thinking: bool = False
    effort: Effort | None = None
    """None leaves it to the model."""


class CallBudget(Protocol):
    """The budget of one question: reserves money under the session's cap before each call, and charges the calls."""

    async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:
        """Reserve the largest possible cost of one call; the reservation is durable on return.

        Without a bound on the prompt, each byte counts as one token. Returns the maximum number of tokens of the answer: the question's
        own maximum, a smaller number if the cap allows no more, or 0 if the cap forbids the call. With `answer_tokens` it is that number
        or 0. An unspent reservation is used first, so a call that was rejected free of charge can be repeated.
        """
        ...

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """Charge a reserved call by its usage; by the whole reservation if the usage is unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's result for one question: the fields of a `Judgement` except its cost, which the call budget knows."""

    outcome: str
    """answered, refused, cut_off, provider_error, timeout, invalid, partial or cost_cap."""
    answer: str | None = None
    """The raw text, even if it is unusable; the part that was read if the answer is partial."""
    repairs: tuple[str, ...] = ()
    """What was repaired in the answer's form; see `audit.answer_text`."""
    model: str | None = None
    """The model that answered, as the API reports it."""
    stop_reason: str | None = None
    error: str | None = None
    """The last error, without secrets."""
    attempts: int = 0
    """Number of calls."""
    attempt_errors: tuple[str, ...] = ()
    """The error of each failed call."""
    usage: Usage | None = None
    """The tokens of all calls whose usage is known; None if no usage is known."""
    latency_ms: int = 0
    """Milliseconds spent in calls."""
    simulated: bool = False
    """True if a simulated judge answered."""


class Judge(Protocol):
    """A model that answers questions. A provider's problems become outcomes, never exceptions."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question. The deadline starts when the question leaves the queue, and includes retries.

        Raises only the errors of the call budget.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


DEFAULT_BASE_URL = "https://api.anthropic.com"


class Credentials(NamedTuple):
    """The key and address of the judge's API; None if unset."""

    api_key: str | None
    base_url: str | None


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Return the credentials in the environment. Empty values count as unset.

    The key is `ANTHROPIC_API_KEY`, or else `ANTHROPIC_AUTH_TOKEN`; the address is `ANTHROPIC_BASE_URL`.
    """
    api_key = environ.get("ANTHROPIC_API_KEY", "").strip()
    auth_token = environ.get("ANTHROPIC_AUTH_TOKEN", "").strip()
    base_url = environ.get("ANTHROPIC_BASE_URL", "").strip()
    return Credentials(api_key or auth_token or None, base_url or None)
