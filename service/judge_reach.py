"""Reach of the judge, from the outcomes of its last calls."""

from __future__ import annotations

from collections.abc import Mapping

from audit.exchanges.judgements import ANSWERED
from schemas.errors import DriftlineError

_LOST = ("provider_error", "timeout")
"""Outcomes of questions to a judge that cannot be reached, or does not let us in."""
_ROUNDS = 3
"""Rounds of calls, each as many as are made at once, that may come to nothing before the judge counts as out of reach."""


class JudgeOutOfReachError(DriftlineError):
    """The judge answers no more, so nothing further is asked."""


class Reach:
    """Hears of calls. One call after the other would wait for a judge that is down: a thousand of them for hours."""

    def __init__(self, calls_at_once: int) -> None:
        self._most = _ROUNDS * calls_at_once
        self._answered = self._lost = 0

    def hear(self, calls: Mapping[str, int]) -> None:
        """Hear of all calls so far by outcome. JudgeOutOfReachError when none of the last ones was answered."""
        answered, lost = calls.get(ANSWERED, 0), sum(calls.get(outcome, 0) for outcome in _LOST)
        if answered != self._answered:
            self._answered, self._lost = answered, lost
        if lost - self._lost >= self._most:
            raise JudgeOutOfReachError(
                f"the judge has answered none of its last {lost - self._lost} questions",
                hint="`driftline doctor` shows how it is reached. The same command goes on from here; "
                "with --retry-failed it asks again for what got no answer.",
            )
