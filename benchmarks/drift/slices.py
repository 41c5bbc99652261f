"""The part that changed: does the slice that fell come first at the moment of the alarm?

A project has sessions of scores whose label `cause` has 2, 5, 10 or 20 values, of even sizes or skewed (each value has half as many
sessions again as the next one), beside labels that have nothing to do with it. One value falls by one or two sigma; which one is
drawn by size. The alarm is `audit.drift.change_detector.find_change` at the end of each day; slices are compared before and from its first day.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

from audit.drift.change_detector import Unit, find_change
from audit.drift.slices import VALUE, Key, explain
from benchmarks.drift.moments import Scored, moments_of

BAR = 0.9
START = date(2026, 1, 1)
QUIET_DAYS = 20
MOST_DAYS = 30
SIGMA = 0.1
NOISE = {"tenant": 8, "tool_version": 2, "region": 3, "model": 4}
"""Labels beside the cause, with their values."""
SIZES = (2, 5, 10, 20)


def measure(seed: int, runs: int) -> list[tuple[str, int, int, float]]:
    """For each line: what it is, how often the right slice came first, of how many alarms, and the bar."""
    lines = []
    for values in SIZES:
        for skewed in (False, True):
            for drop in (1.0, 2.0):
                draw = random.Random(f"slices {seed} {values} {skewed} {drop}")
                found = [one for one in (_right(draw, values, drop, skewed=skewed) for _ in range(runs)) if one is not None]
                line = f"one of {values} {'skewed' if skewed else 'even'} slices falls by {drop:g} sigma: it comes first"
                lines.append((line, sum(found), len(found), BAR))
    return lines


def _right(draw: random.Random, values: int, drop: float, *, skewed: bool) -> bool | None:
    """Tell whether the right slice came first at the alarm; None where none came in time."""
    sizes = [1.5**-place if skewed else 1.0 for place in range(values)]
    cause = draw.choices(range(values), sizes)[0]
    units: list[Unit] = []
    days: dict[date, list[Scored]] = defaultdict(list)
    # So many sessions that the change of the mean is found within days, whatever the size of the slice.
    expected = drop * sizes[cause] / sum(sizes)
    sessions = max(5, min(400, round(6 / expected**2)))
    for number in range(QUIET_DAYS + MOST_DAYS):
        day = START + timedelta(days=number)
        for place in range(sessions):
            labels = {"cause": str(draw.choices(range(values), sizes)[0])}
            labels |= {name: str(draw.randrange(many)) for name, many in NOISE.items()}
            fallen = number >= QUIET_DAYS and labels["cause"] == str(cause)
            mean = draw.gauss(0.7, SIGMA / 2) - (drop * SIGMA if fallen else 0.0)
            scores = [min(1.0, max(0.0, draw.gauss(mean, SIGMA * 0.75**0.5))) for _ in range(draw.randint(1, 3))]
            at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=86_400 * place / sessions)
            units.append(Unit(at, len(scores), float(len(scores)), sum(scores)))
            days[day] += [Scored(f"{day}/{place}", labels, score) for score in scores]
        if number < QUIET_DAYS:
            continue
        change = find_change(units, day)
        if change is not None and change.direction == "down":
            return _first(days, change.first_day) == Key("cause", VALUE, str(cause))
    return None


def _first(days: dict[date, list[Scored]], since: date) -> Key | None:
    """Return the slice that explains most of the change from that day on."""
    names = ["cause", *NOISE]
    (before, whole0), (after, whole1) = (
        moments_of((one for day, held in days.items() if (day >= since) is late for one in held), names)
        for late in (False, True)
    )
    found = explain(before, after, (whole0, whole1))
    return found.slices[0].key if found and found.slices else None


if __name__ == "__main__":
    for said, right, trials, _ in measure(7, 20):
        print(f"{right}/{trials} {said}")
