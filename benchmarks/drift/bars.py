"""The bars of drift detection: histories without a change and with one, through the real rule, each line with its interval.

A history is drawn hour by hour with numpy; what reads it is `audit.drift.change_detector`, as a check does. Seeds are drawn anew with `--seed`.
"""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np

from audit.comparison import beta_quantile
from audit.drift.change_detector import SUSPECTED, find_change, is_confirmed, take_looks
from audit.drift.discoveries import family_penalty
from audit.drift.evidence_bounds import FamilySums, bound_log_evidence
from audit.drift.series import Cells, Floats, Series
from audit.drift.spread import find_spread

FIRST = date(2026, 1, 5)
START = np.datetime64(FIRST.isoformat(), "us")
DAY = np.timedelta64(1, "D")
QUIET = 14
CHANGE = 44
"""14 days of reference and 30 quiet ones."""
YEAR = 365
APART = 7.0
"""Alarms with so many quiet days between them are two."""
FLEET = 4000
"""Series of 1 000 projects of four tiers."""
SPREADS = frozenset({"spread delay", "quiet spread", "spread share"})
"""Kinds of lines about the spread instead of the mean."""
DailyNumber = Callable[[int], float]


class History(NamedTuple):
    """The history of a simulation; sizes are in sigma of a score."""

    rate: float = 10
    days: int = CHANGE + 60
    change: float = CHANGE
    """The time of the change, in days."""
    shift: float = 0.0
    ramp: float = 0.0
    """Days that it takes to go there."""
    after: float | None = None
    """Sessions a day after the change; None: as before."""
    length: int = 1
    """Scores of a session."""
    length_after: int | None = None
    tails: bool = False
    """True if the lengths of sessions are heavy-tailed (Pareto of exponent 1.2, up to 200)."""
    spread: float = 1.0
    """The factor by which the spread is larger after the change."""
    between: float = 0.5
    """The part of a score's variance that sessions of one score share."""
    night: float = 0.0
    """The amount by which scores are lower from 00 to 08 UTC."""
    weekend: float = 0.0
    """The amount by which they are lower at weekends."""
    weekend_rate: float = 1.0
    """The part of the sessions that comes on a day of a weekend."""
    daily: float = 0.0
    """By how much days differ anyway."""
    memory: float = 0.0
    """Correlation of a day's difference with that of the day before."""
    regular: bool = False
    """True if exactly `rate` sessions come a day."""
    dip: tuple[int, int] | None = None
    """First day and length of a dip of 1.5 sigma that is over."""


class Row(NamedTuple):
    """A line of the table."""

    line: str
    measured: str
    interval: str
    bar: str
    met: bool


class Line(NamedTuple):
    """A measure of a history, how often it is taken, and its bar."""

    name: str
    history: History
    kind: str
    """quiet (false alarms a year), share (alarms in 60 days), delay (median days), day or size (intervals that hold), confirmed; `SPREADS`."""
    bar: float
    runs: int
    family: int = 1
    """The number of series among which the history is the only one that changes."""


def drawn(history: History, rng: np.random.Generator) -> Cells:
    """Return the cells of a history."""
    moods = _moods(history, rng)
    counts = [_count(history, day, rng) for day in range(history.days)]
    at = np.concatenate([np.sort(day + _times(history, count, rng)) for day, count in enumerate(counts)])
    day, since = at.astype(np.int64), at >= history.change
    length = _lengths(history, since, rng)
    gone = np.clip((at - history.change) / history.ramp, 0, 1) if history.ramp else since.astype(np.float64)
    mean = moods[day] + history.shift * gone - history.night * (at % 1 < 1 / 3) - history.weekend * (day % 7 >= 5)
    if history.dip is not None:
        mean = mean - 1.5 * ((day >= history.dip[0]) & (day < sum(history.dip)))
    wide = np.where(since, history.spread, 1.0)
    noise = math.sqrt(history.between) * rng.normal(size=len(at)) + np.sqrt((1 - history.between) / length) * rng.normal(
        size=len(at)
    )
    value = np.clip(0.6 + 0.1 * (mean + wide * noise), 0, 1)
    return build_cells(at, length.astype(np.float64), value)


def build_cells(at: Floats, weight: Floats, value: Floats) -> Cells:
    """Return the cells of sessions by their times in days, oldest first, with their weights and means."""
    starts = np.flatnonzero(np.diff(np.floor(at * 24), prepend=-1))
    total = weight * value
    columns = np.stack((np.ones_like(weight), weight, weight, total, weight**2, weight * total, total**2))
    sums = np.add.reduceat(columns, starts, axis=1)
    ends = np.append(starts[1:], len(at))[: len(starts)] - 1
    last = START + (at[ends] * 86_400e6).astype("timedelta64[us]")
    units, scores, weights, totals, squares, mixed, squared = sums
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    return Cells(last, units, scores, weights, totals, squares, mixed, squared, low, high)


def _moods(history: History, rng: np.random.Generator) -> Floats:
    moods = history.daily * rng.normal(size=history.days)
    for day in range(1, history.days if history.memory else 0):
        moods[day] = history.memory * moods[day - 1] + math.sqrt(1 - history.memory**2) * moods[day]
    return moods


def _count(history: History, day: int, rng: np.random.Generator) -> int:
    rate = history.after if history.after is not None and day >= history.change else history.rate
    mean = rate * (history.weekend_rate if day % 7 >= 5 else 1.0)
    return round(mean) if history.regular else int(rng.poisson(mean))


def _times(history: History, count: int, rng: np.random.Generator) -> Floats:
    return 0.2 + 0.6 * rng.random(count) if history.regular else rng.random(count)


def _lengths(history: History, since: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if history.tails:
        return np.minimum(200, 1 + np.floor(2 * rng.pareto(1.2, len(since))))
    return np.where(since, history.length_after or history.length, history.length)


def alarms(cells: Cells, days: int, since: int = QUIET, family: int = 1) -> list[tuple[float, float | None]]:
    """Return when a look first sees more than chance, and when that is confirmed, in days.

    There is one pair for each alarm that goes on without a quiet week. `family` is the number of series among which it is alone.
    """
    penalty = family_penalty([0.0], family)
    alarm = math.log(SUSPECTED) + penalty
    series = Series(cells, FIRST, FIRST + timedelta(days=days - 1))
    looks = take_looks(series, range(max(0, since - (series.first - FIRST).days), series.length), alarm)
    raised = np.flatnonzero(looks.log_evidence >= alarm)
    times = (series.cells.last[looks.cells[raised]] - START) / DAY
    found = []
    for part in np.split(np.arange(len(raised)), np.flatnonzero(np.diff(times) > APART) + 1):
        if part.size:
            sure = np.flatnonzero(
                is_confirmed(series.cells.last[looks.cells[raised[part]]], looks.log_evidence[raised[part]] - penalty)
            )
            found.append((float(times[part[0]]), float(times[part[sure[0]]]) if sure.size else None))
    return found


def measure_history(task: tuple[Line, int, int]) -> float | None:
    """Return the result of one history of a line."""
    line, seed, run = task
    history = line.history
    cells = drawn(history, np.random.default_rng([seed, run, zlib.crc32(repr(history).encode())]))
    if line.kind in SPREADS:
        return _spread(line, cells)
    if line.kind in {"quiet", "false confirmed"}:
        raised = alarms(cells, history.days)
        # A confirmed incident stays open until somebody decides: what is confirmed again is no other one.
        return float(len(raised) if line.kind == "quiet" else any(sure is not None for _, sure in raised))
    alarms_after = alarms(cells, history.days, math.floor(history.change), line.family)
    if line.kind == "share":
        return float(bool(alarms_after))
    if line.kind == "confirmed":
        return next(
            (sure - history.change for _, sure in alarms_after if sure is not None and sure >= history.change), math.inf
        )
    late = [at for at, _ in alarms_after if at >= history.change]
    if line.kind == "delay":
        return late[0] - history.change if late else math.inf
    return _holds(line, cells, late[0]) if late else None


def _spread(line: Line, cells: Cells) -> float:
    """Return the result of daily checks of the spread, by the kind of the line.

    It is the number of alarms, whether there is one, or the days from the change to the end of the day that shows it.
    """
    since = QUIET if math.isinf(line.history.change) else math.floor(line.history.change)
    alarm_days = [day for day in range(since, line.history.days) if find_spread(cells, FIRST + timedelta(days=day)) is not None]
    if line.kind == "spread delay":
        return alarm_days[0] + 1 - line.history.change if alarm_days else math.inf
    return float(alarms_apart(alarm_days) if line.kind == "quiet spread" else bool(alarm_days))


def alarms_apart(days: Sequence[int]) -> int:
    """Count the alarms of daily checks that see more than chance on these days, in order."""
    return sum(place == 0 or day - days[place - 1] > APART for place, day in enumerate(days))


def _holds(line: Line, cells: Cells, alarm: float) -> float | None:
    """Tell whether the interval of the first day, or of the size, holds the truth at the alarm."""
    is_seen = cells.last <= START + np.timedelta64(round(alarm * 86_400e6), "us")
    last, *columns = cells
    change = find_change(
        Cells(last[is_seen], *(column[is_seen] for column in columns)), FIRST + timedelta(days=math.floor(alarm))
    )
    if change is None:
        return None
    truth = FIRST + timedelta(days=math.floor(line.history.change))
    if line.kind == "day":
        return float(change.earliest_day <= truth <= change.latest_day)
    return float(change.size_interval.low <= 0.1 * line.history.shift <= change.size_interval.high)


def _year(**fields: object) -> History:
    return History(days=QUIET + YEAR, change=math.inf, **fields)  # type: ignore[arg-type]


def _fall(size: float, **fields: object) -> History:
    return History(shift=-size, **fields)  # type: ignore[arg-type]


LINES: tuple[Line, ...] = (
    Line("independent, 3 a day", _year(rate=3), "quiet", 0.25, 60),
    Line("independent, 10 a day", _year(rate=10), "quiet", 0.25, 60),
    Line("independent, 50 a day", _year(rate=50), "quiet", 0.25, 40),
    Line("600 sessions a day", _year(rate=600), "quiet", 0.25, 20),
    Line("2 000 sessions a day", _year(rate=2000), "quiet", 0.25, 20),
    Line("traffic 100 to 1 000 a day", History(rate=100, after=1000), "share", 0.05, 40),
    Line("traffic 4 000 to 400 a day", History(rate=4000, after=400), "share", 0.05, 20),
    *(
        Line(f"sessions of {before} scores become sessions of {after}, {between:.0%} shared", History(length=before, length_after=after, between=between), "share", 0.05, 100)
        for before, after in ((5, 1), (1, 10), (3, 12), (10, 1))
        for between in (0.0, 0.5)
    ),
    Line("the spread doubles, 10 a day", History(spread=2), "share", 0.1, 100),
    Line("the spread doubles, 50 a day", History(rate=50, spread=2), "share", 0.1, 100),
    Line("the spread doubles, 10 a day: told as a change of spread", History(spread=2), "spread delay", 14, 60),
    Line("the spread doubles, 50 a day: told as a change of spread", History(rate=50, spread=2), "spread delay", 3, 60),
    Line("independent, 10 a day: the spread", _year(), "quiet spread", 0.25, 60),
    Line("traffic 4 000 to 400 a day: the spread", History(rate=4000, after=400), "spread share", 0.05, 20),
    Line("nights half a sigma lower, 200 a day", _year(rate=200, night=0.5), "quiet", 0.25, 30),
    Line("day effects of a quarter of a sigma", _year(daily=0.25), "quiet", 0.25, 60),
    Line("day effects of half a sigma", _year(daily=0.5), "quiet", 0.25, 60),
    Line("the same with memory (AR 0.7)", _year(daily=0.5, memory=0.7), "quiet", 0.5, 100),
    Line("weekends a sigma lower, with less traffic", _year(weekend=1.0, weekend_rate=0.4), "quiet", 0.25, 60),
    Line("heavy-tailed session lengths, 3 a day", _year(rate=3, tails=True), "quiet", 0.25, 60),
    Line("-1 sigma, 3 a day", _fall(1, rate=3), "delay", 11, 100),
    Line("-1 sigma, 10 a day", _fall(1), "delay", 3, 100),
    Line("-1 sigma, 50 a day", _fall(1, rate=50), "delay", 0.6, 60),
    *(
        Line(f"-1 sigma, 10 a day, in one segment of {family}{suffix}", _fall(1), kind, bar, 100, family)
        for family, bar in ((25, 4), (250, 6))
        for kind, suffix in (("delay", ""), ("confirmed", ": confirmed"))
    ),
    Line("-0.5 sigma, 10 a day", _fall(0.5), "delay", 16, 100),
    Line("-0.5 sigma, 50 a day", _fall(0.5, rate=50), "delay", 4, 60),
    Line("-0.5 sigma where weekends lie a sigma lower, 10 a day", _fall(0.5, weekend=1.0), "delay", 8, 100),
    Line("-0.5 sigma where weekends lie a sigma lower, 50 a day", _fall(0.5, rate=50, weekend=1.0), "delay", 3, 60),
    Line("a ramp of one sigma over a year, 10 a day", _fall(1, days=CHANGE + YEAR, ramp=YEAR), "delay", 120, 30),
    Line("one session a day, a fall of 5.5 sigma: days to the alarm", _fall(5.5, rate=1, regular=True), "delay", 2, 60),
    *(
        Line(f"-{size:g} sigma from {hour} o'clock on, {rate} a day: the interval of the {kind} holds", _fall(size, rate=rate, change=CHANGE + hour / 24), kind, 0.9, 60)
        for rate, size in ((10, 1), (50, 1), (50, 2))
        for hour in (0, 12, 20)
        for kind in ("day", "size")
    ),
    Line("-1 sigma, 10 a day: confirmed", _fall(1), "confirmed", 4, 100),
    Line("1 000 projects of four tiers at 10 a day: false confirmed a month", _year(), "false confirmed", 1, 2800),
)  # fmt: skip


def measure(pool: Pool, seed: int, share: float = 1.0, part: str = "") -> list[Row]:
    """Return the lines of the tables whose name contains `part`; `share` of the runs of each."""
    return [
        _row(line, pool.map(measure_history, [(line, seed, run) for run in range(max(5, round(share * line.runs)))]))
        for line in LINES
        if part in line.name
    ]


def _row(line: Line, results: Sequence[float | None]) -> Row:
    values = [value for value in results if value is not None]
    if line.kind in {"quiet", "quiet spread"}:
        return rate_row(line.name, round(sum(values)), len(values), line.bar)
    if line.kind == "false confirmed":
        return _fleet_row(line, values)
    if line.kind in {"delay", "spread delay", "confirmed"}:
        return delay_row(line.name, values, line.bar)
    is_most = line.kind in {"share", "spread share"}
    return share_row(line.name, round(sum(values)), len(values), line.bar, is_most=is_most)


def share_row(line: str, hits: int, runs: int, bar: float, *, is_most: bool = False) -> Row:
    """Return the row of a share that is to be at least so large, or at most (`is_most`)."""
    (low, high), value = _binomial(hits, runs), hits / max(1, runs)
    sign, met = ("at most", value <= bar) if is_most else ("at least", value >= bar)
    return Row(line, f"{value:.0%} of {runs}", f"{low:.0%} to {high:.0%}", f"{sign} {bar:.0%}", met)


def rate_row(line: str, events: int, years: float, bar: float) -> Row:
    """Return the row of a rate a year that is to be at most so large."""
    low, high = (bound / years for bound in poisson_interval(events))
    return Row(line, f"{events / years:.2f} a year", f"{low:.2f} to {high:.2f}", f"at most {bar:g}", events / years <= bar)


def _fleet_row(line: Line, found: Sequence[float]) -> Row:
    scale = FLEET / 12 / len(found)
    value, low, high = (scale * estimate for estimate in (sum(found), *poisson_interval(round(sum(found)))))
    return Row(line.name, f"{value:.2f} a month", f"{low:.2f} to {high:.2f}", f"at most {line.bar:g}", value <= line.bar)


def delay_row(line: str, found: Sequence[float], bar: float) -> Row:
    """Return the row of median days that are to be at most so many."""
    ranked = sorted(found)
    margin = 1.96 * math.sqrt(len(ranked)) / 2
    low, high = (
        ranked[max(0, math.floor(len(ranked) / 2 - margin))],
        ranked[min(len(ranked) - 1, math.ceil(len(ranked) / 2 + margin))],
    )
    missed = sum(map(math.isinf, ranked))
    value = statistics.median(ranked)
    lost = f", missed {missed} of {len(ranked)}" if missed else ""
    return Row(line, f"{value:.1f} d{lost}", f"{low:.1f} to {high:.1f}", f"{bar:g} d", value <= bar)


def _binomial(hits: int, runs: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share (Clopper and Pearson)."""
    low = beta_quantile(0.025, hits, runs - hits + 1) if hits else 0.0
    return low, beta_quantile(0.975, hits + 1, runs - hits) if hits < runs else 1.0


def poisson_interval(events: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a Poisson mean (Garwood), by the normal approximation of the chi-squared quantile (Wilson and Hilferty)."""

    def quantile(z: float, shape: float) -> float:
        return shape * (1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3

    return quantile(-1.96, events) if events else 0.0, quantile(1.96, events + 1)


def processor_time(rounds: int = 5) -> float:
    """Milliseconds of the processor for a check of 90 days of 50 scores in four tiers: the least of some rounds."""
    cells = [drawn(History(rate=50, days=90), np.random.default_rng(tier)) for tier in range(4)]
    spent = []
    for _ in range(rounds):
        begun = time.process_time()
        for tier in cells:
            find_change(tier, FIRST + timedelta(days=89))
        spent.append(time.process_time() - begun)
    return 1000 * min(spent)


class PrefilterCost(NamedTuple):
    """The cost and the effect of the prefilter on quiet series of 90 days with 10 sessions a day."""

    bound: float
    """Milliseconds of the processor per series."""
    detector: float
    passed: float
    """The share of the series that may have changed."""
    passed_in_family: float
    """The same, in a family of 250."""


def prefilter_cost(seed: int, series: int = 1000, rounds: int = 3) -> PrefilterCost:
    """Return the cost of the prefilter, the least of some rounds, and that of the detector on some of the series."""
    rng = np.random.default_rng(seed)
    many = [drawn(History(days=90, change=math.inf), rng) for _ in range(series)]
    as_of = FIRST + timedelta(days=89)
    spent = []
    for _ in range(rounds):
        begun = time.process_time()
        bounds = bound_log_evidence(FamilySums.of_cells(many), as_of)
        spent.append(time.process_time() - begun)
    begun = time.process_time()
    for cells in many[: series // 20]:
        find_change(cells, as_of)
    ended = time.process_time()
    return PrefilterCost(
        bound=1000 * min(spent) / series,
        detector=1000 * (ended - begun) / (series // 20),
        passed=float((bounds >= math.log(SUSPECTED)).mean()),
        passed_in_family=float((bounds >= math.log(SUSPECTED * 250)).mean()),
    )
