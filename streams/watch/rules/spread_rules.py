"""A change of spread, as a finding: where the mean of a tier holds, but its sessions differ more from each other, or less."""

from __future__ import annotations

from datetime import timedelta

from audit.drift.cells import Cells
from audit.drift.incident_evidence import Numbers
from audit.drift.spread import SpreadChange, find_spread
from audit.drift.watched_series import DRIFT, SPREAD, TIERS, UP, Key
from schemas.lazy.numpy import np
from streams.watch.rules.cases import Case, days_shown
from streams.watch.rules.findings import Finding

_GREW = {True: "more", False: "less"}


def changed_spread(case: Case, tier: str, cells: Cells, rule: str) -> Finding | None:
    """The change of a tier's spread, told by a rule that found no change of its mean; None without one."""
    reference = case.reference(tier)
    found = find_spread(cells, case.measured.as_of.date(), reference=reference)
    return None if found is None else _finding(case, tier, found, cells, rule)


def _finding(case: Case, tier: str, found: SpreadChange, cells: Cells, rule: str) -> Finding:
    name, way = TIERS[tier], "grew" if found.direction == UP else "shrank"
    counts = {one: count for one, count in case.measured.days(tier).items() if found.first_day <= one.day <= found.until}
    before = cells.last < np.datetime64(found.first_day)
    return Finding(
        key=Key(DRIFT, tier, found.direction),
        kind=SPREAD,
        rule=rule,
        severity=found.severity,
        since=found.first_day,
        until=found.until,
        size=max(found.ratio, 1 / found.ratio),
        title=f"Spread of {name} {way} to {found.after:.3f} from {found.before:.3f} on {found.first_day}",
        description=(
            f"Since {found.first_day}, most likely the first day, sessions of a day differ {_GREW[found.direction == UP]} from each other in "
            f"{name}: their standard deviation is {found.after:.3f} over {found.sessions_after} sessions; from {found.start} to the day "
            f"before it was {found.before:.3f} over {found.sessions_before}. The mean of {name} has not changed by more than chance."
        ),
        numbers=Numbers(
            days=days_shown(counts),
            first_day=found.first_day,
            first_day_interval=(found.earliest_day, found.latest_day),
            spread_before=found.before,
            spread_after=found.after,
            ratio=found.ratio,
            sessions_before=found.sessions_before,
            sessions_after=found.sessions_after,
            log_evidence=found.log_evidence,
        ),
        before=case.window(found.start, found.first_day - timedelta(days=1)),
        after=case.window(found.first_day, found.until),
        expected=float(cells.total[before].sum() / cells.weight[before].sum()),
        looked=case.looked,
        interval=(found.earliest_day, found.latest_day),
        confirmed=found.is_confirmed,
        known_level=case.reference(tier).since is not None,
    )
