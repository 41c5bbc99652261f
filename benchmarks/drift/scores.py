"""Simulated scores of a project: days of sessions of scores, each with its weight, quiet up to a day and changed from it on."""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """A score and its weight, 1 / sampling probability."""

    value: float
    weight: float = 1.0


Session = list[Score]
Shape = Callable[[random.Random, float], Session]
"""Draws a session whose scores are shifted by so many sigma."""


def normal(rng: random.Random, shift: float) -> Session:
    """Return one score, mean 0.85, sigma 0.1, cut to 0..1."""
    return [Score(_cut(rng.gauss(0.85 + 0.1 * shift, 0.1)))]


def thirds(rng: random.Random, shift: float) -> Session:
    """Three checks, each of which fires with 6 %: mean 0.94, sigma 0.14."""
    fires = 0.06 - shift * math.sqrt(0.06 * 0.94 / 3)
    return [Score(1 - sum(rng.random() < fires for _ in range(3)) / 3)]


def fifths(rng: random.Random, shift: float) -> Session:
    """Whole points from 1 to 5, most of them 4 and 5."""
    return [Score(float(min(5, max(1, round(rng.gauss(4.1 + 0.8 * shift, 0.8))))))]


def skewed(rng: random.Random, shift: float) -> Session:
    """Mean 0.94, sigma 0.07, half of them above 0.97, with a long tail downwards."""
    return [Score(_cut(rng.betavariate(9, 0.6) + 0.075 * shift))]


def rare(rng: random.Random, shift: float) -> Session:
    """0.95, but 4 % are 0.2: sigma 0.15; a change is in how many."""
    bad = rng.random() < 0.04 - shift * 0.147 / 0.75
    return [Score(rng.uniform(0.1, 0.3) if bad else rng.uniform(0.93, 0.97))]


def flags(rng: random.Random, shift: float) -> Session:
    """Always 1; after a change one in ten is 2/3, whatever its size."""
    return [Score(1 - (shift != 0 and rng.random() < 0.1) / 3)]


def sessions(rng: random.Random, shift: float) -> Session:
    """Sessions of various lengths that differ by 0.07, and their scores by another 0.07; the first five turns, then every third."""
    length, mean = 1 + int(rng.expovariate(0.25)), rng.gauss(0.85 + 0.1 * shift, 0.07)
    weights = [1.0 if turn <= 5 else 3.0 for turn in range(1, length + 1) if turn <= 5 or turn % 3 == 0]
    return [Score(_cut(rng.gauss(mean, 0.07)), weight) for weight in weights]


def mix(rng: random.Random, shift: float) -> Session:
    """First turns score 0.8, later ones 0.9; of these every third is scored, after the change every one. The quality stays."""
    later = 3 * rng.randrange(5)
    first = [Score(_cut(rng.gauss(0.8, 0.1))) for _ in range(5)]
    if shift:
        return [*first, *(Score(_cut(rng.gauss(0.9, 0.1))) for _ in range(later))]
    return [*first, *(Score(_cut(rng.gauss(0.9, 0.1)), 3.0) for _ in range(later // 3))]


class Project(NamedTuple):
    """The history of a simulated project."""

    shape: Shape
    rate: float
    """Sessions a day."""
    days: int
    change: int
    """The first day of the change."""
    shift: float = 0.0
    """The size of the change, in sigma."""
    ramp: int = 1
    """Days it takes to go there."""
    weekends: bool = True
    """True if there is traffic on days 5 and 6 of each week; if not, the other days have more."""
    noon: bool = False
    """True if the change comes at noon of its first day."""
    daily: float = 0.0
    """By how much days differ anyway, in sigma: each has a mean of its own."""


def simulated(project: Project, seed: object) -> list[list[Session]]:
    """Return the sessions of each day."""
    rng = random.Random(repr(seed))
    return [_day(project, rng, day) for day in range(project.days)]


def mean_of(shape: Shape, shift: float) -> float:
    """Return the weighted mean of a shape's scores, by drawing many."""
    rng = random.Random(1)
    drawn: Sequence[Score] = [score for _ in range(100_000) for score in shape(rng, shift)]
    return math.fsum(score.value * score.weight for score in drawn) / math.fsum(score.weight for score in drawn)


def _day(project: Project, rng: random.Random, day: int) -> list[Session]:
    own = rng.gauss(0, project.daily) if project.daily else 0.0
    count = _count(rng, _rate(project, day))
    later = count // 2 if project.noon and day == project.change else 0
    return [project.shape(rng, own + (_shift(project, day) if place >= later else 0.0)) for place in range(count)]


def _shift(project: Project, day: int) -> float:
    return project.shift * min(1.0, max(0.0, (day - project.change + 1) / project.ramp))


def _rate(project: Project, day: int) -> float:
    if project.weekends:
        return project.rate
    return 0.0 if day % 7 >= 5 else project.rate * 7 / 5


def _count(rng: random.Random, mean: float) -> int:
    """Return a Poisson number."""
    count, passed = 0, rng.expovariate(1.0)
    while passed < mean:
        count, passed = count + 1, passed + rng.expovariate(1.0)
    return count


def _cut(value: float) -> float:
    return min(1.0, max(0.0, value))
