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
"""Model that a simulated judge says it is."""


class CallBudget(Protocol):
    """The money of one question: what a session's cap lets a judge spend on it, and what was spent."""

    async def reserve(self, prompt: PromptBound | None = None) -> int:
        """Set aside the worst case of one call; durable when it answers. None: a prompt of a token for each byte.

        Answers the most tokens that the call's answer may have: fewer than the question's where the cap leaves no room for more, and 0
        where it forbids the call. What was set aside and not spent is used first, so a call that was refused without a charge can be
        made again.
        """
        ...

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """The reserved call was made: charge what the usage says, or the whole reservation where it is not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of asking the judge: the fields of a `Judgement` that the judge knows. The cost is in the call budget."""

    outcome: str
    """answered, refused, cut_off, provider_error, timeout, invalid or cost_cap."""
    answer: str | None = None
    """Text as it came; of an answer that cannot be used, too."""
    model: str | None = None
    """Model that answered, as it says."""
    stop_reason: str | None = None
    error: str | None = None
    """The last error, without secrets."""
    attempts: int = 0
    """Calls that were made."""
    attempt_errors: tuple[str, ...] = ()
    """The error of each call that did not count."""
    usage: Usage | None = None
    """Tokens over all calls, as far as they are known."""
    latency_ms: int = 0
    simulated: bool = False
    """True if a simulated judge answered."""


class Judge(Protocol):
    """Answers questions. It never raises for what a provider does: that is an outcome."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question, within one total deadline, retries included, once it is its turn.

        What the call budget raises is raised; what a provider does never is.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections."""
        ...


DEFAULT_BASE_URL = "https://api.anthropic.com"


class Credentials(NamedTuple):
    """The settings of the judge's API in the environment; a field that is not set there is None."""

    api_key: str | None
    base_url: str | None


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Key and address from `ANTHROPIC_API_KEY`, else `ANTHROPIC_AUTH_TOKEN` (both are sent as a bearer token), and
    `ANTHROPIC_BASE_URL`. What is empty counts as missing.
    """  # noqa: D205 - the first sentence does not fit a line
    names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
    key, token, base_url = (environ.get(name, "").strip() or None for name in names)
    return Credentials(key or token, base_url)
