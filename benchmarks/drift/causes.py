"""Agent or judge: how often an incident's cause is right, wrong or not known, over simulated judges with and without moods.

Each line simulates verdicts on anchors before and after an incident and asks `audit.anchors`, as a check does.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from audit.anchors import IncidentChange, Verdict, attribute
from audit.comparison import beta_quantile

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
ERROR_OF_SIZE = 0.1
"""Standard error of an incident's size, as a share of the size: about what an incident has some days after it began."""


class Row(NamedTuple):
    """A line of the table."""

    line: str
    measured: float
    low: float
    high: float
    """The exact 95 % interval of the measured share (Clopper and Pearson)."""
    bar: str
    met: bool


class Judge(NamedTuple):
    """A simulated judge and the incident that it is asked about."""

    shift: float = 0.0
    """By how much the judge changes, in parts of the scale."""
    agent: float = 0.0
    """By how much the agent changes."""
    noise: float = 0.07
    """Standard deviation of one verdict."""
    mood: float = 0.0
    """Standard deviation of what all verdicts of a round have in common."""
    memory: float = 0.0
    """Correlation of a round's mood with that of the round before."""
    before: int = 4
    since: int = 3
    anchors: int = 20
    steps: int = 0
    """Verdicts are rounded to so many steps of the scale; 0: they are not."""


class Line(NamedTuple):
    """A count, and the most and the least that it may come to."""

    name: str
    judge: Judge
    counted: Callable[[str | None], bool]
    most: float | None = None
    least: float | None = None


def _is(*causes: str | None) -> Callable[[str | None], bool]:
    return lambda cause: cause in causes


LINES = (
    Line('"the judge changed" by -0.03, 20 anchors, 7 rounds: judge or not known', Judge(-0.03), _is("judge", None), least=0.9),
    Line("the same with noise 0.03: judge or not known", Judge(-0.03, noise=0.03), _is("judge", None), least=0.9),
    Line("the same with moods of sd 0.03: judge or not known", Judge(-0.03, mood=0.03), _is("judge", None), least=0.9),
    Line("the judge by -0.1, 7 rounds: judge", Judge(-0.1), _is("judge"), least=0.8),
    Line("the judge by -0.1 in steps of a fifth, 14 + 7 rounds: judge", Judge(-0.1, before=14, since=7, steps=5), _is("judge"), least=0.8),
    Line("the judge by -0.05, 14 + 7 rounds: judge", Judge(-0.05, before=14, since=7), _is("judge"), least=0.8),
    Line("judge moods of sd 0.03, the agent by -0.03: judge", Judge(agent=-0.03, mood=0.03), _is("judge"), most=0.05),
    Line("judge moods of sd 0.03, the agent by -0.1: judge", Judge(agent=-0.1, mood=0.03), _is("judge"), most=0.05),
    Line("judge moods of sd 0.03, 14 + 7 rounds, the agent by -0.03: judge", Judge(agent=-0.03, mood=0.03, before=14, since=7), _is("judge"), most=0.05),
    Line("moods of sd 0.03 with memory 0.5, 14 + 7 rounds, the agent by -0.05: judge", Judge(agent=-0.05, mood=0.03, memory=0.5, before=14, since=7), _is("judge"), most=0.1),
    Line("the agent by -0.03, the judge stays: judge", Judge(agent=-0.03), _is("judge"), most=0.05),
    Line("the agent by -0.1, the judge stays: judge", Judge(agent=-0.1), _is("judge"), most=0.05),
    Line("the agent by -0.1, the judge stays: agent", Judge(agent=-0.1), _is("agent"), least=0.8),
    Line("the agent by -0.1, moods of sd 0.03, 14 + 7 rounds: agent", Judge(agent=-0.1, mood=0.03, before=14, since=7), _is("agent"), least=0.8),
    Line("both, the agent by -0.08 and the judge by -0.02: judge", Judge(-0.02, agent=-0.08, before=14, since=7), _is("judge"), most=0.05),
    Line("both, the agent by -0.02 and the judge by -0.08: agent", Judge(-0.08, agent=-0.02, before=14, since=7), _is("agent"), most=0.05),
    Line("both by -0.05: agent", Judge(-0.05, agent=-0.05), _is("agent"), most=0.05),
    Line("the agent by -0.07, the judge by +0.02 the other way: judge", Judge(0.02, agent=-0.07, before=14, since=7), _is("judge"), most=0.05),
)  # fmt: skip


def measure(seed: int, runs: int) -> list[Row]:
    """Return every line over so many simulations."""
    return [_measured(line, seed, runs) for line in LINES]


def answers(judge: Judge, seed: object, runs: int) -> Counter[str | None]:
    """Count how often each cause is named over so many simulations."""
    return Counter(_answer(judge, random.Random(repr((seed, number)))) for number in range(runs))


def exact_interval(hits: int, runs: int, error: float = 0.05) -> tuple[float, float]:
    """Return the interval of a share by Clopper and Pearson: it holds the truth in at least 95 %."""
    low = 0.0 if hits == 0 else beta_quantile(error / 2, hits, runs - hits + 1)
    high = 1.0 if hits == runs else beta_quantile(1 - error / 2, hits + 1, runs - hits)
    return low, high


def _measured(line: Line, seed: int, runs: int) -> Row:
    counts_by_cause = answers(line.judge, (seed, line.judge), runs)
    hits = sum(count for cause, count in counts_by_cause.items() if line.counted(cause))
    share, (low, high) = hits / runs, exact_interval(hits, runs)
    if line.most is not None:
        return Row(line.name, share, low, high, f"at most {line.most:.0%}", share <= line.most)
    least = line.least or 0.0
    return Row(line.name, share, low, high, f"at least {least:.0%}", share >= least)


def _answer(judge: Judge, rng: random.Random) -> str | None:
    """Return the cause of one simulated incident that began on the day between the rounds before and the rounds since."""
    total = judge.shift + judge.agent
    first = START + timedelta(days=judge.before)
    size = max(abs(total) * (1 + rng.gauss(0, ERROR_OF_SIZE)), 1e-3)
    moved = IncidentChange(
        direction="up" if total > 0 else "down",
        size=size,
        error=ERROR_OF_SIZE * size,
        earliest=first.date(),
        latest=first.date(),
    )
    return attribute(_verdicts(judge, rng), moved).cause


def _verdicts(judge: Judge, rng: random.Random) -> list[Verdict]:
    levels = [rng.uniform(0.4, 0.95) for _ in range(judge.anchors)]
    verdicts: list[Verdict] = []
    mood = rng.gauss(0, judge.mood)
    for number in range(judge.before + 1 + judge.since):
        mood = judge.memory * mood + math.sqrt(1 - judge.memory**2) * rng.gauss(0, judge.mood)
        shift = mood + (judge.shift if number >= judge.before else 0.0)
        at = START + timedelta(days=number)
        verdicts += [
            Verdict(f"a{place}", at, _round_score(level + shift + rng.gauss(0, judge.noise), judge.steps))
            for place, level in enumerate(levels)
        ]
    return verdicts


def _round_score(value: float, steps: int) -> float:
    return min(1.0, max(0.0, round(value * steps) / steps if steps else value))


def table(rows: Sequence[Row], what: str = "agent or judge") -> str:
    """Return the rows as Markdown."""
    head = [f"| {what} | measured | 95 % interval | bar | met |", "| --- | ---: | ---: | --- | --- |"]
    return "\n".join(
        head
        + [
            f"| {row.line} | {row.measured:.1%} | {row.low:.1%} to {row.high:.1%} | {row.bar} | {'yes' if row.met else 'no'} |"
            for row in rows
        ]
    )
