"""Series that moved along: tiers without an alarm of their own whose scores went the same way since the first day of an incident.

A tier that is judged once a day has too few sessions to raise an alarm on the day on which its neighbours do. A reader of the incident
wants to know all the same that it fell, too: it does where the mean since then lies off the mean before in the incident's direction by
more than chance, 95 % on one side. That is no test that wakes anybody, and looks only where an alarm has been raised already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from audit.drift.cells import Cells, Flags
from audit.drift.incident_evidence import MOVED_TOO, Numbers
from audit.drift.watched_series import DOWN, DRIFT, TIERS, UP, VERBS, WARNING, Key
from schemas.lazy.numpy import np
from streams.watch.incidents.recovery import CERTAIN
from streams.watch.measured import midnight
from streams.watch.rules.cases import Case
from streams.watch.rules.findings import Finding

FEWEST_BEFORE = 10
"""Sessions before the change that it takes to know what was normal."""
MovedToo = Callable[[date, bool, Collection[str]], Sequence[Finding]]
"""Returns the other tiers that moved with a change, given its first day, whether it is for the worse, and the alarmed tiers."""


class _Side(NamedTuple):
    """The sessions on one side of the first day."""

    scores: int
    units: int
    mean: float
    variance: float
    """Of a session's mean, as a population."""

    @property
    def sigma(self) -> float:
        """Standard deviation of a session's mean, by the sample."""
        return math.sqrt(self.variance * self.units / max(self.units - 1, 1))


def moved_too(case: Case) -> MovedToo:
    """The tiers of a project that moved along."""

    def found(first: date, is_worse: bool, known: Collection[str]) -> Sequence[Finding]:
        direction = DOWN if is_worse else UP
        return [one for tier in TIERS if tier not in known for one in _moved(case, tier, first, direction)]

    return found


def _moved(case: Case, tier: str, first: date, direction: str) -> Iterator[Finding]:
    cells = case.measured.cells(tier)
    since = cells.last >= np.datetime64(first)
    counted = case.reference(tier).mask(cells.days)
    before, after = _side(cells, counted & ~since), _side(cells, since)
    if before is None or after is None or before.units < FEWEST_BEFORE:
        return
    off = before.mean - after.mean if direction == DOWN else after.mean - before.mean
    if off > max(CERTAIN * before.sigma * math.sqrt(1 / before.units + 1 / after.units), 1e-9):
        until = cells.last[-1].astype(datetime).date()
        yield _finding(case, Key(DRIFT, tier, direction), (first, until), (before, after))


def _side(cells: Cells, where: Flags) -> _Side | None:
    """Sum up the sessions of some hours; None without any."""
    units, scores, weight, total, squares, mixed, totals = (float(column[where].sum()) for column in cells[1:8])
    if not weight:
        return None
    mean = total / weight
    variance = max(0.0, totals - 2 * mean * mixed + mean * mean * squares) / squares
    return _Side(round(scores), round(units), mean, variance)


def _finding(case: Case, key: Key, days: tuple[date, date], sides: tuple[_Side, _Side]) -> Finding:
    (first, until), (before, after) = days, sides
    name, fell = TIERS[key.tier or ""], VERBS[key.direction or DOWN]
    return Finding(
        key=key,
        rule=MOVED_TOO,
        severity=WARNING,
        since=first,
        until=until,
        size=abs(after.mean - before.mean),
        title=f"{name} {fell} too, to {after.mean:.2f} from {before.mean:.2f}",
        description=(
            f"Since {first} the mean of {name} is {after.mean:.3f} over {after.scores} scores, {before.mean:.3f} over {before.scores} before. "
            "It raised no alarm of its own."
        ),
        numbers=Numbers(
            mean_before=before.mean,
            mean_after=after.mean,
            scores_before=before.scores,
            scores_after=after.scores,
            sessions_before=before.units,
            sessions_after=after.units,
            sigma=before.sigma,
        ),
        before=(midnight(first - timedelta(days=1)), midnight(first)),
        after=(midnight(first), case.measured.as_of),
        expected=before.mean,
        looked=case.looked,
        confirmed=False,
        fell_too=True,
    )
