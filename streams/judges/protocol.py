"""The small protocol between the scoring worker and a judge, and the credentials of the judge's API in the environment.

Many modules that never ask a judge read these, so they load without the API's client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from audit.cost import PromptBound, Usage
from audit.exchanges.questions import Question

SIMULATED_HEADER = "x-driftline-simulated"
"""Header of every response of a simulated judge; its value is 1."""
SIMULATED_MODEL = "driftline-simulated-judge"
"""Model name that a simulated judge reports."""


class CallBudget(Protocol):
    """The budget of one question: the amount that the session's cap allows, and the amount spent."""

    async def reserve(self, prompt: PromptBound | None = None) -> int:
        """Reserve the worst case of one call; durable on return. `prompt` None means one token per byte.

        Returns the most tokens that the answer may have: fewer than the question's if the cap allows no more, and 0 if it forbids the
        call. An unspent reservation is used first, so a call that was refused free of charge can be repeated.
        """
        ...

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """Charge a reserved call: its usage, or the whole reservation if the usage is unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of asking the judge: the fields of a `Judgement` that the judge knows. The cost is in the call budget."""

    outcome: str
    """answered, refused, cut_off, provider_error, timeout, invalid or cost_cap."""
    answer: str | None = None
    """The raw text, also of an unusable answer."""
    model: str | None = None
    """The model that answered, as reported."""
    stop_reason: str | None = None
    error: str | None = None
    """The last error, without secrets."""
    attempts: int = 0
    """Number of calls."""
    attempt_errors: tuple[str, ...] = ()
    """The error of each failed call."""
    usage: Usage | None = None
    """Tokens of all calls, as far as known."""
    latency_ms: int = 0
    simulated: bool = False
    """True if a simulated judge answered."""


class Judge(Protocol):
    """Answers questions. Problems of a provider are outcomes, never exceptions."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question. The deadline starts with its turn and includes retries.

        Raises what the call budget raises, and nothing else.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


DEFAULT_BASE_URL = "https://api.anthropic.com"


class Credentials(NamedTuple):
    """The settings of the judge's API in the environment; unset fields are None."""

    api_key: str | None
    base_url: str | None


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Return key and address from `ANTHROPIC_API_KEY`, else `ANTHROPIC_AUTH_TOKEN` (both are sent as a bearer token), and
    `ANTHROPIC_BASE_URL`. Empty values count as missing.
    """  # noqa: D205 - the first sentence does not fit a line
    names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
    key, token, base_url = (environ.get(name, "").strip() or None for name in names)
    return Credentials(key or token, base_url)
