"""Retries of alerts, pure: delivered, due again at a time, or given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 3600.0
LONGEST_WAIT_SECONDS = 6 * 3600.0
"""A receiver that asks for more is asked again after this."""
MOST_ATTEMPTS = 15
"""Tries before an alert is given up: over about five hours, when the receiver asks for no pauses of its own."""
_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same call may be made again."""
Verdict = Literal["delivered", "later", "never"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a try came to, why in words unless it was delivered, and how many seconds the receiver asks to be left alone."""

    verdict: Verdict
    reason: str | None = None
    retry_after: float | None = None


def verdict_of(status: int) -> Verdict:
    """What an HTTP status says of a delivery."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in _LATER or status >= 500 else "never"


def pause(attempts: int, chance: float, retry_after: float | None) -> float:
    """Seconds until the next try, after so many tries.

    They double from FIRST_SECONDS to LONGEST_SECONDS; `chance`, from 0 to 1, takes up to half away, so that many who failed together do
    not come back together. Never sooner than the receiver asked for.
    """
    grown = min(FIRST_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), LONGEST_SECONDS)
    return max(grown * (0.5 + chance / 2), min(retry_after or 0.0, LONGEST_WAIT_SECONDS))
