"""Reach of the judge, from the outcomes of its last calls."""

from __future__ import annotations

from collections.abc import Mapping

from audit.exchanges.questions import ANSWERED
from schemas.errors import DriftlineError

_LOST = ("provider_error", "timeout")
"""Outcomes of questions to a judge that is unreachable or refuses access."""
_ROUNDS = 3
"""Rounds of calls, each as many as are made at once, that may fail before the judge counts as out of reach."""


class JudgeOutOfReachError(DriftlineError):
    """The judge does not answer any more, so no further calls are made."""


class Reach:
    """Watches the outcomes of calls. Without it, a thousand calls would wait for a dead judge, one by one, for hours."""

    def __init__(self, calls_at_once: int) -> None:
        self._most = _ROUNDS * calls_at_once
        self._answered = self._lost = 0

    def hear(self, calls: Mapping[str, int]) -> None:
        """Take the outcomes of all calls so far. JudgeOutOfReachError if none of the last ones was answered."""
        answered, lost = calls.get(ANSWERED, 0), sum(calls.get(outcome, 0) for outcome in _LOST)
        if answered != self._answered:
            self._answered, self._lost = answered, lost
        if lost - self._lost >= self._most:
            raise JudgeOutOfReachError(
                f"the judge has answered none of its last {lost - self._lost} questions",
                hint="`driftline doctor` shows how it is reached. The same command goes on from here; "
                "with --retry-failed it asks again for what got no answer.",
            )
