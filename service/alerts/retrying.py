"""Retries of alerts, pure: delivered, due again at a time, or given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 3600.0
LONGEST_WAIT_SECONDS = 6 * 3600.0
"""Longest wait that a receiver can ask for."""
MOST_ATTEMPTS = 15
"""Attempts before an alert is given up: over about five hours, unless the receiver asks for pauses."""
_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same call may be made again."""
Verdict = Literal["delivered", "later", "never"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt: a reason unless it was delivered, and the seconds that the receiver asks to wait."""

    verdict: Verdict
    reason: str | None = None
    retry_after: float | None = None


def verdict_of(status: int) -> Verdict:
    """Return what an HTTP status means for a delivery."""
    if 200 <= status < 300:
        return "delivered"
    return "later" if status in _LATER or status >= 500 else "never"


def pause(attempts: int, chance: float, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, after a number of attempts.

    They double from FIRST_SECONDS to LONGEST_SECONDS; `chance`, from 0 to 1, takes up to half away, so that many who failed together do
    not come back together. Never sooner than the receiver asked for.
    """
    grown = min(FIRST_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), LONGEST_SECONDS)
    return max(grown * (0.5 + chance / 2), min(retry_after or 0.0, LONGEST_WAIT_SECONDS))
