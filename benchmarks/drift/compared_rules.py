"""The rules that are compared: each tells at which times, in days, it raises an alarm over a project's sessions.

Only ours knows of weights and sessions. After an alarm each rule starts anew.
"""

import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

from audit.drift.change_detector import SUSPECTED, take_looks
from audit.drift.consecutive_days import DailyAverage, consecutive_days
from audit.drift.series import Series, Unit, cells_of
from benchmarks.drift.scores import Session

Days = Sequence[Sequence[Session]]
START = datetime(2026, 1, 5, tzinfo=UTC)
BASELINE = 14
FALSE_ALARM = 0.001
"""Of the first try: how often it may ever be wrong."""


def day_of(number: int) -> date:
    """Return the date of a simulated day."""
    return START.date() + timedelta(days=number)


def units_of(days: Days, first: int = 0) -> list[Unit]:
    """Return the sessions from a day on as units, spread evenly over their days."""
    return [
        Unit(
            START + timedelta(days=number + (place + 0.5) / len(day)),
            len(session),
            math.fsum(score.weight for score in session),
            math.fsum(score.weight * score.value for score in session),
        )
        for number, day in enumerate(days[first:], start=first)
        for place, session in enumerate(day)
    ]


def ours(days: Days) -> Iterator[float]:
    """Return the evidence for a change of the mean, after every hour with sessions."""
    first = 0
    while (alarm := _first_alarm(days, first)) is not None:
        yield alarm
        first = math.floor(alarm)


def seed_rule(days: Days) -> Iterator[float]:
    """Consecutive days, against the last 14 days as they are on the day of the check, at the end of each day."""
    values = [[score.value for session in day for score in session] for day in days]
    averages = [DailyAverage(day_of(number), statistics.fmean(day) if day else None) for number, day in enumerate(values)]
    was_open = False
    for number in range(BASELINE, len(days)):
        baseline_values = [value for day in values[number - BASELINE + 1 : number + 1] for value in day]
        if len(baseline_values) < 2:
            continue
        mean = math.fsum(baseline_values) / len(baseline_values)
        sigma = math.sqrt(max(0.0, math.fsum(value * value for value in baseline_values) / len(baseline_values) - mean * mean))
        is_open = bool(consecutive_days(averages[max(0, number - 6) : number + 1], mean, sigma, day_of(number)))
        if is_open and not was_open:
            yield number + 1.0
        was_open = is_open


def mixture(days: Days) -> Iterator[float]:
    """Return a first try: a normal-mixture confidence sequence of the mean from day 14 on, beside that of the baseline with its error."""
    first = 0
    while (alarm := _first_exclusion(days, first)) is not None:
        yield alarm
        first = math.floor(alarm)


def _river(name: str) -> Callable[[Days], Iterator[float]]:
    def rule(days: Days) -> Iterator[float]:
        from river import drift  # noqa: PLC0415 - it is there only where the benchmark's own requirements are installed

        detector = getattr(drift, name)()
        for at, value in _scores(days):
            detector.update(value)
            if detector.drift_detected:
                yield at

    return rule


RULES: dict[str, Callable[[Days], Iterator[float]]] = {
    "consecutive days (last 14 days)": seed_rule,
    "normal-mixture confidence sequence": mixture,
    "ours": ours,
}
if importlib.util.find_spec("river") is not None:
    RULES |= {"river ADWIN, defaults": _river("ADWIN"), "river Page-Hinkley, defaults": _river("PageHinkley")}


def _scores(days: Days, first: int = 0) -> Iterator[tuple[float, float]]:
    """Time and value of each score."""
    for number, day in enumerate(days[first:], start=first):
        for place, session in enumerate(day):
            for score in session:
                yield number + (place + 0.5) / len(day), score.value


def _first_alarm(days: Days, first: int) -> float | None:
    series = Series(cells_of(units_of(days, first)), day_of(first), day_of(len(days) - 1))
    looks = take_looks(series, range(series.length))
    raised = looks.cells[looks.log_evidence >= math.log(SUSPECTED)]
    return (series.time(int(raised[0])).replace(tzinfo=UTC) - START) / timedelta(days=1) if raised.size else None


def _first_exclusion(days: Days, first: int) -> float | None:
    baseline_values = [value for at, value in _scores(days[: first + BASELINE], first)]
    if len(baseline_values) < 10:
        return None
    mean, sigma = statistics.fmean(baseline_values), max(statistics.pstdev(baseline_values), 0.01)
    error = 3 * sigma / math.sqrt(len(baseline_values))
    total, rho = 0.0, 50.0
    for count, (at, value) in enumerate(_scores(days, first + BASELINE), start=1):
        total += value - mean
        width = sigma * math.sqrt((count + rho) * math.log((count + rho) / (rho * FALSE_ALARM**2)))
        if abs(total) > width + error * count:
            return at
    return None
