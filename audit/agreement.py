"""Agreement of people and judge: Cohen's kappa with quadratic weights, its 95 % confidence interval, the judge's bias.

1. People score 1 to 5. The judge's mean of Tier 3 is rounded to the nearest point, halves up, so that both use the same scale; the bias
   is of the mean as it is, the judge's less the person's.
2. With quadratic weights kappa is 1 - D / E, where D is the mean squared difference of the pairs and E what it would be if the same
   scores were paired at random (Fleiss and Cohen 1973). It needs sums only.
3. The people's exchanges are no random sample: anomalies are looked at first. So each stands for the exchanges of its stratum: its weight
   is how many of these there are for each that was looked at. Strata without labels are left out; the share covered says so.
4. Exchanges of one session are not independent. The interval is that of log(D / E), which is nearly normal and keeps kappa below 1, by
   its linear part summed over sessions, with Student's t. Where no pair differs, the rule of three bounds the share that does.
5. Too few labels, or one score only on both sides, are states and no numbers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from audit.comparison import CONFIDENCE, t_quantile

MIN_EXCHANGES = 30
"""Fewer say too little to be shown as a number."""
MIN_SESSIONS = 15
"""So do fewer sessions: the interval rests on how they differ."""
ENOUGH, NOT_ENOUGH, ONE_CATEGORY = "enough", "not_enough_labels", "one_category"
LOWEST, HIGHEST = 1, 5
"""The scale of people, which is that of Tier 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One person's verdict on one exchange, beside the judge's."""

    exchange: str
    session: Hashable
    rater: str
    human: int
    """1 to 5."""
    judge: float
    """The judge's mean of Tier 3, 1 to 5."""
    stratum: str
    """The group of exchanges that it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The agreement of two sides; the numbers are None unless the state is `enough`."""

    state: str
    """enough, not_enough_labels, or one_category: both sides gave one and the same score throughout, which kappa cannot tell from chance."""
    labels: int
    exchanges: int
    sessions: int
    kappa: float | None = None
    low: float | None = None
    high: float | None = None
    bias: float | None = None
    """Mean of the first side less the second; None between people, who have no sides."""
    bias_low: float | None = None
    bias_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The judge against all people and against each, and people among themselves."""

    overall: Estimate
    raters: Mapping[str, Estimate]
    between_raters: Estimate
    covered: float | None
    """Share of the population whose strata have labels; None for an empty population."""


@dataclass(frozen=True, slots=True)
class _Pair:
    session: Hashable
    weight: float
    first: int
    second: int
    difference: float


def agreement(labels: Sequence[Label], population: Mapping[str, int]) -> Agreement:
    """The agreement by labels, of each rater and exchange the newest; `population` counts the judged exchanges of each stratum."""
    by_rater: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        by_rater[label.rater].append(label)
    seen = {label.stratum for label in labels}
    everything = sum(population.values())
    return Agreement(
        overall=_with_judge(labels, population),
        raters={name: _with_judge(by_rater[name], population) for name in sorted(by_rater)},
        between_raters=_between(labels, population),
        covered=sum(count for name, count in population.items() if name in seen) / everything if everything else None,
    )


def rounded(judge: float) -> int:
    """The judge's mean on the scale of people: the nearest point, halves up."""
    return min(max(math.floor(judge + 0.5), LOWEST), HIGHEST)


def _with_judge(labels: Sequence[Label], population: Mapping[str, int]) -> Estimate:
    """The judge against the people who gave the labels; each exchange counts once, however many people scored it."""
    weights, counts = _weights(labels, population), Counter(one.exchange for one in labels)
    pairs = [
        _Pair(one.session, weights[one.stratum] / counts[one.exchange], rounded(one.judge), one.human, one.judge - one.human)
        for one in labels
    ]
    return _estimate(pairs, labels=len(labels), exchanges=len(counts))


def _between(labels: Sequence[Label], population: Mapping[str, int]) -> Estimate:
    """People among themselves, over exchanges that two or more have scored: each pair of them, both ways round."""
    by_exchange: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        by_exchange[label.exchange].append(label)
    shared = [group for group in by_exchange.values() if len(group) > 1]
    weights = _weights([label for group in shared for label in group], population)
    pairs = [
        _Pair(a.session, weights[a.stratum] / (len(group) * (len(group) - 1)), a.human, b.human, 0.0)
        for group in shared
        for a, b in itertools.permutations(group, 2)
    ]
    estimate = _estimate(pairs, labels=sum(map(len, shared)), exchanges=len(shared))
    return replace(estimate, bias=None, bias_low=None, bias_high=None)


def _weights(labels: Iterable[Label], population: Mapping[str, int]) -> dict[str, float]:
    """Return how many exchanges a labelled one stands for, by stratum; one that the population lacks stands for itself."""
    exchanges = Counter({one.exchange: one.stratum for one in labels}.values())
    return {name: max(population.get(name, 0), count) / count for name, count in exchanges.items()}


def _estimate(pairs: Sequence[_Pair], *, labels: int, exchanges: int) -> Estimate:
    sessions = len({one.session for one in pairs})
    counts = {"labels": labels, "exchanges": exchanges, "sessions": sessions}
    if exchanges < MIN_EXCHANGES or sessions < MIN_SESSIONS:
        return Estimate(state=NOT_ENOUGH, **counts)
    bias, bias_low, bias_high = _mean_interval(pairs)
    expected, observed, influences = _disagreement(pairs)
    if not expected:
        return Estimate(state=ONE_CATEGORY, **counts, bias=bias, bias_low=bias_low, bias_high=bias_high)
    low, high = _kappa_interval(expected, observed, influences)
    return Estimate(
        state=ENOUGH,
        **counts,
        kappa=1 - observed / expected,
        low=low,
        high=high,
        bias=bias,
        bias_low=bias_low,
        bias_high=bias_high,
    )


def _mean_interval(pairs: Sequence[_Pair]) -> tuple[float, float, float]:
    """The weighted mean of the differences with its interval, sessions as clusters."""
    total = math.fsum(one.weight for one in pairs)
    mean = math.fsum(one.weight * one.difference for one in pairs) / total
    sums = _by_session((one.session, one.weight * (one.difference - mean) / total) for one in pairs)
    half = _half_width(sums)
    return mean, mean - half, mean + half


def _disagreement(pairs: Sequence[_Pair]) -> tuple[float, float, list[float]]:
    """E, D, and how far each session moves log(D / E)."""
    total = math.fsum(one.weight for one in pairs)

    def mean(values: Iterator[float]) -> float:
        return math.fsum(one.weight * value for one, value in zip(pairs, values, strict=True)) / total

    first, second = mean(float(one.first) for one in pairs), mean(float(one.second) for one in pairs)
    apart = first - second
    expecteds = [
        (one.first - first) ** 2 + (one.second - second) ** 2 + 2 * apart * (one.first - first - one.second + second)
        for one in pairs
    ]
    spread = mean(iter(expecteds))
    expected = 0.0 if len({value for one in pairs for value in (one.first, one.second)}) == 1 else spread + apart**2
    observed = mean(float((one.first - one.second) ** 2) for one in pairs)
    if not observed or not expected:
        return expected, observed, [0.0] * len({one.session for one in pairs})
    moves = (
        one.weight / total * (((one.first - one.second) ** 2 - observed) / observed - (by_chance - spread) / expected)
        for one, by_chance in zip(pairs, expecteds, strict=True)
    )
    return expected, observed, _by_session(zip((one.session for one in pairs), moves, strict=True))


def _kappa_interval(expected: float, observed: float, influences: Sequence[float]) -> tuple[float, float]:
    if not observed:
        # No session of so many has a disagreement: more than this share of them would not have stayed hidden.
        hidden = 1 - ((1 - CONFIDENCE) / 2) ** (1 / len(influences))
        return max(1 - hidden / expected, -1.0), 1.0
    ratio, half = observed / expected, _half_width(influences)
    return max(1 - ratio * math.exp(half), -1.0), 1 - ratio * math.exp(-half)


def _half_width(sums: Sequence[float]) -> float:
    """Half the width of the interval of a mean whose deviations are these, session by session."""
    number = len(sums)
    # The linear part says too little where sessions are few: a factor larger than a mean needs makes up for it, by simulation.
    error = number / (number - 1) * math.sqrt(math.fsum(one**2 for one in sums))
    return t_quantile((1 + CONFIDENCE) / 2, number - 1) * error


def _by_session(moves: Iterable[tuple[Hashable, float]]) -> list[float]:
    sums: dict[Hashable, float] = defaultdict(float)
    for session, move in moves:
        sums[session] += move
    return list(sums.values())
