"""Counts of judge calls of a process, logged when the judge is in trouble."""

from __future__ import annotations

import logging
from collections import Counter

from audit.cost.prices import nano_of, usd_of
from audit.exchanges.judgements import ANSWERED, COST_CAP, INTERRUPTED
from schemas.records import Judgement, Record

_NO_TROUBLE = frozenset([COST_CAP.reason, INTERRUPTED])
"""Outcomes that say nothing of the judge."""
log = logging.getLogger(__name__)


class JudgeCalls:
    """Questions by outcome and what they have cost, since the process began."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._spent = 0
        self._trouble = ""

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of questions by outcome."""
        return dict(self._outcomes)

    @property
    def spent_usd(self) -> float:
        """The cost of all questions, in USD."""
        return usd_of(self._spent)

    def note(self, record: Record) -> None:
        """Take note of a record of a judge call."""
        if isinstance(record, Judgement):
            self._outcomes[record.outcome] += 1
            self._spent += nano_of(record.cost_usd or 0.0)
            self._tell_of(record)

    def _tell_of(self, judgement: Judgement) -> None:
        """Log what is wrong with the judge when that changes, and that it is right again: the operator has to know."""
        if judgement.outcome in _NO_TROUBLE:
            return
        trouble = "" if judgement.outcome == ANSWERED else f"{judgement.outcome}: {judgement.error}"
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the judge does not answer as it should, %s", trouble) if trouble else log.info("the judge answers")
