"""The reference of a series: which of its days say what is normal, after what people decided and what is over.

A decision that a change is "the new normal" moves the reference: it begins with the first day of that change. Days of a change that is
over are cut out of it, so that a dip that was mended neither lowers what is expected nor hides the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from audit.drift.cells import Flags, Ints, day_number
from schemas.lazy.numpy import np

Span = tuple[date, date]
"""A span of days, the first and the last one included."""
REFERENCE_DAYS = 14
"""A change has at least so many days before it, to be compared with."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The days of a series that count."""

    since: date | None = None
    """The first day that counts, after the decision that a change is the new normal; None: all of them."""
    cut: tuple[Span, ...] = ()
    """The days of changes that are over, oldest first, apart from each other."""
    days: int = REFERENCE_DAYS
    """A change has at least so many days before it."""

    def counts(self, day: date) -> bool:
        """Tell whether a day is to be looked at."""
        return (self.since is None or day >= self.since) and not self.cuts(day)

    def mask(self, days: Ints) -> Flags:
        """Tell which of some days, counted from 1970, are to be looked at."""
        kept = np.ones(len(days), dtype=bool) if self.since is None else days >= day_number(self.since)
        for first, last in self.cut:
            kept &= (days < day_number(first)) | (days > day_number(last))
        return kept

    def cuts(self, day: date) -> bool:
        """Tell whether a day belongs to a change that is over."""
        return any(first <= day <= last for first, last in self.cut)

    def cuts_into(self, first: date, last: date) -> bool:
        """Tell whether a window, both ends included, holds days of a change that is over."""
        return any(begin <= last and first <= end for begin, end in self.cut)


NO_DECISION = Reference()
"""The reference of a series on which nothing was decided: all its days count."""


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans as few as can be: those that overlap, or follow each other without a day between, are one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first.toordinal() <= found[-1][1].toordinal() + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
