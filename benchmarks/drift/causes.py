"""Agent or judge: how often an incident's cause is right, wrong or not known, over simulated judges with and without moods.

Each line simulates verdicts on anchors before and after an incident and asks `audit.anchors`, as a check does.

`STREAMS` reconstruct the protocol of "Who Drifted: the System or the Judge?" (arXiv 2606.15474) from its abstract; its data are not public. A
judge scores a stream of items and, at a steady interleave, a fixed set of anchors. Silently, its version or its prompt changes, or the agent
gets worse. An alarm of the stream is to be attributed within a guard window of 300 items. Assumed here: scores in steps of a quarter; 50 items
and one round of anchors a day; a new version that is lower by 0.08 on average, and by more or less on each item (standard deviation 0.08); a
strict prompt that takes a quarter off 60 % of the scores; answers of the agent that get worse by 0.15. The alarm is that of the detector.
`attribute` is asked at the end of each day of the window, and `judge_change` at its end. If any answer is wrong, the run is, whatever the others are.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from audit.anchors import IncidentChange, Verdict, attribute, judge_change
from audit.comparison import beta_quantile
from audit.drift.change_detector import find_change
from audit.drift.series import Floats, select_until
from benchmarks.drift.bars import FIRST, build_cells

START = datetime(FIRST.year, FIRST.month, FIRST.day, 9, tzinfo=UTC)
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


class Stream(NamedTuple):
    """A stream of items that one judge scores, with what changes in it."""

    name: str
    cause: str
    runs: int
    least: int
    """The least number of runs in which the cause is named in time, and never the other one."""
    version: float = 0.0
    """By how much a new version of the judge is lower, as a mean over items and as their standard deviation."""
    strict: float = 0.0
    """The share of the verdicts from which a strict prompt takes a step."""
    agent: float = 0.0
    """By how much the agent's answers get worse."""
    guard: int = 300
    """Items after the alarm within which the cause is to be named."""
    anchors: int = 20


_VERSION = Stream("the judge's version changes, within 300 items", "judge", 60, 60, version=0.08)
STREAMS = (
    _VERSION,
    _VERSION._replace(name="the same with 60 anchors", anchors=60),
    _VERSION._replace(name="the same with 20 anchors, within 3 000 items", guard=3000),
    Stream("the judge's prompt gets strict, within 300 items", "judge", 120, 118, strict=0.6),
    Stream("the agent gets worse, within 300 items", "agent", 120, 118, agent=0.15),
)
ITEMS, STEPS, STREAM_CHANGE = 50, 4, 30
"""Items a day, steps of the scale, and the day of the change."""


def measure_streams(seed: int, share: float = 1.0) -> list[Row]:
    """Return two rows for each stream: how often its cause is named in time, and how often the other one."""
    rows = []
    for stream in STREAMS:
        runs = max(5, round(share * stream.runs))
        named = [_name_causes(stream, np.random.default_rng([seed, stream.runs, run])) for run in range(runs)]
        right, wrong = (
            sum(causes == {stream.cause} for causes in named),
            sum(bool(causes - {stream.cause}) for causes in named),
        )
        rows += [
            Row(
                f"{stream.name}: {stream.cause}",
                right / runs,
                *exact_interval(right, runs),
                f"at least {stream.least} of {stream.runs}",
                right >= stream.least / stream.runs * runs,
            ),
            Row(f"{stream.name}: another cause", wrong / runs, *exact_interval(wrong, runs), "none", wrong == 0),
        ]
    return rows


def _name_causes(stream: Stream, rng: np.random.Generator) -> set[str]:
    """Return the causes that are named from the alarm to the end of the guard window."""
    end = STREAM_CHANGE + 60
    day = np.repeat(np.arange(end), ITEMS)
    at = day + np.sort(rng.random(len(day)).reshape(end, ITEMS)).ravel()
    is_changed = at >= STREAM_CHANGE
    scores = _judge(stream, rng.normal(0.65, 0.2, len(at)) - stream.agent * is_changed, is_changed, rng)
    cells = build_cells(at, np.ones_like(at), scores)
    quality = rng.uniform(0.3, 1, stream.anchors)
    own = rng.normal(size=len(quality))
    verdicts = [
        Verdict(f"a{anchor}", START + timedelta(days=number), float(score))
        for number in range(end)
        for anchor, score in enumerate(_judge(stream, quality, np.full(stream.anchors, number >= STREAM_CHANGE), rng, own))
    ]
    named: set[str] = set()
    seen: list[Verdict] = []
    last = end
    for number in range(STREAM_CHANGE, end):
        as_of = START + timedelta(days=number, hours=15)
        change = find_change(select_until(cells, as_of.date()), as_of.date(), bounds=(0.0, 1.0))
        if change is None:
            continue
        last = min(last, number + stream.guard // ITEMS)
        if number > last:
            break
        width = change.size_interval.high - change.size_interval.low
        moved = IncidentChange(
            direction=change.direction,
            size=abs(change.size),
            error=width / (2 * 1.96),
            earliest=change.earliest_day,
            latest=change.latest_day,
            until=as_of,
        )
        seen = [verdict for verdict in verdicts if verdict.at <= as_of]
        cause = attribute(seen, moved).cause
        named |= set() if cause is None else {cause}
    return named | ({"judge"} if judge_change(seen).changed else set())


def _judge(
    stream: Stream, quality: Floats, is_changed: np.ndarray, rng: np.random.Generator, own: Floats | None = None
) -> Floats:
    """Return the scores of items; `own` is how far the new version is off on each of them, in standard deviations."""
    own = rng.normal(size=len(quality)) if own is None else own
    scores = quality + rng.normal(0, 0.1, len(quality)) - is_changed * stream.version * (1 + own)
    strict = is_changed * (rng.random(len(quality)) < stream.strict)
    return np.clip(np.round(scores * STEPS) - strict, 0, STEPS) / STEPS


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
