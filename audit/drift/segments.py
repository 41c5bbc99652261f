"""Segments: the series of a project at a constant mix of its segments, so that a change of the mix alone changes nothing.

1. A stratum is a part of the traffic whose scores are comparable: an agent, and the rules and the judge that made its scores. Its level may
   differ from that of the others. Days move all strata together, so the mean of stratum s on day d is

       m[s, d]  =  level[s] + effect[d] + noise

   (two-way analysis of variance without interaction; Yates 1934, "The analysis of multiple classifications with unequal numbers"). The day
   effects are eliminated from the weighted least squares, which leaves one linear equation per stratum. So only strata that share days are
   compared, and a day on which all strata fall says nothing about their levels.
2. A day of n sessions has the weight n / (1 + n / `DAY_UNITS`). Sessions of one stratum and day have something in common, so a day's mean
   does not become arbitrarily exact with the number of sessions, and one huge day does not decide the levels.
3. Two strata are connected if at least `MIN_COMMON_DAYS` days have sessions of both. Strata that are not connected, not even through others,
   cannot be compared. The connected strata with the most weight in the last `RECENT_DAYS` days are used, and the others are listed.
4. Each score is shifted by the level of its stratum less the mean level at the reference mix. The reference mix is that of the days before the
   last `RECENT_DAYS`: a mix that changed this week does not change the level that people compare with, and a stratum that is new this week has no
   share in it. The choice moves all days by the same amount, so it does not affect whether a change is found.
5. The levels are estimated, so the size of a change after which other strata have the traffic is less certain than the detector assumes,
   which sees one series. If n0 and n1 sessions of a stratum come before and after the change, and N0 and N1 of all, the variance is larger by

       inflation  =  (N0 N1 / (N0 + N1))  /  sum over s of (n0 n1 / (n0 + n1))

   This is the variance inflation factor of "after" in a regression on the strata: 1 if the mix stays, infinite if no stratum is on both
   sides. Log evidence is about half a squared distance in standard errors, so `Standardised.discount` divides it by this factor.
6. A change of the mix is a change of the share of a stratum's sessions, found by `audit.drift.change_detector` from counts. With n strata a
   change needs n times the evidence (Bonferroni; two strata have one share). Shares that move by less than `MIN_SHARE_CHANGE` are not told, nor
   those that wander: a share must move by `WANDER_FACTOR` standard deviations of its days before, beyond what their counts explain.
7. A segment is new by the calendar, not by evidence: its first session while others have had sessions. Agents that stop are found by the
   query `stopped_agents`.

Measured by `python -m benchmarks drift --segments`; see `docs/decisions/0123-mixes-versions-discoveries.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import NamedTuple

from audit.drift.change_detector import (
    CONFIRMED,
    LATER_CONFIRMED,
    LATER_CONFIRMED_HOURS,
    MIN_DAYS_BEFORE,
    SUSPECTED,
    Change,
    Interval,
    find_change,
)
from audit.drift.change_evidence import ratio
from audit.drift.series import (
    NO_DECISION,
    REFERENCE_DAYS,
    Cells,
    Flags,
    Floats,
    Ints,
    Reference,
    date_of,
    day_number,
    rows_of,
    select_until,
)
from schemas.lazy_numpy import np

MIN_COMMON_DAYS = 3
"""Minimum number of days with sessions of two strata for these to be compared."""
DAY_UNITS = 50.0
"""The number of sessions that a stratum's day counts for at most. It is 1 / the correlation of the sessions of one stratum and day."""
RECENT_DAYS = 7
"""The last days, which choose the strata and are not part of the reference mix."""
MIN_SHARE_CHANGE = 0.05
"""Minimum change of a share of the sessions that is told."""
WANDER_FACTOR = 3.0
"""Minimum change of a share in standard deviations of its days."""
TOLD_DAYS = 14
"""Days for which a new segment is told."""
MIN_SESSIONS = 5
"""Minimum number of sessions of a new segment: fewer have no level."""
_ROUNDING = 1e-9


class StratumLevel(NamedTuple):
    """A stratum of a standardised series."""

    stratum: int
    """Its index in the strata that were compared."""
    level: float
    """Its mean on the reference days, in points of the score, if all strata had sessions on all days."""
    reference_share: float
    """Its share of the weight in the reference mix; 0 if it is new."""
    recent_share: float
    """Its share of the weight in the last `RECENT_DAYS` days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standardised:
    """The series of several strata at the reference mix."""

    cells: Cells
    """The sums by hour of all connected strata; those of a single stratum are unchanged."""
    levels: tuple[StratumLevel, ...]
    """The connected strata, in the order of the input."""
    outside: tuple[int, ...]
    """The indices of the strata with sessions that are not connected, whose sessions are not in `cells`."""
    days: Ints
    """The days with sessions, as days since 1970."""
    units: Floats
    """The sessions of each connected stratum and day."""

    @property
    def shifts(self) -> tuple[float, ...]:
        """The amount that was added to the scores of each of `levels`."""
        reference = math.fsum(level.reference_share * level.level for level in self.levels)
        return tuple(reference - level.level for level in self.levels)

    def inflation(self, first_day: date) -> float:
        """Return the factor by which the variance of a change that begins on a day is larger, because the mix changed; at least 1."""
        is_after = self.days >= day_number(first_day)
        before = self.units[:, ~is_after].sum(axis=1)
        after = self.units[:, is_after].sum(axis=1)
        information = float(ratio(before * after, before + after).sum())
        naive = float(before.sum() * after.sum() / (before.sum() + after.sum()))
        if naive == 0:
            return 1.0
        return max(1.0, naive / information) if information > 0 else math.inf

    def discount(self, change: Change) -> Change | None:
        """Return a change found in `cells` with its evidence reduced by the uncertainty of the levels; None if it is no alarm any more."""
        return _reduce_evidence(change, change.log_evidence / self.inflation(change.first_day))


def _reduce_evidence(change: Change, log_evidence: float) -> Change | None:
    """Return a change with less evidence; None if it is no alarm any more."""
    if log_evidence >= change.log_evidence or log_evidence < math.log(SUSPECTED):
        return change if log_evidence >= change.log_evidence else None
    confirmed_at = change.confirmed_at
    if confirmed_at is not None:
        is_later = confirmed_at - change.alarm_at >= timedelta(hours=LATER_CONFIRMED_HOURS)
        confirmed_at = confirmed_at if log_evidence >= math.log(LATER_CONFIRMED if is_later else CONFIRMED) else None
    return replace(change, log_evidence=log_evidence, confirmed_at=confirmed_at)


def find_agreed_change(changes: Sequence[Change | None]) -> Change | None:
    """Return the first of the changes that are found in a series under several assumptions, if all have the same direction; else None.

    It has the least evidence of all, and an interval of its size that covers all intervals.
    """
    present = [change for change in changes if change is not None]
    if len(present) < len(changes) or len({change.direction for change in present}) != 1:
        return None
    confirmations = [change.confirmed_at for change in present if change.confirmed_at is not None]
    return replace(
        present[0],
        log_evidence=min(change.log_evidence for change in present),
        confirmed_at=max(confirmations) if len(confirmations) == len(present) else None,
        size_interval=Interval(
            min(change.size_interval.low for change in present), max(change.size_interval.high for change in present)
        ),
    )


def standardise(strata: Sequence[Cells], *, min_common_days: int = MIN_COMMON_DAYS) -> Standardised | None:
    """Return the series of the strata at the reference mix; None without sessions.

    The cells of each stratum are one per hour, oldest first, over the same period.
    """
    days = np.unique(np.concatenate([np.zeros(0, np.int64), *(cells.days for cells in strata)]))
    if not days.size:
        return None
    daily = _sum_by_day(strata, days)
    is_recent = days > days[-1] - RECENT_DAYS
    component = _find_component(daily, is_recent, min_common_days)
    connected = [int(stratum) for stratum in np.flatnonzero(component)]
    sums = _DailySums(*(column[component] for column in daily))
    # If all strata are new, the recent mix is the only one.
    is_reference = np.full(len(days), fill_value=not sums.weight[:, ~is_recent].any()) | ~is_recent
    mix = sums.weight[:, is_reference].sum(axis=1)
    mix /= mix.sum()
    recent = sums.weight[:, is_recent].sum(axis=1)
    offsets = _fit_levels(sums)
    offsets -= mix @ offsets
    reference_mean = float(sums.total[:, is_reference].sum() / sums.weight[:, is_reference].sum())
    has_sessions = sums.weight.any(axis=0)
    return Standardised(
        cells=merge_cells(
            [shift_cells(strata[index], offset) for index, offset in zip(connected, offsets.tolist(), strict=True)]
        ),
        levels=tuple(
            StratumLevel(index, reference_mean + offset, reference_share, recent_share)
            for index, offset, reference_share, recent_share in zip(
                connected, offsets.tolist(), mix.tolist(), (recent / recent.sum()).tolist(), strict=True
            )
        ),
        outside=tuple(int(index) for index in np.flatnonzero(daily.weight.any(axis=1) & ~component)),
        days=days[has_sessions],
        units=sums.units[:, has_sessions],
    )


class _DailySums(NamedTuple):
    """Sums by stratum (row) and day (column)."""

    units: Floats
    weight: Floats
    total: Floats
    squares: Floats
    """Sum of the squared weights of the units."""


def _sum_by_day(strata: Sequence[Cells], days: Ints) -> _DailySums:
    daily = _DailySums(*np.zeros((4, len(strata), len(days))))
    for stratum, cells in enumerate(strata):
        index = np.searchsorted(days, cells.days)
        for sums, column in zip(daily, (cells.units, cells.weight, cells.total, cells.squares), strict=True):
            sums[stratum] = np.bincount(index, column, len(days))
    return daily


def _find_component(daily: _DailySums, is_recent: Flags, min_common_days: int) -> Flags:
    """Return the mask of the connected strata with the most recent weight; of equal ones, those with the most weight at all."""
    has_sessions = (daily.weight > 0).astype(np.float64)
    is_connected = has_sessions @ has_sessions.T >= min_common_days
    recent = daily.weight[:, is_recent].sum(axis=1)
    weight = daily.weight.sum(axis=1)
    is_free = weight > 0
    best: tuple[float, float] = (-1.0, -1.0)
    largest: Flags = is_free
    while is_free.any():
        component = np.arange(len(weight)) == np.argmax(is_free)
        while True:
            grown: Flags = is_free & (component | is_connected[component].any(axis=0))
            if (grown == component).all():
                break
            component = grown
        is_free = is_free & ~component
        size = float(recent[component].sum()), float(weight[component].sum())
        if size > best:
            best, largest = size, component
    return largest


def _fit_levels(sums: _DailySums) -> Floats:
    """Return the levels of connected strata, up to a constant: weighted least squares, with the day effects eliminated."""
    if len(sums.weight) == 1:
        return np.zeros(1)
    effective_units = ratio(sums.weight**2, sums.squares)
    weights = effective_units / (1 + effective_units / DAY_UNITS)
    mean = ratio(sums.total, sums.weight)
    day_weights = weights.sum(axis=0)
    shares = ratio(weights, day_weights)
    deviation = np.where(weights > 0, mean - (shares * mean).sum(axis=0), 0.0)
    normal_matrix = np.diag(weights.sum(axis=1)) - weights @ shares.T
    # The matrix is singular, because a constant may be added to all levels: the shortest solution is one of them.
    levels: Floats = np.linalg.lstsq(normal_matrix, (weights * deviation).sum(axis=1), rcond=_ROUNDING)[0]
    return levels


def shift_cells(cells: Cells, offset: float) -> Cells:
    """Return the cells with all scores lower by `offset`."""
    if offset == 0:
        return cells
    units, scores, weight, total, squares, mixed, totals = rows_of(cells, offset)
    return Cells(cells.last, units, scores, weight, total, squares, mixed, totals, cells.low - offset, cells.high - offset)


def merge_cells(strata: Sequence[Cells]) -> Cells:
    """Return the sums by hour of several strata together."""
    if len(strata) == 1:
        return strata[0]
    columns = [np.concatenate(parts) for parts in zip(*strata, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    last, units, scores, weight, total, squares, mixed, totals, low, high = (column[order] for column in columns)
    starts = np.flatnonzero(np.diff(last.astype("datetime64[h]").astype(np.int64), prepend=-1))
    sums = np.add.reduceat(np.stack((units, scores, weight, total, squares, mixed, totals)), starts, axis=1)
    columns = [*sums, np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)]
    return Cells(np.maximum.reduceat(last, starts), *columns)


class ShareChange(NamedTuple):
    """A stratum whose share of the sessions changed."""

    stratum: int
    """Its index in the strata that were compared."""
    before: float
    after: float
    change: Change
    """The change of the share; its evidence is divided by the number of strata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChange:
    """A change of the shares of the strata."""

    first_day: date
    """The most probable first day, of the share with the most evidence."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95% interval of the first day, included."""
    is_confirmed: bool
    moved: tuple[ShareChange, ...]
    """The shares that moved, the largest change first."""


def find_mix_change(strata: Sequence[Cells], as_of: date, *, reference: Reference = NO_DECISION) -> MixChange | None:
    """Return the change of the mix found at the end of the day `as_of`; None without one."""
    shares = _build_shares(strata)
    # Of two shares each is 1 less the other.
    count = 1 if len(shares) == 2 else len(shares)
    moved = []
    for stratum, cells in shares.items():
        change = find_change(cells, as_of, reference=reference, is_share=True) if _may_have_moved(cells) else None
        change = _reduce_evidence(change, change.log_evidence - math.log(count)) if change else None
        if change and abs(change.size) >= MIN_SHARE_CHANGE and not _wanders(cells, change):
            moved.append(ShareChange(stratum, change.mean_before, change.mean_after, change))
    if not moved:
        return None
    best = max(moved, key=lambda share: share.change.log_evidence).change
    return MixChange(
        first_day=best.first_day,
        earliest_day=best.earliest_day,
        latest_day=best.latest_day,
        is_confirmed=any(share.change.confirmed_at is not None for share in moved),
        moved=tuple(sorted(moved, key=lambda share: (-abs(share.change.size), share.stratum))),
    )


def _build_shares(strata: Sequence[Cells]) -> dict[int, Cells]:
    """Return the share of the sessions of each stratum that has sessions, as cells of counts; empty with fewer than two strata."""
    used = {index: cells for index, cells in enumerate(strata) if cells.last.size}
    if len(used) < 2:
        return {}
    last = merge_cells([*used.values()]).last
    hours = last.astype("datetime64[h]")
    counts = {}
    for index, cells in used.items():
        hour = np.searchsorted(hours, cells.last.astype("datetime64[h]"))
        counts[index] = np.rint(np.bincount(hour, cells.units, len(hours)))
    sessions = np.add.reduce([*counts.values()])
    return {
        index: Cells(
            last, sessions, sessions, sessions, count, sessions, count, count,
            low=(count == sessions).astype(np.float64), high=(count > 0).astype(np.float64),
        )
        for index, count in counts.items()
    }  # fmt: skip


def _may_have_moved(cells: Cells) -> bool:
    """Return whether a share differs by half of `MIN_SHARE_CHANGE` before and from some day on; most of many shares are too small."""
    ends = np.flatnonzero(np.diff(cells.days, append=-1))[:-1]
    before = np.cumsum(cells.total)[ends] / np.cumsum(cells.weight)[ends]
    after = (cells.total.sum() - np.cumsum(cells.total)[ends]) / (cells.weight.sum() - np.cumsum(cells.weight)[ends])
    return bool((np.abs(after - before) >= MIN_SHARE_CHANGE / 2).any())


def _wanders(cells: Cells, change: Change) -> bool:
    """Return whether a share varied before the change so much that it is likely to come back.

    The variance of days is that of a beta-binomial distribution, by moments.
    """
    starts = np.flatnonzero(np.diff(cells.days, prepend=-1))
    is_before = cells.days[starts] < day_number(change.first_day)
    sessions = np.add.reduceat(cells.weight, starts)[is_before]
    shares = np.add.reduceat(cells.total, starts)[is_before] / sessions
    mean = float(np.average(shares, weights=sessions))
    by_chance = (len(shares) - 1) * mean * (1 - mean)
    excess = float((sessions * (shares - mean) ** 2).sum()) - by_chance
    variance = max(0.0, excess) / float(sessions.sum() - (sessions**2).sum() / sessions.sum())
    return abs(change.size) < WANDER_FACTOR * math.sqrt(variance)


class NewSegment(NamedTuple):
    """A stratum that is new while others have a past."""

    stratum: int
    """Its index in the strata that were compared."""
    day: date
    """The first day with a session."""
    level: float
    """Its mean."""
    sibling_level: float
    """The mean of the other strata on the days on which it had sessions."""
    sessions: int


def find_new_segments(strata: Sequence[Cells], as_of: date) -> list[NewSegment]:
    """Return the strata whose first session was in the `TOLD_DAYS` days up to `as_of`, while others had sessions before."""
    days = np.unique(np.concatenate([np.zeros(0, np.int64), *(cells.days for cells in strata)]))
    days = days[days <= day_number(as_of)]
    daily = _sum_by_day([select_until(cells, as_of) for cells in strata], days)
    new = []
    oldest = day_number(as_of) - TOLD_DAYS + 1
    for stratum, units in enumerate(daily.units):
        index = np.flatnonzero(units)
        if not index.size:
            continue
        first = days[index[0]]
        siblings = days[(daily.units.sum(axis=0) - units) > 0]
        notice = _describe_segment(daily, stratum, index)
        if notice is None:
            continue
        days_before = siblings[siblings < first]
        has_past = days_before.size >= MIN_DAYS_BEFORE and first - days_before[0] >= REFERENCE_DAYS
        if first >= oldest and has_past and notice.sessions >= MIN_SESSIONS:
            new.append(notice._replace(day=date_of(first)))
    return new


def _describe_segment(daily: _DailySums, stratum: int, index: Ints) -> NewSegment | None:
    """Return the levels of a stratum and of the others on the days of the stratum; None if it never had company."""
    weight = daily.weight[:, index].sum(axis=1)
    total = daily.total[:, index].sum(axis=1)
    sibling_weight = float(weight.sum() - weight[stratum])
    if sibling_weight <= 0:
        return None
    return NewSegment(
        stratum,
        day=date.min,
        level=float(total[stratum] / weight[stratum]),
        sibling_level=float(total.sum() - total[stratum]) / sibling_weight,
        sessions=round(float(daily.units[stratum].sum())),
    )
